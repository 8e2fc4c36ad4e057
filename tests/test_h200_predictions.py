"""Measured decode steps of a prototype on one H200, predicted from its profile.

The profile holds microbenchmarks only (copies, matrix products, attention, memory, launching);
nothing in it was fitted to these steps. The steps were replayed as one CUDA graph each, copies
included, so the graph has a barrier between steps. The prototype had no embedding and no head.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

import pytest

from kvplan.datafiles import data_dir
from kvplan.evaluate import Evaluation
from kvplan.forced import forced
from kvplan.hardware_library import load_hardware
from kvplan.model import LayerSpec, ModelSpec
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Budgets, Workload

FOLDER = "measurements/h200-2026-11-29"


def prototype(case: dict[str, Any]) -> ModelSpec:
    """The prototype's layers: no rotary embedding, a vocabulary of one."""
    hidden, dim = case["h"], case["d"]
    attention = hidden * dim * (2 * case["nh"] + 2 * case["nkv"])
    mlp = hidden * case["ffn"] * (3 if case.get("gated") else 2)
    layer = LayerSpec(
        hidden=hidden,
        query_heads=case["nh"],
        kv_heads=case["nkv"],
        head_dim_k=dim,
        head_dim_v=dim,
        intermediate=case["ffn"],
        gated_mlp=bool(case.get("gated")),
        rope=False,
        attention_params=attention,
        mlp_params=mlp,
    )
    return ModelSpec(
        name="prototype",
        family="prototype",
        hidden=hidden,
        vocab=1,
        embedding_width=hidden,
        weight_dtype="fp16",
        layers=(layer,) * case["L"],
        embedding_params=hidden,
        head_params=hidden,
        tied=False,
        source="decode_step.json",
    )


@dataclass(frozen=True)
class Point:
    """A measured step and its prediction."""

    name: str
    depth: int
    offloaded: bool
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


def predict(case: dict[str, Any]) -> Evaluation:
    resident, recomputed = case.get("R", 0), case["P"]
    shares = {
        "recompute": float(recomputed),
        "fetch": float(case["S"] - recomputed - resident),
        "resident": float(resident),
    }
    scenario = Scenario(
        model=prototype(case),
        hardware=load_hardware("h200"),
        workload=Workload(batch=case["B"], context=case["S"]),
        budgets=Budgets(dram_bytes=2**40),
    )
    schedule = Schedule(
        axis="token", stages=case["stages"], queue_depth=case["depth"], boundary="barrier"
    )
    found = forced(scenario, schedule, {p: s for p, s in shares.items() if s > 0}, block=1)
    assert isinstance(found, Evaluation), found
    return found


@pytest.fixture(scope="module")
def points() -> list[Point]:
    found = []
    for file in ("decode_step.json", "small_batch_and_host_gqa.json"):
        for case in json.loads((data_dir("hwprofiles") / FOLDER / file).read_text()):
            if "graph_ms" in case:
                name = "{name} B{B} S{S} P{P} {stages}x{depth}".format(**case)
                found.append(
                    Point(
                        name,
                        case["depth"],
                        case.get("R", 0) < case["S"],
                        predict(case).step_s,
                        case["graph_ms"] / 1e3,
                    )
                )
    return found


def test_median_and_worst_error(points: list[Point]) -> None:
    """Every offloaded step with the planner's queue depths: 2 % in the median, 8 % at worst."""
    chosen = [p for p in points if p.depth >= 2 and p.offloaded]
    errors = sorted(abs(p.error) for p in chosen)
    worst = max(chosen, key=lambda p: abs(p.error))
    print(
        f"\n{len(chosen)} steps: median {statistics.median(errors):.2%}, "
        f"worst {worst.error:+.2%} ({worst.name})"
    )
    assert len(chosen) >= 40
    assert statistics.median(errors) <= 0.02
    assert errors[-1] <= 0.08, worst


def test_depth_one_is_slower_than_depth_two(points: list[Point]) -> None:
    """One buffer leaves copy and compute in turn: predicted and measured agree on the direction.

    The size of the loss is not predicted: the prototype split its recomputed tokens over stages
    differently at depth one, and the planner never goes below two.
    """
    one = [p for p in points if p.depth == 1 and p.offloaded]
    assert one
    for point in one:
        two = next(p for p in points if p.name == point.name[:-1] + "2")
        assert point.predicted_s > two.predicted_s
        assert point.measured_s > two.measured_s
