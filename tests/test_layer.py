"""Cache geometry of every kind of layer, by hand."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from strategies import ideal, layer, model

from kvplan import cost
from kvplan.errors import InputError
from kvplan.evaluate import evaluate
from kvplan.layer import LayerSpec
from kvplan.layer_parts import Experts, Latent, State
from kvplan.plan_file import decode, encode
from kvplan.planning import make_plan, replay
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Budgets, Workload

NO_HEADS = {"query_heads": 0, "kv_heads": 0, "head_dim_k": 0, "head_dim_v": 0}


def like(**changes: Any) -> LayerSpec:
    """A layer of 4 heads of 16 on a width of 64, changed."""
    return msgspec.structs.replace(layer(), **changes)


LATENT = like(latent=Latent(rank=512, rope=64), query_heads=128, kv_heads=128, head_dim_k=192,
              head_dim_v=128, hidden=7168)  # fmt: skip
SPARSE = msgspec.structs.replace(LATENT, index=128)
COMPRESSED = like(latent=Latent(rank=512, rope=0), kv_heads=1, index=128, compression=4, window=128)
MAMBA = like(**NO_HEADS, state=State(conv=3 * 5120, recurrent=16 * 5120, heads=5120))
MIMO = like(query_heads=64, kv_heads=8, head_dim_k=192, head_dim_v=128, window=128)
INFINITY = like(query_heads=16, kv_heads=16, head_dim_k=128, head_dim_v=128, dtype_k="fp32",
                dtype_v="bf16")  # fmt: skip
CROSS = like(kv_heads=0, cross=2048)
SHARED = like(shared=True, window=512)
NOTHING = like(**NO_HEADS, attention_params=0)
EXPERTS = like(experts=Experts(count=8, active=2, params=1000), mlp_params=8000)


@pytest.mark.parametrize(
    ("spec", "elements", "per_token", "tokens", "held"),
    [
        (LATENT, 576, 1152, 1000, 0),
        (SPARSE, 704, 1408, 1000, 0),
        (COMPRESSED, 640, 1280, 250, 128 * 512 * 2),
        (MAMBA, 0, 0, 0, 3 * 5120 * 2 + 16 * 5120 * 4),
        (MIMO, 2560, 5120, 128, 0),
        (INFINITY, 4096, 16 * 128 * 6, 1000, 0),
        (CROSS, 0, 0, 0, 2048 * 100 * 2),
        (SHARED, 0, 0, 0, 0),
        (NOTHING, 0, 0, 0, 0),
        (like(window=300, chunked=True), 128, 256, 300, 0),
    ],
)
def test_bytes_of_each_kind(
    spec: LayerSpec, elements: int, per_token: int, tokens: int, held: int
) -> None:
    assert spec.kv_elements == elements
    assert spec.kv_bytes(2) == per_token
    assert spec.cached_tokens(1000) == tokens
    assert spec.held_bytes(1000, 2, 100) == held
    of_model = model([spec, spec]).kv_bytes(1000, 2, 100)
    assert of_model == 2 * (tokens * per_token + held)


def test_a_shared_cache_is_read_and_not_kept() -> None:
    assert SHARED.borrowed_bytes(1000, 2) == 512 * 256
    assert like().borrowed_bytes(1000, 2) == 0
    free, slow = ideal(), ideal(hbm=1e9)
    extra = cost.held_s(slow, SHARED, 0.0, SHARED.borrowed_bytes(1000, 2))
    assert extra == pytest.approx(512 * 256 / 1e9)
    assert cost.held_s(free, like(), 0.0, 0.0) == 0


def test_states_are_read_and_written() -> None:
    assert cost.held_s(ideal(hbm=1e9), MAMBA, 1e6, 0.0) == pytest.approx(2e-3)
    assert cost.held_s(ideal(hbm=1e9), CROSS, 1e6, 0.0) == pytest.approx(1e-3)


def test_rebuilding_a_latent_goes_from_activation_to_latent() -> None:
    assert LATENT.rebuild_flop == 2 * 7168 * 576
    assert LATENT.act_over_kv() == 7168 / 576
    seconds = cost.rebuild(ideal(flop=1e12), LATENT, "fp16").seconds(1e3)
    assert seconds == pytest.approx(1e3 * 2 * 7168 * 576 / 1e12)
    assert COMPRESSED.activation_elements == 4 * 64
    assert math.isinf(MAMBA.act_over_kv())


def test_a_latent_may_be_bound_by_its_products() -> None:
    """128 query heads of 576 and results of 512 per token: 2 x 128 x 1088 FLOP over 1152 bytes."""
    flop, tokens = 2 * 128 * (576 + 512), 1000
    curve = cost.attend(ideal(flop=1e12), LATENT, "fp16", 1)
    assert curve.seconds(1152.0 * tokens) == pytest.approx(flop * tokens / 1e12)
    curve = cost.attend(ideal(hbm=1e9), LATENT, "fp16", 1)
    assert curve.seconds(1152.0 * tokens) == pytest.approx(1152 * tokens / 1e9)


def test_experts_touched_by_a_batch() -> None:
    """One token reads its 2 experts; many read all 8; memory always holds all 8."""
    attention = EXPERTS.attention_params
    assert EXPERTS.params == attention + 8000
    assert EXPERTS.active_params == attention + 2000
    assert EXPERTS.read_params(1) == attention + 2000
    assert EXPERTS.read_params(2) == attention + 8000 * (1 - 0.75**2)
    assert EXPERTS.read_params(1000) == pytest.approx(attention + 8000)
    slow = ideal(hbm=1e9)
    one, two = (cost.finish_s(slow, EXPERTS, "fp16", n) for n in (1, 2))
    assert two - one == pytest.approx((8000 * (1 - 0.75**2) - 2000) * 2 / 1e9)


def test_query_and_partial_result_of_a_latent_are_in_its_space() -> None:
    assert LATENT.query_elements == 128 * 576
    assert LATENT.partial_elements == 128 * 512
    assert like().query_elements == like().partial_elements == 64


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: like(query_heads=0), "query_heads"),
        (lambda: like(head_dim_k=0), "head_dim_k"),
        (lambda: like(compression=4), "window"),
        (lambda: like(compression=0), "compression"),
        (lambda: like(index=-1), "index"),
        (lambda: like(cross=1.5), "cross"),
        (lambda: like(shared=1), "shared"),
        (lambda: like(dtype_k="fp7"), "dtype"),
        (lambda: Latent(rank=0, rope=64), "latent.rank"),
        (lambda: State(conv=0, recurrent=0, heads=1), "state"),
        (lambda: State(conv=1, recurrent=0, heads=0), "state.heads"),
        (lambda: Experts(count=8, active=9, params=1), "experts.active"),
        (lambda: Experts(count=0, active=1, params=1), "experts.count"),
    ],
)
def test_bad_parts_name_the_field(build: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


MIXES = {
    "latent": [LATENT] * 3,
    "sparse": [SPARSE] * 3,
    "compressed": [COMPRESSED, like(window=128)] * 2,
    "state and attention": [MAMBA, MAMBA, MAMBA, like()],
    "only states": [MAMBA] * 3,
    "shared": [like(), like(), SHARED],
    "cross": [like(cross=128)] * 2 + [CROSS],
    "experts": [EXPERTS] * 2,
    "nothing": [NOTHING, like()],
    "fixed formats": [INFINITY] * 2,
}


@pytest.mark.parametrize("name", MIXES)
@pytest.mark.parametrize("room", [None, 0.5])
def test_plans_hold_for_every_kind_and_survive_their_file(name: str, room: float | None) -> None:
    """With all memory, and with room for half of the cache; the file says the same step again."""
    spec = model(MIXES[name])
    workload = Workload(batch=4, context=1000, source_tokens=50)
    hardware = ideal(link=1e9, flop=1e12, hbm=1e11, memory=2**40)
    scenario = Scenario(model=spec, hardware=hardware, workload=workload)
    if room is not None:
        graph = evaluate(scenario, Schedule(stages=4), held(scenario)).graph
        cached = sum(s.cached_tokens(1000) * s.kv_bytes(2) * 4 for s in spec.layers)
        most = int(graph.constant_bytes["hbm"] + room * cached) + 4096
        budgets = Budgets(hbm_bytes=most, utilisation=1.0, dram_bytes=2**40)
        scenario = Scenario(model=spec, hardware=hardware, workload=workload, budgets=budgets)
    plan = make_plan(scenario, time="2026-01-01T00:00:00+00:00")
    assert decode(encode(plan)) == plan
    assert replay(plan, hardware)[1].step_s == plan.prediction.step_s
    kept = 4 * sum(s.held_bytes(1000, 2, 50) for s in spec.layers)
    weights = 2 * spec.params
    assert plan.prediction.memory_bytes["hbm"] >= kept
    assert plan.prediction.step_s * 1e11 >= kept
    assert plan.decision.stream_weights or plan.prediction.memory_bytes["hbm"] >= kept + weights
    for number, decided in enumerate(plan.decision.layers):
        assert sum(decided.tokens.values()) == spec.layers[number].cached_tokens(1000)


def held(scenario: Scenario) -> Any:
    """Every token resident."""
    from kvplan.allocation import Segment

    counts = [scenario.cached_tokens(i) for i in range(len(scenario.model.layers))]
    return tuple((Segment(0, n, "resident", None),) if n else () for n in counts)


def test_a_source_of_unknown_length_is_refused() -> None:
    spec = model([like(cross=128)])
    with pytest.raises(InputError, match=r"source_tokens: None .* cross-attention of small"):
        Scenario(model=spec, hardware=ideal(), workload=Workload(batch=1, context=10))
    fixed = msgspec.structs.replace(spec, source_tokens=1500)
    scenario = Scenario(model=fixed, hardware=ideal(), workload=Workload(batch=1, context=10))
    assert scenario.workload.source_tokens == 1500
