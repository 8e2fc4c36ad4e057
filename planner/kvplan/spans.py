"""Spans of time: joined, shared, and how long they are."""

from __future__ import annotations

from collections.abc import Iterable

Spans = list[tuple[float, float]]


def union(spans: Iterable[tuple[float, float]]) -> Spans:
    """Overlapping and touching spans joined, in order.

    >>> union([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0)])
    [(0.0, 2.0), (3.0, 4.0)]
    """
    joined: Spans = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def both(one: Spans, other: Spans) -> float:
    """Length of what two unions share.

    >>> both([(0.0, 2.0), (3.0, 4.0)], [(1.0, 3.5)])
    1.5
    """
    shared, at = 0.0, 0
    for begin, end in one:
        while at < len(other) and other[at][1] <= begin:
            at += 1
        k = at
        while k < len(other) and other[k][0] < end:
            shared += min(end, other[k][1]) - max(begin, other[k][0])
            k += 1
    return shared


def length(spans: Spans) -> float:
    """Length of a union.

    >>> length([(0.0, 2.0), (3.0, 4.0)])
    3.0
    """
    return sum(end - begin for begin, end in spans)
