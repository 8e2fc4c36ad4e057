"""The judge: bytes by hand, bytes conserved, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from strategies import evaluations, examples, ideal, layer, model

from kvplan.allocation import Allocation, Segment, tokens_by_path
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate, refuse_overflow
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Workload

SCENARIO = Scenario(model=model([layer()] * 2), hardware=ideal(link=1e9, host=1e9, disk=1e9),
                    workload=Workload(batch=2, context=100, block=10))  # fmt: skip
TWO_STAGES = Schedule(stages=2, queue_depth=3)
MIXED: Allocation = (
    (Segment(0, 30, "recompute", 0), Segment(30, 50, "fetch", 1), Segment(50, 60, "fetch_int8", 1),
     Segment(60, 70, "attend_host", None), Segment(70, 100, "resident", None)),
    (Segment(0, 20, "fetch_disk", 0), Segment(20, 30, "recompute_resident", 0),
     Segment(30, 60, "fetch", 1), Segment(60, 100, "resident", None)),
)  # fmt: skip


@examples(150)
@given(evaluations(3))
def test_bytes_are_conserved(judged: tuple[Scenario, Evaluation]) -> None:
    """What crosses each resource is the tokens of the paths that use it, times their bytes."""
    scenario, plan = judged
    workload = scenario.workload
    expected: dict[str, float] = {}
    for index, segments in enumerate(plan.allocation):
        spec = scenario.model.layers[index]
        kv, activation = spec.kv_bytes(2), 2 * spec.activation_elements
        across = {
            "fetch": kv,
            "fetch_disk": kv,
            "recompute": activation,
            "fetch_int8": spec.kv_elements * 1.0625,
            "fetch_int4": spec.kv_elements * 0.5625,
        }
        for name, tokens in tokens_by_path(segments).items():
            for resource, size in (("h2d", across.get(name, 0.0)),
                                   ("disk", kv if name == "fetch_disk" else 0.0),
                                   ("host", kv if name == "attend_host" else 0.0)):  # fmt: skip
                if size:
                    moved = tokens * size * workload.batch
                    expected[resource] = expected.get(resource, 0.0) + moved
        if plan.schedule.stream_weights:
            own = spec.params - spec.hidden * spec.kv_elements
            loads = workload.micro_batches if workload.schedule == "row" else 1
            size = 2 * own * plan.streamed[index] * loads
            expected["h2d"] = expected.get("h2d", 0.0) + size
    moved_bytes = plan.graph.link_bytes(plan.values)
    for resource in ("h2d", "disk", "host"):
        assert moved_bytes.get(resource, 0.0) == pytest.approx(expected.get(resource, 0.0))


@examples(150)
@given(evaluations(3))
def test_every_token_is_stored_once(judged: tuple[Scenario, Evaluation]) -> None:
    """HBM, host memory and disk hold what the paths store, besides weights and buffers."""
    scenario, plan = judged
    stored = dict.fromkeys(("hbm", "dram", "pinned", "disk", "tier"), 0.0)
    for index, segments in enumerate(plan.allocation):
        for name, tokens in tokens_by_path(segments).items():
            for tier, size in REGISTRY[name].stored(scenario.model.layers[index], "fp16").items():
                stored[tier] += size * tokens * scenario.workload.batch
    assert plan.memory_bytes["disk"] == pytest.approx(stored["disk"])
    plain = [b for b in plan.graph.buffers if "dram" in b.tiers]
    if not plain and not plan.schedule.stream_weights:
        assert plan.memory_bytes["dram"] == pytest.approx(stored["dram"])
        assert plan.memory_bytes["pinned"] == pytest.approx(stored["pinned"])
    for tier, size in plan.memory_bytes.items():
        if not plan.schedule.stream_weights:
            assert size >= stored[tier] * (1 - 1e-12)


def test_memory_by_hand() -> None:
    """Per token and sequence: K and V 256 bytes, activation 128, K and V in int8 136. Batch 2.

    HBM: weights 2 x 81920, embedding and head 2 x 12800, workspace
    2 x (2 x (2 x 64 + 256) x 2 + 4 x 100); resident 70 tokens, activations of 10; three buffers
    of the largest stage. That is layer 0 stage 0: 30 rebuilt tokens, K and V and activation each.
    """
    plan = evaluate(SCENARIO, TWO_STAGES, MIXED)
    stages = [30 * (256 + 128), 20 * 256 + 10 * (256 + 136), 20 * 256 + 10 * 256, 30 * 256]
    constant = 2 * 81920 + 2 * 12800 + 2 * (2 * (2 * 64 + 256) * 2 + 4 * 100)
    assert plan.memory_bytes["hbm"] == (
        constant + 2 * (70 * 256 + 10 * 128) + 3 * 2 * max(stages)
    )  # fmt: skip
    pinned = 2 * (30 * 128 + 50 * 256 + 10 * 136) + 3 * 2 * 20 * 256
    assert plan.memory_bytes["pinned"] == pinned
    assert plan.memory_bytes["dram"] == pinned + 2 * 10 * 256
    assert plan.memory_bytes["disk"] == 2 * 20 * 256
    moved = plan.graph.link_bytes(plan.values)
    assert moved == {
        "h2d": 2 * (30 * 128 + 70 * 256 + 10 * 136), "host": 2 * 10 * 256, "disk": 2 * 20 * 256,
    }  # fmt: skip


def test_streamed_weights_move_from_hbm_to_host_memory() -> None:
    """Half of what may be streamed of each of 4 layers, less two buffers of half a layer."""
    scenario = replace(SCENARIO, model=model([layer()] * 4))
    kept = (Segment(0, 100, "resident", None),)
    resident = evaluate(scenario, Schedule(stages=1), (kept,) * 4)
    streamed = evaluate(scenario, Schedule(stages=1, stream_weights=True), (kept,) * 4, [0.5] * 4)
    half = (81920 - 2 * 64 * 128) / 2
    assert streamed.memory_bytes["hbm"] == resident.memory_bytes["hbm"] - 4 * half + 2 * half
    assert streamed.memory_bytes["dram"] == 4 * half
    assert streamed.graph.link_bytes(streamed.values)["h2d"] == 4 * half


KEPT = (Segment(0, 100, "resident", None),)
REFUSED: dict[str, tuple[Allocation, str]] = {
    "too few layers": ((KEPT,), "decision.layers: 1 .* 2 layers"),
    "a gap": (((Segment(0, 40, "resident", None), Segment(50, 100, "resident", None)), KEPT),
              r"layers\[0\].* tokens from 40 on"),
    "an overlap": ((KEPT, (Segment(0, 60, "fetch", 0), Segment(50, 100, "resident", None))),
                   r"layers\[1\].* tokens from 60 on"),
    "too short": (((Segment(0, 90, "resident", None),), KEPT), r"layers\[0\]: 90 .* 100 tokens"),
    "too long": (((Segment(0, 110, "resident", None),), KEPT), r"layers\[0\]: 110 .* 100 tokens"),
    "an empty run": (((Segment(0, 0, "fetch", 0), *KEPT), KEPT), r"layers\[0\]"),
    "an unknown path": (((Segment(0, 100, "teleport", None),), KEPT), "teleport.* one of resident"),
    "no stage": (((Segment(0, 100, "fetch", None),), KEPT), "fetch: None .* a stage"),
    "a stage too many": (((Segment(0, 100, "resident", 0),), KEPT), "resident: 0 .* no stage"),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason: str) -> None:
    allocation, message = REFUSED[reason]
    with pytest.raises(InputError, match=message):
        evaluate(SCENARIO, TWO_STAGES, allocation)


@pytest.mark.parametrize("name", ["attend_host", "fetch_disk"])
def test_refuses_what_the_machine_cannot_do(name: str) -> None:
    scenario = replace(SCENARIO, hardware=ideal(link=1e9))
    stage = None if name == "attend_host" else 0
    with pytest.raises(InputError, match=f"{name}.* figures for"):
        evaluate(scenario, TWO_STAGES, ((Segment(0, 100, name, stage),), KEPT))


def test_overflow_names_the_tier_that_lacks_most() -> None:
    plan = evaluate(SCENARIO, TWO_STAGES, MIXED)
    held = dict(plan.memory_bytes)
    assert plan.overflow(held) is None
    assert refuse_overflow(plan, held) is None
    tight = held | {"hbm": held["hbm"] - 1000.0, "dram": held["dram"] - 3000.0}
    assert plan.overflow(tight) == ("dram", 3000.0)
    sentence = refuse_overflow(plan, tight)
    assert sentence is not None
    assert " of dram, " in sentence
    assert " more than its budget of " in sentence
