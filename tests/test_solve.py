"""The search against brute force, its certificate, its refusals, and what it may choose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import msgspec
import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from strategies import built_profiles, examples, ideal, layer, layers, magnitudes, model

from kvplan.allocation import Segment, tokens_by_path
from kvplan.descent import descend
from kvplan.errors import InfeasibleError, InputError
from kvplan.evaluate import evaluate
from kvplan.hardware import override
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.planning import make_plan
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import Search, explore, search
from kvplan.units import GIB, parse_bytes
from kvplan.workload import Budgets, Workload

BLOCK = 16
LLAMA = load_model("meta-llama/Llama-2-7b-hf")
A100 = load_hardware("a100")
BUSY = Scenario(model=LLAMA, hardware=A100, workload=Workload(batch=32, context=4096))
"""Too much for the card: 64 GiB of K and V beside 12.6 GiB of weights."""


# -- brute force -------------------------------------------------------------------------------


def layouts(blocks: int, stages: int) -> Iterator[tuple[Segment, ...]]:
    """Every way to give a layer's blocks to paths and stages, stages within a block of even."""
    for staged in range(blocks + 1):
        sizes = [n for n in product(range(staged + 1), repeat=stages)
                 if sum(n) == staged and max(n) - min(n) <= 1]  # fmt: skip
        for size in sizes:
            for rebuilt in product(*(range(k + 1) for k in size)):
                parts: list[tuple[str, int | None, int]] = []
                for stage, (whole, part) in enumerate(zip(size, rebuilt, strict=True)):
                    parts += [("recompute", stage, part), ("fetch", stage, whole - part)]
                parts.append(("resident", None, blocks - staged))
                segments, begin = [], 0
                for name, at, count in parts:
                    if count:
                        segments.append(Segment(begin, begin + count * BLOCK, name, at))
                        begin += count * BLOCK
                yield tuple(segments)


def best_of_all(scenario: Scenario) -> float:
    """The least step of any plan that fits."""
    best = float("inf")
    blocks = scenario.workload.context // BLOCK
    for stages in scenario.options.stages:
        schedule = Schedule(stages=stages, queue_depth=2, boundary=scenario.options.boundary)
        for allocation in product(layouts(blocks, stages), repeat=2):
            plan = evaluate(scenario, schedule, allocation)
            if plan.overflow(scenario.capacity) is None:
                best = min(best, plan.step_s)
    return best


@st.composite
def tiny(draw: st.DrawFn) -> Scenario:
    """Two layers of two to four blocks; HBM for some of them."""
    spec = msgspec.structs.replace(draw(layers()), window=None)
    hardware = override(draw(built_profiles()), flop_per_s=draw(magnitudes(1e9, 1e12)))
    workload = Workload(batch=draw(st.integers(1, 8)), context=draw(st.integers(2, 4)) * BLOCK,
                        block=BLOCK)  # fmt: skip
    options = Options(paths=("resident", "fetch", "recompute"), axes=("token",), stages=(1, 2),
                      queue_depths=(2,), refine_blocks=False, weights="resident",
                      boundary=draw(st.sampled_from(("overlap", "barrier"))))  # fmt: skip
    scenario = Scenario(model=model([spec, spec]), hardware=hardware, workload=workload,
                        options=options)  # fmt: skip
    all_resident = tuple((Segment(0, workload.context, "resident", None),) for _ in range(2))
    most = evaluate(scenario, Schedule(stages=1), all_resident).memory_bytes["hbm"]
    kv = 2 * workload.batch * workload.context * spec.kv_bytes(2)
    room = most - kv * (1 - draw(st.sampled_from((0.3, 0.5, 0.7, 0.9))))
    return replace(scenario, budgets=Budgets(hbm_bytes=int(room), utilisation=1.0))


@examples(12)
@given(tiny())
def test_search_against_brute_force(scenario: Scenario) -> None:
    try:
        found = search(scenario)
    except InfeasibleError:
        return
    best = best_of_all(scenario)
    assert found.bound_s <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= found.best.step_s <= best * (1 + found.gap) * (1 + 1e-9)


