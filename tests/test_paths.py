"""The registry: every path is complete, none that never pays is offered, and one place adds one."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, ideal, layer, layers, model, profiles

from kvplan.allocation import Segment, tokens_by_path
from kvplan.curve import affine
from kvplan.dtypes import element_bytes
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.forced import forced
from kvplan.hardware import HardwareProfile, Provenance
from kvplan.model import LayerSpec
from kvplan.paths import REGISTRY, Leg, Path, find, undominated
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import search
from kvplan.tier import Tier
from kvplan.workload import Budgets, Workload

TIERS = {"hbm", "dram", "pinned", "disk", "tier"}
every = pytest.mark.parametrize("path", REGISTRY.values(), ids=list(REGISTRY))
COMPLETE = ideal(link=1e9, host=1e9, disk=1e9)


def machine_for(path: Path) -> HardwareProfile:
    """A machine with everything; its what-if tier attends, or is read out."""
    by = "none" if path.name == "fetch_tier" else "tier"
    tier = Tier(name="test", capacity_bytes=2**40, bytes_per_s=1e9, latency_s=1e-6, attended_by=by)
    mark = Provenance(kind="assumed", source="test")
    keys = ("tier.capacity", "tier.bandwidth", "tier.latency")
    known = {**COMPLETE.provenance, **dict.fromkeys(keys, mark)}
    return dataclasses.replace(COMPLETE, tier=tier, provenance=known)


@every
@examples(25)
@given(layers(), st.sampled_from(("fp16", "bf16", "fp8", "fp32")))
def test_every_path_is_complete(path: Path, spec: LayerSpec, dtype: str) -> None:
    stored = path.stored(spec, dtype)
    assert stored
    assert stored.keys() <= TIERS
    assert all(size > 0 for size in stored.values())
    assert stored.get("pinned", 0.0) <= stored.get("dram", 0.0)
    assert path.name in REGISTRY
    assert path.summary
    assert path.attends in ("resident", "stage", "away")
    legs = path.legs(machine_for(path), spec, dtype, "fp16")
    for leg in legs:
        assert leg.per_token > 0
        assert leg.resource in {"gpu", "h2d", "host", "disk", "tier"}
        assert leg.curve is None or leg.curve.seconds(1.0) >= 0
    assert bool(legs) == (path.name != "resident")
    if path.attends == "stage":
        assert path.staging_bytes(spec, dtype) >= spec.kv_bytes(element_bytes(dtype))
    else:
        assert path.staging_bytes(spec, dtype) == 0
    assert path.exact == (path.precision is None)


@every
def test_every_path_runs_alone(path: Path) -> None:
    """A plan in which all tokens take it has a step, and is the path's only one in memory."""
    scenario = Scenario(model=model([layer()] * 2), hardware=machine_for(path),
                        workload=Workload(batch=1, context=1000),
                        budgets=Budgets(disk_bytes=2**30))  # fmt: skip
    plan = forced(scenario, Schedule(stages=4), {path.name: 1.0})
    assert isinstance(plan, Evaluation), plan
    held = path.stored(layer(), "fp16")
    for tier in ("disk", "dram"):
        least = 2 * 1000 * held.get(tier, 0.0)
        assert plan.memory_bytes[tier] >= least * (1 - 1e-12)
    assert (plan.memory_bytes["disk"] > 0) == ("disk" in held)


def test_bytes_by_hand() -> None:
    """Four heads of 16: 128 elements of K and V; int8 takes 1.0625 bytes, int4 0.5625."""
    sizes = {name: dict(path.stored(layer(), "fp16")) for name, path in REGISTRY.items()}
    both = {"dram": 256.0, "pinned": 256.0}
    assert sizes == {
        "resident": {"hbm": 256.0}, "fetch": both, "recompute": {"dram": 128.0, "pinned": 128.0},
        "recompute_resident": {"hbm": 128.0}, "attend_host": {"dram": 256.0},
        "fetch_disk": {"disk": 256.0}, "fetch_int8": {"dram": 136.0, "pinned": 136.0},
        "fetch_int4": {"dram": 72.0, "pinned": 72.0}, "attend_tier": {"tier": 256.0},
        "fetch_tier": {"tier": 256.0},
    }  # fmt: skip


