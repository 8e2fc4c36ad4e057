"""Local search over layouts: which paths the stages of each kind of layer have."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import evaluations, examples, ideal, layer, model
from test_thin import check_rounded

from kvplan.best import Best
from kvplan.candidates import bounded, bounded_candidates, build_unit, flow_graph, unit_graph
from kvplan.descent import Descent, descend, leaders_of, sample_of
from kvplan.dive import Dive
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted
from kvplan.layout import (
    Layer,
    Layout,
    allowed,
    layout_of,
    other_in_paths,
    other_in_stages,
    structure,
    with_every_path,
    with_one_path,
)
from kvplan.layout_blocks import Rounding, period_of
from kvplan.program import solve, state
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Budgets, Workload

SHORT = Schedule(stages=4, queue_depth=2)


def question(kinds: int = 1, count: int = 6) -> Scenario:
    """Layers of some widths on a machine whose link and GPU take about as long, beside HBM for
    nine tenths of their tokens.
    """
    layers = [layer(intermediate=128 * (1 + i % kinds)) for i in range(count)]
    free = Scenario(
        model=model(layers),
        hardware=ideal(link=1e6, flop=4e8, copy_s=2e-3),
        workload=Workload(batch=1, context=1024, block=16),
        options=Options(paths=("resident", "fetch", "recompute", "recompute_resident")),
    )
    held = unit_graph(free, SHORT).constant_bytes["hbm"]
    room = count * 1024 * layers[0].kv_bytes(2) * 9 // 10
    return replace(free, budgets=Budgets(hbm_bytes=int(held + room)))


def first_plan(scenario: Scenario) -> Best:
    """The fluid program's plan of one schedule."""
    candidate = bounded(scenario, SHORT, flow_graph(scenario, SHORT))
    assert candidate is not None
    plan = fitted(scenario, candidate)
    assert plan is not None
    return Best(plan, candidate, scenario.workload.block)


@examples(40)
@given(evaluations())
def test_a_layout_has_what_most_layers_of_a_plan_have(judged: tuple[Scenario, Evaluation]) -> None:
    scenario, plan = judged
    if plan.schedule.axis != "token":
        return
    layout = layout_of(scenario, plan)
    used = {
        each: {s.path for c, own in zip(scenario.classes, plan.allocation, strict=True)
               if c == each for s in own if s.stage is not None}
        for each in scenario.classes
    }  # fmt: skip
    for each, own in enumerate(layout.layers):
        assert len(own.stages) == plan.schedule.stages
        assert set().union(*own.stages) <= used[each]
    held = [tuple(filter(None, own.stages)) for own in layout.layers]
    assert all(o.stages[: len(h)] == h for o, h in zip(layout.layers, held, strict=True))


def test_neighbours_differ_in_one_class_or_in_all_that_it_leads() -> None:
    scenario = question(kinds=2)
    layout = with_every_path(scenario, SHORT)
    for leaders in ([0, 1], [0, 0]):
        found = [*other_in_paths(scenario, layout, leaders), *other_in_stages(layout, leaders)]
        assert len(set(found)) > 15
        for other in found:
            changed = [a.stages[:4] != b.stages[:4] for a, b in
                       zip(layout.layers, other.layers, strict=True)]  # fmt: skip
            assert sum(changed) <= 1 or leaders == [0, 0]
            assert all(len(own.stages) == other.schedule.stages for own in other.layers)


def test_neighbours_take_leave_and_replace_paths() -> None:
    scenario = question()
    layout = with_one_path(with_every_path(scenario, SHORT), "fetch")
    stages = {other.layers[0].stages[1] for other in other_in_paths(scenario, layout, [0])}
    assert stages == {
        frozenset(names)
        for names in (("fetch",), ("fetch", "recompute"), ("fetch", "recompute_resident"),
                      ("recompute",), ("recompute_resident",))
    }  # fmt: skip


def test_stages_are_too_small_where_one_of_them_is_empty() -> None:
    """They are within a block of their mean, so that is a block at most: 64 tokens in all, while
    102 do not stay in HBM.
    """
    scenario = question()
    whole = with_one_path(with_every_path(scenario, SHORT), "fetch")
    partly = Layout(SHORT, (Layer((*whole.layers[0].stages[:3], frozenset())),))
    found = [
        solve(state(build_unit(scenario, SHORT, structure(scenario, each, [0]), [0]),
                    scenario.capacity, block=16))
        for each in (whole, partly)
    ]  # fmt: skip
    assert found[0] is not None
    assert found[1] is None


