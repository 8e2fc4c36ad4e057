"""One program of all layouts has the optimum of each one's own; evenly restricted, hardly more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, scenarios

from kvplan import program
from kvplan.candidates import build_unit
from kvplan.evenly import Evenly, alike_of
from kvplan.hardware_library import load_hardware
from kvplan.highs import minimise
from kvplan.layout import Layer, Layout, structure, with_every_path
from kvplan.layout_program import LayoutProgram
from kvplan.model_library import load_model
from kvplan.resident import capacity_for
from kvplan.sample import Sample, all_layers, one_repeat
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Workload

DISK = ("resident", "fetch", "fetch_disk", "recompute")


@st.composite
def layouts(draw: st.DrawFn, scenario: Scenario, schedule: Schedule, kinds: tuple[int, ...]) -> (
    Layout
):  # fmt: skip
    """Some paths in the first stages of each kind of layer."""
    every = with_every_path(scenario, schedule, kinds)
    layers = []
    for layer in every.layers:
        own = sorted(layer.stages[0])
        some = st.frozensets(st.sampled_from(own), min_size=1) if own else st.just(frozenset())
        held = draw(st.lists(some, max_size=schedule.stages)) if own else []
        empty = (frozenset[str](),) * (schedule.stages - len(held))
        away = draw(st.booleans()) and layer.away
        layers.append(Layer((*held, *empty), away or frozenset()))
    return Layout(schedule, kinds, tuple(layers))


def own_program(scenario: Scenario, layout: Layout, sample: Sample) -> program.Program:
    """The program of a layout's graph alone."""
    layers = sample.layers
    held = structure(scenario, layout, layers)
    whole = len(layers) == len(layout.kinds)
    graph = build_unit(scenario, layout.schedule, held, None if whole else layers)
    capacity = capacity_for(scenario, graph, layers)
    block, quality = scenario.workload.block, scenario.quality
    return program.state(graph, capacity, quality=quality, block=block)


def optimum_s(stated: program.Program) -> float:
    rows, _ = program.scaled_rows(stated)
    found = minimise({stated.period: 1.0}, rows, program.scaled_limits(stated))
    if found is None:
        return float("inf")
    return found.values[stated.period] * stated.scale[stated.period] * stated.graph.cycles


@examples(40)
@given(scenarios(4), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_one_program_has_the_optimum_of_every_layout(
    scenario: Scenario, stages: int, depth: int, streamed: bool, data: st.DataObject
) -> None:
    schedule = Schedule(stages=stages, queue_depth=depth, stream_weights=streamed)
    sample = Sample(range(len(scenario.classes)), tuple(range(len(scenario.classes))), ())
    stated = LayoutProgram(scenario, schedule, sample)
    for _ in range(4):
        layout = data.draw(layouts(scenario, schedule, sample.kinds))
        own_s = optimum_s(own_program(scenario, layout, sample))
        found_s = stated.step_s(layout)
        assert found_s == pytest.approx(own_s, rel=1e-6)
        if own_s < float("inf"):
            assert stated.step_s(layout, own_s * 1.01) == pytest.approx(own_s, rel=1e-6)
            assert stated.step_s(layout, own_s * 0.99) == float("inf")


@examples(12)
@given(st.data())
def test_buffers_are_reused_by_the_tenants_that_are_there(data: st.DataObject) -> None:
    """Host buffers of disk reads, too."""
    asked = Scenario(
        model=load_model("opt-6.7b"), hardware=load_hardware("a100"),
        workload=Workload(batch=32, context=2048), options=Options(paths=DISK),
    )  # fmt: skip
    schedule = Schedule(stages=data.draw(st.integers(2, 4)), queue_depth=2)
    sample = one_repeat(asked)
    stated = LayoutProgram(asked, schedule, sample)
    for _ in range(3):
        layout = data.draw(layouts(asked, schedule, sample.kinds))
        own_s = optimum_s(own_program(asked, layout, sample))
        assert stated.step_s(layout) == pytest.approx(own_s, rel=1e-6)


@pytest.mark.parametrize("name", ["opt-6.7b", "google/gemma-2-9b", "rednote-hilab/dots.llm1.inst"])
@examples(6)
@given(data=st.data())
def test_layers_that_follow_each_other_evenly_lose_little(name: str, data: st.DataObject) -> None:
    asked = Scenario(model=load_model(name), hardware=load_hardware("a100"),
                     workload=Workload(batch=32, context=4096))  # fmt: skip
    schedule = Schedule(stages=4, queue_depth=data.draw(st.integers(2, 3)))
    sample = all_layers(asked, 1)
    stated = LayoutProgram(asked, schedule, sample)
    assert stated.operations < 0.4 * len(stated.graph.operations)
    layout = data.draw(layouts(asked, schedule, sample.kinds))
    own = own_program(asked, layout, sample)
    own_s, evenly_s = optimum_s(own), optimum_s(Evenly(own, alike_of(sample.kinds)).program)
    assert stated.step_s(layout) == pytest.approx(evenly_s, rel=1e-6)
    assert own_s * (1 - 1e-7) <= evenly_s <= own_s * 1.02 or own_s == float("inf")


def test_only_runs_of_layers_are_alike() -> None:
    assert alike_of((0, 1, 2)) == (0, 1, 2)
    assert alike_of((0, 0, 1, 2, 3, 4, 0, 0)) == tuple(range(8))
    assert alike_of((9, 9, 1, 1, 2, 1, 1, 2, 9, 9)) == (0, 1, 2, 3, 4, 2, 3, 4, 8, 9)


def test_a_program_without_layers_alike_stays_as_it_is() -> None:
    asked = Scenario(model=load_model("opt-6.7b"), hardware=load_hardware("a100"),
                     workload=Workload(batch=32, context=2048))  # fmt: skip
    sample = one_repeat(asked)
    layout = with_every_path(asked, Schedule(stages=4, queue_depth=2), sample.kinds)
    own = own_program(asked, layout, sample)
    same = Evenly(own, range(len(asked.classes)))
    assert len(same.program.columns) == len(own.columns)
    assert optimum_s(same.program) == pytest.approx(optimum_s(own), rel=1e-9)
