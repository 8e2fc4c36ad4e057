"""Local search over layouts: which paths the stages of each kind of layer have."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import evaluations, examples, ideal, layer, model
from test_thin import check_rounded

from kvplan.apart import tell_apart
from kvplan.best import Best
from kvplan.candidates import bounded, bounded_candidates, build_unit, flow_graph, unit_graph
from kvplan.descent import Descent, descend
from kvplan.dive import Dive
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted
from kvplan.layout import (
    Layer,
    Layout,
    allowed,
    layout_of,
    other_in_kinds,
    other_in_paths,
    other_in_stages,
    structure,
    with_every_path,
    with_one_path,
)
from kvplan.layout_blocks import Rounding
from kvplan.program import solve, state
from kvplan.resident import capacity_for, kept_bytes
from kvplan.sample import all_layers, one_repeat, period_of, some_repeats
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
    return mostly_resident(free)


def mostly_resident(free: Scenario) -> Scenario:
    """A question of equal layers with HBM for nine tenths of their tokens."""
    held = unit_graph(free, SHORT).constant_bytes["hbm"]
    layers = free.model.layers
    room = len(layers) * 1024 * layers[0].kv_bytes(2) * 9 // 10
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
    layout = layout_of(plan, scenario.classes)
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
    layout = with_every_path(scenario, SHORT, scenario.classes)
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
    layout = with_one_path(with_every_path(scenario, SHORT, scenario.classes), "fetch")
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
    whole = with_one_path(with_every_path(scenario, SHORT, scenario.classes), "fetch")
    partly = replace(whole, layers=(Layer((*whole.layers[0].stages[:3], frozenset())),))
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
    search = Descent(scenario, schedules, one_repeat(scenario), 10**9)
    start = with_every_path(scenario, SHORT, scenario.classes)
    end = search.descend(start)
    assert search.step_s(end) < search.step_s(start)
    around = [*other_in_paths(scenario, end, [0]), *other_in_stages(end, [0])]
    near = [other for other in around if other.schedule in schedules]
    assert len(near) > 20
    assert all(search.step_s(other) >= search.step_s(end) * (1 - 1e-5) for other in near)


@pytest.mark.parametrize("schedule", [replace(SHORT, stages=1, queue_depth=1),
                                      replace(SHORT, stages=4096, queue_depth=64)])  # fmt: skip
def test_no_neighbour_is_beyond_what_schedules_may_have(schedule: Schedule) -> None:
    layout = Layout(schedule, (0,), (Layer((frozenset(("fetch",)),) * schedule.stages),))
    sizes = {(other.schedule.stages, other.schedule.queue_depth)
             for other in itertools.islice(other_in_stages(layout, [0]), 40)}  # fmt: skip
    assert {stages for stages, _ in sizes} <= {1, 2, 3, 4095, 4096}
    assert {depth for _, depth in sizes} <= {1, 2, 63, 64}
    assert len(sizes) > 1


def test_it_stops_when_enough_is_solved() -> None:
    scenario = question()
    search = Descent(scenario, [SHORT], one_repeat(scenario), 10**4)
    search.left = 0
    start = with_every_path(scenario, SHORT, scenario.classes)
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
    search = Descent(scenario, [SHORT], one_repeat(scenario), 10**4)
    layout = search.descend(with_every_path(scenario, SHORT, scenario.classes))
    held = structure(scenario, layout, range(8))
    rounding = Rounding(scenario, best, 0.0, 1)
    dive = Dive(scenario, build_unit(scenario, SHORT, held, None), rounding.block)
    rounding.with_ends(layout, best.candidate, range(2, 3), dive)
    assert best.plan is not before
    inner = best.plan.allocation[2:6]
    assert len({tuple(s.tokens for s in own if s.stage is not None) for own in inner}) == 1
    check_rounded(scenario, best.plan, best.block)


@pytest.mark.parametrize("count", range(1, 6))
def test_few_layers_have_none_between_the_ends(count: int) -> None:
    scenario = question(count=count)
    best = first_plan(scenario)
    rounding = Rounding(scenario, best, 0.0, 1)
    layout = with_one_path(with_every_path(scenario, SHORT, scenario.classes), "fetch")
    assert [len(run) for run in rounding.runs(layout)] == [1] * (count == 5)
    rounding.offer(layout, best.candidate)
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
    found = one_repeat(scenario)
    assert found.layers == sample
    assert list(found.leaders) == leaders
    assert found.kinds == scenario.classes
    assert len(allowed(scenario, found.kinds)) == len(leaders)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_classes_repeat_after_their_period(classes: list[int]) -> None:
    period = period_of(classes)
    assert all(a == b for a, b in zip(classes, classes[period:], strict=False))
    assert not any(
        all(a == b for a, b in zip(classes, classes[p:], strict=False)) for p in range(1, period)
    )


def test_a_repeat_has_the_layers_that_cache_most() -> None:
    """One layer in eight is little of the layers, but most of what they cache."""
    layers = [layer(window=None if i % 8 == 7 else 16) for i in range(16)]
    assert len(one_repeat(replace(question(), model=model(layers))).layers) == 8


def test_layers_of_repeats_and_beside_the_head_are_told_apart() -> None:
    scenario = question(kinds=2, count=12)
    two = some_repeats(scenario, 2)
    assert two is not None
    assert two.layers == range(4)
    assert two.kinds == (0, 1, 2, 3) * 3
    assert some_repeats(scenario, 7) is None
    whole = all_layers(scenario, 2)
    assert whole.layers == range(12)
    inner = whole.kinds[2:-2]
    assert inner == inner[:4] * 2
    ends = whole.kinds[:2] + whole.kinds[-2:]
    assert len(set(ends)) == 4
    assert not set(ends) & set(inner)
    assert whole.leaders == tuple(range(max(whole.kinds) + 1))


def test_layers_that_do_not_repeat_are_told_apart_by_their_place_among_equal_ones() -> None:
    kinds = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 1]
    layers = [layer(intermediate=128 * (1 + kind)) for kind in kinds]
    found = all_layers(replace(question(), model=model(layers)), 2)
    runs = [list(run) for _, run in itertools.groupby(kinds)]
    places = [(kind, place) for run in runs for place, kind in enumerate(run)]
    for i, j in itertools.combinations(range(2, 12), 2):
        assert (found.kinds[i] == found.kinds[j]) == (places[i] == places[j])
    few = all_layers(replace(question(), model=model(layers[:10])), 2)
    assert few.kinds == tuple(range(10))


def test_neighbours_have_no_stage_or_those_of_another_kind() -> None:
    scenario = question(count=8)
    kinds = (0, 1) * 4
    layout = with_every_path(scenario, SHORT, kinds)
    fetching = with_one_path(layout, "fetch")
    mixed = replace(layout, layers=(layout.layers[0], fetching.layers[1]))
    nothing = replace(layout.layers[0], stages=(frozenset(),) * 4)
    found = {other.layers for other in other_in_kinds(scenario, mixed, [0, 1])}
    one, other = mixed.layers
    assert found == {(nothing, other), (other, other), (one, nothing), (one, one)}
    assert not list(other_in_kinds(scenario, with_every_path(scenario, SHORT, (0,) * 8), [0]))


def test_a_layout_is_the_same_over_finer_kinds() -> None:
    scenario = question(kinds=2, count=8)
    layout = with_one_path(with_every_path(scenario, SHORT, scenario.classes), "fetch")
    finer = layout.over(all_layers(scenario, 2).kinds)
    layers = range(8)
    assert structure(scenario, finer, layers) == structure(scenario, layout, layers)


@given(st.lists(st.sampled_from((16, 64, None)), min_size=2, max_size=8), st.data())
def test_of_what_a_run_caches_as_large_a_share_is_resident(
    windows: list[int | None], data: st.DataObject
) -> None:
    scenario = replace(question(), model=model([layer(window=w) for w in windows]))
    run = range(data.draw(st.integers(1, len(windows))))
    graph = unit_graph(scenario, SHORT)
    room = data.draw(st.floats(0.0, 1.0)) * kept_bytes(scenario)
    hbm = int(graph.constant_bytes["hbm"] + room) + 1
    scenario = replace(scenario, budgets=Budgets(hbm_bytes=hbm))
    capacity = capacity_for(scenario, graph, run)
    free = capacity["hbm"] - graph.constant_bytes["hbm"]
    run_bytes = kept_bytes(scenario, run) * len(windows) / len(run)
    assert free / run_bytes == pytest.approx(room / kept_bytes(scenario), abs=1e-3)
    assert capacity_for(scenario, graph, range(len(windows))) == pytest.approx(scenario.capacity)


def slow_copies() -> Scenario:
    """Layers that are mostly resident; any copy takes as long as sixteen tokens more."""
    free = Scenario(
        model=model([layer() for _ in range(12)]),
        hardware=ideal(link=1e6, flop=4e8, copy_s=4e-3),
        workload=Workload(batch=1, context=1024, block=16),
        options=Options(paths=("resident", "fetch")),
    )
    return mostly_resident(free)


def told_apart(scenario: Scenario, bound: float) -> tuple[Evaluation, Best]:
    """The best plan whose equal layers are alike, and after they were told apart, where bounds are
    such a ratio of its step.
    """
    best = first_plan(scenario)
    candidates = bounded_candidates(scenario)
    layouts = descend(scenario, candidates, best)
    before = best.plan
    assert layouts
    for candidate in candidates:
        candidate.bound_s = before.step_s * bound
    tell_apart(scenario, candidates, best, layouts)
    return before, best


def test_some_layers_stage_nothing_where_copies_cost_much() -> None:
    scenario = slow_copies()
    before, best = told_apart(scenario, 0.5)
    alike_s = before.step_s
    assert best.step_s < alike_s * 0.9
    staging = [any(s.stage is not None for s in own) for own in best.plan.allocation]
    assert 0 < sum(staging) < 12
    check_rounded(scenario, best.plan, best.block)


def test_nothing_is_told_apart_where_whole_blocks_are_what_is_left() -> None:
    before, best = told_apart(slow_copies(), 0.995)
    assert best.plan is before
