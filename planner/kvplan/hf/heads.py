"""Heads of an attention layer: how many, how wide, and how many of them K and V have."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.hf.defaults import class_default
from kvplan.hf.keys import CHANNELS, HEAD_DIM, HEADS, KV_HEADS, Keys
from kvplan.limits import MAX_WIDTH


class Heads(NamedTuple):
    """Query heads, K and V heads, and the widths of one K and one V head."""

    query: int
    kv: int
    dim_k: int
    dim_v: int


FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")
"""Types in which ``num_kv_heads`` counts only with ``new_decoder_architecture``."""

TRUSTED_KV_DEFAULT = ("mistral",)
"""Types whose published files leave out ``num_key_value_heads`` and mean the class default."""


def read_heads(keys: Keys, family: str | None, hidden: int, layers: int) -> list[Heads]:
    """Heads of every layer, as if all had the model's ordinary attention."""
    query = keys.per_layer(HEADS, layers, MAX_WIDTH)
    if query is None:
        keys.refuse("num_attention_heads", f"a whole number from 1 to {MAX_WIDTH}")
    found = []
    kv = _kv_heads(keys, family, query, layers)
    for heads, pairs in zip(query, kv, strict=True):
        if heads % pairs:
            key = keys.spelled(KV_HEADS) or "num_key_value_heads"
            keys.refuse(key, f"a divisor of num_attention_heads = {heads}")
        dim_k = _head_dim(keys, family, hidden, heads)
        dim_v = keys.maybe("v_head_dim", MAX_WIDTH) or dim_k
        for dim in (dim_k, dim_v):
            if heads * dim > MAX_WIDTH:
                key = keys.spelled(HEAD_DIM) or "head_dim"
                keys.refuse(key, f"at most {MAX_WIDTH} elements over {heads} heads")
        found.append(Heads(heads, pairs, dim_k, dim_v))
    return found


def _kv_heads(keys: Keys, family: str | None, query: list[int], layers: int) -> list[int]:
    """K and V heads of every layer.

    Flags come before counts: a falcon of the old architecture and a gpt_bigcode state theirs by
    ``multi_query`` whatever a count says. A count that is null means one pair per query head in
    every class; a missing one too, in classes older than grouped heads.
    """
    grouped = _flagged(keys, family, query)
    if grouped is not None:
        return grouped
    counts = keys.per_layer(KV_HEADS, layers, MAX_WIDTH)
    if counts is not None:
        return counts
    default = class_default(family, "num_key_value_heads")
    if isinstance(default, int) and not any(key in keys.config for key in KV_HEADS):
        if family in TRUSTED_KV_DEFAULT:
            return [default] * layers
        if any(default != heads for heads in query):
            keys.refuse("num_key_value_heads", f"given: a {family} without it has {default}")
    return query


def _flagged(keys: Keys, family: str | None, query: list[int]) -> list[int] | None:
    """K and V heads that flags decide; None where counts do."""
    if keys.given("new_decoder_architecture") or family in FALCON:
        if keys.flag("new_decoder_architecture", False):
            return None
        if "multi_query" not in keys.config:
            keys.refuse("multi_query", "true or false")
    if keys.given("multi_query") or family == "gpt_bigcode":
        if "multi_query" not in keys.config:
            keys.refuse("multi_query", "true or false")
        return [1] * len(query) if keys.flag("multi_query", False) else query
    if keys.given("multi_query_attention") or keys.given("multi_query_group_num"):
        if not keys.flag("multi_query_attention", False):
            return query
        return [keys.whole("multi_query_group_num", MAX_WIDTH)] * len(query)
    nested = keys.part("attn_config")
    if nested is not None:
        count = nested.maybe("kv_n_heads", MAX_WIDTH)
        if nested.word("attn_type") == "multiquery_attention":
            return [1] * len(query)
        if count is None and nested.word("attn_type") == "grouped_query_attention":
            nested.refuse("kv_n_heads", f"a whole number from 1 to {MAX_WIDTH}")
        return query if count is None else [count] * len(query)
    return None


def _head_dim(keys: Keys, family: str | None, hidden: int, heads: int) -> int:
    """Width of a head: explicit, or hidden size over heads, which must be whole."""
    key = keys.spelled(HEAD_DIM) or keys.spelled(CHANNELS)
    if key is not None:
        return keys.whole(key, MAX_WIDTH)
    if hidden % heads:
        keys.refuse("head_dim", f"given, as hidden size / heads = {hidden / heads:g}")
    default = class_default(family, "head_dim")
    if isinstance(default, int) and "head_dim" not in keys.config and default != hidden // heads:
        accepted = f"given: hidden size / heads is {hidden // heads}, a {family} has {default}"
        keys.refuse("head_dim", accepted)
    return hidden // heads
