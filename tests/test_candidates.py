"""Candidates of the search: a deeper queue changes staging buffers and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategies import ideal, layer, model

from kvplan.candidates import unit_graph, with_queue_depth
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Workload


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
