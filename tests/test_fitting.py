"""Memory read off one unit equals memory of the whole graph."""

from __future__ import annotations

import pytest

from kvplan.candidates import bounded_candidates
from kvplan.evaluate import evaluate
from kvplan.fitting import memory_bytes, round_to
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.workload import Budgets, Workload


@pytest.mark.parametrize(
    ("model", "gpu", "micro_batches", "weights"),
    [
        ("llama-7b", "a100", 1, "auto"),
        ("llama-7b", "h200", 2, "auto"),
        ("opt-30b", "rtx-4090", 1, "streamed"),
        ("mistralai/Mistral-7B-v0.1", "t4", 1, "auto"),
    ],
)
def test_unit_and_whole_graph_agree(model: str, gpu: str, micro_batches: int, weights: str) -> None:
    scenario = Scenario(
        model=load_model(model),
        hardware=load_hardware(gpu),
        workload=Workload(batch=8, context=16384, micro_batches=micro_batches),
        options=Options(weights=weights, allow={"int4": 1.0}),
        budgets=Budgets(disk_bytes=10**11),
    )
    candidates = bounded_candidates(scenario)
    assert candidates
    for candidate in candidates:
        allocation = round_to(scenario, candidate, "grouped", 64, len(scenario.model.layers))
        shares = [0.25] * len(allocation) if candidate.schedule.stream_weights else None
        whole = evaluate(scenario, candidate.schedule, allocation, shares).memory_bytes
        read = memory_bytes(candidate.unit, allocation, shares or [0.0] * len(allocation))
        for tier, size in whole.items():
            # Buffers for paths that the allocation leaves out count in the unit and hold nothing.
            assert read[tier] == pytest.approx(size, rel=1e-9), (candidate.schedule, tier)
