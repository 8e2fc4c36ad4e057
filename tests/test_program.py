"""The program is exact: for a fixed allocation it is the simulator, left free it bounds it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    LARGE,
    allocations,
    evaluations,
    examples,
    full_graph,
    graphs,
    ideal,
    layer,
    layers,
    model,
    profiles,
    scenarios,
    schedules,
    tight,
    workloads,
)

from kvplan import fluid, program
from kvplan.allocation import Segment
from kvplan.candidates import unit_layers
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import override, scaled
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import simulate
from kvplan.step import StepGraph
from kvplan.workload import Workload

EXACT = 1e-9
ANY_BLOCK = 10**9
"""A block so large that stages may be as uneven as they like."""

shares = st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.1))


@examples(1000)
@given(evaluations())
def test_fixed_allocation_is_the_simulation(judged: tuple[Scenario, Evaluation]) -> None:
    _, plan = judged
    statement = program.state(plan.graph, {}, block=ANY_BLOCK)
    solution = program.solve(statement, fixed=plan.values)
    assert solution is not None
    assert solution.step_s == pytest.approx(plan.step_s, rel=EXACT)
    assert solution.values == pytest.approx(plan.values, rel=EXACT)


@examples(500)
@given(graphs())
def test_fixed_values_are_the_simulation_on_any_graph(drawn: tuple[StepGraph, list[float]]) -> None:
    graph, values = drawn
    solution = program.solve(program.state(graph, {}), fixed=values)
    assert solution is not None
    assert solution.step_s == pytest.approx(simulate(graph, values).step_s, rel=EXACT)


@examples(100)
@given(graphs())
def test_start_times_respect_every_edge(drawn: tuple[StepGraph, list[float]]) -> None:
    graph, values = drawn
    solution = program.solve(program.state(graph, {}), fixed=values)
    assert solution is not None
    period = solution.step_s / graph.cycles
    durations = graph.durations(values)
    slack_s = 1e-8 * max(period, *durations, *solution.start_s)  # a period can be nothing
    for index, operation in enumerate(graph.operations):
        for before, lag in operation.after:
            ready = solution.start_s[before] + durations[before] - lag * period
            ready += graph.delay_s(before, index)
            assert solution.start_s[index] >= ready - slack_s


def test_weight_is_what_a_shorter_operation_saves() -> None:
    """Copy 3 s, then attend 2 s, one buffer: each second less on either is a second less."""
    hardware = ideal(link=64 * 2048 / 3.0, hbm=64 * 2048 / 2.0)
    scenario = Scenario(model=model([layer()]), hardware=hardware,
                        workload=Workload(batch=8, context=64))  # fmt: skip
    schedule = Schedule(stages=1, queue_depth=1)
    plan = evaluate(scenario, schedule, ((Segment(0, 64, "fetch", 0),),))
    solution = program.solve(program.state(plan.graph, {}), fixed=plan.values)
    assert solution is not None
    by_name = dict(zip((o.operation for o in plan.graph.operations), solution.weight, strict=True))
    assert by_name["copy_kv"] == pytest.approx(1.0)
    assert by_name["attend"] == pytest.approx(1.0)
    assert by_name["write_back"] == 0.0


@st.composite
def plans_of_mode(draw: st.DrawFn, mode: str) -> tuple[Scenario, Evaluation]:
    scenario = draw(scenarios(3))
    schedule = replace(draw(schedules(len(scenario.model.layers))), mode=mode)
    return scenario, evaluate(scenario, schedule, draw(allocations(scenario, schedule)))


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_relaxed_program_bounds_every_plan(mode: str) -> None:
    @examples(200)
    @given(plans_of_mode(mode))
    def check(judged: tuple[Scenario, Evaluation]) -> None:
        scenario, plan = judged
        graph = full_graph(scenario, plan.schedule)
        assume(len(graph.operations) < 800)
        statement = program.state(graph, LARGE, relaxed=True, block=scenario.workload.block)
        relaxed = program.solve(statement)
        flow = fluid.bound(graph, scenario.classes, LARGE)
        assert relaxed is not None
        assert flow is not None
        assert flow.step_s <= plan.step_s * (1 + EXACT)
        assert relaxed.step_s <= plan.step_s * (1 + EXACT)

    check()


def test_relaxed_program_bounds_plans_that_leave_layers_without_stages() -> None:
    """One full layer is fetched in four stages, three windowed ones keep their token in HBM.

    Only the stages that exist take turns in the two buffers, so the copies of the next step run
    beside the three windowed layers. The budget is what this plan takes. A program in which empty
    stages of the windowed layers take turns too would hold the copies back and not be a bound.
    """
    full = layer(intermediate=4096)
    windowed = layer(intermediate=4096, window=1)
    layer_s = full.params * 2 / 1e9
    hardware = ideal(link=1024 * 256 / (3.6 * layer_s), hbm=1e9)
    scenario = Scenario(model=model([full, windowed, windowed, windowed]), hardware=hardware,
                        workload=Workload(batch=1, context=1024))  # fmt: skip
    schedule = Schedule(stages=4, queue_depth=2)
    fetched = tuple(Segment(256 * i, 256 * i + 256, "fetch", i) for i in range(4))
    kept = (Segment(0, 1, "resident", None),)
    plan = evaluate(scenario, schedule, (fetched, kept, kept, kept))
    capacity = LARGE | {"hbm": plan.memory_bytes["hbm"]}
    graph = full_graph(scenario, schedule, ("resident", "fetch"))
    relaxed = program.solve(program.state(graph, capacity, relaxed=True, block=64))
    assert relaxed is not None
    assert relaxed.step_s <= plan.step_s * (1 + EXACT)


@examples(120)
@given(st.data())
def test_fluid_is_below_relaxed_is_below_exact(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(3))
    schedule = data.draw(schedules(len(scenario.model.layers)))
    graph = full_graph(scenario, schedule)
    assume(len(graph.operations) < 600)
    capacity, block = tight(graph, data.draw(shares)), scenario.workload.block
    flow = fluid.bound(graph, scenario.classes, capacity)
    relaxed = program.solve(program.state(graph, capacity, relaxed=True, block=block))
    exact = program.solve(program.state(graph, capacity, block=block))
    if exact is None:
        return
    assert relaxed is not None
    assert flow is not None
    assert flow.step_s <= relaxed.step_s * (1 + EXACT)
    assert relaxed.step_s <= exact.step_s * (1 + EXACT)
    assert simulate(graph, exact.values).step_s == pytest.approx(exact.step_s, rel=1e-8)


@st.composite
def repeated(draw: st.DrawFn, boundary: str, mode: str) -> tuple[Scenario, Schedule, list[int]]:
    """A model of equal runs of layers, and the layers of one run."""
    run = draw(st.lists(layers(), min_size=1, max_size=2))
    repeat = draw(st.integers(2, 3))
    scenario = Scenario(model=model(run * repeat), hardware=draw(profiles()),
                        workload=draw(workloads(500)))  # fmt: skip
    schedule = replace(draw(schedules(1)), boundary=boundary, mode=mode)
    if schedule.axis == "layer":
        schedule = replace(schedule, stages=repeat)
    return scenario, schedule, list(range(len(run)))


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("boundary", ["overlap", "barrier"])
def test_one_run_of_layers_stands_for_all(boundary: str, mode: str) -> None:
    @examples(50)
    @given(repeated(boundary, mode), shares, st.booleans())
    def check(drawn: tuple[Scenario, Schedule, list[int]], share: float, relaxed: bool) -> None:
        scenario, schedule, run = drawn
        if unit_layers(scenario.model, schedule) is None:
            return  # the search takes no run of layers for all of them

        def optimum(layers: list[int] | None) -> float | None:
            graph = full_graph(scenario, schedule, layers=layers)
            assume(len(graph.operations) < 600)
            statement = program.state(graph, tight(graph, share), relaxed=relaxed,
                                      block=scenario.workload.block)  # fmt: skip
            solution = program.solve(statement)
            return None if solution is None else solution.step_s

        unit, whole = optimum(run), optimum(None)
        assert (unit is None) == (whole is None)
        if unit is not None and whole is not None:
            assert unit <= whole * (1 + EXACT)
        if boundary == "barrier":
            return
        with patch("kvplan.cost.head_s", return_value=0.0):
            unit, whole = optimum(run), optimum(None)
        if mode == "graph":
            assert unit == pytest.approx(whole, rel=EXACT)

    check()


@examples(100)
@given(evaluations(2))
def test_twice_as_fast_a_machine_takes_half_as_long(judged: tuple[Scenario, Evaluation]) -> None:
    scenario, plan = judged
    twice = replace(scenario, hardware=scaled(scenario.hardware, rate=2.0))
    faster = evaluate(twice, plan.schedule, plan.allocation, plan.streamed)
    assert faster.step_s == pytest.approx(plan.step_s / 2, rel=EXACT)
    assert faster.memory_bytes == plan.memory_bytes


@examples(100)
@given(st.data())
def test_twice_as_fast_a_machine_halves_the_optimum(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(2))
    schedule = data.draw(schedules(len(scenario.model.layers)))
    twice = replace(scenario, hardware=scaled(scenario.hardware, rate=2.0))
    share = data.draw(shares)
    found = []
    for each in (scenario, twice):
        graph = full_graph(each, schedule)
        assume(len(graph.operations) < 400)
        block = each.workload.block
        found.append(program.solve(program.state(graph, tight(graph, share), block=block)))
        flow = fluid.bound(graph, each.classes, tight(graph, share))
        assert flow is not None or found[-1] is None
    slow, fast = found
    assert (slow is None) == (fast is None)
    if slow is not None and fast is not None:
        assert fast.step_s == pytest.approx(slow.step_s / 2, rel=EXACT)


@examples(60)
@given(st.data())
def test_a_repeated_program_is_a_new_one_with_its_bounds(data: st.DataObject) -> None:
    """Less of a tier and another block, solved from the optimum before."""
    scenario = data.draw(scenarios(2))
    graph = full_graph(scenario, data.draw(schedules(len(scenario.model.layers))))
    assume(len(graph.operations) < 300)
    capacity, block = tight(graph, 1.0), scenario.workload.block
    repeated = program.Repeated(program.state(graph, capacity, block=block))
    repeated.solve()
    for share, size in ((0.7, block), (0.4, block // 2), (0.9, 0)):
        less = tight(graph, share)
        held = {tier: limit - graph.constant_bytes.get(tier, 0.0) for tier, limit in less.items()}
        bounds = {f"capacity[{tier}]": limit for tier, limit in held.items()}
        found = repeated.solve(bounds | {"even_stages[": float(size)})
        fresh = program.solve(program.state(graph, less, block=size))
        assert (found is None) == (fresh is None)
        if found is not None and fresh is not None:
            assert found.step_s == pytest.approx(fresh.step_s, rel=EXACT)


@examples(60)
@given(st.data())
def test_more_of_anything_never_hurts(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(2))
    schedule = data.draw(schedules(len(scenario.model.layers)))
    hardware, share = scenario.hardware, data.draw(shares)
    slower_link = replace(scenario, hardware=override(
        hardware, h2d_bytes_per_s=0.6 * hardware.h2d.copy.rate()))  # fmt: skip
    more_flop = replace(scenario, hardware=override(
        hardware, flop_per_s=1.7 * max(hardware.gpu.flop_per_s.values())))  # fmt: skip
    faster_hbm = replace(scenario, hardware=override(
        hardware, hbm_bytes_per_s=1.7 * hardware.gpu.hbm_bytes_per_s))  # fmt: skip

    def optima(of: Scenario, extra: float = 0.0) -> tuple[float, float, float]:
        graph = full_graph(of, schedule)
        assume(len(graph.operations) < 400)
        capacity, block = tight(graph, share), of.workload.block
        capacity["hbm"] *= 1 + extra
        flow = fluid.bound(graph, of.classes, capacity)
        relaxed = program.solve(program.state(graph, capacity, relaxed=True, block=block))
        exact = program.solve(program.state(graph, capacity, block=block))
        assume(flow is not None and relaxed is not None and exact is not None)
        assert flow
        assert relaxed
        assert exact
        return flow.step_s, relaxed.step_s, exact.step_s

    less, base = optima(slower_link), optima(scenario)
    for more in (base, optima(more_flop), optima(faster_hbm), optima(scenario, 0.1)):
        reference = less if more is base else base
        for better, worse in zip(more, reference, strict=True):
            assert better <= worse * (1 + EXACT)
