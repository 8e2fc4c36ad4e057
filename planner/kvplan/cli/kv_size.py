"""``kvplan kv-size``: how large a model's cache is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from kvplan.cli.completion import complete_model
from kvplan.cli.declarations import panel_option
from kvplan.cli.options import as_option
from kvplan.cli.output import Json, print_json, say
from kvplan.cli.values import whole_number
from kvplan.errors import InputError
from kvplan.limits import MAX_LAYERS, MAX_WIDTH
from kvplan.units import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from kvplan.formats import Format
    from kvplan.kv_size import Formats, KvSize
    from kvplan.model import ModelSpec

EPILOG = """
Examples:

\b
  kvplan kv-size --model llama-3.1-8b --context 128k --batch 8
  kvplan kv-size --model deepseek-v3 --context 32k --kv-dtype q8_0
  kvplan kv-size --model gpt-oss-120b --context 128k --pool 5.38GiB
  kvplan kv-size --model qwen3-235b --context 32k --tp 8 --json
  kvplan kv-size --model ./config.json --context 8k --k-dtype q8_0 --v-dtype iq4_nl
  kvplan kv-size --layers 64 --kv-heads 8 --head-dim 128 --context 32k --layers-per-device 41,23
"""

_WHAT, _HOW, _WHERE = "Model, or its geometry", "Cache", "Devices"


# fmt: off
def kv_size(
    model: Annotated[str | None, panel_option(
        _WHAT, "--model", "-m", metavar="NAME|PATH|JSON", autocompletion=complete_model,
        help="Name, a config.json, or its text; `kvplan models` lists names.")] = None,
    layers: Annotated[str | None, panel_option(
        _WHAT, "--layers", metavar="N", help="Layers that cache, without a model.")] = None,
    kv_heads: Annotated[str | None, panel_option(
        _WHAT, "--kv-heads", metavar="N", help="K and V heads of each.")] = None,
    head_dim: Annotated[str | None, panel_option(
        _WHAT, "--head-dim", metavar="N", help="Elements of a K head.")] = None,
    head_dim_v: Annotated[str | None, panel_option(
        _WHAT, "--head-dim-v", metavar="N", help="Elements of a V head. [default: as K]")] = None,
    latent: Annotated[str | None, panel_option(
        _WHAT, "--latent", metavar="RANK+ROPE",
        help="Elements of a latent in place of heads, such as 512+64.")] = None,
    window: Annotated[str | None, panel_option(
        _WHAT, "--window", metavar="TOKENS", help="Sliding window of the layers given.")] = None,
    window_layers: Annotated[str | None, panel_option(
        _WHAT, "--window-layers", metavar="N",
        help="How many of them have the window. [default: all]")] = None,
    hidden: Annotated[str | None, panel_option(
        _WHAT, "--hidden", metavar="N", help="Hidden width, for activations over KV.")] = None,
    context: Annotated[str, panel_option(
        _HOW, "--context", "-c", metavar="TOKENS",
        help="Tokens in the cache per sequence: 4096, 32k, 128k.")] = "4096",
    batch: Annotated[str, panel_option(
        _HOW, "--batch", "-b", metavar="N", help="Samples decoded together.")] = "1",
    kv_dtype: Annotated[str | None, panel_option(
        _HOW, "--kv-dtype", metavar="FORMAT", help="fp16, bf16, fp32, fp8, int8, int4, q8_0, q4_0, "
        "iq4_nl and so on; k=q8_0,v=iq4_nl for each. [default: fp16, or what the model fixes]",
        )] = None,
    k_dtype: Annotated[str | None, panel_option(
        _HOW, "--k-dtype", metavar="FORMAT", help="Format of K and of latents.")] = None,
    v_dtype: Annotated[str | None, panel_option(
        _HOW, "--v-dtype", metavar="FORMAT", help="Format of V.")] = None,
    source_tokens: Annotated[str | None, panel_option(
        _HOW, "--source-tokens", metavar="TOKENS", help="Tokens of the source (text, sound, image) "
        "that cross-attention reads. [default: what the model fixes]")] = None,
    layout: Annotated[str, panel_option(
        _HOW, "--layout", metavar="latent|expanded",
        help="How an engine stores latents: whole, or as K and V of every head.")] = "latent",
    chunk: Annotated[str, panel_option(
        _WHERE, "--chunk", metavar="TOKENS", help="With --pool: most tokens of a prefill, which "
        "engines set aside in every window.")] = "8192",
    pool: Annotated[str | None, panel_option(
        _WHERE, "--pool", metavar="SIZE",
        help="How many tokens fit in so much memory of a rank.")] = None,
    tp: Annotated[str, panel_option(
        _WHERE, "--tp", metavar="N", help="Tensor-parallel ranks; sizes are those of one.")] = "1",
    pp: Annotated[str | None, panel_option(
        _WHERE, "--pp", metavar="N", help="Devices that share the layers evenly.")] = None,
    layers_per_device: Annotated[str | None, panel_option(
        _WHERE, "--layers-per-device", metavar="N,N,…",
        help="Layers that each device holds.")] = None,
    as_json: Json = False,
) -> None:
    """Show how large a model's cache is: per token, in windows, fixed; per rank and device."""
    # fmt: on
    from kvplan.kv_size import MOST_RANKS, KvSize

    if layout not in ("latent", "expanded"):
        raise InputError("--layout", layout, "latent or expanded")
    geometry = {
        "--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim,
        "--head-dim-v": head_dim_v, "--latent": latent, "--window": window,
        "--window-layers": window_layers, "--hidden": hidden,
    }  # fmt: skip
    with as_option():
        size = KvSize(
            model=_model(model, geometry), context=parse_tokens(context, "--context"),
            batch=whole_number(batch, "--batch", 2**24),
            formats=_formats(kv_dtype, k_dtype, v_dtype),
            ranks=whole_number(tp, "--tp", MOST_RANKS), layout=layout,  # type: ignore[arg-type]
            source_tokens=None if source_tokens is None
            else parse_tokens(source_tokens, "--source-tokens"),
        )  # fmt: skip
    split = _split(len(size.model.layers), pp, layers_per_device)
    pool_bytes = None if pool is None else parse_bytes(pool, "--pool")
    found = answer(size, split, pool_bytes, parse_tokens(chunk, "--chunk"))
    if hidden is None and model is None:
        found["act_over_kv"] = None
    if as_json:
        print_json(found)
        return
    for warning in found["warnings"]:
        say("warning", warning)
    from kvplan.cli.kv_size_text import show
    from kvplan.cli.output import console

    show(console(), found)


