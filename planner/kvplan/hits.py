"""How often a prefix is still in HBM or in host memory, and what that does to the mean TTFT.

Requests draw one of some prefixes at random, each as often as any other; tiers keep what was used
last. A hit saves time only through what is then not computed: shares become seconds here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.errors import InputError

MOST_PREFIXES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests that share prefixes.

    Args:
        prefixes: different prefixes in use.
        prefix_tokens: tokens of each.
        own_tokens: tokens of a request that nobody else uses: its suffix and what it generates.
    """

    prefixes: int
    prefix_tokens: int
    own_tokens: int

    def __post_init__(self) -> None:
        """Check every field."""
        for field, value in (("prefixes", self.prefixes), ("prefix", self.prefix_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(field, value, "a whole number, 1 or more")
        if self.prefixes > MOST_PREFIXES:
            raise InputError("prefixes", self.prefixes, f"at most {MOST_PREFIXES}")


def hit_rate(traffic: Traffic, capacity_tokens: float) -> float:
    """Share of requests whose prefix a tier still holds whole.

    The tier holds what the last T requests used: prefixes once each, own tokens every time, so
    ``N (1 - exp(-T/N)) prefix + T own = capacity``, and a request hits with ``1 - exp(-T/N)``.

    Source: Che's approximation of LRU (Che, Tung, Wang, IEEE JSAC 20(7), 2002), equal popularity.

    >>> ten = Traffic(prefixes=10, prefix_tokens=100, own_tokens=0)
    >>> hit_rate(ten, 99), hit_rate(ten, 500), hit_rate(ten, 1000)
    (0.0, 0.5, 1.0)
    """
    if capacity_tokens < traffic.prefix_tokens:
        return 0.0
    count, own = traffic.prefixes, traffic.own_tokens
    if own == 0:
        held = capacity_tokens // traffic.prefix_tokens
        return float(min(held / count, 1.0))
    low, high = 0.0, capacity_tokens / own
    for _ in range(100):
        middle = (low + high) / 2
        used = -count * math.expm1(-middle / count) * traffic.prefix_tokens + middle * own
        low, high = (middle, high) if used <= capacity_tokens else (low, middle)
    return -math.expm1(-low / count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a request can expect.

    Args:
        hbm: share of requests whose prefix is in HBM.
        store: share whose prefix is not in HBM and is in the store.
        miss: share whose prefix is nowhere.
        mean_ttft_s: mean time to the first new token.
        without_store_s: the same if there were no store.
        prefill_tokens: tokens that a request computes, on average.
    """

    hbm: float
    store: float
    miss: float
    mean_ttft_s: float
    without_store_s: float
    prefill_tokens: float


def expect(
    traffic: Traffic, *, hbm_tokens: float, store_tokens: float, suffix: int, front: int,
    resident_s: float, restored_s: float, recomputed_s: float,
) -> Expected:  # fmt: skip
    """Hits of two tiers and the mean TTFT that follows.

    The store also keeps what HBM holds, as engines that write through do, so it adds hits only
    beyond those of HBM.

    Args:
        traffic: the requests.
        hbm_tokens: tokens of K and V that HBM can keep.
        store_tokens: tokens that the store can keep.
        suffix: new tokens of a request.
        front: tokens of a prefix from the store that are recomputed all the same.
        resident_s: TTFT with the prefix in HBM.
        restored_s: TTFT with the prefix in the store.
        recomputed_s: TTFT with the prefix nowhere.
    """
    hbm = hit_rate(traffic, hbm_tokens)
    store = max(hit_rate(traffic, store_tokens) - hbm, 0.0)
    miss = 1.0 - hbm - store
    return Expected(
        hbm=hbm,
        store=store,
        miss=miss,
        mean_ttft_s=hbm * resident_s + store * restored_s + miss * recomputed_s,
        without_store_s=hbm * resident_s + (1 - hbm) * recomputed_s,
        prefill_tokens=suffix + store * front + miss * traffic.prefix_tokens,
    )
