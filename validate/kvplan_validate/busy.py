"""Measured busy time of resources: from when each operation of a step began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvplan_validate.action import Action

Span = tuple[float, float]
"""Begin and end, seconds."""


def union_s(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of some spans lies.

    >>> union_s([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def busy_s(spans: Sequence[tuple[Action, float, float]]) -> dict[str, float]:
    """Seconds each resource works in one step, as `timeline.timed_step` saw it.

    Operations without a resource (a query, a partial result) occupy nothing. Where the GPU itself
    asks for attention on the host and waits for the answer, events cannot tell the two apart:
    both are left out.
    """
    asks = any(a.operation.operation == "attend_host" and a.lane == "gpu" for a, _, _ in spans)
    unknown = ("gpu", "host") if asks else ()
    by_resource: dict[str, list[Span]] = {}
    for action, begin, end in spans:
        resource = action.operation.resource
        if resource is not None and resource not in unknown and action.runs:
            by_resource.setdefault(resource, []).append((begin, end))
    return {name: union_s(found) for name, found in sorted(by_resource.items())}
