"""A decoder from its keys: what every layer caches, and what it weighs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kvplan.hf.blocks import read_layers
from kvplan.hf.defaults import plain_type
from kvplan.hf.formats import weight_dtype
from kvplan.hf.heads import Heads, read_heads
from kvplan.hf.keys import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, POSITIONS, VOCAB, Keys
from kvplan.hf.kinds import WINDOWS, Kind, read_kinds, with_one_window
from kvplan.hf.latent import LatentHeads, index_params, index_width, latent_params, read_latent
from kvplan.hf.mlp import NONE, Mlp, dense_beside, read_mlps
from kvplan.hf.states import read_state
from kvplan.hf.traits import LLAMA, TRAITS, Traits, norm_width, switch
from kvplan.layer import Latent, LayerSpec, State
from kvplan.limits import MAX_LAYERS, MAX_TOKENS, MAX_VOCAB, MAX_WIDTH
from kvplan.model import ModelSpec

PLAIN_ACTIVATIONS = ("relu", "relu2", "xielu", "gelu_new", "gelu_fast")
"""Activations of MLPs without a gate, where the class is not known."""


@dataclass(frozen=True, slots=True)
class _Reader:
    """What all layers of a decoder have in common."""

    keys: Keys
    family: str | None
    traits: Traits
    hidden: int
    window: int | None


def read_decoder(keys: Keys, family: str | None, source: str) -> ModelSpec:
    """Read a decoder-only model.

    Args:
        keys: its keys.
        family: its ``model_type``; None where it has none.
        source: where the configuration comes from.

    Raises:
        InputError: a key that is missing, malformed, or not known.
    """
    keys = with_one_window(keys)
    if keys.given("block_configs"):
        return model_around(keys, family, source, read_layers(keys, traits_of(family)))
    hidden = keys.whole(HIDDEN, MAX_WIDTH)
    layers = count_layers(keys)
    traits = traits_by(keys, family)
    kinds = read_kinds(keys, family, layers)
    reader = _Reader(keys, family, traits, hidden, window_tokens(keys, family, kinds))
    mlps = [NONE] * layers
    if keys.weights and any(kind.mlp for kind in kinds):  # MLPs decide weights, never the cache
        mlps = read_mlps(keys, traits, hidden, layers)
    latent = read_latent(keys)
    attends = [i for i in range(layers) if kinds[i].attention != "none"]
    heads = read_heads(keys, family, hidden, layers) if attends and latent is None else None
    cross = _cross_layers(keys, layers)
    shared = _sharing_layers(keys, layers)
    halves = not all(kind.mlp for kind in kinds)
    known: dict[object, LayerSpec] = {}
    found = []
    for index, kind in enumerate(kinds):
        mlp = mlps[index] if kind.mlp else NONE
        own = heads[index] if heads else None
        key = (kind, mlp, own, index in cross, index in shared)
        if key not in known:
            known[key] = _layer(
                reader, kind, mlp, own, latent, index in cross, index in shared, halves
            )
        found.append(_overridden(reader, known[key], kind, mlp, index, halves))
    if family == "longcat_flash":
        found = [half for layer in found for half in _two_attentions(reader, layer)]
    return model_around(keys, family, source, found, other_params=_per_layer_inputs(keys, layers))


def _two_attentions(reader: _Reader, layer: LayerSpec) -> tuple[LayerSpec, LayerSpec]:
    """A layer of two attentions, each with a dense MLP, as two: the experts stand beside the first.

    Source: LongCat-Flash, arXiv 2509.01322; transformers 5.24, LongcatFlashDecoderLayer.
    """
    if not reader.keys.weights:
        return layer, layer
    dense = dense_beside(reader.keys, reader.traits, reader.hidden)
    norm = norm_width(reader.keys, reader.traits, reader.hidden)
    first = msgspec.structs.replace(
        layer,
        mlp_params=layer.mlp_params + dense.params,
        intermediate=layer.intermediate + dense.intermediate,
    )
    second = msgspec.structs.replace(
        layer, experts=None, mlp_params=dense.params + norm, intermediate=dense.intermediate
    )
    return first, second


def _sharing_layers(keys: Keys, layers: int) -> frozenset[int]:
    """Layers that attend an earlier one's cache: the last few, those with another source, or all
    but the first of each group (cross-layer attention).

    Source: of the groups, Hunyuan-Large, arXiv 2411.02265, section 2.1.
    """
    if keys.given("kv_source_layers"):
        sources = keys.wholes("kv_source_layers", layers - 1, count=layers)
        return frozenset(index for index, source in enumerate(sources) if source != index)
    if keys.given("mb_per_layer"):
        every = keys.whole("mb_per_layer", MAX_LAYERS)
        return frozenset(index for index in range(layers // 2 + 2, layers) if index % every)
    if keys.given("use_cla") and keys.flag("use_cla", False):
        every = keys.whole("cla_share_factor", layers)
        return frozenset(index for index in range(layers) if index % every)
    last = keys.maybe("num_kv_shared_layers", layers, low=0) or 0
    return frozenset(range(layers - last, layers))


def _per_layer_inputs(keys: Keys, layers: int) -> int:
    """Weights of the embeddings that Gemma 3n and 4 give to every layer, and what projects them.

    Source: transformers 5.24, Gemma3nTextModel.
    """
    width = keys.maybe("hidden_size_per_layer_input", MAX_WIDTH, low=0) or 0
    if not width:
        return 0
    hidden, vocab = (
        keys.whole(HIDDEN, MAX_WIDTH),
        keys.weight("vocab_size_per_layer_input", MAX_VOCAB),
    )
    return layers * width * (vocab + 3 * hidden)


def traits_of(family: str | None) -> Traits:
    """Traits of a model type; those of a Llama where it is not known."""
    return TRAITS.get(plain_type(family) or "", LLAMA)


def traits_by(keys: Keys, family: str | None) -> Traits:
    """Traits of a model type; of an unknown one, what its activation says of its MLP."""
    known = TRAITS.get(plain_type(family) or "")
    if known is None and keys.config.get("hidden_act") in PLAIN_ACTIVATIONS:
        return replace(LLAMA, gated=False)
    return known or LLAMA


def count_layers(keys: Keys) -> int:
    """Layers; a pattern with a letter for each also says how many there are."""
    if keys.config.get("model_type") == "longcat_flash" and keys.given("num_layers"):
        return keys.whole("num_layers", MAX_LAYERS)
    if keys.spelled(LAYERS) is None:
        for key in ("hybrid_override_pattern", "layers_block_type"):
            value = keys.config.get(key)
            if isinstance(value, (str, list)) and 0 < len(value) <= MAX_LAYERS:
                return len(value)
    return keys.whole(LAYERS, MAX_LAYERS)


def window_tokens(keys: Keys, family: str | None, kinds: list[Kind]) -> int | None:
    """Tokens of the window or chunk that some layers have."""
    if any(kind.attention == "chunk" for kind in kinds):
        return keys.whole("attention_chunk_size", MAX_TOKENS)
    if any(kind.attention in ("window", "compressed") for kind in kinds):
        default = 4096 if family == "mistral" and "sliding_window" not in keys.config else None
        return keys.whole(WINDOWS, MAX_TOKENS, default)
    return None


def _layer(
    reader: _Reader,
    kind: Kind,
    mlp: Mlp,
    heads: Heads | None,
    latent: LatentHeads | None,
    cross: bool,
    shared: bool,
    halves: bool,
) -> LayerSpec:
    traits, hidden = reader.traits, reader.hidden
    norm = norm_width(reader.keys, traits, hidden)
    before = norm * (traits.norms - traits.norms // 2) if not halves else norm
    fields: dict[str, Any] = {
        "hidden": hidden, "query_heads": 0, "kv_heads": 0, "head_dim_k": 0, "head_dim_v": 0,
        "intermediate": mlp.intermediate, "gated_mlp": traits.gated, "experts": mlp.experts,
        "rope": False, "attention_params": before,
        "mlp_params": mlp.params + norm * (traits.norms // 2) if mlp is not NONE else 0,
    }  # fmt: skip
    if kind.attention != "none":
        attention = (
            _latent(reader, latent) if latent is not None else _attention(reader, kind, heads)
        )
        fields["attention_params"] += attention.pop("params")
        fields |= attention
        if kind.attention in ("window", "chunk", "compressed"):
            fields |= {"window": reader.window, "chunked": kind.attention == "chunk"}
        if kind.attention == "compressed":
            fields["compression"] = kind.ratio
        if kind.index:
            fields["index"] = index_width(reader.keys)
            query = latent.query_rank if latent is not None else hidden
            fields["attention_params"] += index_params(
                reader.keys, hidden, fields["index"], query or hidden
            )
    if kind.state:
        state, params = read_state(reader.keys, plain_type(reader.family), hidden)
        fields["state"] = state
        fields["attention_params"] += params
    if cross:
        width = fields["kv_heads"] * (fields["head_dim_k"] + fields["head_dim_v"])
        fields |= {"cross": width, "kv_heads": 0, "rope": False}
    shared = shared and kind.attention != "none"
    if shared:  # it has no key and value projections of its own
        pairs = fields["kv_heads"] * (fields["head_dim_k"] + fields["head_dim_v"])
        fields["attention_params"] -= hidden * pairs
    return LayerSpec(**fields, shared=shared)


def _latent(reader: _Reader, latent: LatentHeads) -> dict[str, Any]:
    biased = switch(reader.keys, reader.traits.qkv_bias)
    return {
        "latent": latent.latent, "query_heads": latent.heads, "kv_heads": latent.heads,
        "head_dim_k": latent.nope + latent.latent.rope, "head_dim_v": latent.dim_v,
        "rope": latent.latent.rope > 0,
        "params": latent_params(latent, reader.hidden, biased),
    }  # fmt: skip


def _attention(reader: _Reader, kind: Kind, heads: Heads | None) -> dict[str, Any]:
    assert heads is not None
    heads = heads_of_kind(reader.keys, kind, heads)
    fields: dict[str, Any] = {
        "query_heads": heads.query, "kv_heads": heads.kv, "head_dim_k": heads.dim_k,
        "head_dim_v": heads.dim_v, "rope": reader.traits.rope,
        "params": attention_params(
            reader.keys, reader.traits, reader.hidden, heads, kind.attention
        ),
    }  # fmt: skip
    if reader.keys.given("compress_ratios") or reader.keys.given("compress_rates"):
        return fields | _one_vector(reader, heads)
    return fields


def _one_vector(reader: _Reader, heads: Heads) -> dict[str, Any]:
    """DeepSeek-V4: one vector per entry is key and value of all query heads.

    Query and output go through low ranks; a compressor makes entries.
    """
    keys, hidden, width = reader.keys, reader.hidden, heads.query * heads.dim_k
    rank, out = keys.weight("q_lora_rank", MAX_WIDTH), keys.weight("o_lora_rank", MAX_WIDTH)
    groups = keys.weight("o_groups", MAX_WIDTH)
    params = hidden * rank + rank * width + hidden * heads.dim_k
    params += width * out + groups * out * hidden + 2 * hidden * heads.dim_k
    return {
        "latent": Latent(rank=heads.dim_k, rope=0), "kv_heads": 1, "head_dim_v": heads.dim_k,
        "params": params,
    }  # fmt: skip


def heads_of_kind(keys: Keys, kind: Kind, heads: Heads) -> Heads:
    """Heads of a layer whose kind has its own: ``swa_…`` for windows, ``global_…`` for full ones.

    Source: MiMo-V2-Flash and Gemma 4 configurations; transformers 5.24, Gemma4TextConfig.
    """
    if kind.attention == "window":
        query = keys.maybe("swa_num_attention_heads", MAX_WIDTH) or heads.query
        kv = keys.maybe("swa_num_key_value_heads", MAX_WIDTH)
        if kv is None:  # a class of transformers doubles them without saying so
            kv = heads.kv * (2 if keys.config.get("model_type") == "mimo_v2_flash" else 1)
        dim_k = keys.maybe("swa_head_dim", MAX_WIDTH) or heads.dim_k
        dim_v = keys.maybe("swa_v_head_dim", MAX_WIDTH)
        if dim_v is None:
            dim_v = dim_k if heads.dim_k == heads.dim_v else heads.dim_v
        return Heads(query, kv, dim_k, dim_v)
    if kind.attention == "full" and not keys.given("per_layer_config"):
        kv = heads.kv
        if keys.given("num_global_key_value_heads") and keys.flag("attention_k_eq_v", True):
            kv = keys.whole("num_global_key_value_heads", MAX_WIDTH)
        dim = keys.maybe("global_head_dim", MAX_WIDTH)
        return Heads(heads.query, kv, dim or heads.dim_k, dim or heads.dim_v)
    return heads


def _overridden(
    reader: _Reader, layer: LayerSpec, kind: Kind, mlp: Mlp, index: int, halves: bool
) -> LayerSpec:
    """A layer with what ``per_layer_config`` says of it, by its number.

    Source: transformers 5.24, ``per_layer_config`` of PreTrainedConfig.
    """
    nested = reader.keys.part("per_layer_config")
    if nested is None or kind.attention == "none":
        return layer
    own = next((k for k in nested.config if k.isdigit() and int(k) == index), None)
    part = nested.part(own) if own is not None else None
    if part is None or not (
        part.spelled(HEAD_DIM) or part.spelled(KV_HEADS) or part.spelled(HEADS)
    ):
        return layer
    merged = Keys({**reader.keys.config, **part.config}, part.name, reader.keys.weights)
    heads = read_heads(merged, reader.family, reader.hidden, 1)[0]
    changed = _Reader(merged, reader.family, reader.traits, reader.hidden, reader.window)
    latent = read_latent(merged)
    return _layer(changed, kind, mlp, heads, latent, False, layer.shared, halves)


def attention_params(
    keys: Keys, traits: Traits, hidden: int, heads: Heads, kind: str | None = None
) -> int:
    """Weights of query, key, value and output projections, their biases and norms.

    >>> attention_params(Keys({}, "m"), LLAMA, 4096, Heads(32, 8, 128, 128))
    41943040
    """
    query, key, value = heads.query * heads.dim_k, heads.kv * heads.dim_k, heads.kv * heads.dim_v
    output = heads.query * heads.dim_v
    if keys.config.get("attention_k_eq_v") is True and kind == "full":
        value = 0  # one projection gives both
    if switch(keys, traits.query_gate):
        query *= 2
    params = hidden * (query + key + value) + output * hidden
    params += (query + key + value) * switch(keys, traits.qkv_bias)
    params += hidden * switch(keys, traits.out_bias)
    asked = keys.config.get("use_qk_norm") is True
    if traits.qk_norm == "full" or (traits.qk_norm == "asked" and asked):
        params += query + key
    elif traits.qk_norm == "head" or asked:
        params += 2 * heads.dim_k
    return params


def _cross_layers(keys: Keys, layers: int) -> frozenset[int]:
    """Layers that attend the vision tokens instead of the text (Mllama)."""
    if not keys.given("cross_attention_layers"):
        return frozenset()
    return frozenset(keys.wholes("cross_attention_layers", layers - 1))


def model_around(
    keys: Keys,
    family: str | None,
    source: str,
    layers: list[LayerSpec],
    hidden: int | None = None,
    **more: Any,
) -> ModelSpec:
    """The model around some layers: embeddings, positions, head."""
    traits = traits_of(family)
    hidden = keys.whole(HIDDEN, MAX_WIDTH) if hidden is None else hidden
    vocab = keys.weight(VOCAB, MAX_VOCAB)
    width = keys.maybe("word_embed_proj_dim", MAX_WIDTH) or hidden
    norm = norm_width(keys, traits, hidden)
    last = norm * traits.final_norm * _ends_with_norm(keys)
    positions = max_positions(keys)
    table = 0
    if traits.positions is not None:
        if positions is None and keys.weights:
            keys.refuse("max_position_embeddings", f"a whole number from 1 to {MAX_TOKENS}")
        table = ((positions or 0) + traits.positions) * hidden
    projections = 2 * width * hidden if width != hidden else 0
    return ModelSpec(
        name=keys.name,
        family=family or "unknown",
        hidden=hidden,
        vocab=vocab,
        embedding_width=width,
        max_positions=positions,
        weight_dtype=weight_dtype(keys),
        layers=tuple(layers),
        embedding_params=vocab * width + table + projections + norm * traits.embed_norm,
        head_params=vocab * width + last + vocab * traits.head_bias,
        tied=keys.flag("tie_word_embeddings", traits.tied),
        source=source,
        **more,
    )


def _ends_with_norm(keys: Keys) -> bool:
    """Whether a norm stands before the head: all but an OPT whose layers end with theirs."""
    removed = keys.flag("_remove_final_layer_norm", False)
    return keys.flag("do_layer_norm_before", True) and not removed


def max_positions(keys: Keys) -> int | None:
    """Tokens the model was made for, by the first of the keys that gives them; None for none."""
    for key in POSITIONS:
        if keys.given(key):
            return keys.whole(key, MAX_TOKENS)
    return None


def state_layer(traits: Traits, hidden: int, state: State, mixer: int, mlp: Mlp) -> LayerSpec:
    """A layer of a model in which none attends."""
    norm = hidden * (2 if traits.norm_bias else 1)
    return LayerSpec(
        hidden=hidden, query_heads=0, kv_heads=0, head_dim_k=0, head_dim_v=0, state=state,
        intermediate=mlp.intermediate, gated_mlp=traits.gated, rope=False,
        attention_params=mixer + norm, mlp_params=mlp.params + (norm if mlp is not NONE else 0),
    )  # fmt: skip
