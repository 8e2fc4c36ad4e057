"""What-if tiers: memory that attends in place or is read out, as profiles with assumed figures."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kvplan import cost
from kvplan.allocation import Segment
from kvplan.errors import InfeasibleError, InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.model_library import load_model
from kvplan.paths import ATTEND_TIER, FETCH_TIER
from kvplan.planning import make_plan, replay
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import search
from kvplan.tier import Tier
from kvplan.units import parse_bytes
from kvplan.workload import Workload

WHAT_IFS = [name for name in hardware_names() if name.startswith("what-if")]
QUICK = Options(stages=(4,), queue_depths=(2,), axes=("token",))


def scenario(gpu: str, **options: object) -> Scenario:
    return Scenario(
        model=load_model("llama-3.1-8b"), hardware=load_hardware(gpu),
        workload=Workload(batch=32, context=32768),
        options=dataclasses.replace(QUICK, **options),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("name", WHAT_IFS)
def test_every_what_if_is_assumed_and_says_from_what(name: str) -> None:
    profile = load_hardware(name)
    assert profile.kind == "assumed"
    assert "what if" in profile.title.lower()
    changed = [k for k in profile.provenance if k.startswith("tier")]
    assert all(profile.provenance[k].kind == "assumed" for k in changed)
    assert all(len(profile.provenance[k].source) > 10 for k in changed)


def allocated(gpu: str, path: str) -> tuple[Scenario, Evaluation]:
    """All tokens of every layer in the tier."""
    asked = scenario(gpu)
    tokens = asked.workload.tokens
    stage = 0 if path == "fetch_tier" else None
    layer = (Segment(0, tokens, path, stage),)
    layers = len(asked.model.layers)
    schedule = Schedule(stages=1, queue_depth=2)
    return asked, evaluate(asked, schedule, (layer,) * layers)


@pytest.mark.parametrize(
    ("gpu", "path", "resource"),
    [("what-if-near-memory", "attend_tier", "tier"), ("what-if-cxl", "fetch_tier", "tier"),
     ("what-if-sram", "attend_tier", "gpu")],
)  # fmt: skip
def test_bytes_over_the_tiers_rate(gpu: str, path: str, resource: str) -> None:
    """32 layers, 32 sequences of 32768 tokens, 4 KiB each: 137 GB."""
    asked, found = allocated(gpu, path)
    tier = asked.hardware.tier
    assert tier is not None
    size = 32 * 32 * 32768 * 4096
    assert found.memory_bytes["tier"] == size
    busy = found.simulation.busy_s[resource]
    floor_s = size / tier.bytes_per_s
    assert floor_s <= busy <= floor_s * 1.01 + (0.05 if resource == "gpu" else 0.001)
    moved = found.graph.link_bytes(found.values)
    assert moved.get("h2d", 0.0) == 0
    assert (moved.get("tier", 0.0) == size) == (resource == "tier")


def test_only_the_paths_a_tier_has() -> None:
    layer = load_model("llama-3.1-8b").layers[0]
    for gpu, attends, fetches in (
        ("what-if-sram", True, False), ("what-if-near-memory", True, False),
        ("what-if-cxl", False, True), ("h100-sxm", False, False), ("what-if-c2c", False, False),
    ):  # fmt: skip
        machine = load_hardware(gpu)
        assert ATTEND_TIER.available(machine, layer, "fp16") is attends
        assert FETCH_TIER.available(machine, layer, "fp16") is fetches
        assert (cost.attend_tier(machine) is not None) is attends


@pytest.mark.parametrize("gpu", WHAT_IFS)
def test_a_tier_or_a_faster_link_never_hurts(gpu: str) -> None:
    before = search(scenario("h100-sxm")).best.step_s
    after = search(scenario(gpu))
    assert after.best.step_s <= before * 1.001
    assert after.best.overflow(scenario(gpu).capacity) is None


def test_attention_beside_memory_is_worth_most_for_long_contexts() -> None:
    """The link of the base card limits it 16-fold more than the tier does."""
    before = search(scenario("h100-sxm")).best.step_s
    beside = search(scenario("what-if-near-memory")).best.step_s
    assert before / beside > 10


def test_a_plan_with_a_tier_replays() -> None:
    plan = make_plan(scenario("what-if-near-memory"), time="then")
    assert plan.decision.layers[0].tokens["attend_tier"] > 0
    assert plan.prediction.memory_bytes["tier"] <= plan.prediction.capacity_bytes["tier"]
    assert replay(plan)[1].step_s == plan.prediction.step_s


def test_a_tier_is_checked() -> None:
    fine = {"name": "t", "capacity_bytes": 1, "bytes_per_s": 1.0, "latency_s": 1.0}
    with pytest.raises(InputError, match="attended_by"):
        Tier(**fine, attended_by="magic")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="bandwidth"):
        Tier(**{**fine, "bytes_per_s": 0.0}, attended_by="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("gpu", ["what-if-cxl", "what-if-near-memory"])
def test_a_tier_that_is_too_small_is_named_with_changes_that_work(gpu: str) -> None:
    asked = scenario(gpu)
    asked = dataclasses.replace(asked, workload=dataclasses.replace(asked.workload, batch=256))
    with pytest.raises(InfeasibleError) as caught:
        search(asked)
    assert caught.value.budget == "tier"
    change = re.fullmatch(
        r"take a profile whose tier.capacity is at least (\S+)( or give --dram at least (\S+))?"
        r" or lower --batch to (\d+)",
        caught.value.change,
    )
    assert change is not None, caught.value.change
    tier = asked.hardware.tier
    assert tier is not None
    larger = dataclasses.replace(tier, capacity_bytes=parse_bytes(change[1]))
    hardware = dataclasses.replace(asked.hardware, tier=larger)
    assert search(dataclasses.replace(asked, hardware=hardware)).best.step_s > 0
    if change[3]:
        budgets = dataclasses.replace(asked.budgets, dram_bytes=parse_bytes(change[3]))
        assert search(dataclasses.replace(asked, budgets=budgets)).best.step_s > 0
    workload = dataclasses.replace(asked.workload, batch=int(change[4]))
    assert search(dataclasses.replace(asked, workload=workload)).best.step_s > 0
