"""Specs: construction, changes, scaling; and that every number says where it comes from."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.curve import Curve, Piece, affine
from kvplan.errors import InputError
from kvplan.hardware import (
    HardwareProfile,
    Link,
    Provenance,
    number_paths,
    override,
    peak_rate,
    scaled,
)
from kvplan.hardware_library import hardware_names, load_hardware

PROFILES = {name: load_hardware(name) for name in hardware_names()}
A100, H200 = PROFILES["a100-40gb-pcie"], PROFILES["h200-sxm-141gb"]
every = pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
linked = pytest.mark.parametrize(
    "profile", [p for p in PROFILES.values() if p.links], ids=lambda p: p.name
)
SIZES = [2**n for n in range(34)]


def numbers(part: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number inside a part: attribute path and value, pieces of curves included."""
    if dataclasses.is_dataclass(part):
        for f in dataclasses.fields(part):
            yield from numbers(getattr(part, f.name), f"{path}.{f.name}")
    elif isinstance(part, dict):
        for key, value in part.items():
            yield from numbers(value, f"{path}.{key}")
    elif isinstance(part, tuple):
        for index, value in enumerate(part):
            yield from numbers(value, f"{path}.{index}")
    elif isinstance(part, int | float):
        yield path, part


def parts(profile: HardwareProfile) -> tuple[Any, ...]:
    links = profile.links
    h2d, d2h, uplink = (links.h2d, links.d2h, links.uplink) if links else (None, None, None)
    return profile.gpu, h2d, d2h, uplink, profile.host, profile.disk, profile.peer, profile.tier


@every
def test_every_number_has_provenance(profile: HardwareProfile) -> None:
    paths = list(number_paths(profile))
    shape = {f"gpu.gemm.{i}.{side}" for i in range(9) for side in ("inputs", "outputs")}
    found = set()
    names = ("gpu", "h2d", "d2h", "link.uplink", "host", "disk", "peer", "tier")
    shape |= {"link.uplink.gpus"}
    for name, part in zip(names, parts(profile), strict=True):
        for attribute, _ in numbers(part, name):
            key = attribute.replace("hbm_bytes_per_s", "hbm_bandwidth").replace(".seconds", ".time")
            key = (
                key.replace("peer.bytes_per_s", "peer.bandwidth")
                .replace("tier.bytes_per_s", "tier.bandwidth")
                .replace("_bytes_per_s", "_bandwidth")
                .replace("flop_per_s", "flop")
            )
            key = ".".join(k.removesuffix("_bytes").removesuffix("_s") for k in key.split("."))
            found.add(key.split(".pieces")[0].split(".points")[0])
    shape |= {"host.dram"} if profile.unified else set()
    assert found - shape == set(paths)
    covered = [[k for k in profile.provenance if k == p or k.startswith(f"{p}.")] for p in paths]
    assert all(covered)


def test_a_number_without_provenance_is_refused() -> None:
    some = {k: v for k, v in A100.provenance.items() if k != "gpu.kernel"}
    with pytest.raises(InputError, match=r"gpu\.kernel"):
        dataclasses.replace(A100, provenance=some)


@every
def test_numbers_are_plausible(profile: HardwareProfile) -> None:
    gpu = profile.gpu
    assert 10e9 < gpu.memory_bytes < 310e9
    assert 2e11 < gpu.hbm_bytes_per_s < 8e12
    assert 2e13 < gpu.flop_per_s["fp16"] < 2e15
    assert profile.unified or profile.h2d.copy.rate() < gpu.hbm_bytes_per_s / 7
    assert profile.kind != "measured" or profile.host_attention_measured


@linked
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_copy_curve_is_monotone_and_below_raw(profile: HardwareProfile, direction: str) -> None:
    link: Link = getattr(profile, direction)
    times = [link.copy.seconds(size) for size in SIZES]
    assert times == sorted(times)
    assert all(size / t <= link.raw_bytes_per_s for size, t in zip(SIZES, times, strict=True))
    assert peak_rate(link.copy) <= link.raw_bytes_per_s


