"""Plans with the paths of the best one in another number of stages."""

from __future__ import annotations

from dataclasses import replace

from strategies import ideal, layer, model

from kvplan.best import Best
from kvplan.candidates import Candidate, bounded, flow_graph, unit_graph
from kvplan.fitting import fitted
from kvplan.restage import restage, restaged
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.thin import is_even
from kvplan.workload import Budgets, Workload

TOKEN_BYTES = 256


def question(room_tokens: int) -> Scenario:
    """Layers of two kinds beside HBM for some of their tokens, buffers included."""
    found = Scenario(
        model=model([layer(), layer(window=512)] * 2),
        hardware=ideal(link=1e6),
        workload=Workload(batch=1, context=1024, block=16),
        options=Options(paths=("resident", "fetch")),
    )
    held = unit_graph(found, Schedule(stages=4, queue_depth=2)).constant_bytes["hbm"]
    return replace(found, budgets=Budgets(hbm_bytes=int(held) + room_tokens * TOKEN_BYTES))


def candidate(scenario: Scenario, stages: int) -> Candidate:
    """A schedule with its bound."""
    schedule = Schedule(stages=stages, queue_depth=2)
    found = bounded(scenario, schedule, flow_graph(scenario, schedule))
    assert found is not None
    return found


def first_plan(scenario: Scenario) -> Best:
    """The fluid program's plan in four stages."""
    first = candidate(scenario, 4)
    plan = fitted(scenario, first)
    assert plan is not None
    return Best(plan, first, scenario.workload.block)


def test_more_stages_leave_more_room_where_buffers_are_large() -> None:
    scenario = question(900)
    best = first_plan(scenario)
    before_s = best.step_s
    restage(scenario, [best.candidate, candidate(scenario, 8)], best)
    assert best.plan.schedule.stages == 8
    assert best.candidate.schedule == best.plan.schedule
    assert best.step_s < before_s * 0.99
    assert best.plan.overflow(scenario.capacity) is None
    assert is_even(scenario, best.plan)


def test_a_schedule_whose_bound_is_no_shorter_is_left_out() -> None:
    scenario = question(900)
    best = first_plan(scenario)
    plan, other = best.plan, candidate(scenario, 8)
    other.bound_s = plan.step_s
    restage(scenario, [best.candidate, other], best)
    assert best.plan is plan


def test_every_stage_may_have_what_any_stage_of_the_class_has() -> None:
    scenario = question(900)
    plan = first_plan(scenario).plan
    found = restaged(scenario, plan, 6)
    for index, each in enumerate(scenario.model.layers):
        assert [path.name for path in found[index, None]] == ["resident"]
        for stage in range(6):
            assert [path.name for path in found[index, stage]] == ["fetch"], each
    assert len(found) == 4 * 7
