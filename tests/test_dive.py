"""Plans rounded to blocks one place after the other, and tokens staged in some layers only."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, ideal, layer, model
from test_thin import check_rounded, crowded

from kvplan.best import Best
from kvplan.candidates import bounded, build_unit, flow_graph, full_structure, unit_graph
from kvplan.certificate import raise_bounds
from kvplan.concentrate import Spread, concentrate, spread_over, usual_stages
from kvplan.dive import Dive, offer_rounded
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted
from kvplan.paths import REGISTRY
from kvplan.program import solve, state
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.thin import Paths, is_even
from kvplan.workload import Budgets, Workload

BLOCK = 16


def whole_step(scenario: Scenario, schedule: Schedule, block: int) -> Dive:
    """The program of all layers with every path."""
    layers = range(len(scenario.model.layers))
    structure = full_structure(scenario, schedule, layers)
    return Dive(scenario, build_unit(scenario, schedule, structure, None), block)


def mostly_resident(count: int = 8) -> Scenario:
    """Equal layers beside HBM for nearly all of their tokens; each copy costs as much as 32 of the
    tokens that it brings.
    """
    token_bytes, link = 256, 1e6
    question = Scenario(
        model=model([layer()] * count),
        hardware=ideal(link=link, copy_s=32 * token_bytes / link),
        workload=Workload(batch=1, context=1024, block=BLOCK),
        options=Options(paths=("resident", "fetch")),
    )
    held = unit_graph(question, Schedule(stages=4, queue_depth=2)).constant_bytes["hbm"]
    room = count * 1024 * token_bytes * 15 // 16
    return replace(question, budgets=Budgets(hbm_bytes=int(held) + room))


def first_plan(scenario: Scenario) -> Best:
    """The fluid program's plan of one schedule."""
    schedule = Schedule(stages=4, queue_depth=2)
    candidate = bounded(scenario, schedule, flow_graph(scenario, schedule))
    assert candidate is not None
    plan = fitted(scenario, candidate)
    assert plan is not None
    return Best(plan, candidate, scenario.workload.block)


def staging_layers(plan: Evaluation) -> int:
    """Layers of a plan that stage tokens."""
    return sum(any(s.stage is not None for s in segments) for segments in plan.allocation)


@examples(40)
@given(crowded(), st.sampled_from((2, 4, 8, 16)), st.integers(4, 6), st.integers(2, 4))
def test_a_plan_has_whole_blocks_that_fit(
    scenario: Scenario, block: int, stages: int, depth: int
) -> None:
    schedule = Schedule(stages=stages, queue_depth=depth)
    dive = whole_step(scenario, schedule, block)
    uneven = scenario.workload.block
    optimum = solve(state(dive.graph, scenario.capacity, quality=scenario.quality, block=uneven))
    assert dive.step_s == pytest.approx(optimum.step_s if optimum else float("inf"), rel=1e-6)
    for backwards in (False, True):
        found = dive.plan(schedule, 1e9, backwards=backwards)
        if found is not None:
            check_rounded(scenario, found, block)


def test_a_dive_begins_with_nothing_held() -> None:
    question, schedule = mostly_resident(), Schedule(stages=4, queue_depth=2)
    dive = whole_step(question, schedule, BLOCK)
    steps = [
        dive.plan(schedule, 1e9, backwards=backwards) for backwards in (True, False, True, False)
    ]
    taken = [plan.step_s for plan in steps if plan is not None]
    assert len(taken) == 4
    assert taken[2:] == pytest.approx(taken[:2], rel=0.02)
    assert min(taken) >= dive.step_s * (1 - 1e-9)


def test_only_shorter_steps_that_are_within_reach_are_of_use() -> None:
    question, schedule = mostly_resident(), Schedule(stages=4, queue_depth=2)
    dive = whole_step(question, schedule, BLOCK)
    assert dive.plan(schedule, dive.step_s * (1 - 1e-3)) is None
    assert dive.is_promising(dive.step_s * 1.1, dive.step_s)
    assert not dive.is_promising(dive.step_s, dive.step_s)
    assert not dive.is_promising(dive.step_s * 1.1, dive.step_s / 1.1)


def test_nothing_is_promising_where_nothing_fits() -> None:
    question = replace(mostly_resident(), budgets=Budgets(hbm_bytes=1))
    dive = whole_step(question, Schedule(stages=4, queue_depth=2), BLOCK)
    assert dive.step_s == float("inf")
    assert not dive.is_promising(1e9, 1e9)
    assert dive.plan(Schedule(stages=4, queue_depth=2), 1e9) is None


def test_rounding_one_place_after_the_other_is_better_than_all_at_once() -> None:
    """Layers a block apart wait for one another; here they take up what others leave over."""
    question = mostly_resident()
    best = first_plan(question)
    before_s = best.step_s
    dive = Dive(question, best.plan.graph, BLOCK)
    offer_rounded(best, dive.step_s, dive, best.candidate)
    assert dive.step_s <= best.step_s <= before_s


def test_fewer_layers_stage_tokens_where_copies_cost_much() -> None:
    question = mostly_resident()
    question = replace(question, options=replace(question.options, good_gap=0.2))
    best = first_plan(question)
    before_s, before = best.step_s, staging_layers(best.plan)
    raise_bounds(question, [best.candidate], before_s)
    concentrate(question, [best.candidate], best)
    assert staging_layers(best.plan) < before
    assert best.step_s < before_s * 0.75
    assert best.plan.overflow(question.capacity) is None
    assert is_even(question, best.plan)
    assert best.step_s >= best.candidate.bound_s


def test_layers_in_between_hold_tokens_in_their_first_stages() -> None:
    fetch, resident = REGISTRY["fetch"], REGISTRY["resident"]
    stages = {0: tuple((stage, (fetch,)) for stage in range(4))}
    kept: Paths = {(layer, None): [resident] for layer in range(6)}
    counts = {
        (share, fewer): [
            sum((layer, stage) in found for stage in range(4))
            for found in [spread_over([0] * 6, kept, stages, Spread(share, fewer))]
            for layer in range(6)
        ]
        for share, fewer in ((1.0, 0), (0.5, 0), (0.33, 2), (0.0, 3))
    }
    assert counts[1.0, 0] == [4] * 6
    assert counts[0.5, 0] == [4, 0, 4, 0, 4, 0]
    assert sorted(counts[0.33, 2]) == [2, 2, 2, 2, 4, 4]
    assert sorted(counts[0.0, 3]) == [3, 3, 3, 3, 3, 4]
    nothing_kept = spread_over([0] * 6, {}, stages, Spread(0.5, 1))
    assert all((layer, stage) in nothing_kept for layer in range(6) for stage in range(4))


def test_a_plan_within_the_goal_is_left_as_it_is() -> None:
    question = mostly_resident()
    best = first_plan(question)
    plan, best.candidate.bound_s = best.plan, best.plan.step_s
    concentrate(question, [best.candidate], best)
    assert best.plan is plan


def test_usual_stages_are_those_of_most_layers_that_have_some() -> None:
    question = mostly_resident(4)
    schedule = Schedule(stages=4, queue_depth=2)
    best = first_plan(question)
    fetch = (REGISTRY["fetch"],)
    stages = usual_stages(question, best.plan)
    assert stages == {0: tuple((stage, fetch) for stage in range(4))}
    assert best.plan.schedule == schedule
