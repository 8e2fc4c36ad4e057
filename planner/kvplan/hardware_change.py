"""Figures of a machine set by hand: each change, and the numbers that it moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError
from kvplan.hardware_parts import positive, times, whole
from kvplan.slot import FULL_SLOT, Slot

if TYPE_CHECKING:
    from kvplan.hardware import HardwareProfile

Change = tuple[dict[str, Any], list[str]]
"""Changed fields of the profile, and the key paths of the numbers that changed."""


_SLOT_RATES = ("raw_bandwidth", "copy", "duplex_bandwidth", "pageable_bandwidth", "far_bandwidth")
"""What another slot changes, of each direction."""


def _numbers(profile: HardwareProfile, prefixes: Sequence[str]) -> list[str]:
    """Key paths of the numbers under some prefixes; not the fixed times of curves."""
    return [
        path
        for path in profile.provenance
        if not path.endswith(".fixed")
        and any(path == key or path.startswith(f"{key}.") for key in prefixes)
    ]


def _with_h2d(profile: HardwareProfile, rate: float) -> Change:
    links, link = profile.linked(), profile.h2d
    factor = positive("h2d_bytes_per_s", rate) / link.copy.rate()
    changed: dict[str, Any] = {"copy": link.copy.scaled(1 / factor)}
    for name in ("duplex", "pageable", "far"):
        old = getattr(link, f"{name}_bytes_per_s")
        if old is not None:
            changed[f"{name}_bytes_per_s"] = old * factor
    paths = ["h2d." + name.replace("bytes_per_s", "bandwidth") for name in changed]
    gone: dict[str, Any] = {"loop": None, "batch": None}
    try:
        return {"links": replace(links, h2d=replace(link, **changed, **gone))}, paths
    except InputError as error:
        slot = f"; --link names another slot than {links.slot}" if links.slot else ""
        raise InputError("h2d_bytes_per_s", error.value, f"{error.accepted}{slot}") from None


def _with_generation(profile: HardwareProfile, generation: float) -> Change:
    old = profile.linked().slot
    return _with_slot(profile, "link_generation", generation, (old and old.lanes) or FULL_SLOT)


def _with_lanes(profile: HardwareProfile, lanes: float) -> Change:
    old = profile.linked().slot
    if old is None or old.generation is None:
        raise InputError("link_lanes", lanes, "a link_generation beside it")
    return _with_slot(profile, "link_lanes", old.generation, lanes)


def _with_slot(profile: HardwareProfile, field: str, generation: float, lanes: float) -> Change:
    value = generation if field == "link_generation" else lanes
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise InputError(field, value, "a whole number")
    links = profile.linked().in_slot(Slot(generation=int(generation), lanes=int(lanes)))
    rates = [f"{name}.{what}" for name in ("h2d", "d2h") for what in _SLOT_RATES]
    return {"links": links}, _numbers(profile, rates)


def _with_flop(profile: HardwareProfile, rate: float) -> Change:
    gpu = profile.gpu
    halves = [gpu.flop_per_s[d] for d in ("fp16", "bf16") if d in gpu.flop_per_s]
    factor = positive("flop_per_s", rate) / max(halves or gpu.flop_per_s.values())
    rates = times(gpu.flop_per_s, factor) | {"fp16": rate, "bf16": rate}
    curves = tuple(replace(g, seconds=g.seconds.scaled(1 / factor)) for g in gpu.gemm)
    paths = [f"gpu.flop.{dtype}" for dtype in rates]
    paths += [f"gpu.gemm.{index}.time" for index in range(len(curves))]
    return {"gpu": replace(gpu, flop_per_s=rates, gemm=curves)}, paths


def _with_hbm(profile: HardwareProfile, size: int) -> Change:
    size = whole("hbm_bytes", size)
    return {"gpu": replace(profile.gpu, memory_bytes=size)}, ["gpu.memory"]


def _with_dram(profile: HardwareProfile, size: int) -> Change:
    size = whole("dram_bytes", size, least=0)
    if size:
        profile.linked()
    return {"host": replace(profile.host, dram_bytes=size)}, ["host.dram"]


def _with_hbm_rate(profile: HardwareProfile, rate: float) -> Change:
    gpu = profile.gpu
    factor = positive("hbm_bytes_per_s", rate) / gpu.hbm_bytes_per_s
    changed = replace(
        gpu,
        hbm_bytes_per_s=rate,
        attention=gpu.attention and gpu.attention.scaled(1 / factor),
        dequantise_bytes_per_s=times(gpu.dequantise_bytes_per_s, factor),
        attention_shapes=tuple(
            replace(a, seconds=a.seconds.scaled(1 / factor)) for a in gpu.attention_shapes
        ),
        linear=gpu.linear and gpu.linear.scaled(1 / factor),
        linear_shapes=tuple(
            replace(c, seconds=c.seconds.scaled(1 / factor)) for c in gpu.linear_shapes
        ),
    )
    moved = ("gpu.hbm_bandwidth", "gpu.attention", "gpu.attention_points", "gpu.linear",
             "gpu.linear_points", "gpu.dequantise_bandwidth")  # fmt: skip
    return {"gpu": changed}, _numbers(profile, moved)


def _with_host_attention(profile: HardwareProfile, rate: float) -> Change:
    rates = dict.fromkeys(("fp16", "bf16"), positive("host_attention_bytes_per_s", rate))
    host = replace(
        profile.host,
        attention_bytes_per_s={**profile.host.attention_bytes_per_s, **rates},
        attention_gqa_bytes_per_s={**profile.host.attention_gqa_bytes_per_s, **rates},
    )
    names = ("attention_bandwidth", "attention_gqa_bandwidth")
    return {"host": host}, [f"host.{name}.{dtype}" for name in names for dtype in rates]


def _with_disk(profile: HardwareProfile, rate: float) -> Change:
    positive("disk_bytes_per_s", rate)
    if profile.disk is None:
        accepted = f"a machine with a disk: {profile.name} has no figures for one"
        raise InputError("disk_bytes_per_s", rate, accepted)
    disk = profile.disk
    read = disk.read.scaled(disk.read.rate() / rate)
    return {"disk": replace(disk, read=read, queues=())}, ["disk.read"]


def _with_pageable(profile: HardwareProfile, rate: float) -> Change:
    positive("pageable_bytes_per_s", rate)
    links = profile.linked()
    try:
        link = replace(links.h2d, pageable_bytes_per_s=rate)
    except InputError as error:
        raise InputError("pageable_bytes_per_s", error.value, error.accepted) from None
    return {"links": replace(links, h2d=link)}, ["h2d.pageable_bandwidth"]


CHANGES: dict[str, Callable[[HardwareProfile, Any], Change]] = {
    "link_generation": _with_generation,
    "link_lanes": _with_lanes,
    "h2d_bytes_per_s": _with_h2d,
    "flop_per_s": _with_flop,
    "hbm_bytes": _with_hbm,
    "dram_bytes": _with_dram,
    "hbm_bytes_per_s": _with_hbm_rate,
    "host_attention_bytes_per_s": _with_host_attention,
    "disk_bytes_per_s": _with_disk,
    "pageable_bytes_per_s": _with_pageable,
}
"""What `override` can change, in the order it does."""
