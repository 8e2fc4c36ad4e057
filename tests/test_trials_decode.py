"""Decode steps that people measured or argued about, with stated tolerances.

Figures are the reporters'; what was assumed beside them is said in each test.
"""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from kvplan.allocation import Segment
from kvplan.baselines import BASELINES
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import override
from kvplan.hardware_library import load_hardware
from kvplan.model import ModelSpec
from kvplan.model_library import load_model
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Workload

BASELINE = {baseline.name: baseline.plan for baseline in BASELINES}


def judged(scenario: Scenario, name: str) -> Evaluation:
    found = BASELINE[name](scenario)
    assert isinstance(found, Evaluation), found
    return found


# -- KV in host memory: copy and compute in series, or overlapped ---------------------------


def sixteen_layers() -> ModelSpec:
    """Sixteen layers whose K and V of one token take 1088 bytes each: 1024 values in q8_0.

    Blocks of 32 values take 34 bytes; eight heads of 136 one-byte values weigh the same.
    """
    model = load_model("qwen2.5-32b")
    layer = msgspec.structs.replace(
        model.layers[0], query_heads=32, kv_heads=8, head_dim_k=136, head_dim_v=136
    )
    return msgspec.structs.replace(model, layers=(layer,) * 16)


def calibrated(depth: int, resident_ms: float, h2d_ms: float) -> Scenario:
    """A card whose step with everything resident is the reported one, and whose link is too."""
    moved = 16 * 2176 * depth
    hardware = override(load_hardware("rtx-4090"), h2d_bytes_per_s=moved / (h2d_ms * 1e-3))
    asked = Scenario(
        model=sixteen_layers(),
        hardware=hardware,
        workload=Workload(batch=1, context=depth, kv_dtype="fp8"),
    )
    low, high = 1e11, 1e13
    for _ in range(40):
        rate = (low * high) ** 0.5
        trial = dataclasses.replace(asked, hardware=override(hardware, hbm_bytes_per_s=rate))
        slow = judged(trial, "no_offload").step_s > resident_ms * 1e-3
        low, high = (rate, high) if slow else (low, rate)
    return trial


@pytest.mark.parametrize(
    ("depth", "resident_ms", "h2d_ms", "ordered", "unordered"),
    [(4096, 25.31, 6.31, 31.72, 38.49), (16384, 27.59, 24.05, 19.69, 34.86),
     (32768, 30.55, 47.10, 13.03, 20.83)],
)  # fmt: skip
def test_copy_then_compute_or_both_at_once(
    depth: int, resident_ms: float, h2d_ms: float, ordered: float, unordered: float
) -> None:
    """GenerelSchwerz/llama.cpp#31 (MD-01): tokens/s with copies in order and without.

    Each rung says what it assumes: synchronous fetch copies, then computes; overlapped fetch does
    both at once. Assumed: a step with KV on the GPU and the time of the copies, as reported; they
    calibrate the card, the two steps predicted are others.
    """
    asked = calibrated(depth, resident_ms, h2d_ms)
    assert sum(layer.kv_bytes(1) for layer in asked.model.layers) == 34816
    serial, overlapped = (judged(asked, n) for n in ("synchronous_fetch", "overlapped_fetch"))
    assert serial.graph.link_bytes(serial.values)["h2d"] == 34816 * depth
    assert 1e3 * serial.step_s == pytest.approx(1e3 / ordered, rel=0.03)
    assert 1e3 * overlapped.step_s == pytest.approx(1e3 / unordered, rel=0.05)
    assert 34816 * depth / (h2d_ms * 1e-3) / 1e9 == pytest.approx(
        {4096: 22.6, 16384: 23.7, 32768: 24.2}[depth], abs=0.06
    )


def test_what_is_stored_is_not_the_bottleneck() -> None:
    """Removing all stores of a step gained 0.18 % (same report): 34816 bytes per step."""
    asked = calibrated(16384, 27.59, 24.05)
    found = judged(asked, "synchronous_fetch")
    assert found.graph.link_bytes(found.values).get("d2h", 0.0) <= 34816
    assert found.simulation.bottleneck != "d2h"
    assert found.simulation.busy_s.get("d2h", 0.0) < 0.02 * found.step_s


# -- looking ahead does not make a link faster ----------------------------------------------

TOKENS = 122070
"""Tokens whose K and V of a layer, 8 heads of 128, take 10 ms at 50 GB/s."""


def sixty_four_layers(offloaded: int, queue_depth: int) -> tuple[float, float]:
    """Seconds of a step with so many layers in host memory, and with none."""
    hardware = override(load_hardware("h100-sxm"), h2d_bytes_per_s=50e9, hbm_bytes=10**12)
    asked = Scenario(
        model=load_model("qwen2.5-32b"), hardware=hardware,
        workload=Workload(batch=1, context=TOKENS, kv_dtype="bf16"),
    )  # fmt: skip
    layers = len(asked.model.layers)
    every = layers // offloaded if offloaded else layers + 1
    chosen = set(range(every - 1, layers, every)[:offloaded]) if offloaded else set()
    schedule = Schedule(stages=4, queue_depth=queue_depth)
    cut = [TOKENS * i // 4 for i in range(5)]
    away = tuple(Segment(cut[i], cut[i + 1], "fetch", i) for i in range(4))
    kept = (Segment(0, TOKENS, "resident", None),)
    some = tuple(away if layer in chosen else kept for layer in range(layers))
    none = (kept,) * layers
    return tuple(evaluate(asked, schedule, a).step_s for a in (some, none))  # type: ignore[return-value]


@pytest.mark.parametrize("queue_depth", [2, 8, 32])
def test_prefetch_distance_cannot_fix_a_bandwidth_deficit(queue_depth: int) -> None:
    """vllm-project/vllm#15123 (MD-06): 32 of 64 layers, 10 ms each, 470 us of compute per layer."""
    step_s, _ = sixty_four_layers(32, queue_depth)
    assert 1e3 * step_s == pytest.approx(320, rel=0.02)
    assert step_s / (64 * 470e-6) == pytest.approx(10.6, rel=0.05)


def test_three_layers_can_be_hidden() -> None:
    """30 ms of compute hide the copies of three layers, give or take one (same report)."""
    resident_s = sixty_four_layers(0, 4)[1]
    assert resident_s == pytest.approx(64 * 470e-6, rel=0.25)  # from the card's data sheet alone
    hidden = 0
    for offloaded in range(1, 8):
        step_s, _ = sixty_four_layers(offloaded, 4)
        if step_s <= resident_s * 1.05:
            hidden = offloaded
    assert abs(hidden - 3) <= 1
