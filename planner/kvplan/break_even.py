"""Where loading a prefix and recomputing it take equally long, and which copies waste the link."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise

from kvplan.curve import Curve
from kvplan.dtypes import element_bytes
from kvplan.hardware import peak_rate
from kvplan.prefix import LAYOUTS
from kvplan.restoration import Restoration
from kvplan.restored import load, recompute

LONGEST = 1 << 17
"""Prefix that is tried at least, tokens."""

RATES = (1e-4, 1e4)
"""Least and most factor on a rate that is tried."""

GOOD_RATE = 0.9
"""Share of a link's best rate at which copies no longer waste it."""


def _advantage_s(restoration: Restoration) -> float:
    """Seconds by which loading is slower than recomputing; negative where it is faster."""
    return load(restoration).ttft_s - recompute(restoration).ttft_s


def longest(restoration: Restoration) -> int:
    """Longest prefix that is tried, tokens: what the model takes, or four times what is asked."""
    asked = 4 * restoration.prefix.tokens
    return max(restoration.model.max_positions or 0, asked, LONGEST)


def recompute_wins(restoration: Restoration) -> list[tuple[int, int]]:
    """Lengths of the prefix, from and to, at which recomputing is faster than loading.

    Short prefixes load in less time than it takes to read the weights; attention makes long ones
    slow to recompute; where the link is slow there is a range between.
    """
    most = longest(restoration)
    lengths = [1]
    while lengths[-1] < most:
        lengths.append(min(2 * lengths[-1], most))
    lengths = sorted({*lengths, restoration.prefix.tokens})
    late = [_late(restoration, tokens) for tokens in lengths]
    found: list[tuple[int, int]] = []
    begin = 1 if late[0] else None
    for (low, before), (high, now) in pairwise(zip(lengths, late, strict=True)):
        if before == now:
            continue
        edge = _edge(restoration, low, high, now)
        if now:
            begin = edge
        elif begin is not None:
            found.append((begin, edge - 1))
            begin = None
    if begin is not None:
        found.append((begin, most))
    return found


def _late(restoration: Restoration, tokens: int) -> bool:
    """Whether loading so long a prefix is slower than recomputing it."""
    prefix = dataclasses.replace(restoration.prefix, tokens=tokens)
    asked = dataclasses.replace(restoration, prefix=prefix)
    # A measured rate belongs to the length at which it was measured: keep its factor.
    asked.__dict__["pace"] = restoration.pace
    return _advantage_s(asked) > 0


def _edge(restoration: Restoration, low: int, high: int, after: bool) -> int:
    """Least length in (low, high] at which loading is late, or no longer is."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _late(restoration, middle) is after else (middle, high)
    return high


def rate(restoration: Restoration, resource: str) -> float | None:
    """Bytes per second of the link or the disk at which both take equally long.

    Args:
        restoration: the question.
        resource: ``h2d`` or ``disk``.

    Returns:
        The rate; None where no rate between a ten-thousandth and ten thousand times the present
        one makes loading as fast, since something else limits it, or one as slow.
    """
    low, high = RATES
    if _advantage_s(_faster(restoration, resource, high)) > 0:
        return None
    if _advantage_s(_faster(restoration, resource, low)) <= 0:
        return None
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        if _advantage_s(_faster(restoration, resource, middle)) > 0:
            low = middle
        else:
            high = middle
    return high * present_rate(restoration, resource)


def present_rate(restoration: Restoration, resource: str) -> float:
    """Bytes per second of large copies or reads, less what others take."""
    hardware = restoration.hardware
    if resource == "disk":
        assert hardware.disk is not None
        return peak_rate(hardware.disk.read)
    return peak_rate(restoration.one_copy)


def _faster(restoration: Restoration, resource: str, factor: float) -> Restoration:
    """The same with a link or disk so many times as fast; fixed costs of a copy stay."""
    changed = dataclasses.replace(restoration)
    if resource == "disk":
        disk = restoration.hardware.disk
        assert disk is not None
        disk = dataclasses.replace(disk, read=disk.read.scaled(1 / factor))
        hardware = dataclasses.replace(restoration.hardware, disk=disk)
        return dataclasses.replace(restoration, hardware=hardware)
    changed.__dict__["one_copy"] = restoration.one_copy.scaled(1 / factor)
    return changed


# -- copies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One way to cut the store into copies.

    Args:
        granularity: its name in `LAYOUTS`.
        copy_bytes: bytes of one copy, of the layer that caches most.
        copies: copies of one request.
        rate_bytes_per_s: rate of copies of this size.
        ttft_s: time to the first new token when everything is loaded so.
    """

    granularity: str
    copy_bytes: float
    copies: float
    rate_bytes_per_s: float
    ttft_s: float


def cuts(restoration: Restoration) -> list[Cut]:
    """Every way to cut the store, and what it does to loading."""
    found = []
    model, stored = restoration.model, restoration.prefix.stored_dtype
    size = element_bytes(stored or restoration.prefix.kv_dtype)
    widest = max(model.layers, key=lambda layer: layer.kv_bytes(size))
    total = sum(
        kept * layer.kv_bytes(size)
        for kept, layer in zip(restoration.cached, model.layers, strict=True)
    )
    if not total:
        return []
    for name in LAYOUTS:
        prefix = dataclasses.replace(restoration.prefix, granularity=name)
        asked = dataclasses.replace(restoration, prefix=prefix)
        per_token = widest.kv_bytes(size)
        whole = widest.cached_tokens(prefix.tokens) * per_token
        copy_bytes = asked.copy_bytes(widest, per_token) or whole
        found.append(
            Cut(
                granularity=name,
                copy_bytes=copy_bytes,
                copies=total / copy_bytes,
                rate_bytes_per_s=copy_bytes / asked.one_copy.seconds(copy_bytes),
                ttft_s=load(asked).ttft_s,
            )
        )
    return found


def smallest_copy(curve: Curve, share: float = GOOD_RATE) -> float:
    """Bytes from which a copy runs at a share of the curve's best rate.

    >>> from kvplan.curve import affine
    >>> round(smallest_copy(affine(9e-6, 1e-9), 0.9))  # 9 us of 90 us in all
    81000
    """
    wanted = share * peak_rate(curve)
    high = 1.0
    while high / curve.seconds(high) < wanted:
        high *= 2
    low = high / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if middle / curve.seconds(middle) >= wanted else (middle, high)
    return high


def smallest_chunk(restoration: Restoration) -> dict[str, int]:
    """Tokens from which copies no longer waste the link, as `LAYOUTS` cut them."""
    size = element_bytes(restoration.prefix.stored_dtype or restoration.prefix.kv_dtype)
    layers = [layer.kv_bytes(size) for layer in restoration.model.layers if layer.kv_bytes(size)]
    if not layers:
        return {}
    wanted = smallest_copy(restoration.one_copy)
    per_token = {"block": max(layers), "split-block": max(layers) / 2, "whole-block": sum(layers)}
    return {name: -int(-wanted // each) for name, each in per_token.items()}