@linked
def test_many_small_copies_cost_more_than_one_large_one(profile: HardwareProfile) -> None:
    """Per-copy overhead is there: 4 KiB copies run far below the rate of 1 GiB."""
    curve = profile.h2d.copy
    assert curve.seconds(0) >= 5e-6
    assert 2**18 * curve.seconds(2**12) > 10 * curve.seconds(2**30)
    assert curve.seconds(2**12) + curve.seconds(2**12) > curve.seconds(2**13)


def test_link_refuses_rates_above_raw() -> None:
    with pytest.raises(InputError, match=r"26 GB/s.*a bandwidth above its link's raw rate.*25 GB"):
        Link(raw_bytes_per_s=25e9, copy=affine(0.0, 1 / 26e9), latency_s=1e-5)
    with pytest.raises(InputError, match=r"^copy: .*above its link's raw rate"):
        Link(raw_bytes_per_s=1.0, copy=Curve((Piece(1.0, 0.1), Piece(-9.0, 1.1))), latency_s=1.0)
    for name in ("duplex", "pageable"):
        with pytest.raises(InputError, match=f"{name}_bandwidth"):
            Link(raw_bytes_per_s=25e9, copy=affine(0.0, 1 / 20e9), latency_s=1e-5,
                 **{f"{name}_bytes_per_s": 26e9})  # type: ignore[arg-type]  # fmt: skip


BAD_PARTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "kind": (Provenance(kind="assumed", source="x"), {"kind": "guess"}),
    "source": (Provenance(kind="assumed", source="x"), {"source": " "}),
    "memory": (A100.gpu, {"memory_bytes": 1.5}),
    "hbm_bandwidth": (A100.gpu, {"hbm_bytes_per_s": math.nan}),
    "flop": (A100.gpu, {"flop_per_s": {}}),
    "flop.fp16": (A100.gpu, {"flop_per_s": {"fp16": -1.0}}),
    "dequantise_bandwidth": (A100.gpu, {"dequantise_bytes_per_s": {"int9": 1.0}}),
    "attention": (A100.gpu, {"attention": affine(-1.0, 1.0)}),
    "kernel": (A100.gpu, {"kernel_s": 0.0}),
    "launch": (A100.gpu, {"launch_s": True}),
    "graph_launch": (A100.gpu, {"graph_launch_s": math.inf}),
    "inputs": (H200.gpu.gemm[0], {"inputs": 0}),
    "dtype": (H200.gpu.gemm[0], {"dtype": "half"}),
    "time": (H200.gpu.gemm[0], {"seconds": affine(1.0, -1.0)}),
    "raw_bandwidth": (A100.h2d, {"raw_bytes_per_s": 0}),
    "latency": (A100.h2d, {"latency_s": -1.0}),
    "copy": (A100.h2d, {"copy": affine(1.0, 0.0)}),
    "dram": (A100.host, {"dram_bytes": -1}),
    "pinned": (A100.host, {"pinned_bytes": -1}),
    "attention_bandwidth.bf16": (A100.host, {"attention_bytes_per_s": {"bf16": 0.0}}),
    "attention_latency": (A100.host, {"attention_latency_s": 0.0}),
    "read": (A100.disk, {"read": Curve(())}),
    "capacity": (A100.disk, {"capacity_bytes": 0}),
}


@pytest.mark.parametrize("name", BAD_PARTS)
def test_parts_are_checked_when_made(name: str) -> None:
    part, change = BAD_PARTS[name]
    with pytest.raises(InputError) as caught:
        dataclasses.replace(part, **change)
    assert caught.value.field == name


@every
def test_profiles_are_frozen_hashable_and_can_be_pickled(profile: HardwareProfile) -> None:
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert {profile: 1}[profile] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.name = "other"  # type: ignore[misc]


