"""Layers found by architecture search: each block states its own attention and MLP.

Source: NVIDIA's DeciLM configuration (``model_type`` nemotron-nas), ``block_configs``.
"""

from __future__ import annotations

from kvplan.hf.keys import HEAD_DIM, HEADS, HIDDEN, LAYERS, Keys
from kvplan.hf.traits import Traits
from kvplan.layer import LayerSpec
from kvplan.limits import MAX_LAYERS, MAX_WIDTH

INNER_MULTIPLE = 256
"""MLP widths are rounded up to a multiple of this."""


def read_layers(keys: Keys, traits: Traits) -> list[LayerSpec]:
    """Layers as ``block_configs`` states them; top-level K and V heads mean nothing beside it."""
    hidden, heads = keys.whole(HIDDEN, MAX_WIDTH), keys.whole(HEADS, MAX_WIDTH)
    dim = keys.maybe(HEAD_DIM, MAX_WIDTH)
    if dim is None:
        if hidden % heads:
            keys.refuse("head_dim", f"given, as hidden size / heads = {hidden / heads:g}")
        dim = hidden // heads
    if heads * dim > MAX_WIDTH:
        keys.refuse("head_dim", f"at most {MAX_WIDTH} elements over {heads} heads")
    layers = keys.whole(LAYERS, MAX_LAYERS)
    found = []
    for index, block in enumerate(keys.items("block_configs", layers)):
        where = f"{keys.name}: block_configs[{index}]"
        if not isinstance(block, dict):
            keys.refuse("block_configs", "a list of JSON objects")
        found.append(_layer(Keys(block, where, keys.weights), traits, hidden, heads, dim))
    return found


def _layer(block: Keys, traits: Traits, hidden: int, heads: int, dim: int) -> LayerSpec:
    attention, ffn = block.part("attention"), block.part("ffn")
    if attention is None:
        block.refuse("attention", "a JSON object")
    kv, query, mixer = 0, 0, 0
    if attention.config.get("replace_with_linear"):
        mixer = hidden * hidden + hidden
    elif not attention.flag("no_op", False):
        group = attention.whole("n_heads_in_group", heads)
        if heads % group:
            attention.refuse("n_heads_in_group", f"a divisor of the {heads} heads")
        query, kv = heads, heads // group
        mixer = hidden * dim * (2 * query + 2 * kv) + hidden
    inner, mlp = _mlp(ffn, hidden)
    return LayerSpec(
        hidden=hidden, query_heads=query, kv_heads=kv, head_dim_k=dim if kv else 0,
        head_dim_v=dim if kv else 0, intermediate=inner, gated_mlp=traits.gated, rope=kv > 0,
        attention_params=mixer, mlp_params=mlp,
    )  # fmt: skip


def _mlp(ffn: Keys | None, hidden: int) -> tuple[int, int]:
    """Width and weights of an MLP; a linear layer in its place has weights and no width."""
    if ffn is None or ffn.config.get("no_op") is True:
        return 0, 0
    if ffn.config.get("replace_with_linear"):
        return 0, hidden * hidden + hidden
    if ffn.given("intermediate_size"):
        inner = ffn.whole("intermediate_size", MAX_WIDTH)
    else:
        factor = ffn.config.get("ffn_mult")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 64:
            if not ffn.weights and factor is None:
                return 1, 0
            ffn.refuse("ffn_mult", "a number above 0 and below 64")
        inner = -(-int(2 * factor * hidden / 3) // INNER_MULTIPLE) * INNER_MULTIPLE
    return inner, 3 * hidden * inner + hidden
