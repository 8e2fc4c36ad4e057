"""Hardware: what one machine's GPU, links, host and disk can do. SI units, no IO.

    HardwareProfile
    ├── gpu    Gpu     memory, rates, GEMM curves, launch costs
    ├── h2d    Link    host to GPU
    ├── d2h    Link    GPU to host
    ├── host   Host    DRAM and attention on the CPU
    └── disk   Disk    optional

Every number has a `Provenance` under its key path (``gpu.memory``, ``h2d.copy`` ...).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.curve import Curve, Piece
from kvplan.errors import InputError
from kvplan.hardware_parts import (
    DTYPES,
    KINDS,
    AttentionCurve,
    Disk,
    GemmCurve,
    Gpu,
    Host,
    Kind,
    Link,
    Provenance,
    peak_rate,
    positive,
    whole,
)

__all__ = [
    "DTYPES",
    "KINDS",
    "AttentionCurve",
    "Disk",
    "GemmCurve",
    "Gpu",
    "HardwareProfile",
    "Host",
    "Kind",
    "Link",
    "Provenance",
    "number_paths",
    "override",
    "peak_rate",
    "scaled",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareProfile:
    """One machine, as the planner sees it.

    Args:
        name: the name of its file.
        title: one line for people.
        aliases: other names it answers to.
        kind: of the profile as a whole.
        gpu: the GPU.
        h2d: link from host to GPU.
        d2h: link from GPU to host.
        host: host memory and CPU.
        disk: None where the machine has none.
        provenance: key path to provenance, for every number.
        residuals: key path of each curve of measured points to the largest relative distance
            of the curve below a point.
        digest: SHA-256 of the content, in hex.
        date: ``yyyy-mm-dd`` of the profile.

    Raises:
        InputError: a number without provenance.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    kind: Kind
    gpu: Gpu
    h2d: Link
    d2h: Link
    host: Host
    disk: Disk | None
    provenance: Mapping[str, Provenance] = field(hash=False)
    residuals: Mapping[str, float] = field(hash=False)
    digest: str
    date: str

    def __post_init__(self) -> None:
        """Check every field."""
        if self.kind not in KINDS:
            raise InputError("kind", self.kind, f"one of {', '.join(KINDS)}")
        for path in number_paths(self):
            if not any(key == path or key.startswith(f"{path}.") for key in self.provenance):
                raise InputError(path, None, "every number needs its provenance")

    @property
    def host_attention_measured(self) -> bool:
        """Whether every rate of attention on the CPU was measured, and there is one."""
        kinds = {
            p.kind
            for k, p in self.provenance.items()
            if k.startswith("host.attention_") and not k.endswith("latency")
        }
        return kinds == {"measured"}


def number_paths(profile: HardwareProfile) -> Iterator[str]:
    """Key path of every number the profile holds, as hardware files spell it."""
    gpu, host = profile.gpu, profile.host
    yield from ("gpu.memory", "gpu.hbm_bandwidth", "gpu.kernel", "gpu.launch")
    yield from (f"gpu.flop.{dtype}" for dtype in gpu.flop_per_s)
    yield from (f"gpu.dequantise_bandwidth.{dtype}" for dtype in gpu.dequantise_bytes_per_s)
    yield from (f"gpu.gemm.{index}.time" for index in range(len(gpu.gemm)))
    yield from ["gpu.attention"] * (gpu.attention is not None)
    yield from (f"gpu.attention_points.{index}.time" for index in range(len(gpu.attention_shapes)))
    yield from ["gpu.linear"] * (gpu.linear is not None)
    yield from ["gpu.gemm_sustained"] * (gpu.gemm_sustained is not None)
    for name in ("graph_launch", "edge", "wait", "sample"):
        yield from [f"gpu.{name}"] * (getattr(gpu, f"{name}_s") is not None)
    for name, link in (("h2d", profile.h2d), ("d2h", profile.d2h)):
        yield from (f"{name}.raw_bandwidth", f"{name}.copy", f"{name}.latency")
        yield from [f"{name}.duplex_bandwidth"] * (link.duplex_bytes_per_s is not None)
        yield from [f"{name}.pageable_bandwidth"] * (link.pageable_bytes_per_s is not None)
    yield from ("host.dram", "host.attention_latency")
    for name in ("copy_share", "copy_share_gqa"):
        yield from [f"host.{name}"] * (getattr(host, name) is not None)
    yield from ["host.pinned"] * (host.pinned_bytes is not None)
    yield from (f"host.attention_bandwidth.{dtype}" for dtype in host.attention_bytes_per_s)
    yield from (f"host.attention_gqa_bandwidth.{dtype}" for dtype in host.attention_gqa_bytes_per_s)
    if profile.disk is not None:
        yield from ("disk.read", "disk.capacity")


