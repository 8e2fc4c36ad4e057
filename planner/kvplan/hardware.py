"""Hardware: what one machine's GPU, links, host and disk can do. SI units, no IO.

    HardwareProfile
    ├── gpu    Gpu     memory, rates, GEMM curves, launch costs
    ├── links  Links   host to GPU and back; None where both share one memory
    ├── host   Host    DRAM and attention on the CPU
    └── disk   Disk    optional

Every number has a `Provenance` under its key path (``gpu.memory``, ``h2d.copy`` ...).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvplan.disk import Disk
from kvplan.errors import InputError
from kvplan.hardware_change import CHANGES
from kvplan.hardware_parts import (
    DTYPES,
    KINDS,
    AttentionCurve,
    GemmCurve,
    Gpu,
    Host,
    Kind,
    LinearCurve,
    Provenance,
    peak_rate,
    positive,
    times,
)
from kvplan.link import Link, Links
from kvplan.peer import Peer
from kvplan.tier import Tier

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
    "LinearCurve",
    "Link",
    "Links",
    "Provenance",
    "number_paths",
    "override",
    "peak_rate",
    "scaled",
]


ONE_POOL = "CPU and GPU share one memory, so offload frees nothing"
"""Why a unified-memory machine refuses to offload."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareProfile:
    """One machine, as the planner sees it.

    Args:
        name: the name of its file.
        title: one line for people.
        aliases: other names it answers to.
        kind: of the profile as a whole.
        gpu: the GPU.
        links: between host and GPU; None where CPU and GPU share one memory.
        host: host memory and CPU.
        disk: None where the machine has none.
        provenance: key path to provenance, for every number.
        residuals: key path of each curve of measured points to the largest relative distance
            of the curve below a point.
        peer: how GPUs of the same machine reach each other; None where unknown.
        tier: memory the machine could have besides; None for what there is.
        ranks: GPUs that share every layer; 1 but for one rank of a tensor-parallel group.
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
    links: Links | None
    host: Host
    disk: Disk | None
    provenance: Mapping[str, Provenance] = field(hash=False)
    residuals: Mapping[str, float] = field(hash=False)
    digest: str
    date: str
    peer: Peer | None = None
    tier: Tier | None = None
    ranks: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        if self.kind not in KINDS:
            raise InputError("kind", self.kind, f"one of {', '.join(KINDS)}")
        for path in number_paths(self):
            if not any(key == path or key.startswith(f"{path}.") for key in self.provenance):
                raise InputError(path, None, "every number needs its provenance")

    @property
    def unified(self) -> bool:
        """Whether CPU and GPU share one memory: no link, and nothing to offload to."""
        return self.links is None

    @property
    def h2d(self) -> Link:
        """The link from host to GPU.

        Raises:
            InputError: CPU and GPU share one memory.
        """
        return self.linked().h2d

    @property
    def d2h(self) -> Link:
        """The link from GPU to host.

        Raises:
            InputError: CPU and GPU share one memory.
        """
        return self.linked().d2h

    def linked(self) -> Links:
        """Both directions of the link.

        Raises:
            InputError: CPU and GPU share one memory.
        """
        if self.links is None:
            raise InputError("gpu", self.name, f"a machine with a link to host memory: {ONE_POOL}")
        return self.links

    def with_link(self, *, h2d: Link | None = None, d2h: Link | None = None) -> HardwareProfile:
        """The same machine with another direction of its link, in no slot there is.

        Raises:
            InputError: CPU and GPU share one memory.
        """
        links = self.linked()
        changed = replace(links, h2d=h2d or links.h2d, d2h=d2h or links.d2h, slot=None)
        return replace(self, links=changed)

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
    yield from (f"gpu.linear_points.{index}.time" for index in range(len(gpu.linear_shapes)))
    yield from ["gpu.gemm_sustained"] * (gpu.gemm_sustained is not None)
    for name in ("graph_launch", "edge", "wait", "sample"):
        yield from [f"gpu.{name}"] * (getattr(gpu, f"{name}_s") is not None)
    if profile.links is not None:
        yield from _link_paths(profile.links)
        yield "host.dram"
    yield "host.attention_latency"
    for name in ("copy_share", "copy_share_gqa"):
        yield from [f"host.{name}"] * (getattr(host, name) is not None)
    yield from ["host.pinned"] * (host.pinned_bytes is not None)
    yield from (f"host.attention_bandwidth.{dtype}" for dtype in host.attention_bytes_per_s)
    yield from (f"host.attention_gqa_bandwidth.{dtype}" for dtype in host.attention_gqa_bytes_per_s)
    if profile.disk is not None:
        yield from ("disk.read", "disk.capacity")
        yield from (f"disk.queue.{index}" for index in range(len(profile.disk.queues)))
    if profile.peer is not None:
        yield from ("peer.bandwidth", "peer.latency")
    if profile.tier is not None:
        yield from ("tier.capacity", "tier.bandwidth", "tier.latency")


def _link_paths(links: Links) -> Iterator[str]:
    for name, link in (("h2d", links.h2d), ("d2h", links.d2h)):
        yield from (f"{name}.raw_bandwidth", f"{name}.copy", f"{name}.latency")
        for rate in ("duplex", "pageable", "far"):
            given = getattr(link, f"{rate}_bytes_per_s") is not None
            yield from [f"{name}.{rate}_bandwidth"] * given
        for pieces in ("loop", "batch"):
            yield from [f"{name}.{pieces}"] * (getattr(link, pieces) is not None)
    if links.uplink is not None:
        yield from ("link.uplink.h2d_bandwidth", "link.uplink.d2h_bandwidth")


OVERRIDES = (
    "link_generation",
    "link_lanes",
    "h2d_bytes_per_s",
    "flop_per_s",
    "hbm_bytes",
    "dram_bytes",
    "hbm_bytes_per_s",
    "host_attention_bytes_per_s",
    "disk_bytes_per_s",
    "pageable_bytes_per_s",
)
"""What `override` can change."""


def override(
    profile: HardwareProfile,
    *,
    link_generation: float | None = None,
    link_lanes: float | None = None,
    h2d_bytes_per_s: float | None = None,
    flop_per_s: float | None = None,
    hbm_bytes: int | None = None,
    dram_bytes: int | None = None,
    hbm_bytes_per_s: float | None = None,
    host_attention_bytes_per_s: float | None = None,
    disk_bytes_per_s: float | None = None,
    pageable_bytes_per_s: float | None = None,
) -> HardwareProfile:
    """A copy with some numbers set by the user; None leaves a number as it is.

    Args:
        profile: the machine to start from.
        link_generation: PCIe generation of the slot; its rates move in proportion.
        link_lanes: PCIe lanes of the slot; likewise.
        h2d_bytes_per_s: rate of large copies to the GPU; the fixed cost per copy stays.
        flop_per_s: achieved fp16 and bf16 matrix rate; other dtypes move in proportion.
        hbm_bytes: GPU memory.
        dram_bytes: host memory; 0 is allowed.
        hbm_bytes_per_s: usable rate of GPU memory; attention and dequantise move with it.
        host_attention_bytes_per_s: rate of attention on the CPU, fp16 and bf16.
        disk_bytes_per_s: rate of large disk reads; the fixed cost per read stays.
        pageable_bytes_per_s: rate of copies to the GPU from memory that is not pinned.

    Returns:
        The changed copy; changed numbers are ``assumed``, from the ``command line`` or, in another
        slot, in proportion to it.

    Raises:
        InputError: not a finite number above zero, or a rate above the link's raw rate.
    """
    given = (
        link_generation,
        link_lanes,
        h2d_bytes_per_s,
        flop_per_s,
        hbm_bytes,
        dram_bytes,
        hbm_bytes_per_s,
        host_attention_bytes_per_s,
        disk_bytes_per_s,
        pageable_bytes_per_s,
    )
    for (name, change), value in zip(CHANGES.items(), given, strict=True):
        if value is not None:
            parts, paths = change(profile, value)
            source = "command line"
            if name in ("link_generation", "link_lanes"):
                source = f"the profile's rate in proportion to {parts['links'].slot}, --link"
            profile = _changed(profile, f"{name}={value!r}", parts, paths, source)
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
            flop_per_s=times(gpu.flop_per_s, rate),
            gemm=tuple(replace(g, seconds=g.seconds.faster(rate)) for g in gpu.gemm),
            attention=gpu.attention and gpu.attention.faster(rate),
            kernel_s=gpu.kernel_s / rate,
            launch_s=gpu.launch_s / rate,
            graph_launch_s=gpu.graph_launch_s and gpu.graph_launch_s / rate,
            edge_s=gpu.edge_s and gpu.edge_s / rate,
            wait_s=gpu.wait_s and gpu.wait_s / rate,
            sample_s=gpu.sample_s and gpu.sample_s / rate,
            dequantise_bytes_per_s=times(gpu.dequantise_bytes_per_s, rate),
            attention_shapes=tuple(
                replace(a, seconds=a.seconds.faster(rate)) for a in gpu.attention_shapes
            ),
            linear=gpu.linear and gpu.linear.faster(rate),
            linear_shapes=tuple(
                replace(c, seconds=c.seconds.faster(rate)) for c in gpu.linear_shapes
            ),
        ),
        "links": profile.links and profile.links.faster(rate),
        "host": replace(
            host,
            attention_bytes_per_s=times(host.attention_bytes_per_s, rate),
            attention_gqa_bytes_per_s=times(host.attention_gqa_bytes_per_s, rate),
            attention_latency_s=host.attention_latency_s / rate,
        ),
        "disk": disk and disk.faster(rate),
        "peer": profile.peer and profile.peer.faster(rate),
        "tier": profile.tier and profile.tier.faster(rate),
    }
    sizes = {"gpu.memory", "host.dram", "host.pinned", "disk.capacity", "tier.capacity"}
    paths = [path for path in number_paths(profile) if path not in sizes]
    return _changed(profile, f"rate={rate!r}", parts, paths, f"every rate times {rate:g}")


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