def test_no_neighbour_of_where_it_ends_is_better() -> None:
    scenario = question()
    schedules = [replace(SHORT, stages=s, queue_depth=q) for s in (4, 5) for q in (2, 3)]
    search = Descent(scenario, schedules)
    search.left = 10**9
    start = with_every_path(scenario, SHORT)
    end = search.descend(start)
    assert search.step_s(end) < search.step_s(start)
    around = [*other_in_paths(scenario, end, [0]), *other_in_stages(end, [0])]
    near = [other for other in around if other.schedule in schedules]
    assert len(near) > 20
    assert all(search.step_s(other) >= search.step_s(end) * (1 - 1e-5) for other in near)


@pytest.mark.parametrize("schedule", [replace(SHORT, stages=1, queue_depth=1),
                                      replace(SHORT, stages=4096, queue_depth=64)])  # fmt: skip
def test_no_neighbour_is_beyond_what_schedules_may_have(schedule: Schedule) -> None:
    layout = Layout(schedule, (Layer((frozenset(("fetch",)),) * schedule.stages),))
    sizes = {(other.schedule.stages, other.schedule.queue_depth)
             for other in itertools.islice(other_in_stages(layout, [0]), 40)}  # fmt: skip
    assert {stages for stages, _ in sizes} <= {1, 2, 3, 4095, 4096}
    assert {depth for _, depth in sizes} <= {1, 2, 63, 64}
    assert len(sizes) > 1


def test_it_stops_when_enough_is_solved() -> None:
    scenario = question()
    search = Descent(scenario, [SHORT])
    search.left = 0
    start = with_every_path(scenario, SHORT)
    assert search.descend(start) == start
    assert set(search.known) == {start}


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_plans_of_layouts_are_better_and_fit(kinds: int) -> None:
    scenario = question(kinds)
    candidates = bounded_candidates(scenario)
    best = first_plan(scenario)
    before = best.plan
    descend(scenario, candidates, best)
    assert best.step_s < before.step_s * 0.99
    check_rounded(scenario, best.plan, best.block)


def test_beside_the_head_layers_make_up_for_it() -> None:
    """The others have the blocks of one layer."""
    scenario = question(count=8)
    best = first_plan(scenario)
    before = best.plan
    layout = Descent(scenario, [SHORT]).descend(with_every_path(scenario, SHORT))
    held = structure(scenario, layout, range(8))
    dive = Dive(scenario, build_unit(scenario, SHORT, held, None), best.block)
    Rounding(scenario, best, 0.0).with_ends(layout, best.candidate, range(1), dive)
    assert best.plan is not before
    inner = best.plan.allocation[2:6]
    assert len({tuple(s.tokens for s in own if s.stage is not None) for own in inner}) == 1
    check_rounded(scenario, best.plan, best.block)


def test_a_good_plan_is_left_alone() -> None:
    scenario = question()
    best = first_plan(scenario)
    before = best.plan
    candidates = bounded_candidates(scenario)
    for candidate in candidates:
        candidate.bound_s = before.step_s
    descend(scenario, candidates, best)
    assert best.plan is before


@pytest.mark.parametrize(
    ("kinds", "sample", "leaders"),
    [
        ([0] * 8, range(1), [0]),
        ([0, 0, 1] * 4 + [0, 0], range(3), [0, 1]),
        ([0] + [1] * 9, range(1, 2), [1, 1]),
        ([0, 1, 1, 0, 1, 0, 0, 0, 1, 1], range(10), [0, 1]),
    ],
)
def test_a_sample_stands_for_the_layers(
    kinds: list[int], sample: range, leaders: list[int]
) -> None:
    layers = [layer(intermediate=128 * (1 + kind)) for kind in kinds]
    scenario = replace(question(), model=model(layers))
    assert sample_of(scenario) == sample
    assert leaders_of(scenario, sample) == leaders
    assert len(allowed(scenario)) == len(leaders)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_classes_repeat_after_their_period(classes: list[int]) -> None:
    period = period_of(classes)
    assert all(a == b for a, b in zip(classes, classes[period:], strict=False))
    assert not any(
        all(a == b for a, b in zip(classes, classes[p:], strict=False)) for p in range(1, period)
    )