def _model(name: str | None, geometry: dict[str, str | None]) -> ModelSpec:
    given = [option for option, text in geometry.items() if text is not None]
    if name is not None:
        if given:
            raise InputError(given[0], geometry[given[0]], "left out: --model says it")
        from kvplan.model_library import load_cache

        return load_cache(name)
    if not given:
        raise InputError("--model", None, "a name, a config.json, or --layers and --kv-heads")
    return _explicit(geometry)


def _explicit(geometry: dict[str, str | None]) -> ModelSpec:
    """A model of the layers that options describe."""
    from kvplan.layer import LayerSpec
    from kvplan.layer_parts import Latent
    from kvplan.model import ModelSpec

    def number(option: str, high: int, default: int | None = None) -> int:
        text = geometry[option]
        if text is None:
            if default is None:
                raise InputError(option, None, f"a whole number from 1 to {high}")
            return default
        return whole_number(text, option, high)

    layers, text = number("--layers", MAX_LAYERS), geometry["--latent"]
    hidden = number("--hidden", MAX_WIDTH, 1)
    one = None
    if text is not None:
        match = re.fullmatch(r" *(\d{1,7}) *(?:\+ *(\d{1,7}) *)?", text, re.ASCII)
        if match is None:
            raise InputError("--latent", text, "elements of the latent and of RoPE, such as 512+64")
        one = Latent(rank=int(match[1]), rope=int(match[2] or 0))
    heads = number("--kv-heads", MAX_WIDTH, 1 if one else None)
    dim_k = number("--head-dim", MAX_WIDTH, one.width if one else None)
    window = geometry["--window"]
    tokens = None if window is None else parse_tokens(window, "--window")
    plain = LayerSpec(
        hidden=hidden, query_heads=heads, kv_heads=heads, head_dim_k=dim_k,
        head_dim_v=number("--head-dim-v", MAX_WIDTH, dim_k), latent=one, intermediate=0,
        gated_mlp=False, rope=False, attention_params=0, mlp_params=0,
    )  # fmt: skip
    count = number("--window-layers", layers, layers if tokens is not None else 0)
    if tokens is None and geometry["--window-layers"] is not None:
        raise InputError("--window", None, "tokens of the window that --window-layers have")
    import msgspec

    windowed = plain if tokens is None else msgspec.structs.replace(plain, window=tokens)
    return ModelSpec(
        name=f"{layers} layers", family="explicit", hidden=hidden, vocab=1, embedding_width=1,
        weight_dtype="fp16", layers=(windowed,) * count + (plain,) * (layers - count),
        embedding_params=1, head_params=1, tied=False, source="command line",
    )  # fmt: skip


