"""Latent attention: its dimensions, its index, and the weights around them."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.hf.keys import HEADS, HIDDEN, Keys
from kvplan.layer import Latent
from kvplan.limits import MAX_WIDTH


class LatentHeads(NamedTuple):
    """One latent, the heads it expands to, and the rank of the query's own compression.

    ``query_rank`` is None where the query is projected in one step.
    """

    latent: Latent
    heads: int
    nope: int
    dim_v: int
    query_rank: int | None


def read_latent(keys: Keys) -> LatentHeads | None:
    """The latent of a configuration that has one: ``kv_lora_rank`` decides, whatever else is given.

    ``head_dim`` and ``num_key_value_heads`` mean nothing beside it.
    """
    if not keys.given("kv_lora_rank"):
        return None
    rope = keys.whole("qk_rope_head_dim", MAX_WIDTH, low=0)
    heads = keys.whole(HEADS, MAX_WIDTH)
    nope = keys.whole("qk_nope_head_dim", MAX_WIDTH, low=0)
    dim_v = keys.whole("v_head_dim", MAX_WIDTH, _value_width(keys, heads))
    if nope + rope == 0:
        keys.refuse("qk_nope_head_dim", "a whole number above 0 where there is no rotated part")
    for key, dim in (("qk_nope_head_dim", nope + rope), ("v_head_dim", dim_v)):
        if heads * dim > MAX_WIDTH:
            keys.refuse(key, f"at most {MAX_WIDTH} elements over {heads} heads")
    rank = keys.whole("kv_lora_rank", MAX_WIDTH)
    query_rank = keys.maybe("q_lora_rank", MAX_WIDTH)
    return LatentHeads(Latent(rank=rank, rope=rope), heads, nope, dim_v, query_rank)


def _value_width(keys: Keys, heads: int) -> int | None:
    """Width of a V head where no key gives it; None where one must.

    Source: transformers 5.24, MiniCPM3Config, whose published files leave it out.
    """
    if keys.config.get("model_type") != "minicpm3":
        return None
    return keys.whole(HIDDEN, MAX_WIDTH) // heads


def latent_params(found: LatentHeads, hidden: int, biased: bool = False) -> int:
    """Weights of latent attention: query, down- and up-projections with their norms, output.

    DeepSeek-V2-Lite, whose query is projected in one step:

    >>> latent_params(LatentHeads(Latent(rank=512, rope=64), 16, 128, 128, None), 2048)
    13763072
    """
    width = found.nope + found.latent.rope
    if found.query_rank is None:
        query = hidden * found.heads * width
    else:
        query = hidden * found.query_rank + found.query_rank
        query += found.query_rank * found.heads * width
    down = hidden * found.latent.width + found.latent.rank
    up = found.latent.rank * found.heads * (found.nope + found.dim_v)
    output = found.heads * found.dim_v * hidden
    bias = (found.query_rank or 0) + found.latent.width + hidden if biased else 0
    return query + down + up + output + bias


def index_width(keys: Keys) -> int:
    """Elements that the index of sparse attention keeps per token."""
    nested = keys.part("sparse_attention_config")
    if nested is not None and nested.given("sparse_index_dim"):
        return nested.whole("sparse_index_dim", MAX_WIDTH)
    return keys.whole("index_head_dim", MAX_WIDTH)


def index_params(keys: Keys, hidden: int, width: int, query_width: int) -> int:
    """Weights of the index: its queries, its one key with a norm, and the weight of each head."""
    nested = keys.part("sparse_attention_config")
    if nested is not None and nested.given("sparse_num_index_heads"):
        heads = nested.whole("sparse_num_index_heads", MAX_WIDTH)
    else:
        heads = keys.weight("index_n_heads", MAX_WIDTH)
    if query_width == hidden:  # GQA: norms of query and key, no weights of heads
        return hidden * heads * width + hidden * width + 2 * width
    return query_width * heads * width + hidden * width + 2 * width + hidden * heads
