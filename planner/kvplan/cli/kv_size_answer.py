"""The answer of ``kvplan kv-size``: its document and its warnings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan.cli.reserved import reserved
from kvplan.formats import INDEXES
from kvplan.kv_size import KvSize, at, heads_per_rank, widths


def answer(
    size: KvSize, split: list[int] | None, pool_bytes: int | None, chunk: int
) -> dict[str, Any]:
    """The JSON document: sizes are bytes, of one rank."""
    names = {
        kind: "/".join(dict.fromkeys(size.formats.of(layer)[i].name for layer in size.model.layers))
        for i, kind in enumerate("kv")
    }
    found: dict[str, Any] = {
        "model": size.model.name, "source": size.model.source, "context": size.context,
        "batch": size.batch, "sequences": size.sequences, "tp": size.ranks,
        "k_dtype": names["k"], "v_dtype": names["v"], "layout": size.layout,
        "bytes_per_token": size.bytes_per_token, "total_bytes": size.total_bytes,
        "growing_bytes": size.growing_bytes, "window_bytes": size.window_bytes,
        "fixed_bytes": size.fixed_bytes, "layers": len(size.model.layers),
        "kv_layers": size.kv_layers, "act_over_kv": size.act_over_kv,
        "max_positions": size.model.max_positions, "source_tokens": size.source,
        "aggregate_bytes": size.total_bytes * size.ranks,
        "aggregate_bytes_per_token": size.bytes_per_token * size.ranks,
        "replication": size.replication, "kinds": _kinds(size),
    }  # fmt: skip
    if size.uniform_total_bytes != size.total_bytes or pool_bytes is not None:
        found["uniform"] = {
            "bytes_per_token": size.uniform_bytes_per_token,
            "total_bytes": size.uniform_total_bytes,
        }
    formats = {size.formats.of(layer)[0].name for layer in size.model.layers}
    if any(layer.latent is not None for layer in size.model.layers) and not formats & set(INDEXES):
        layouts = {name: at(size, layout=name) for name in ("latent", "expanded")}
        found["layouts"] = {
            name: {"bytes_per_token": s.bytes_per_token, "total_bytes": s.total_bytes}
            for name, s in layouts.items()
        }
    if split is not None:
        found["devices"] = [
            {"layers": count, "bytes": held}
            for count, held in zip(split, size.split(split), strict=True)
        ]
    if pool_bytes is not None:
        found["pool_bytes"] = pool_bytes
        found["tokens_in_pool"] = size.tokens_in(pool_bytes)
        found["uniform"]["tokens_in_pool"] = size.uniform_tokens_in(pool_bytes)
        aside = size.reserved_bytes(chunk) if size.has_windows else None
        found["reserved"] = reserved(aside, pool_bytes, size.context)
    found["warnings"] = warnings(size)
    return found


def _kinds(size: KvSize) -> list[dict[str, Any]]:
    """Layers of equal cache together: their geometry and what one keeps of a sequence on a rank."""
    found: dict[object, dict[str, Any]] = {}
    for index, (layer, part) in enumerate(zip(size.model.layers, size.parts, strict=True)):
        what = describe(layer)
        key = (what, part, layer.kv_heads, layer.head_dim_k, layer.head_dim_v)
        if key not in found:
            elements = sum(widths(layer, size.ranks, size.layout)) if layer.kv_elements else 0
            found[key] = {
                "count": 0, "first": index, "what": what, "kv_heads": layer.kv_heads,
                "head_dim_k": layer.head_dim_k, "head_dim_v": layer.head_dim_v,
                "kv_heads_per_rank": heads_per_rank(layer.kv_heads, size.ranks),
                "elements_per_token": elements, "window": layer.window, "bytes": part.total_bytes,
            }  # fmt: skip
        found[key]["count"] += 1
    return list(found.values())


def describe(layer: Any) -> str:
    """What a layer caches, in words.

    >>> from kvplan.model_library import load_model
    >>> describe(load_model("llama-3.1-8b").layers[0])
    '8 KV heads of 128'
    """
    parts = []
    if layer.latent is not None:
        rope = f" + {layer.latent.rope}" if layer.latent.rope else ""
        parts.append(f"latent of {layer.latent.rank}{rope}")
    elif layer.kv_heads:
        same = layer.head_dim_k == layer.head_dim_v
        dims = f"{layer.head_dim_k}" if same else f"{layer.head_dim_k} (K), {layer.head_dim_v} (V)"
        parts.append(f"{layer.kv_heads} KV head{'s' * (layer.kv_heads > 1)} of {dims}")
    if layer.index:
        parts.append(f"index of {layer.index}")
    if layer.compression > 1:
        parts.append(f"one entry for {layer.compression} tokens, the last {layer.window} whole")
    elif layer.window is not None:
        parts.append(f"{'chunk' if layer.chunked else 'window'} of {layer.window} tokens")
    if layer.state is not None:
        parts.append(f"state of {layer.state.conv + layer.state.recurrent} elements")
    if layer.cross:
        parts.append(f"{layer.cross} elements per source token")
    if layer.shared:
        parts.append("shares an earlier layer's cache")
    return ", ".join(parts) or "caches nothing"


def warnings(size: KvSize) -> list[str]:
    """What is answered and yet likely not what was meant, or not all of it."""
    model, found = size.model, []
    rules: list[tuple[bool, Callable[[], str]]] = [
        (
            model.max_positions is not None and size.context > model.max_positions,
            lambda: (
                f"{size.context} tokens are more than the {model.max_positions} positions of "
                f"{model.name}"
            ),
        ),
        (
            model.cross_elements > 0 and size.source_tokens is None and model.source_tokens is None,
            lambda: (
                f"cross-attention is not counted: {2 * model.cross_elements} bytes (16-bit) "
                "per token of the source; give --source-tokens"
            ),
        ),
        (
            size.partial_blocks() is not None,
            lambda: f"heads are not whole blocks of {size.partial_blocks()}; engines may refuse it",
        ),
        (
            size.sequences != size.batch,
            lambda: (
                f"classifier-free guidance decodes two sequences for a sample: "
                f"{size.sequences} for --batch {size.batch}"
            ),
        ),
        (
            any(layer.query_heads % size.ranks for layer in model.layers if layer.query_heads),
            lambda: f"query heads do not divide by --tp {size.ranks}; engines may refuse it",
        ),
    ]
    for applies, text in rules:
        if applies:
            found.append(text())
    return found