OVERRIDES = (
    "h2d_bytes_per_s",
    "flop_per_s",
    "hbm_bytes",
    "dram_bytes",
    "hbm_bytes_per_s",
    "host_attention_bytes_per_s",
)
"""What `override` can change."""


def override(
    profile: HardwareProfile,
    *,
    h2d_bytes_per_s: float | None = None,
    flop_per_s: float | None = None,
    hbm_bytes: int | None = None,
    dram_bytes: int | None = None,
    hbm_bytes_per_s: float | None = None,
    host_attention_bytes_per_s: float | None = None,
) -> HardwareProfile:
    """A copy with some numbers set by the user; None leaves a number as it is.

    Args:
        profile: the machine to start from.
        h2d_bytes_per_s: rate of large copies to the GPU; the fixed cost per copy stays.
        flop_per_s: achieved fp16 and bf16 matrix rate; other dtypes move in proportion.
        hbm_bytes: GPU memory.
        dram_bytes: host memory; 0 is allowed.
        hbm_bytes_per_s: usable rate of GPU memory; attention and dequantise move with it.
        host_attention_bytes_per_s: rate of attention on the CPU, fp16 and bf16.

    Returns:
        The changed copy; changed numbers are ``assumed``, from the ``command line``.

    Raises:
        InputError: not a finite number above zero, or a rate above the link's raw rate.
    """
    given = (
        h2d_bytes_per_s,
        flop_per_s,
        hbm_bytes,
        dram_bytes,
        hbm_bytes_per_s,
        host_attention_bytes_per_s,
    )
    for (name, change), value in zip(_CHANGES.items(), given, strict=True):
        if value is not None:
            parts, paths = change(profile, value)
            profile = _changed(profile, f"{name}={value!r}", parts, paths, "command line")
    return profile


def scaled(profile: HardwareProfile, *, rate: float) -> HardwareProfile:
    """A machine that is ``rate`` times as fast in everything: rates multiplied, times divided.

    Raises:
        InputError: ``rate`` is not a finite number above zero.
    """
    positive("rate", rate)
    gpu, host, disk = profile.gpu, profile.host, profile.disk
    parts: dict[str, Any] = {
        "gpu": replace(
            gpu,
            hbm_bytes_per_s=gpu.hbm_bytes_per_s * rate,
            flop_per_s=_times(gpu.flop_per_s, rate),
            gemm=tuple(replace(g, seconds=_faster(g.seconds, rate)) for g in gpu.gemm),
            attention=gpu.attention and _faster(gpu.attention, rate),
            kernel_s=gpu.kernel_s / rate,
            launch_s=gpu.launch_s / rate,
            graph_launch_s=gpu.graph_launch_s and gpu.graph_launch_s / rate,
            edge_s=gpu.edge_s and gpu.edge_s / rate,
            wait_s=gpu.wait_s and gpu.wait_s / rate,
            sample_s=gpu.sample_s and gpu.sample_s / rate,
            dequantise_bytes_per_s=_times(gpu.dequantise_bytes_per_s, rate),
            attention_shapes=tuple(
                replace(a, seconds=_faster(a.seconds, rate)) for a in gpu.attention_shapes
            ),
            linear=gpu.linear and _faster(gpu.linear, rate),
        ),
        "h2d": _faster_link(profile.h2d, rate),
        "d2h": _faster_link(profile.d2h, rate),
        "host": replace(
            host,
            attention_bytes_per_s=_times(host.attention_bytes_per_s, rate),
            attention_gqa_bytes_per_s=_times(host.attention_gqa_bytes_per_s, rate),
            attention_latency_s=host.attention_latency_s / rate,
        ),
        "disk": disk and replace(disk, read=_faster(disk.read, rate)),
    }
    sizes = {"gpu.memory", "host.dram", "host.pinned", "disk.capacity"}
    paths = [path for path in number_paths(profile) if path not in sizes]
    return _changed(profile, f"rate={rate!r}", parts, paths, f"every rate times {rate:g}")


_Change = tuple[dict[str, Any], list[str]]
"""Changed fields of the profile, and the key paths of the numbers that changed."""


def _with_h2d(profile: HardwareProfile, rate: float) -> _Change:
    link = profile.h2d
    factor = positive("h2d_bytes_per_s", rate) / link.copy.rate()
    changed: dict[str, Any] = {"copy": link.copy.scaled(1 / factor)}
    for name in ("duplex", "pageable"):
        old = getattr(link, f"{name}_bytes_per_s")
        if old is not None:
            changed[f"{name}_bytes_per_s"] = old * factor
    paths = ["h2d." + name.replace("bytes_per_s", "bandwidth") for name in changed]
    try:
        return {"h2d": replace(link, **changed)}, paths
    except InputError as error:
        raise InputError("h2d_bytes_per_s", error.value, error.accepted) from None