def test_find_keeps_the_order_of_the_registry() -> None:
    assert [p.name for p in find(["fetch_int8", "resident"])] == ["resident", "fetch_int8"]
    with pytest.raises(InputError, match=r"paths: 'fly' .* some of resident, fetch"):
        find(["fetch", "fly"])


@examples(150)
@given(profiles(), layers())
def test_recompute_pays_only_with_smaller_activations(
    hardware: HardwareProfile, spec: LayerSpec
) -> None:
    offered = find(["resident", "fetch", "recompute", "recompute_resident"])
    kept = {path.name for path in undominated(offered, hardware, spec, "fp16", "fp16")}
    assert {"resident", "fetch"} <= kept
    assert ("recompute" in kept) == (spec.act_over_kv(2) < 1)
    assert ("recompute_resident" in kept) == (spec.act_over_kv(2) < 1)


def test_an_inexact_path_never_replaces_an_exact_one() -> None:
    """Int8 beats fetch on the link here and unpacks for free, but it is not what was computed."""
    offered = find(["fetch", "fetch_int8"])
    kept = undominated(offered, ideal(link=1e9), layer(), "fp16", "fp16")
    assert [path.name for path in kept] == ["fetch", "fetch_int8"]


# -- a path that nobody knows ------------------------------------------------------------------

CXL_TOKENS_PER_S = 3000.0

ATTEND_CXL = Path(
    name="attend_cxl",
    summary="a near-memory device attends K and V where they lie",
    stored=lambda spec, dtype: {"cxl": spec.kv_bytes(2)},
    legs=lambda hardware, spec, dtype, weights: (
        Leg("attend_cxl", "cxl", 1.0, affine(0.0, 1 / CXL_TOKENS_PER_S), 0),
    ),
    attends="away",
)


def test_adding_a_path_touches_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A what-if device that attends 3 tokens per ms, beside a link that brings 1.

    Only the registry is told. The judge, the search, the program and the bytes follow: of 960
    tokens, 240 are fetched and 720 attended there, in 240 ms, but for the partial result's
    1.0625 ms on the link, and for whole blocks.
    """
    monkeypatch.setitem(REGISTRY, "attend_cxl", ATTEND_CXL)
    scenario = Scenario(
        model=model([layer()] * 2, vocab=1), hardware=ideal(link=256e3),
        workload=Workload(batch=1, context=960, block=16),
        options=Options(paths=("fetch", "attend_cxl")),
    )  # fmt: skip
    alone = evaluate(scenario, Schedule(stages=1), ((Segment(0, 960, "attend_cxl", None),),) * 2)
    assert alone.step_s == pytest.approx(2 * (0.320 + 1.0625e-3))
    assert alone.simulation.busy_s["cxl"] == pytest.approx(2 * 0.320)
    assert alone.memory_bytes["cxl"] == 2 * 960 * 256
    assert alone.graph.link_bytes(alone.values)["cxl"] == 2 * 960
    found = search(scenario)
    assert found.bound_s == pytest.approx(2 * 0.240, rel=0.01)
    assert found.best.step_s == pytest.approx(2 * 0.241, rel=0.03)
    for segments in found.best.allocation:
        assert tokens_by_path(segments)["attend_cxl"] == pytest.approx(720, abs=32)
    assert set(found.best.simulation.busy_s) >= {"cxl", "h2d", "gpu"}


def test_the_new_path_is_gone_again() -> None:
    with pytest.raises(InputError, match="attend_cxl"):
        find(["attend_cxl"])
    scenario = Scenario(model=model([layer()]), hardware=COMPLETE,
                        workload=Workload(batch=1, context=64),
                        budgets=Budgets(disk_bytes=2**30))  # fmt: skip
    names = {path.name for paths_ in scenario.paths.values() for path in paths_}
    assert "attend_cxl" not in names
    assert replace(scenario, options=Options(paths=("fetch",))).paths[layer()] == find(["fetch"])
