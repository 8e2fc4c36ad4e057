"""Plans rounded from the whole program: whole blocks, even stages, nothing that does not fit."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, ideal, layer, model

from kvplan.candidates import bounded, flow_graph, unit_graph
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.thin import is_even, paths_of, thinned
from kvplan.workload import Budgets, Workload


@st.composite
def crowded(draw: st.DrawFn) -> Scenario:
    """Layers of one or two kinds beside HBM for a part of their tokens."""
    narrow = layer(window=draw(st.sampled_from((32, 64, 100))))
    pattern = draw(st.sampled_from(((layer(), narrow), (narrow, narrow, layer()), (layer(),))))
    question = Scenario(
        model=model(list(pattern) * draw(st.integers(1, 3))),
        hardware=ideal(link=1e6, flop=1e9, copy_s=draw(st.sampled_from((0.0, 1e-4)))),
        workload=Workload(batch=1, context=draw(st.sampled_from((128, 250))), block=16),
    )
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    whole = sum(question.cached_tokens(i) for i in range(len(question.model.layers))) * 256
    room = whole * draw(st.integers(10, 90)) // 100
    budgets = Budgets(hbm_bytes=int(graph.constant_bytes["hbm"]) + room)
    return replace(question, budgets=budgets)


def check_rounded(scenario: Scenario, plan: Evaluation, block: int) -> None:
    """Whole blocks, even stages, nothing that does not fit."""
    assert plan.overflow(scenario.capacity) is None
    assert is_even(scenario, plan)
    for index, segments in enumerate(plan.allocation):
        whole = scenario.cached_tokens(index)
        assert all(s.tokens % block == 0 or s.end == whole for s in segments)


@examples(40)
@given(crowded(), st.sampled_from((2, 4, 8, 16)), st.integers(4, 6), st.integers(2, 4))
def test_a_rounded_plan_is_one_the_bounds_hold_for(
    scenario: Scenario, block: int, stages: int, depth: int
) -> None:
    schedule = Schedule(stages=stages, queue_depth=depth)
    found = thinned(scenario, schedule, block)
    if found is None:
        return
    check_rounded(scenario, found, block)
    again = thinned(scenario, schedule, block, paths_of(scenario, found))
    if again is not None:
        own, before = paths_of(scenario, again), paths_of(scenario, found)
        assert all(set(paths) <= set(before[place]) for place, paths in own.items())


def test_layers_that_differ_get_tokens_of_their_own() -> None:
    """One mix for every stage of every layer is slower where windows are small."""
    question = Scenario(
        model=model([layer(), layer(window=64)] * 3),
        hardware=ideal(link=1e6, flop=2e8, copy_s=1e-3),
        workload=Workload(batch=1, context=256, block=16),
    )
    schedule = Schedule(stages=4, queue_depth=2)
    constant = unit_graph(question, schedule).constant_bytes["hbm"]
    question = replace(question, budgets=Budgets(hbm_bytes=int(constant) + 256 * 300))
    candidate = bounded(question, schedule, flow_graph(question, schedule))
    assert candidate is not None
    plain, found = fitted(question, candidate), thinned(question, schedule, 4)
    assert plain is not None
    assert found is not None
    assert candidate.bound_s <= found.step_s < plain.step_s