def _formats(both: str | None, key: str | None, value: str | None) -> Formats:
    """Formats of K and V, from one option or from one each."""
    from kvplan.formats import find_format
    from kvplan.kv_size import Formats

    def read(text: str | None, option: str) -> Format | None:
        if text is None or text.strip().lower() == "auto":
            return None
        return find_format(text, option)

    if both is not None and "/" in both:  # K and V, as benchmarks write them
        both = "k={},v={}".format(*both.split("/", 1))
    if both is not None and "=" in both:
        named: dict[str, str] = {}
        for pair in both.split(","):
            name, _, text = (part.strip() for part in pair.partition("="))
            if name not in ("k", "v") or name in named or not text:
                raise InputError("--kv-dtype", both, "a format, or k=FORMAT,v=FORMAT")
            named[name] = text
        k, v = (read(named.get(name), "--kv-dtype") for name in ("k", "v"))
    else:
        k = v = read(both, "--kv-dtype")
    return Formats(k=read(key, "--k-dtype") or k, v=read(value, "--v-dtype") or v)


def _split(layers: int, pp: str | None, counts: str | None) -> list[int] | None:
    """Layers on each device; None where they are not divided."""
    if pp is not None and counts is not None:
        raise InputError("--pp", pp, "left out: --layers-per-device says it")
    if pp is not None:
        devices = whole_number(pp, "--pp", layers)
        each, more = divmod(layers, devices)
        return [each + (index < more) for index in range(devices)]
    if counts is None:
        return None
    if re.fullmatch(r" *\d{1,6} *(, *\d{1,6} *)*", counts, re.ASCII) is None:
        accepted = "whole numbers between commas, such as 41,23"
        raise InputError("--layers-per-device", counts, accepted)
    found = [int(part) for part in counts.split(",")]
    if sum(found) != layers or 0 in found:
        accepted = f"counts from 1 on that add up to {layers} layers"
        raise InputError("--layers-per-device", counts, accepted)
    return found


def answer(
    size: KvSize, split: list[int] | None, pool_bytes: int | None, chunk: int
) -> dict[str, Any]:
    """The JSON document: sizes are bytes, of one rank."""
    from kvplan.cli.reserved import reserved
    from kvplan.formats import INDEXES
    from kvplan.kv_size import at

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
    from kvplan.kv_size import heads_per_rank, widths

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
            lambda: f"{size.context} tokens are more than the {model.max_positions} positions of "
            f"{model.name}",
        ),
        (
            model.cross_elements > 0 and size.source_tokens is None and model.source_tokens is None,
            lambda: f"cross-attention is not counted: {2 * model.cross_elements} bytes (16-bit) "
            "per token of the source; give --source-tokens",
        ),
        (
            size.partial_blocks() is not None,
            lambda: f"heads are not whole blocks of {size.partial_blocks()}; engines may refuse it",
        ),
        (
            size.sequences != size.batch,
            lambda: f"classifier-free guidance decodes two sequences for a sample: "
            f"{size.sequences} for --batch {size.batch}",
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
