"""Restores: the program equals the simulator, bounds hold, splits are found, costs add up."""

from __future__ import annotations

import dataclasses
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import LARGE, built_profiles, examples, ideal, layer, magnitudes, model, models

from kvplan import prefill, program
from kvplan.errors import InfeasibleError, InputError
from kvplan.hardware import override, scaled
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.prefix import LAYOUTS, Prefix
from kvplan.restoration import Restoration
from kvplan.restore import answer, refuse_overflow
from kvplan.restore_baselines import LayerTimes, cake, hcache, hcache_layers
from kvplan.restore_search import best
from kvplan.restored import Restored, Split, judge, load, rebuild, recompute, resident
from kvplan.workload import Budgets


@st.composite
def restorations(draw: st.DrawFn, most_tokens: int = 400) -> Restoration:
    """A small prefix on a random machine."""
    hardware = draw(built_profiles())
    source = draw(st.sampled_from(("dram", "disk"))) if hardware.disk else "dram"
    prefix = Prefix(
        tokens=draw(st.integers(1, most_tokens)), suffix=draw(st.sampled_from((1, 7, 100))),
        requests=draw(st.sampled_from((1, 1, 2, 3))), source=source,
        stored_dtype=draw(st.sampled_from((None, None, "int8"))),
        block=draw(st.sampled_from((1, 16))), chunk=draw(st.sampled_from((16, 64, 1000))),
        granularity=draw(st.sampled_from(tuple(LAYOUTS))), overlap=draw(st.booleans()),
        gpu_busy=draw(st.sampled_from((0.0, 0.5))), link_busy=draw(st.sampled_from((0.0, 0.3))),
        prefill_tokens_per_s=draw(st.sampled_from((None, 1e4))),
        mode=draw(st.sampled_from(("graph", "eager"))),
    )  # fmt: skip
    return Restoration(model=draw(models()), hardware=hardware, prefix=prefix)


@st.composite
def splits(draw: st.DrawFn, given_restoration: Restoration) -> Split:
    """Any front through all layers, or the whole prefix through some; any tokens rebuilt."""
    count = len(given_restoration.model.layers)
    tokens = given_restoration.prefix.tokens
    if draw(st.booleans()):
        front, depth = draw(st.integers(0, tokens)), count
    else:
        front, depth = tokens, draw(st.integers(0, count))
    rebuilt = tuple(
        draw(st.integers(0, given_restoration.behind(i, front if i < depth else 0)))
        for i in range(count)
    )
    return Split(front=front, depth=depth, rebuilt=rebuilt, spread=draw(st.integers(0, count)))


def useful(found: Restoration, split: Split) -> Split:
    """The split without rebuilds that take at least as much of everything as a load."""
    rebuilt = [
        tokens if found.rebuild_helps(spec) else 0
        for tokens, spec in zip(split.rebuilt, found.model.layers, strict=True)
    ]
    return dataclasses.replace(split, rebuilt=tuple(rebuilt))


@st.composite
def judged(draw: st.DrawFn) -> Restored:
    found = draw(restorations())
    return judge(found, draw(splits(found)))


# -- one graph, two readers --------------------------------------------------------------------


@examples(100)
@given(judged())
def test_program_equals_simulator_for_a_fixed_split(restored: Restored) -> None:
    solution = program.solve(program.state(restored.graph, LARGE), fixed=restored.values)
    assert solution is not None
    assert solution.step_s == pytest.approx(restored.ttft_s, rel=1e-9)


@examples(100)
@given(judged())
def test_the_period_is_the_longest_chain(restored: Restored) -> None:
    """Played forward once, without cycles: the last request's head ends when the period does."""
    ends: list[float] = []
    graph = restored.graph
    for index, operation in enumerate(graph.operations):
        ready = [ends[b] + graph.delay_s(b, index) for b, lag in operation.after if not lag]
        start = max(ready, default=0.0)
        ends.append(start + operation.seconds(restored.values))
    assert restored.ttft_s == pytest.approx(max(ends), rel=1e-12)
    assert restored.ttfts[-1] == pytest.approx(restored.ttft_s, rel=1e-9)
    assert list(restored.ttfts) == sorted(restored.ttfts)
    assert len(restored.ttfts) == restored.restoration.prefix.requests