@pytest.mark.parametrize(("blocks", "share"), [(2, 0.8), (3, 0.9), (4, 0.6)])
def test_a_plan_is_found_where_one_fits(blocks: int, share: float) -> None:
    """Few blocks per layer, and HBM for a share of K and V: what rounds up must give way."""
    scenario = Scenario(
        model=model([layer()] * 2), hardware=ideal(link=1e9),
        workload=Workload(batch=4, context=blocks * BLOCK, block=BLOCK),
        options=Options(paths=("resident", "fetch"), axes=("token",), stages=(2,),
                        queue_depths=(2,), weights="resident", refine_blocks=False),
    )  # fmt: skip
    kept = (Segment(0, blocks * BLOCK, "resident", None),)
    most = evaluate(scenario, Schedule(stages=1), (kept, kept)).memory_bytes["hbm"]
    away = (1 - share) * 2 * 4 * blocks * BLOCK * 256
    scenario = replace(scenario, budgets=Budgets(hbm_bytes=int(most - away), utilisation=1.0))
    best = best_of_all(scenario)
    assert best < float("inf")
    found = search(scenario)
    assert found.best.step_s <= best * (1 + found.gap) * (1 + 1e-9)


# -- what it finds -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> Search:
    return search(BUSY)


def test_gap_is_a_certificate(busy: Search) -> None:
    assert busy.bound_s * (1 + busy.gap) == pytest.approx(busy.best.step_s)
    assert 0 <= busy.gap < 0.03
    assert busy.best.overflow(BUSY.capacity) is None


def test_search_is_deterministic(busy: Search) -> None:
    again = search(BUSY)
    assert again.best.allocation == busy.best.allocation
    assert again.best.schedule == busy.best.schedule
    assert (again.best.step_s, again.bound_s) == (busy.best.step_s, busy.bound_s)


def test_everything_stays_where_it_fits() -> None:
    scenario = replace(BUSY, workload=Workload(batch=1, context=2048))
    best = search(scenario).best
    assert all(tokens_by_path(s) == {"resident": 2048} for s in best.allocation)
    assert best.graph.link_bytes(best.values).get("h2d", 0.0) == 0.0


@pytest.mark.parametrize("share", [0.6, 0.8, 0.95])
def test_more_memory_never_hurts(busy: Search, share: float) -> None:
    less = replace(BUSY, budgets=Budgets(hbm_bytes=int(BUSY.capacity["hbm"] * share)))
    assert busy.best.step_s <= search(less).best.step_s * (1 + busy.gap)


@pytest.mark.parametrize("rate", [3e9, 12e9, 20e9])
def test_a_faster_link_never_hurts(busy: Search, rate: float) -> None:
    less = replace(BUSY, hardware=override(A100, h2d_bytes_per_s=rate))
    assert busy.best.step_s <= search(less).best.step_s * (1 + busy.gap)


# -- refusals ----------------------------------------------------------------------------------

SHORT: dict[str, Scenario] = {
    "hbm": replace(BUSY, budgets=Budgets(hbm_bytes=4 * GIB), options=Options(weights="resident")),
    "dram": replace(BUSY, budgets=Budgets(dram_bytes=20 * GIB), options=Options(paths=("fetch",))),
    "pinned": replace(BUSY, budgets=Budgets(pinned_bytes=16 * GIB),
                      options=Options(paths=("fetch",))),
    "disk": replace(BUSY, budgets=Budgets(disk_bytes=GIB), options=Options(paths=("fetch_disk",))),
}  # fmt: skip


@pytest.mark.parametrize("budget", SHORT)
def test_infeasible_names_a_budget_and_a_change_that_works(budget: str) -> None:
    scenario = SHORT[budget]
    with pytest.raises(InfeasibleError) as caught:
        search(scenario)
    assert caught.value.budget == budget
    match = re.fullmatch(
        r"give --(\w+) at least (\S+)( or lower --batch to (\d+))?( or let weights .*)?",
        caught.value.change,
    )
    assert match is not None, caught.value.change
    assert match[1] == budget
    wider = replace(scenario.budgets, **{f"{budget}_bytes": parse_bytes(match[2])})
    assert search(replace(scenario, budgets=wider)).best.step_s > 0
    if match[4]:
        workload = replace(scenario.workload, batch=int(match[4]))
        assert search(replace(scenario, workload=workload)).best.step_s > 0


def test_paths_that_the_machine_lacks_are_refused() -> None:
    scenario = replace(BUSY, hardware=ideal(), options=Options(paths=("fetch", "fetch_disk")))
    with pytest.raises(InputError, match="fetch_disk"):
        search(scenario)


# -- options -----------------------------------------------------------------------------------

