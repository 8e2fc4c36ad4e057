"""The first plan that is good enough, and the bound below every schedule that shows it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import examples, resident_bytes, scenarios

from kvplan import fluid
from kvplan.candidates import flow_graph, schedules
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.quick import floor_s, good_enough
from kvplan.scenario import Options, Scenario
from kvplan.solve import find
from kvplan.workload import Budgets, Workload


@examples(60)
@given(scenarios(6), st.data())
def test_the_floor_is_below_every_schedule(scenario: Scenario, data: st.DataObject) -> None:
    assume(not scenario.hardware.unified)
    stages = data.draw(st.lists(st.integers(2, 8), min_size=1, max_size=3, unique=True))
    depths = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=2, unique=True))
    weights = data.draw(st.sampled_from(("resident", "streamed")))
    mode = data.draw(st.sampled_from(("graph", "eager")))
    options = Options(
        stages=tuple(stages), queue_depths=tuple(depths), weights=weights, mode=mode
    )  # fmt: skip
    asked = replace(scenario, options=options)
    first = next(schedules(asked, weights == "streamed", min(depths)))
    graph = flow_graph(asked, first)
    hbm = graph.constant_bytes["hbm"] + resident_bytes(graph) * data.draw(st.floats(0.0, 1.2))
    pinned = data.draw(st.sampled_from((None, 10**3, 10**5)))
    asked = replace(asked, budgets=Budgets(hbm_bytes=int(hbm) + 1, pinned_bytes=pinned))
    least = floor_s(asked)
    for depth in depths:
        for schedule in schedules(asked, weights == "streamed", depth):
            found = fluid.bound(flow_graph(asked, schedule), asked.classes, asked.capacity)
            if found is not None:
                assert least is not None
                assert least <= found.step_s * (1 + 1e-9)


@pytest.mark.parametrize("name", ["llama-7b", "llama-3.1-8b", "gemma-3-12b-it", "deepseek-v2-lite"])
@pytest.mark.parametrize("card", ["a100", "h100"])
def test_what_is_good_enough_is_as_near_as_it_says(name: str, card: str) -> None:
    """Beside a whole search: never below its bound, and its own bound below that search's plan."""
    asked = Scenario(
        model=load_model(name), hardware=load_hardware(card),
        workload=Workload(batch=32, context=8192), budgets=Budgets(hbm_bytes=38 * 2**30),
        options=Options(good_gap=0.05),
    )  # fmt: skip
    quick, whole = good_enough(asked), find(replace(asked, options=Options()))
    assert whole is not None
    if quick is None:
        return
    best, bound_s = quick
    assert best.plan.overflow(asked.capacity) is None
    assert whole.bound_s * (1 - 1e-9) <= best.step_s <= bound_s * 1.05
    assert bound_s <= whole.best.step_s * (1 + 1e-9)
    found = find(asked)
    assert found is not None
    assert (found.best.step_s, found.considered) == (best.step_s, 1)


def test_some_question_is_answered_quickly() -> None:
    asked = Scenario(
        model=load_model("llama-7b"), hardware=load_hardware("a100"),
        workload=Workload(batch=32, context=4096), options=Options(good_gap=0.05),
    )  # fmt: skip
    assert good_enough(asked) is not None
