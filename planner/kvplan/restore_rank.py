"""One rank's part of a model under tensor parallelism."""

from __future__ import annotations

import msgspec

from kvplan.errors import InputError
from kvplan.model import LayerSpec, ModelSpec

MOST_RANKS = 1024


def rank_of(model: ModelSpec, ranks: int) -> ModelSpec:
    """What one of so many ranks holds and computes: heads, MLP and vocabulary divided.

    KV heads that are fewer than ranks are held by several; the hidden state is whole everywhere.

    Raises:
        InputError: heads that cannot be divided.

    >>> from kvplan.model_library import load_model
    >>> llama = load_model("llama-3.1-70b")
    >>> [rank_of(llama, n).layers[0].kv_heads for n in (1, 2, 8, 16)]
    [8, 4, 1, 1]
    """
    if ranks == 1:
        return model
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise InputError("tp", ranks, f"a whole number from 1 to {MOST_RANKS}")
    parts = {layer: _layer(layer, ranks) for layer in dict.fromkeys(model.layers)}
    return msgspec.structs.replace(
        model,
        layers=tuple(parts[layer] for layer in model.layers),
        vocab=-(-model.vocab // ranks),
        embedding_params=-(-model.embedding_params // ranks),
        head_params=-(-model.head_params // ranks),
    )


def _layer(layer: LayerSpec, ranks: int) -> LayerSpec:
    heads, state, experts = layer.kv_heads, layer.state, layer.experts
    if not divides(layer.query_heads, heads, ranks):
        fitting = [n for n in range(1, 65) if divides(layer.query_heads, heads, n)]
        accepted = f"ranks that divide {layer.query_heads} query and {heads} KV heads: "
        raise InputError("tp", ranks, accepted + ", ".join(map(str, fitting)))

    def part(count: int) -> int:
        return -(-count // ranks)

    return msgspec.structs.replace(
        layer,
        query_heads=layer.query_heads // ranks,
        kv_heads=max(heads // ranks, 1) if heads else 0,
        cross=part(layer.cross),
        state=state
        and msgspec.structs.replace(
            state, conv=part(state.conv), recurrent=part(state.recurrent), heads=part(state.heads)
        ),
        experts=experts and msgspec.structs.replace(experts, params=part(experts.params)),
        intermediate=part(layer.intermediate),
        attention_params=part(layer.attention_params),
        mlp_params=part(layer.mlp_params),
    )


def divides(query_heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether so many ranks can share the heads.

    >>> divides(40, 8, 5), divides(40, 8, 20), divides(32, 8, 16)
    (False, False, True)
    """
    if query_heads % ranks:
        return False
    return not kv_heads or kv_heads % ranks == 0 or ranks % kv_heads == 0
