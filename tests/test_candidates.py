"""Candidates of the search: graphs that stand for others without being built anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategies import ideal, layer, model

from kvplan import fluid
from kvplan.candidates import (
    bounded_candidates,
    flow_graph,
    regrouped,
    unit_graph,
    with_queue_depth,
)  # fmt: skip
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Budgets, Workload


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_deeper_queue_takes_more_staging_buffers_only(streamed: bool, depth: int) -> None:
    """Weights keep their two buffers also where the least queue depth is two."""
    scenario = Scenario(model=model([layer()] * 4), hardware=ideal(disk=1e9),
                        workload=Workload(batch=2, context=512))  # fmt: skip
    schedule = Schedule(stages=4, queue_depth=2, stream_weights=streamed)
    deeper = replace(schedule, queue_depth=depth)
    quick, built = (
        with_queue_depth(unit_graph(scenario, schedule), deeper),
        unit_graph(scenario, deeper),
    )
    assert [(b.holds, b.count) for b in quick.buffers] == [
        (b.holds, b.count) for b in built.buffers
    ]
    values = [variable.ceiling for variable in built.variables]
    assert quick.memory_bytes(values) == built.memory_bytes(values)


@pytest.mark.parametrize("stages", [4, 5, 7])
@pytest.mark.parametrize("name", ["llama-7b", "gemma-3-12b-it", "ai21labs/Jamba-v0.1"])
@pytest.mark.parametrize("load", [
    Workload(batch=16, context=8192), Workload(batch=16, context=8192, micro_batches=2),
    Workload(batch=16, context=8192, micro_batches=2, schedule="row"),
])  # fmt: skip
def test_a_run_of_layers_has_the_bound_of_all_groups(
    name: str, stages: int, load: Workload
) -> None:
    """Groups of layers, even or not: one run stands for them, with buffers of the mean group."""
    scenario = Scenario(
        model=load_model(name), hardware=load_hardware("a100"), workload=load,
        budgets=Budgets(disk_bytes=10**12), options=Options(allow={"int4": 0.5}),
    )  # fmt: skip
    for streamed in (False, True):
        schedule = Schedule(axis="layer", stages=stages, queue_depth=2, stream_weights=streamed)
        flow, unit = flow_graph(scenario, schedule), unit_graph(scenario, schedule)
        assert len(flow.operations) <= len(unit.operations) * load.micro_batches
        found, whole = (
            fluid.bound(graph, scenario.classes, scenario.capacity, scenario.quality)
            for graph in (flow, unit)
        )
        assert (found is None) == (whole is None)
        if found is not None and whole is not None:
            assert found.step_s == pytest.approx(whole.step_s, rel=1e-9)
            for tier, dual in whole.capacity_s_per_byte.items():
                assert found.capacity_s_per_byte[tier] == pytest.approx(dual, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "deepseek-v2-lite"])
def test_layers_in_other_groups_have_the_bound_of_a_graph_built_for_them(name: str) -> None:
    """Layers of several kinds that no run repeats: the graph of all is built once."""
    scenario = Scenario(
        model=load_model(name), hardware=load_hardware("t4"),
        workload=Workload(batch=32, context=16384), budgets=Budgets(disk_bytes=10**12),
    )  # fmt: skip
    found = [c for c in bounded_candidates(scenario) if c.schedule.axis == "layer"]
    assert found
    for candidate in found:
        whole = fluid.bound(candidate.unit, scenario.classes, scenario.capacity, scenario.quality)
        assert whole is not None
        assert candidate.bound_s == pytest.approx(whole.step_s, rel=1e-9)
    first = flow_graph(scenario, Schedule(axis="layer", stages=4, queue_depth=2))
    for stages in (5, 8):
        schedule = replace(first.schedule, stages=stages)
        quick, built = regrouped(first, scenario.classes, schedule), flow_graph(scenario, schedule)
        values = [variable.ceiling for variable in built.variables]
        assert quick.memory_bytes(values) == pytest.approx(built.memory_bytes(values))