@examples(40)
@given(st.data())
def test_no_split_beats_the_bound(data: st.DataObject) -> None:
    found = data.draw(restorations(most_tokens=200))
    found_best = best(found)
    other = judge(found, useful(found, data.draw(splits(found))))
    assert found_best.bound_s <= other.ttft_s * (1 + 1e-7)
    assert found_best.bound_s <= found_best.restored.ttft_s * (1 + 1e-12)
    for way in (load, recompute):
        assert found_best.restored.ttft_s <= way(found).ttft_s * (1 + 1e-12)


@examples(100)
@given(judged())
def test_every_token_comes_from_somewhere(restored: Restored) -> None:
    """Variables of a layer add up to what it caches; bytes over the link are tokens times size."""
    found, graph = restored.restoration, restored.graph
    part = next((x for v, x in zip(graph.variables, restored.values, strict=True)
                 if v.path == "prefill"), 0.0)  # fmt: skip
    for index, needed in graph.tokens.items():
        counts = [
            x for v, x in zip(graph.variables, restored.values, strict=True)
            if v.layer == index or index in v.also
        ]  # fmt: skip
        assert sum(counts) == pytest.approx(needed)
    assert 0 <= part <= found.prefix.chunk
    moved = 0.0
    for index, spec in enumerate(found.model.layers):
        load_bytes = found.load.stored(spec, found.prefix.kv_dtype)
        rebuild_bytes = found.rebuild.stored(spec, found.prefix.kv_dtype)
        tier = found.prefix.source
        moved += restored.loaded(index) * load_bytes[tier]
        moved += restored.split.rebuilt[index] * rebuild_bytes[tier]
        whole = index < restored.split.depth and restored.split.front == found.prefix.tokens
        moved += 0.0 if whole else found.held(index)
    crossed = graph.link_bytes(restored.values).get("h2d", 0.0)
    assert crossed == pytest.approx(moved * found.prefix.requests)


# -- by hand -----------------------------------------------------------------------------------

LINK, FLOP = 1e6, 1e9


def small(**changes: object) -> Restoration:
    """Two multi-head layers without RoPE: only the link and products take time."""
    spec = layer(hidden=64, query_heads=4, head_dim=16, intermediate=64, gated_mlp=False)
    prefix = Prefix(tokens=100, block=1, chunk=50, **changes)  # type: ignore[arg-type]
    return Restoration(
        model=model([spec, spec], vocab=1), hardware=ideal(link=LINK, flop=FLOP), prefix=prefix
    )


def test_load_by_hand() -> None:
    """100 tokens x 2 layers x K and V of 64 elements x 2 bytes, then the last layer's suffix."""
    found = small()
    loading_s = 100 * 2 * 2 * 64 * 2 / LINK
    last_layer_s = found.layer_s(found.model.layers[1], 100, 1)
    assert load(found).ttft_s == pytest.approx(loading_s + last_layer_s + found.head_s())


def test_recompute_by_hand() -> None:
    """FLOP over the rate: attention runs at a share of it."""
    found = small()
    spec = found.model.layers[0]
    pairs = 101 * 102 // 2
    matrix = 2.0 * spec.params * 101
    attending = 4.0 * 64 * pairs / prefill.ATTENTION_SHARE
    expected = 2 * (matrix + attending) / FLOP + found.head_s()
    assert recompute(found).ttft_s == pytest.approx(expected, rel=1e-6)


def test_rebuild_by_hand() -> None:
    """Half the bytes of multi-head K and V; 4hw FLOP per token, hidden behind the link."""
    found = small()
    spec = found.model.layers[0]
    sending_s = 100 * 2 * 64 * 2 / LINK
    last_s = 4 * 64 * 64 * 100 / FLOP + found.layer_s(spec, 100, 1) + found.head_s()
    assert rebuild(found).ttft_s == pytest.approx(sending_s + last_s)


def test_requests_share_link_and_gpu() -> None:
    """Three loads take three times the bytes; only the last layer of the last one is exposed."""
    one, three = load(small()), load(small(requests=3))
    exposed_s = one.ttft_s - 100 * 2 * 2 * 64 * 2 / LINK
    assert three.ttft_s == pytest.approx(3 * (one.ttft_s - exposed_s) + exposed_s)
    assert three.ttfts[0] == pytest.approx(one.ttft_s)