CHOICES = {
    "axis": Options(axes=("layer",)),
    "stages": Options(stages=(6,)),
    "queue depth": Options(queue_depths=(3,)),
    "barrier": Options(boundary="barrier"),
    "eager": Options(mode="eager"),
    "paths": Options(paths=("resident", "fetch")),
    "streamed": Options(weights="streamed", stages=(4,)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_options_are_respected(name: str) -> None:
    options = CHOICES[name]
    found = search(replace(BUSY, options=options))
    schedule = found.best.schedule
    assert schedule.axis in options.axes
    assert schedule.stages in options.stages
    assert schedule.queue_depth in options.queue_depths
    assert (schedule.boundary, schedule.mode) == (options.boundary, options.mode)
    if options.weights == "streamed":
        assert schedule.stream_weights
    used = {path for segments in found.best.allocation for path in tokens_by_path(segments)}
    assert used <= set(options.paths or used)


def test_a_search_that_is_content_sooner_has_a_true_bound_all_the_same() -> None:
    hard = Scenario(model=load_model("opt-6.7b"), hardware=load_hardware("a100-pcie-80gb"),
                    workload=Workload(batch=32, context=4096))  # fmt: skip
    long = search(hard)
    short = search(replace(hard, options=Options(good_gap=0.05)))
    assert short.judged < long.judged
    assert long.gap <= short.gap <= 0.05
    assert short.bound_s <= long.best.step_s <= short.best.step_s
    plan = make_plan(replace(hard, options=Options(good_gap=0.05)))
    assert plan.inputs.options.good_gap == 0.05
    with pytest.raises(InputError, match="good_gap"):
        Options(good_gap=0.0)


def test_waits_that_the_fluid_optimum_forgets_are_avoided() -> None:
    asked = Scenario(
        model=load_model("rednote-hilab/dots.llm1.inst"), hardware=load_hardware("what-if-c2c"),
        workload=Workload(batch=8, context=65536), budgets=Budgets(dram_bytes=1024 * GIB),
        options=Options(allow={"int8": 1.0}, good_gap=0.05),
    )  # fmt: skip
    candidates, best = explore(asked)
    assert best is not None
    mixed, judged = best.plan, best.judged
    assert mixed.paths == {"recompute", "fetch_int8"}  # both resources less busy, and half idle
    descend(asked, candidates, best)
    assert best.judged > judged
    assert best.step_s < 0.7 * mixed.step_s
    assert best.plan.overflow(asked.capacity) is None
    assert search(asked).gap < 0.05


def test_a_baseline_that_takes_paths_not_named_is_only_compared_with() -> None:
    asked = Scenario(model=LLAMA, hardware=A100, workload=Workload(batch=1, context=1024),
                     options=Options(paths=("fetch", "recompute")))  # fmt: skip
    plan = make_plan(asked)
    assert {path for layer in plan.decision.layers for path in layer.tokens} == {
        "fetch", "recompute"}  # fmt: skip
    assert plan.decision.strategy == "kvplan"
    free = make_plan(replace(asked, options=Options()))
    assert free.decision.strategy == "no_offload"
    assert free.prediction.step_s < plan.prediction.step_s


def test_inexact_paths_are_only_used_when_allowed(busy: Search) -> None:
    for segments in busy.best.allocation:
        assert not any("int" in path for path in tokens_by_path(segments))
    found = search(replace(BUSY, options=Options(allow={"int8": 0.25})))
    total = packed = 0
    for segments in found.best.allocation:
        tokens = tokens_by_path(segments)
        assert "fetch_int4" not in tokens
        total += sum(tokens.values())
        packed += tokens.get("fetch_int8", 0)
    assert 0 < packed <= 0.25 * total + 64 * len(found.best.allocation)
    assert found.best.step_s < busy.best.step_s


def test_what_fits_in_shares_and_not_in_blocks_says_so() -> None:
    """Just below what blocks of 512 tokens need; every change that is named is enough."""
    asked = ("solve", "--model", "opt-125m", "--gpu", "l4", "--batch", "8", "--context", "1500",
             "--weights", "resident", "--paths", "resident,fetch", "--dram", "1GiB")  # fmt: skip
    refused = run(*asked, "--block", "512", "--hbm", "261937KiB")
    assert refused.code == 3
    says = "holds a plan in shares of tokens, none in blocks of 512"
    assert says in refused.err
    larger = re.search(r"give --hbm at least (\S+) or", refused.err)
    assert larger is not None
    assert run(*asked, "--block", "512", "--hbm", larger[1]).code == 0
    assert "or lower --block to 256" in refused.err
    assert run(*asked, "--block", "256", "--hbm", "261937KiB").code == 0


def test_sparse_attention_is_said_to_be_an_upper_bound() -> None:
    result = run("solve", "--model", "deepseek-v3.2", "--gpu", "h200", "--tp", "8", "--batch", "1")
    assert result.code == 0, result.err
    assert "61 of 61 layers choose by an index" in result.err
    assert "an upper bound" in result.err
