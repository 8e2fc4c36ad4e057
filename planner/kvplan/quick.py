"""A search that ends with the first plan that is good enough.

Where more than the usual distance from the optimum is accepted, most questions are answered by one
schedule and one bound below all of them.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan import fluid
from kvplan.best import Best
from kvplan.block_size import block_sizes, with_block
from kvplan.candidates import (
    bounded,
    filled_groups,
    flow_graph,
    regrouped,
    schedules,
    streaming,
    try_on_unit,
    usual_schedules,
)
from kvplan.curve import Curve, Piece
from kvplan.fitting import roundings
from kvplan.scenario import Scenario
from kvplan.step import StepGraph


def good_enough(scenario: Scenario) -> tuple[Best, float] | None:
    """A plan of the usual schedule, in larger blocks or smaller ones, and seconds that no plan is
    below; None where none is proven to be as near the optimum as the scenario asks.
    """
    bound_s = floor_s(scenario)
    if bound_s is None:
        return None
    most_s = bound_s * (1 + scenario.options.good_gap)
    for schedule in usual_schedules(scenario):
        candidate = bounded(scenario, schedule, flow_graph(scenario, schedule))
        if candidate is None or candidate.bound_s > most_s:
            continue
        try_on_unit(scenario, candidate)
        if candidate.trial_s > most_s:
            continue
        for block in block_sizes(scenario):
            for plan in roundings(with_block(scenario, block), candidate):
                if plan.step_s <= most_s:
                    return Best(plan, candidate, block), min(bound_s, plan.step_s)
    return None


def floor_s(scenario: Scenario) -> float | None:
    """Seconds that no plan of any schedule is below; None where nothing fits."""
    found: list[float] = []
    for stream in streaming(scenario):
        for axis in scenario.options.axes:
            graph = floor_graph(scenario, axis, stream)
            given = (scenario.classes, scenario.capacity, scenario.quality)
            least = fluid.bound(graph, *given) if graph is not None else None
            if least is not None:
                found.append(least.step_s)
    return min(found, default=None)


def floor_graph(scenario: Scenario, axis: str, stream: bool) -> StepGraph | None:
    """A graph whose fluid program bounds every schedule on an axis, None where it has none: the
    operations of the fewest stages, whose fixed times are the least, with the buffers of the
    schedule that has the smallest.
    """
    depth = min(scenario.options.queue_depths)
    own = [s for s in schedules(scenario, stream, depth) if s.axis == axis]
    if not own:
        return None
    graph = flow_graph(scenario, own[0])
    if axis == "layer":
        filled = {s: filled_groups(replace(graph, schedule=s), scenario.classes) for s in own}
        return regrouped(graph, scenario.classes, max(own, key=lambda s: filled[s]))
    share = own[0].stages / own[-1].stages
    curves: dict[Curve, Curve] = {}
    for operation in graph.operations:
        if operation.stage is not None:
            known = curves.get(operation.curve)
            if known is None:
                known = curves[operation.curve] = least_of(operation.curve, 1 / share)
            operation.curve = known
    graph.buffers = [b if b.holds == "weights" else b.scaled(share) for b in graph.buffers]
    return graph


def least_of(curve: Curve, times: float) -> Curve:
    """What so many times the operations, each on that much less, take at least, for each of the
    fewer ones: pieces that begin below zero take something off for every operation.

    >>> least_of(Curve((Piece(1.0, 1.0), Piece(-1.0, 2.0))), 2.0).pieces
    (Piece(fixed_s=1.0, s_per_unit=1.0), Piece(fixed_s=-2.0, s_per_unit=2.0))
    """
    pieces = [
        Piece(piece.fixed_s * (times if piece.fixed_s < 0 else 1.0), piece.s_per_unit)
        for piece in curve.pieces
    ]
    return Curve(tuple(pieces))