def test_shares_of_others_slow_down() -> None:
    busy_gpu = recompute(small(gpu_busy=0.5)).ttft_s
    assert busy_gpu == pytest.approx(2 * recompute(small()).ttft_s)
    found = small(link_busy=0.5)
    exposed_s = found.layer_s(found.model.layers[1], 100, 1) + found.head_s()
    assert load(found).ttft_s == pytest.approx(2 * (load(small()).ttft_s - exposed_s) + exposed_s)


def test_resident_is_the_suffix_alone() -> None:
    found = small()
    seconds = 2 * found.layer_s(found.model.layers[0], 100, 1) + found.head_s()
    assert resident(found).ttft_s == pytest.approx(seconds)


def test_measured_prefill_rate_sets_the_pace() -> None:
    found = small(prefill_tokens_per_s=1000.0)
    front_s = recompute(found).ttft_s - resident(found).ttft_s
    assert front_s == pytest.approx(100 / 1000.0)


# -- exhaustive --------------------------------------------------------------------------------


@pytest.mark.parametrize("flop", [2e8, 2e9, 2e10])
@pytest.mark.parametrize("disk", [None, 4e5])
def test_exhaustive_search_of_a_tiny_prefix(flop: float, disk: float | None) -> None:
    """Every front, depth and number of rebuilt tokens of 6 tokens in 2 layers."""
    spec = layer(hidden=64, query_heads=4, head_dim=16, intermediate=64)
    found = Restoration(
        model=model([spec, spec], vocab=1), hardware=ideal(link=LINK, flop=flop, disk=disk),
        prefix=Prefix(tokens=6, block=1, chunk=3, source="disk" if disk else "dram"),
    )  # fmt: skip
    every = []
    for front, depth in [(f, 2) for f in range(7)] + [(6, 0), (6, 1)]:
        most = [found.behind(i, front if i < depth else 0) for i in range(2)]
        for rebuilt in product(*(range(m + 1) for m in most)):
            for spread in range(3):
                split = Split(front=front, depth=depth, rebuilt=rebuilt, spread=spread)
                every.append(judge(found, split).ttft_s)
    found_best = best(found)
    assert found_best.bound_s <= min(every) * (1 + 1e-9)
    assert min(every) * (1 - 1e-9) <= found_best.restored.ttft_s <= 1.06 * min(every)


