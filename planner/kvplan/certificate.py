"""A sharper lower bound: branch and bound over the size of the largest stage.

The fluid program charges the fixed part of an operation in proportion to its volume over the most
it could be. That is little where only a small share of the tokens is staged. No stage is larger
than the largest one, whose size the staging buffers have; so that size is cut into intervals. In
each one the fixed parts weigh as much as its upper end says, and the buffers take the HBM that its
lower end says, until every interval's bound is above the target.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from kvplan import fluid
from kvplan.candidates import Candidate, unit_graph
from kvplan.scenario import Scenario
from kvplan.staging import Staging, staging_bytes
from kvplan.step import StepGraph
from kvplan.waiting import Waiting, applies

GOOD_GAP = 1e-2
"""A gap above this share is worth smaller blocks, sharper bounds and the block program."""

MOST_SOLVES = 60
"""Fluid programs solved for one schedule at most; stopping early only loosens the bound."""

NARROW = 1.05
"""Ratio of an interval's ends below which it is not cut."""


def raise_bounds(scenario: Scenario, candidates: Sequence[Candidate], step_s: float) -> None:
    """Sharpen the least bounds until they reach the plan found, or one of them no longer rises:
    then the others need not be above that one.
    """
    target_s = step_s / (1 + GOOD_GAP)
    while True:
        candidate = min(candidates, key=lambda c: c.bound_s)
        if candidate.bound_s >= target_s or candidate.sharp:
            return
        candidate.bound_s = max(candidate.bound_s, sharper(scenario, candidate, target_s))
        candidate.sharp = candidate.bound_s < target_s
        target_s = min(target_s, candidate.bound_s)


def sharper(scenario: Scenario, candidate: Candidate, target_s: float) -> float:
    """A bound of one candidate: with waits where weights are streamed, and by branching."""
    unit, block = candidate.unit, scenario.workload.block
    given = (scenario.classes, scenario.capacity, scenario.quality)
    waited_s = 0.0
    if applies(unit):
        unit = unit_graph(scenario, candidate.schedule)
        found = fluid.bound(unit, *given, waiting=Waiting(block))
        waited_s = float("inf") if found is None else found.step_s
    if waited_s >= target_s:
        return waited_s
    return max(waited_s, sharpened(unit, *given, block, target_s))


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
        classes: class number of every layer.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        block: tokens per block.
        target_s: where to stop.
    """
    per_token = staging_bytes(unit)
    if not per_token:
        found = fluid.bound(unit, classes, capacity, quality)
        return float("inf") if found is None else found.step_s
    narrow = block * min(per_token.values())
    heap: list[tuple[float, float, float]] = []
    solves = 0

    def branch(least: float, most: float) -> None:
        staging = Staging(least, most, per_token)
        found = fluid.bound(unit, classes, capacity, quality, staging=staging)
        if found is not None:
            heapq.heappush(heap, (found.step_s, least, most))

    branch(0.0, max(narrow, largest_bytes(unit, capacity)))
    while heap:
        bound_s, least, most = heap[0]
        solves += 2
        if bound_s >= target_s or most <= max(least * NARROW, narrow) or solves > MOST_SOLVES:
            return bound_s
        heapq.heappop(heap)
        # Halves of the ratio where both ends are above a block: fixed parts go with its inverse.
        middle = (max(least, narrow) * most) ** 0.5
        branch(least, middle)
        branch(middle, most)
    return float("inf")


def largest_bytes(unit: StepGraph, capacity: Mapping[str, float]) -> float:
    """Bytes that a staging buffer can have at most."""
    sizes = [capacity["hbm"] / b.count for b in unit.buffers if b.holds == "stages"]
    tenants = [
        sum(size * unit.variables[v].ceiling for v, size in tenant.items())
        for b in unit.buffers
        if b.holds == "stages"
        for tenant in b.tenants
    ]
    return min(max(sizes), max(tenants))
