"""How long planning takes. ``pytest tests/benchmarks --benchmark-enable -s`` prints times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

import pytest

from kvplan.hardware_library import load_hardware
from kvplan.model import LayerSpec, ModelSpec
from kvplan.model_library import load_model
from kvplan.planning import make_plan
from kvplan.scenario import Scenario
from kvplan.simulate import simulate
from kvplan.solve import search
from kvplan.workload import Budgets, Workload

T = TypeVar("T")


class Benchmark(Protocol):
    def __call__(self, function: Callable[..., T], *args: object) -> T: ...


def timed(benchmark: Benchmark, what: str, function: Callable[..., T], *args: object) -> T:
    """Run under pytest-benchmark, and print the time of one more run."""
    result = benchmark(function, *args)
    start = time.perf_counter()
    function(*args)
    print(f"\n{what}: {1e3 * (time.perf_counter() - start):.1f} ms")
    return result


@pytest.fixture(scope="module")
def llama() -> Scenario:
    return Scenario(model=load_model("llama-7b"), hardware=load_hardware("a100"),
                    workload=Workload(batch=32, context=4096))  # fmt: skip


def alternating() -> ModelSpec:
    """128 layers, every second one with a window of 4096 tokens; grouped heads."""

    def kind(window: int | None) -> LayerSpec:
        return LayerSpec(
            hidden=4096, query_heads=32, kv_heads=8, head_dim_k=128, head_dim_v=128, window=window,
            intermediate=14336, gated_mlp=True, rope=True, attention_params=41_943_040,
            mlp_params=176_160_768,
        )  # fmt: skip

    return ModelSpec(
        name="alternating-128", family="test", hidden=4096, vocab=128_256, embedding_width=4096,
        weight_dtype="bf16", layers=(kind(4096), kind(None)) * 64, embedding_params=525_336_576,
        head_params=525_340_672, tied=False, source="test",
    )  # fmt: skip


@pytest.mark.parametrize("context", [2048, 4096])
def test_whole_search(benchmark: Benchmark, llama: Scenario, context: int) -> None:
    """At the context that the command takes unless told otherwise, and at twice that."""
    asked = replace(llama, workload=Workload(batch=32, context=context))
    found = timed(benchmark, f"search, llama-7b on a100, {context} tokens", search, asked)
    assert 0 <= found.gap <= asked.options.good_gap


def test_make_plan(benchmark: Benchmark, llama: Scenario) -> None:
    plan = timed(benchmark, "make_plan with every baseline", make_plan, llama)
    assert plan.prediction.step_s > 0


def test_simulate_the_full_graph(benchmark: Benchmark, llama: Scenario) -> None:
    best = search(llama).best
    what = f"simulate {len(best.graph.operations)} operations"
    again = timed(benchmark, what, simulate, best.graph, best.values)
    assert again.step_s == best.step_s


def test_search_of_a_deep_model_of_two_kinds(benchmark: Benchmark) -> None:
    """A million tokens; the window keeps half of the layers small."""
    scenario = Scenario(model=alternating(), hardware=load_hardware("h200"),
                        workload=Workload(batch=1, context=2**20, block=1024),
                        budgets=Budgets(dram_bytes=2**40))  # fmt: skip
    found = timed(benchmark, "search, 128 layers of two kinds, 1 M tokens", search, scenario)
    assert len(found.best.allocation) == 128
    assert 0 <= found.gap < 0.1
