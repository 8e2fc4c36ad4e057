"""One rank's part of a model under tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence

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
    heads = layer.kv_heads
    if layer.query_heads % ranks or (heads % ranks and ranks % heads):
        fitting = [n for n in range(1, 65) if divides(layer.query_heads, heads, n)]
        accepted = f"ranks that divide {layer.query_heads} query and {heads} KV heads: "
        raise InputError("tp", ranks, accepted + _listed(fitting))
    return msgspec.structs.replace(
        layer,
        query_heads=layer.query_heads // ranks,
        kv_heads=max(heads // ranks, 1),
        intermediate=-(-layer.intermediate // ranks),
        attention_params=-(-layer.attention_params // ranks),
        mlp_params=-(-layer.mlp_params // ranks),
    )


def divides(query_heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether so many ranks can share the heads.

    >>> divides(40, 8, 5), divides(40, 8, 20), divides(32, 8, 16)
    (False, False, True)
    """
    return query_heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(str(n) for n in numbers)
