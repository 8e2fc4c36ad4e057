"""Tensor parallelism: one rank stands for all."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cli_runner import run

from kvplan import cost
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.planning import make_plan, replay, scenario_of
from kvplan.ranks import planned_with, rank_hardware, rank_kv_heads, rank_layer, rank_model
from kvplan.scenario import Options, Scenario
from kvplan.solve import search
from kvplan.workload import Budgets, Workload

QUICK = Options(stages=(4,), queue_depths=(2,), axes=("token",))


@pytest.mark.parametrize("name", ["llama-7b", "llama-3.1-8b", "qwen2.5-72b", "opt-30b"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_heads_and_weights_are_shared_out(name: str, ranks: int) -> None:
    model = load_model(name)
    layer = model.layers[0]
    if layer.query_heads % ranks:
        pytest.skip("heads do not divide")
    part = rank_layer(layer, ranks)
    assert part.query_heads * ranks == layer.query_heads
    assert part.kv_elements * min(ranks, layer.kv_heads) == layer.kv_elements
    assert part.hidden == layer.hidden
    assert rank_model(model, ranks).params * ranks == pytest.approx(model.params, rel=1e-3)


def test_kv_heads_are_copied_where_ranks_exceed_them() -> None:
    layer = load_model("llama-3.1-8b").layers[0]
    assert rank_kv_heads(layer, 32) == 1
    whole, part = layer.kv_bytes(2), rank_layer(layer, 32).kv_bytes(2)
    assert part == whole / 8  # four ranks hold the same head
    copies = rank_layer(layer, 32).attention_params * 32
    assert copies > layer.attention_params


@pytest.mark.parametrize(("model", "ranks", "says"), [
    ("llama-3.1-8b", 3, "divisor of 32 query heads"), ("qwen2.5-7b", 8, "query heads"),
])  # fmt: skip
def test_heads_that_cannot_be_shared_out(model: str, ranks: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        rank_model(load_model(model), ranks)


def test_planned_with_changes_nothing() -> None:
    model = load_model("llama-3.1-8b")
    asked = Scenario(model=model, hardware=load_hardware("h100-sxm"), workload=Workload(tp=1))
    assert planned_with(asked) is asked
    assert rank_model(model, 1) == model


def machine(name: str = "h200") -> HardwareProfile:
    return load_hardware(name)


def test_an_all_reduce_is_counted_by_hand() -> None:
    """Two thirds and a half of 8 MB each way at the peer's rate, and its latency."""
    whole = machine("h100-sxm")
    assert whole.peer is not None
    assert cost.all_reduce_s(whole, 8e6) == 0
    for ranks, share in ((2, 1.0), (4, 1.5), (8, 1.75)):
        part = rank_hardware(whole, ranks, None)
        expected = whole.peer.latency_s + share * 8e6 / whole.peer.bytes_per_s
        assert cost.all_reduce_s(part, 8e6) == pytest.approx(expected)
    alone = rank_hardware(machine("l4"), 2, None)
    assert cost.all_reduce_s(alone, 8e6) == pytest.approx(
        cost.PEER_LATENCY_S + 8e6 / alone.h2d.copy.rate()
    )
    layer = load_model("llama-3.1-8b").layers[0]
    one = dataclasses.replace(rank_hardware(whole, 4, None), ranks=1)
    both = cost.finish_s(rank_hardware(whole, 4, None), layer, "bf16", 16)
    reduced = cost.all_reduce_s(rank_hardware(whole, 4, None), 16 * 4096 * 2)
    assert both - cost.finish_s(one, layer, "bf16", 16) == pytest.approx(2 * reduced)


def test_the_host_is_shared_and_the_uplink_too() -> None:
    whole = machine()
    part = rank_hardware(whole, 4, 40e9)
    assert part.h2d.copy.rate() == pytest.approx(10e9)
    assert part.d2h.copy.rate() == pytest.approx(10e9)
    assert part.host.dram_bytes == whole.host.dram_bytes // 4
    for dtype, rate in whole.host.attention_bytes_per_s.items():
        assert part.host.attention_bytes_per_s[dtype] == pytest.approx(rate / 4)
    wide = rank_hardware(whole, 4, 1e12)
    assert wide.h2d == whole.h2d  # an uplink gives a GPU no more than its own link