def test_a_front_costs_least_at_the_front() -> None:
    """Recomputing m tokens anywhere else in the prefix is more work: each attends more."""
    spec = load_model("llama-3.1-8b").layers[0]
    costs = [prefill.flop(spec, begin, 2048) for begin in range(0, 32768, 2048)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


# -- baselines ---------------------------------------------------------------------------------


def test_hcache_balances_both_times() -> None:
    """Of 10 layers: activations take 3, rebuilding 1, recomputing 5 seconds each."""
    times = LayerTimes(send_activations_s=3, rebuild_s=1, send_kv_s=6, recompute_s=5)
    others, way = hcache_layers(10, times)
    assert (others, way) == (3, "recompute")
    assert max(7 * 3, 7 * 1 + 3 * 5) == min(
        max((10 - k) * 3, (10 - k) * 1 + k * 5) for k in range(11)
    )
    slow_gpu = LayerTimes(send_activations_s=1, rebuild_s=3, send_kv_s=2, recompute_s=20)
    assert hcache_layers(10, slow_gpu) == (5, "load")  # 5 x 1 + 5 x 2 sent, 5 x 3 rebuilt


def test_hcache_keeps_all_activations_where_times_are_equal() -> None:
    times = LayerTimes(send_activations_s=1, rebuild_s=1, send_kv_s=2, recompute_s=9)
    assert hcache_layers(32, times)[0] == 0


def test_cake_meets_in_the_middle() -> None:
    """Ten chunks of equal cost, a link as fast as the GPU: five each."""
    found = Restoration(
        model=load_model("llama-3.1-8b"), hardware=load_hardware("a100"),
        prefix=Prefix(tokens=10_000, chunk=1000, prefill_tokens_per_s=50_000.0),
    )  # fmt: skip
    rate = found.model.kv_bytes(10_000, 2) / 0.2
    slow = dataclasses.replace(found, hardware=override(found.hardware, h2d_bytes_per_s=rate))
    assert cake(slow).split.front in (5000, 6000)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-6.7b"])
@pytest.mark.parametrize("rate", [2e9, 20e9])
def test_no_published_rule_beats_the_split(name: str, rate: float) -> None:
    found = Restoration(
        model=load_model(name), hardware=override(load_hardware("a100"), h2d_bytes_per_s=rate),
        prefix=Prefix(tokens=8192),
    )  # fmt: skip
    found_best = best(found)
    for rule in (hcache, cake):
        assert found_best.bound_s <= rule(found).ttft_s
        assert found_best.restored.ttft_s <= rule(found).ttft_s


# -- laws --------------------------------------------------------------------------------------


@examples(40)
@given(judged(), magnitudes(1.1, 10.0))
def test_times_scale_with_rates(restored: Restored, rate: float) -> None:
    found = restored.restoration
    tokens_per_s = found.prefix.prefill_tokens_per_s
    prefix = dataclasses.replace(
        found.prefix, prefill_tokens_per_s=tokens_per_s and tokens_per_s * rate
    )
    faster = dataclasses.replace(found, hardware=scaled(found.hardware, rate=rate), prefix=prefix)
    assert judge(faster, restored.split).ttft_s == pytest.approx(restored.ttft_s / rate, rel=1e-9)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-6.7b"])
@pytest.mark.parametrize("gpu", ["a100", "t4"])
def test_gap_is_small(name: str, gpu: str) -> None:
    for tokens, source in ((1000, "dram"), (16384, "disk")):
        prefix = Prefix(tokens=tokens, source=source)
        found = Restoration(model=load_model(name), hardware=load_hardware(gpu), prefix=prefix)
        if source == "disk" and found.hardware.disk is None:
            continue
        assert best(found).gap <= 0.03, (tokens, source)


def test_more_bandwidth_never_hurts() -> None:
    hardware = load_hardware("a100")
    last = float("inf")
    for rate in (1e9, 4e9, 16e9, 24e9):
        found = Restoration(
            model=load_model("llama-7b"), hardware=override(hardware, h2d_bytes_per_s=rate),
            prefix=Prefix(tokens=4096),
        )  # fmt: skip
        now = best(found).restored.ttft_s
        assert now <= last
        last = now


def test_windows_need_their_own_tokens_only() -> None:
    """A layer with a window of 40 needs the last 40 of 100 tokens, wherever the front ends."""
    whole, windowed = layer(), layer(window=40)
    found = Restoration(
        model=model([whole, windowed]), hardware=ideal(link=LINK, flop=FLOP),
        prefix=Prefix(tokens=100, block=1, chunk=50),
    )  # fmt: skip
    assert found.edges == (0, 50, 60, 100)
    assert [found.behind(0, 30), found.behind(1, 30), found.behind(1, 80)] == [70, 40, 20]


def test_what_hbm_cannot_hold_is_refused() -> None:
    found = Restoration(
        model=load_model("llama-7b"), hardware=load_hardware("a100"),
        prefix=Prefix(tokens=131072), budgets=Budgets(),
    )  # fmt: skip
    with pytest.raises(InfeasibleError, match="hbm"):
        refuse_overflow(found)


def test_ways_whose_buffers_do_not_fit_are_left_out() -> None:
    """Staged activations of eight layers are more than what is left beside the cache."""
    model = load_model("opt-6.7b")
    prefix = Prefix(tokens=2000, kv_dtype="fp16")
    roomy = Restoration(model=model, hardware=load_hardware("a100"), prefix=prefix)
    room = load(roomy).hbm_bytes
    tight = dataclasses.replace(roomy, budgets=Budgets(hbm_bytes=int(room) + 1000))
    assert "rebuild" in answer(roomy).ways
    assert "rebuild" not in answer(tight).ways
    assert answer(tight).ways["split"].fits
    with pytest.raises(InfeasibleError, match="staging"):
        answer(tight, ("rebuild",))


@pytest.mark.parametrize(
    "changes",
    [{"tokens": 0}, {"suffix": 0}, {"requests": 0}, {"source": "tape"}, {"granularity": "page"},
     {"gpu_busy": 1.0}, {"link_busy": -0.1}, {"kv_dtype": "int8"}, {"stored_dtype": "fp16"},
     {"prefill_tokens_per_s": 0.0}, {"chunk": 0}, {"block": 0}, {"mode": "fast"}],
)  # fmt: skip
def test_bad_prefixes_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Prefix(**({"tokens": 10} | changes))  # type: ignore[arg-type]