def test_override_marks_what_changed_and_leaves_the_rest() -> None:
    changed = override(A100, h2d_bytes_per_s=12e9, hbm_bytes=10**10, dram_bytes=0)
    assert (changed.gpu.memory_bytes, changed.host.dram_bytes) == (10**10, 0)
    assert changed.h2d.copy.rate() == pytest.approx(12e9)
    assert changed.h2d.copy.seconds(0) == A100.h2d.copy.seconds(0)
    touched = {k for k, v in changed.provenance.items() if v != A100.provenance[k]}
    rates = {f"h2d.{name}_bandwidth" for name in ("duplex", "pageable", "far")}
    assert touched == {"h2d.copy.rate", "gpu.memory", "host.dram"} | rates
    assert {changed.provenance[k].source for k in touched} == {"command line"}
    assert {changed.provenance[k].kind for k in touched} == {"assumed"}
    assert (changed.d2h, changed.disk, changed.gpu.gemm) == (A100.d2h, A100.disk, A100.gpu.gemm)
    assert changed.digest != A100.digest
    assert changed == override(A100, h2d_bytes_per_s=12e9, hbm_bytes=10**10, dram_bytes=0)
    assert override(A100) is A100


def test_override_of_measured_curves_keeps_their_shape() -> None:
    slower = override(H200, h2d_bytes_per_s=H200.h2d.copy.rate() / 2)
    assert slower.h2d.copy.seconds(0) == H200.h2d.copy.seconds(0)
    assert slower.h2d.copy.seconds(2**30) == pytest.approx(2 * H200.h2d.copy.seconds(2**30))
    assert slower.h2d.duplex_bytes_per_s == pytest.approx((H200.h2d.duplex_bytes_per_s or 0) / 2)
    assert "h2d.copy" not in slower.residuals
    assert slower.kind == "assumed"
    faster = override(H200, flop_per_s=2 * 735.8e12)
    for old, new in zip(H200.gpu.gemm, faster.gpu.gemm, strict=True):
        assert new.seconds.seconds(10**6) == pytest.approx(old.seconds.seconds(10**6) / 2)
    assert faster.gpu.flop_per_s["bf16"] == 2 * 735.8e12
    assert faster.gpu.flop_per_s["fp8"] == pytest.approx(2 * H200.gpu.flop_per_s["fp8"])
    narrow = override(H200, hbm_bytes_per_s=1e12)
    assert narrow.gpu.hbm_bytes_per_s == 1e12
    assert narrow.gpu.attention is not None
    assert narrow.gpu.attention.rate() == pytest.approx(2581.6e9 / 3.944)


def test_override_gives_a_card_host_attention() -> None:
    card = PROFILES["rtx-4090"]
    assert not card.host.attention_bytes_per_s
    changed = override(card, host_attention_bytes_per_s=30e9)
    assert changed.host.attention_bytes_per_s == {"fp16": 30e9, "bf16": 30e9}
    assert changed.host.attention_gqa_bytes_per_s == {"fp16": 30e9, "bf16": 30e9}
    assert not changed.host_attention_measured


@pytest.mark.parametrize("name", ["h2d_bytes_per_s", "flop_per_s", "hbm_bytes", "hbm_bytes_per_s",
                                  "host_attention_bytes_per_s", "dram_bytes"])  # fmt: skip
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "1"])
def test_override_refuses_bad_numbers(name: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        override(A100, **{name: value})
    assert caught.value.field == name


def test_override_refuses_a_rate_above_raw() -> None:
    with pytest.raises(InputError, match=r"^h2d_bytes_per_s: .*32 GB/s.*raw rate.*31\.5 GB/s"):
        override(A100, h2d_bytes_per_s=32e9)


@every
@given(rate=st.floats(1e-3, 1e3))
def test_scaled_multiplies_rates_and_divides_times(profile: HardwareProfile, rate: float) -> None:
    fast = scaled(profile, rate=rate)
    before = [n for part in parts(profile) for n in numbers(part)]
    after = [n for part in parts(fast) for n in numbers(part)]
    for (path, old), (_, new) in zip(before, after, strict=True):
        if path.endswith(("_bytes", "inputs", "outputs", "gpus")) or path[-2:] == ".0":
            assert new == old
        elif "_per_s" in path:
            assert new == pytest.approx(old * rate)
        else:
            assert path.endswith(("_s", "s_per_unit", ".1"))  # a pair of bytes and seconds
            assert new == pytest.approx(old / rate)
    assert {fast.provenance[k].kind for k in ("gpu.kernel", "gpu.launch")} == {"assumed"}


def test_scaled_refuses_no_rate() -> None:
    with pytest.raises(InputError):
        scaled(A100, rate=0.0)
