"""How a prefix comes back fastest: load it, recompute it, rebuild it, or split it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError, InputError
from kvplan.restoration import Restoration
from kvplan.restore_graph import held_bytes
from kvplan.restore_search import best
from kvplan.restored import Restored, load, rebuild, recompute, store_bytes
from kvplan.units import format_bytes

WAYS = {
    "load": "load K and V",
    "recompute": "recompute from tokens",
    "rebuild": "rebuild from activations",
    "split": "split, front recomputed",
}
"""Ways that are compared, and what they are."""

WORTH_IT = 1.01
"""How much faster than the best plain way a split must be to be chosen."""


def refuse_unknown(ways: Sequence[str]) -> None:
    """Refuse a way that is not known, or none at all.

    Raises:
        InputError: naming those there are.
    """
    for way in ways or ("",):
        if way not in WAYS:
            raise InputError("ways", way, f"some of {', '.join(WAYS)}")


def refuse_overflow(restoration: Restoration) -> None:
    """Refuse a prefix that HBM cannot hold beside the weights, or the store cannot hold.

    Raises:
        InfeasibleError: naming the budget and the smallest change.
    """
    prefix = restoration.prefix
    what = f"{prefix.requests} x {prefix.tokens + prefix.suffix} tokens"
    budget, needed = restoration.hbm_bytes, held_bytes(restoration)
    if needed > budget:
        raise InfeasibleError(
            "hbm",
            f"weights, workspace and the K and V of {what} need {format_bytes(needed)}, "
            f"{format_bytes(needed - budget)} more than its budget of {format_bytes(budget)}",
            f"an HBM budget of {format_bytes(needed)} fits, or a shorter --prefix, fewer requests, "
            "--kv-dtype fp8 or more ranks (--tp)",
        )
    budget, needed = restoration.store_capacity_bytes, store_bytes(load(restoration))
    if needed > budget:
        raise InfeasibleError(
            prefix.source,
            f"the K and V of {prefix.requests} x {prefix.tokens} tokens need "
            f"{format_bytes(needed)}, {format_bytes(needed - budget)} more than its budget of "
            f"{format_bytes(budget)}",
            f"a budget of {format_bytes(needed)} fits, or a shorter --prefix, fewer requests or "
            "--stored-as int8",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Every way, and the one to take.

    Args:
        ways: name of each way that may be used, and fits, to how it does.
        chosen: the one to take: a split only where it saves more than a hundredth.
        bound_s: no way that may be used takes less, seconds.
        recomputed_s: what recomputing everything takes, whether it may be used or not.
    """

    ways: dict[str, Restored]
    chosen: str
    bound_s: float
    recomputed_s: float


def answer(restoration: Restoration, ways: Sequence[str] = tuple(WAYS)) -> Answer:
    """Judge every way and choose.

    Args:
        restoration: the question.
        ways: names from `WAYS`; a split uses no activations where ``rebuild`` is left out.

    Raises:
        InputError: a way that is not known, or none.
        InfeasibleError: HBM cannot hold the prefix, or the store cannot.
    """
    refuse_unknown(ways)
    refuse_overflow(restoration)
    whole = recompute(restoration)
    runs: dict[str, Callable[[], Restored]] = {
        "load": lambda: load(restoration),
        "recompute": lambda: whole,
        "rebuild": lambda: rebuild(restoration),
    }
    judged = {way: run() for way, run in runs.items() if way in ways}
    found = {way: restored for way, restored in judged.items() if restored.fits}
    chosen = min(found, key=lambda way: found[way].ttft_s) if found else "split"
    bound_s = min((r.ttft_s for r in found.values()), default=float("inf"))
    if "split" in ways:
        split = best(restoration, activations="rebuild" in ways)
        found["split"] = split.restored
        if not runs.keys() & found.keys() or split.restored.ttft_s * WORTH_IT < bound_s:
            chosen = "split"
        bound_s = min(split.bound_s, bound_s)
    if not found:
        raise _no_room(restoration, judged)
    return Answer(ways=found, chosen=chosen, bound_s=bound_s, recomputed_s=whole.ttft_s)


def _no_room(restoration: Restoration, judged: Mapping[str, Restored]) -> InfeasibleError:
    """None of the ways that may be used finds room for its staging buffers."""
    needed = min(restored.hbm_bytes for restored in judged.values())
    return InfeasibleError(
        "hbm",
        f"{' and '.join(judged)} with staging buffers need {format_bytes(needed)}, more than "
        f"the budget of {format_bytes(restoration.hbm_bytes)}",
        f"an HBM budget of {format_bytes(needed)} fits, or allow more --ways",
    )


def spare_tokens(restoration: Restoration) -> tuple[float, float]:
    """Tokens of K and V that HBM can keep beside weights and workspace, and that the store can."""
    prefix = restoration.prefix
    cache = restoration.model.kv_bytes(
        prefix.tokens + prefix.suffix, element_bytes(prefix.kv_dtype)
    )
    fixed = held_bytes(restoration) - cache * prefix.requests
    own = cache / (prefix.tokens + prefix.suffix)
    stored = store_bytes(load(restoration)) / prefix.requests / prefix.tokens
    if not own or not stored:
        return float("inf"), float("inf")
    spare = max(restoration.hbm_bytes - fixed, 0.0)
    return spare / own, restoration.store_capacity_bytes / stored
