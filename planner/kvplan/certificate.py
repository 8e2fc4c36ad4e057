"""A sharper lower bound for models whose layers are all alike.

The fluid program charges the fixed part of an operation in proportion to its volume over the most
it could be. That is little where only a small share of the tokens is staged. So the share is cut
into intervals, each with its own most, until every interval's bound is above the target: branch
and bound over the tokens that a layer stages.

The bound holds for plans in which equal layers stage equally many tokens, within a block.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from kvplan import fluid
from kvplan.step import StepGraph

MOST_SOLVES = 60
"""Fluid programs solved for one schedule at most; stopping early only loosens the bound."""


def sharpened(
    unit: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    block: int,
    target_s: float,
) -> float:
    """Lower bound on the step of one schedule, seconds; at most about ``target_s`` is tried.

    Args:
        unit: step graph of one unit with every allowed path.
        classes: class number of every layer; all equal.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        block: tokens per block.
        target_s: where to stop.
    """
    whole = float(max(unit.tokens.values()))
    heap: list[tuple[float, float, float]] = []
    solves = 0

    def branch(least: float, most: float) -> None:
        found = fluid.bound(unit, classes, capacity, quality, fluid.Staging(least, most, block))
        if found is not None:
            heapq.heappush(heap, (found.step_s, least, most))

    branch(0.0, whole)
    while heap:
        bound_s, least, most = heap[0]
        solves += 2
        if bound_s >= target_s or most - least <= block or solves > MOST_SOLVES:
            return bound_s
        heapq.heappop(heap)
        # Halves of the ratio where both ends are above a block: fixed parts go with its inverse.
        middle = (max(least, block) * most) ** 0.5
        middle = max(round(middle / block) * block, least + block)
        branch(least, min(float(middle), most))
        branch(min(float(middle), most), most)
    return float("inf")
