"""The smallest changes that make a context and batch fit; each is tried before it is named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.fit import Fit, decode_gain
from kvplan.prefill_peak import Chunking
from kvplan.units import GIB

HIGHEST_UTILISATION = 0.97
"""Above this an engine leaves no room for graphs and fragments."""

CACHE_FORMATS = ("fp8", "int8", "int4")
WEIGHT_FORMATS = ("fp8", "int4")
CHUNKS = (8192, 4096, 2048)
RANKS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the question that makes it fit.

    Args:
        option: of the command.
        value: to give it.
        words: for people.
    """

    option: str
    value: float | int | str
    words: str


def changes(fit: Fit, context: int, batch: int, host: bool = True) -> list[Change]:
    """Every single change that is enough, in the order in which they cost least.

    Args:
        fit: the question, which does not fit.
        context: tokens per sequence.
        batch: sequences.
        host: whether KV may lie in host memory.
    """
    tried = (
        _utilisation(fit, context, batch), *_chunk(fit, context, batch),
        *_cache(fit, context, batch), _context(fit, batch, context), _longer(fit, batch, context),
        _batch(fit, context),
        *_weights(fit, context, batch), *_ranks(fit, context, batch),
        _offload(fit, context, batch) if host else None,
    )  # fmt: skip
    return [change for change in tried if change is not None]


def _utilisation(fit: Fit, context: int, batch: int) -> Change | None:
    need = fit.budget_bytes - fit.pool_bytes(context, batch)
    need += batch * fit.sequence_bytes(context) + fit.reserve_bytes
    share = math.ceil(need / fit.memory_bytes * 100 - 1e-9) / 100
    if not fit.utilisation < share <= HIGHEST_UTILISATION:
        return None
    return Change("--utilisation", share, f"--utilisation {share:g}")


def _chunk(fit: Fit, context: int, batch: int) -> Iterator[Change | None]:
    if fit.peak_bytes is not None:
        return
    for tokens in CHUNKS:
        if tokens >= fit.chunking.prefill_tokens(context):
            continue
        chunking = Chunking(tokens=tokens)
        if dataclasses.replace(fit, chunking=chunking).fits(context, batch):
            yield Change("--chunk", tokens, f"--chunk {tokens} (prefill in pieces)")
            return


def _cache(fit: Fit, context: int, batch: int) -> Iterator[Change | None]:
    for dtype in CACHE_FORMATS:
        other = dataclasses.replace(fit, kv_dtype=dtype)
        if other.block_bytes < fit.block_bytes and other.fits(context, batch):
            gain = decode_gain(fit, context, batch, dtype)
            words = f"--kv-dtype {dtype} (a decode step 0 to {gain:.0%} faster)"
            yield Change("--kv-dtype", dtype, words)
            return


def _context(fit: Fit, batch: int, context: int) -> Change | None:
    most = fit.most_context(batch, context)
    return Change("--context", most, f"--context {most}") if most else None


def _longer(fit: Fit, batch: int, context: int) -> Change | None:
    """A longer limit, from which on prompts are cut and the peak falls."""
    above = [first for first, _ in fit.contexts(batch) if first > context]
    if not above:
        return None
    return Change("--context", above[0], f"--context {above[0]} (prompts are cut from there on)")


def _batch(fit: Fit, context: int) -> Change | None:
    most = fit.most_batch(context)
    return Change("--batch", most, f"--batch {most}") if most else None


def _weights(fit: Fit, context: int, batch: int) -> Iterator[Change | None]:
    if fit.weights_bytes is not None:
        return
    for dtype in WEIGHT_FORMATS:
        other = dataclasses.replace(fit, weights_dtype=dtype)
        if other.rank_weights_bytes < fit.rank_weights_bytes and other.fits(context, batch):
            yield Change("--weights-dtype", dtype, f"--weights-dtype {dtype}")
            return


def _ranks(fit: Fit, context: int, batch: int) -> Iterator[Change | None]:
    for tp in RANKS:
        if tp <= fit.tp:
            continue
        weights = fit.weights_bytes and fit.weights_bytes * fit.tp / tp
        try:
            other = dataclasses.replace(fit, tp=tp, weights_bytes=weights)
            enough = other.fits(context, batch)
        except InputError:  # heads that do not divide
            continue
        if enough:
            yield Change("--tp", tp, f"--tp {tp}")
            return


def _offload(fit: Fit, context: int, batch: int) -> Change | None:
    pool = fit.pool_bytes(context, batch)
    if pool <= 0:
        return None
    size = math.ceil((batch * fit.sequence_bytes(context) - pool) / GIB * 10) / 10
    words = f"{size:g} GiB of KV in host memory per GPU (`kvplan solve` plans it)"
    return Change("offload", size, words)