def _with_flop(profile: HardwareProfile, rate: float) -> _Change:
    gpu = profile.gpu
    halves = [gpu.flop_per_s[d] for d in ("fp16", "bf16") if d in gpu.flop_per_s]
    factor = positive("flop_per_s", rate) / max(halves or gpu.flop_per_s.values())
    rates = _times(gpu.flop_per_s, factor) | {"fp16": rate, "bf16": rate}
    curves = tuple(replace(g, seconds=g.seconds.scaled(1 / factor)) for g in gpu.gemm)
    paths = [f"gpu.flop.{dtype}" for dtype in rates]
    paths += [f"gpu.gemm.{index}.time" for index in range(len(curves))]
    return {"gpu": replace(gpu, flop_per_s=rates, gemm=curves)}, paths


def _with_hbm(profile: HardwareProfile, size: int) -> _Change:
    size = whole("hbm_bytes", size)
    return {"gpu": replace(profile.gpu, memory_bytes=size)}, ["gpu.memory"]


def _with_dram(profile: HardwareProfile, size: int) -> _Change:
    size = whole("dram_bytes", size, least=0)
    return {"host": replace(profile.host, dram_bytes=size)}, ["host.dram"]


def _with_hbm_rate(profile: HardwareProfile, rate: float) -> _Change:
    gpu = profile.gpu
    factor = positive("hbm_bytes_per_s", rate) / gpu.hbm_bytes_per_s
    changed = replace(
        gpu,
        hbm_bytes_per_s=rate,
        attention=gpu.attention and gpu.attention.scaled(1 / factor),
        dequantise_bytes_per_s=_times(gpu.dequantise_bytes_per_s, factor),
        attention_shapes=tuple(
            replace(a, seconds=a.seconds.scaled(1 / factor)) for a in gpu.attention_shapes
        ),
        linear=gpu.linear and gpu.linear.scaled(1 / factor),
    )
    moved = ("gpu.hbm_bandwidth", "gpu.attention", "gpu.attention_points", "gpu.linear",
             "gpu.dequantise_bandwidth")  # fmt: skip
    return {"gpu": changed}, [
        path for path in number_paths(profile)
        if any(path == key or path.startswith(f"{key}.") for key in moved)
    ]  # fmt: skip


def _with_host_attention(profile: HardwareProfile, rate: float) -> _Change:
    rates = dict.fromkeys(("fp16", "bf16"), positive("host_attention_bytes_per_s", rate))
    host = replace(
        profile.host,
        attention_bytes_per_s={**profile.host.attention_bytes_per_s, **rates},
        attention_gqa_bytes_per_s={**profile.host.attention_gqa_bytes_per_s, **rates},
    )
    names = ("attention_bandwidth", "attention_gqa_bandwidth")
    return {"host": host}, [f"host.{name}.{dtype}" for name in names for dtype in rates]


_CHANGES: dict[str, Callable[[HardwareProfile, Any], _Change]] = {
    "h2d_bytes_per_s": _with_h2d,
    "flop_per_s": _with_flop,
    "hbm_bytes": _with_hbm,
    "dram_bytes": _with_dram,
    "hbm_bytes_per_s": _with_hbm_rate,
    "host_attention_bytes_per_s": _with_host_attention,
}
"""What `override` can change, in the order it does."""


def _changed(
    profile: HardwareProfile, what: str, parts: dict[str, Any], paths: list[str], source: str
) -> HardwareProfile:
    mark = Provenance(kind="assumed", source=source, note=what)
    provenance = dict(profile.provenance)
    for path in paths:
        rate = f"{path}.rate"  # of a curve given as a fixed time and a rate
        provenance[rate if rate in provenance else path] = mark
    residuals = {k: v for k, v in profile.residuals.items() if k not in paths}
    digest = hashlib.sha256(f"{profile.digest}\n{what}".encode()).hexdigest()
    return replace(
        profile, **parts, kind="assumed", provenance=provenance, residuals=residuals, digest=digest
    )


def _times(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    return {dtype: rate * factor for dtype, rate in rates.items()}


def _faster(curve: Curve, rate: float) -> Curve:
    """Every time divided by ``rate``."""
    return Curve(tuple(Piece(p.fixed_s / rate, p.s_per_unit / rate) for p in curve.pieces))


def _faster_link(link: Link, rate: float) -> Link:
    return Link(
        raw_bytes_per_s=link.raw_bytes_per_s * rate,
        copy=_faster(link.copy, rate),
        latency_s=link.latency_s / rate,
        duplex_bytes_per_s=link.duplex_bytes_per_s and link.duplex_bytes_per_s * rate,
        pageable_bytes_per_s=link.pageable_bytes_per_s and link.pageable_bytes_per_s * rate,
    )
