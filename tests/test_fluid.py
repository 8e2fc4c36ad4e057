"""The fluid program: duals are slopes, buffers cost memory, shortfalls are what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    LARGE,
    examples,
    full_graph,
    ideal,
    layer,
    model,
    resident_bytes,
    scenarios,
    schedules,
    tight,
)

from kvplan import fluid, program
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.workload import Workload

shares = st.sampled_from((0.1, 0.3, 0.6, 0.9))
Optimum = Callable[[dict[str, float]], tuple[float, dict[str, float]] | None]


@st.composite
def questions(draw: st.DrawFn) -> tuple[Scenario, StepGraph, dict[str, float]]:
    scenario = draw(scenarios(2))
    schedule = draw(schedules(len(scenario.model.layers)))
    graph = full_graph(scenario, schedule)
    assume(len(graph.operations) < 400)
    capacity = tight(graph, draw(shares))
    if draw(st.booleans()):
        capacity["dram"] = draw(shares) * resident_bytes(graph)
    return scenario, graph, capacity


def slopes_enclose_duals(optimum: Optimum, graph: StepGraph, capacity: dict[str, float]) -> bool:
    """Whether each tier's dual lies between the slopes at its capacity; whether one is not 0.

    The optimum is convex in a capacity, so what one byte more saves is between what the next
    bytes save and what the last ones saved; where it is locally linear all three are equal.
    """
    at = optimum(capacity)
    if at is None:
        return False
    step_s, duals = at
    size = 1e-3 * resident_bytes(graph)
    for tier in ("hbm", "dram"):
        less = optimum(capacity | {tier: capacity[tier] - size})
        more = optimum(capacity | {tier: capacity[tier] + size})
        assert more is not None
        tolerance = 1e-7 * step_s
        assert duals[tier] * size >= step_s - more[0] - tolerance
        if less is not None:
            assert duals[tier] * size <= less[0] - step_s + tolerance
    return any(duals[tier] * size > tolerance for tier in duals)


@examples(100)
@given(questions())
def test_fluid_duals_are_finite_differences(
    question: tuple[Scenario, StepGraph, dict[str, float]],
) -> None:
    scenario, graph, capacity = question

    def optimum(limits: dict[str, float]) -> tuple[float, dict[str, float]] | None:
        found = fluid.bound(graph, scenario.classes, limits)
        return None if found is None else (found.step_s, found.capacity_s_per_byte)

    slopes_enclose_duals(optimum, graph, capacity)


@examples(100)
@given(questions(), st.booleans())
def test_program_duals_are_finite_differences(
    question: tuple[Scenario, StepGraph, dict[str, float]], relaxed: bool
) -> None:
    scenario, graph, capacity = question

    def optimum(limits: dict[str, float]) -> tuple[float, dict[str, float]] | None:
        block = scenario.workload.block
        found = program.solve(program.state(graph, limits, relaxed=relaxed, block=block))
        return None if found is None else (found.step_s, found.capacity_s_per_byte)

    slopes_enclose_duals(optimum, graph, capacity)


@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
@pytest.mark.parametrize("cycles", [1, 2])
def test_dual_where_it_is_not_zero(share: float, cycles: int) -> None:
    """A byte kept in HBM does not cross a link of 1 MB/s, which takes a microsecond."""
    scenario = Scenario(model=model([layer()] * 2), hardware=ideal(link=1e6),
                        workload=Workload(batch=2, context=1024))  # fmt: skip
    schedule = Schedule(stages=4, queue_depth=2)
    graph = full_graph(scenario, schedule, ("resident", "fetch"), None if cycles == 1 else [0])
    assert graph.cycles == cycles
    capacity = tight(graph, share)
    flow = fluid.bound(graph, scenario.classes, capacity)
    exact = program.solve(program.state(graph, capacity))
    assert flow is not None
    assert exact is not None
    # A token less to fetch also frees Q / S / layers of a token in the staging buffers.
    expected = 1e-6 / (1 - 2 / 4 / 2)
    for found in (flow, exact):
        assert found.capacity_s_per_byte["hbm"] == pytest.approx(expected, rel=1e-6)

    def optimum(limits: dict[str, float]) -> tuple[float, dict[str, float]] | None:
        found = fluid.bound(graph, scenario.classes, limits)
        return None if found is None else (found.step_s, found.capacity_s_per_byte)

    assert slopes_enclose_duals(optimum, graph, capacity)


@examples(100)
@given(scenarios(2), st.data())
def test_more_buffers_never_lower_the_bound(scenario: Scenario, data: st.DataObject) -> None:
    schedule = data.draw(schedules(len(scenario.model.layers)))
    shallow = full_graph(scenario, schedule)
    assume(len(shallow.operations) < 600)
    deep = full_graph(scenario, replace(schedule, queue_depth=schedule.queue_depth + 1))
    capacity = tight(shallow, data.draw(shares))
    less = fluid.bound(shallow, scenario.classes, capacity)
    more = fluid.bound(deep, scenario.classes, capacity)
    assert less is not None or more is None
    if less is not None and more is not None:
        assert less.step_s <= more.step_s * (1 + 1e-9)


@examples(60)
@given(scenarios(2), st.data())
def test_shortfall_is_what_is_missing(scenario: Scenario, data: st.DataObject) -> None:
    """Nothing fits a budget of almost nothing; it does with the shortfall, not with less."""
    graph = full_graph(scenario, data.draw(schedules(len(scenario.model.layers))))
    assume(len(graph.operations) < 600)
    capacity = LARGE | {"hbm": 1.0, "dram": 0.0, "pinned": 0.0, "disk": 0.0}
    assert fluid.bound(graph, scenario.classes, capacity) is None
    short = fluid.shortfall(graph, scenario.classes, capacity).shortfall_bytes
    for share, fits in ((1 + 1e-6, True), (1 - 1e-4, False)):
        widened = {tier: limit + share * short[tier] for tier, limit in capacity.items()}
        assert (fluid.bound(graph, scenario.classes, widened) is not None) is fits


@examples(60)
@given(scenarios(2), st.data())
def test_without_room_no_schedule_fits(scenario: Scenario, data: st.DataObject) -> None:
    """What is stored takes the same room under every schedule; buffers come on top."""
    one, other = (
        full_graph(scenario, data.draw(schedules(len(scenario.model.layers)))) for _ in range(2)
    )
    assume(len(one.operations) + len(other.operations) < 1000)
    assume(one.schedule.stream_weights == other.schedule.stream_weights)
    capacity = tight(one, data.draw(shares))
    room = fluid.has_room(one, scenario.classes, capacity)
    assert fluid.has_room(other, scenario.classes, capacity) is room
    free = replace(other, buffers=[])
    assert (fluid.bound(free, scenario.classes, capacity) is not None) is room
    assert room or fluid.bound(other, scenario.classes, capacity) is None


def test_quality_limits_inexact_paths() -> None:
    """A quarter of the tokens may be int8, at 1.0625 of 2 bytes; the rest cross whole."""
    scenario = Scenario(model=model([layer()]), hardware=ideal(link=1e6),
                        workload=Workload(batch=1, context=1000))  # fmt: skip
    graph = full_graph(scenario, Schedule(stages=1), ("fetch", "fetch_int8"))
    found = fluid.bound(graph, scenario.classes, LARGE, {"fetch_int8": 0.25})
    assert found is not None
    assert found.tokens[0, "fetch_int8"] == pytest.approx(250)
    whole_s = 1000 * 128 * 2 / 1e6
    assert found.step_s == pytest.approx(whole_s * (0.75 + 0.25 * 1.0625 / 2))