def scenario(
    tp: int, uplink: float | None = None, paths: tuple[str, ...] | None = None
) -> Scenario:
    return planned_with(Scenario(
        model=load_model("llama-3.1-8b"), hardware=load_hardware("h100-sxm"),
        workload=Workload(batch=32, context=16384, tp=tp),
        budgets=Budgets(hbm_bytes=24 * 2**30, uplink_bytes_per_s=uplink),
        options=dataclasses.replace(QUICK, paths=paths),
    ))  # fmt: skip


def test_more_ranks_are_faster_unless_they_share_a_link() -> None:
    steps = [search(scenario(tp)).best.step_s for tp in (1, 2, 4)]
    assert steps == sorted(steps, reverse=True)
    rate = load_hardware("h100-sxm").h2d.copy.rate()
    shared = search(scenario(2, uplink=rate, paths=("fetch",))).best.step_s
    alone = search(scenario(1, paths=("fetch",))).best.step_s
    assert shared == pytest.approx(alone, rel=0.02)  # the same bytes over the same uplink


def test_a_plan_holds_the_whole_model_and_replays_planned_with() -> None:
    plan = make_plan(scenario(2), time="then")
    assert plan.inputs.workload.tp == 2
    assert plan.inputs.model.layers[0].layer == load_model("llama-3.1-8b").layers[0]
    asked, evaluation = replay(plan)
    assert evaluation.step_s == plan.prediction.step_s
    assert asked.model.layers[0].kv_heads == 4
    assert scenario_of(plan).whole is not None
    assert plan.prediction.tokens_per_s == 32 / plan.prediction.step_s


@pytest.mark.parametrize(
    ("context", "measured_ms"), [(128, 30.9), (1024, 31.0), (4096, 31.1), (8192, 31.3)]
)
def test_72b_on_two_h100s(context: int, measured_ms: float) -> None:
    """tenstorrent/tt-inference-server#143: TPOT of Qwen2.5-72B, TP 2, one request (MD-08).

    Assumed: bf16 weights and cache, CUDA graphs. The floor reads the weights at 3350 GB/s.
    """
    found = run(
        "solve", "--model", "qwen2.5-72b", "--gpu", "h100-sxm", "--tp", "2", "--batch", "1",
        "--context", str(context), "--kv-dtype", "bf16", "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    step_ms = 1e3 * json.loads(found.out)["prediction"]["step_s"]
    assert 21.7 <= step_ms <= 1.7 * 21.7
    assert step_ms == pytest.approx(measured_ms, rel=0.15)


def test_the_slope_with_context_is_that_of_reading_kv() -> None:
    """0.4 ms from 128 to 8192 tokens, within a half."""
    steps = []
    for context in (128, 8192):
        asked = planned_with(Scenario(
            model=load_model("qwen2.5-72b"), hardware=load_hardware("h100-sxm"),
            workload=Workload(batch=1, context=context, kv_dtype="bf16", tp=2), options=QUICK,
        ))  # fmt: skip
        steps.append(search(asked).best.step_s)
    assert 1e3 * (steps[1] - steps[0]) == pytest.approx(0.4, rel=0.5)


@pytest.mark.parametrize(("option", "value", "says"), [
    ("--tp", "0", "--tp: '0'"), ("--tp", "two", "--tp: 'two'"), ("--tp", "5", "query heads"),
    ("--tp", "65", "from 1 to 64"), ("--uplink", "fast", "--uplink: 'fast'"),
])  # fmt: skip
def test_bad_input(option: str, value: str, says: str) -> None:
    refused = run("solve", "--model", "llama-3.1-8b", "--gpu", "l4", option, value)
    assert (refused.code, refused.out) == (2, "")
    assert says in refused.err
    assert refused.err.count("\n") == 1
