"""The link between host and GPU: its directions, what slows them, and who shares it. SI, no IO.

Links
├── h2d, d2h  Link    one direction: raw rate, copies, what slows them
├── slot      Slot    PCIe generation and lanes, or NVLink-C2C; None where unknown
└── uplink    Uplink  GPUs behind one link of the host; None where none is known
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvplan.curve import Curve
from kvplan.errors import InputError
from kvplan.hardware_parts import check_curve, peak_rate, positive, whole
from kvplan.interpolation import between
from kvplan.slot import Slot

SHARED_DIRECTIONS = 0.5
"""Share of its own rate that a direction keeps beside the other one, where nobody measured it.

Hosts differ: an A100 fell to 0.44 (NVIDIA/nvbandwidth issue 53), an RTX 4090 to 0.47 (issue 15), an
RTX 5090 kept 0.90 (tinygrad/open-gpu-kernel-modules issue 29). So a load beside a store is planned
as two users of one budget.
"""

_RAW_TOLERANCE = 0.005


@dataclass(frozen=True, slots=True)
class Pieces:
    """Measured copies of many equal pieces: ``(bytes, seconds per piece)``, bytes rising.

    Not a convex curve: engines change their method at some sizes, and time may even fall there.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        """Check every field."""
        sizes = [size for size, _ in self.points]
        if len(sizes) < 2 or sizes != sorted(set(sizes)):
            raise InputError("points", len(sizes), "two points or more, sizes rising")
        for size, seconds in self.points:
            positive("points", size)
            positive("points", seconds)

    def seconds(self, size: float, beyond_bytes_per_s: float) -> float:
        """Time of one piece among many: between points on straight lines of the logarithms.

        Args:
            size: bytes of one piece.
            beyond_bytes_per_s: rate of what a piece has more than the largest one measured.

        >>> pieces = Pieces(((4096.0, 4e-6), (16384.0, 8e-6)))
        >>> [round(pieces.seconds(s, 1e9) * 1e6, 3) for s in (1024, 4096, 8192, 16384, 17384)]
        [4.0, 4.0, 5.657, 8.0, 9.0]
        """
        (first, first_s), (last, last_s) = self.points[0], self.points[-1]
        if size <= first:
            return first_s
        if size >= last:
            return last_s + (size - last) / beyond_bytes_per_s
        return between(self.points, size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction of the link between host and GPU.

    Args:
        raw_bytes_per_s: encoded one-way rate of the slot; nothing can be faster.
        copy: seconds over bytes of one pinned copy in a queue of copies.
        latency_s: end-to-end time of a tiny transfer (a query, a partial result).
        duplex_bytes_per_s: rate while the opposite direction is busy; None where unknown.
        pageable_bytes_per_s: rate from memory that is not pinned; None where unknown.
        far_bytes_per_s: rate from memory of the other NUMA node; None where unknown.
        loop: many small pieces, one call each; None where not measured.
        batch: many small pieces in one call; None where not measured.
    """

    raw_bytes_per_s: float
    copy: Curve
    latency_s: float
    duplex_bytes_per_s: float | None = None
    pageable_bytes_per_s: float | None = None
    far_bytes_per_s: float | None = None
    loop: Pieces | None = None
    batch: Pieces | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        positive("raw_bandwidth", self.raw_bytes_per_s)
        positive("latency", self.latency_s)
        check_curve("copy", self.copy)
        rates = {"copy": peak_rate(self.copy)}
        for name in ("duplex", "pageable", "far"):
            rate = getattr(self, f"{name}_bytes_per_s")
            if rate is not None:
                rates[f"{name}_bandwidth"] = positive(f"{name}_bandwidth", rate)
        for name in ("loop", "batch"):
            pieces = getattr(self, name)
            if pieces is not None:
                rates[name] = max(size / seconds for size, seconds in pieces.points)
        for name, rate in rates.items():
            if rate > self.raw_bytes_per_s * (1 + 1e-9):
                raise InputError(
                    name,
                    f"{rate / 1e9:.6g} GB/s",
                    "a bandwidth above its link's raw rate: "
                    f"at most raw_bandwidth, {self.raw_bytes_per_s / 1e9:.6g} GB/s",
                )

    def shared_bytes_per_s(self) -> float:
        """Rate while the other direction is busy: as measured, else half of its own.

        >>> from kvplan.curve import affine
        >>> Link(raw_bytes_per_s=31.5e9, copy=affine(0.0, 1 / 24e9), latency_s=1e-5
        ...      ).shared_bytes_per_s() / 1e9
        12.0
        """
        if self.duplex_bytes_per_s is not None:
            return self.duplex_bytes_per_s
        return SHARED_DIRECTIONS * self.copy.rate()

    def faster(self, rate: float) -> Link:
        """Every rate multiplied, times divided."""
        changed: dict[str, Any] = {
            "copy": self.copy.faster(rate),
            "latency_s": self.latency_s / rate,
        }
        for name in ("raw", "duplex", "pageable", "far"):
            old = getattr(self, f"{name}_bytes_per_s")
            changed[f"{name}_bytes_per_s"] = old and old * rate
        for name in ("loop", "batch"):
            old = getattr(self, name)
            changed[name] = old and Pieces(tuple((size, s / rate) for size, s in old.points))
        return Link(**changed)

    def pieces_s(self, count: int, size: float, batched: bool = False) -> float:
        """Seconds to copy equal pieces of pinned memory that lie apart.

        No less than one copy of all of it; where only pieces in one call were measured, calls of
        their own take no less than those or single copies.

        Args:
            count: pieces.
            size: bytes of one.
            batched: in one call, instead of one call each.

        >>> from kvplan.curve import affine
        >>> link = Link(raw_bytes_per_s=2e9, copy=affine(1e-6, 1e-9), latency_s=1e-5)
        >>> round(link.pieces_s(1000, 1000) * 1e3, 6)  # 1 us for a call, 1 us for its bytes
        2.0
        """
        single_s = self.copy.seconds(size)
        measured = (self.batch or self.loop) if batched else (self.loop or self.batch)
        piece_s = single_s if measured is None else measured.seconds(size, self.copy.rate())
        if not batched and self.loop is None:
            piece_s = max(piece_s, single_s)
        return max(count * piece_s, self.copy.seconds(count * size))


@dataclass(frozen=True, kw_only=True, slots=True)
class Uplink:
    """One link of the host with several GPUs behind it.

    Args:
        gpus: that share it.
        h2d_bytes_per_s: what it carries to all of them together.
        d2h_bytes_per_s: what it carries from all of them together.
    """

    gpus: int
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float

    def __post_init__(self) -> None:
        """Check every field."""
        whole("gpus", self.gpus, least=2)
        positive("h2d_bandwidth", self.h2d_bytes_per_s)
        positive("d2h_bandwidth", self.d2h_bytes_per_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Both directions between host and GPU.

    Args:
        h2d: host to GPU.
        d2h: GPU to host.
        slot: what kind of link it is; None where unknown.
        uplink: None where no GPUs are known to share a link of the host.

    Raises:
        InputError: a raw rate that is not that of the slot.
    """

    h2d: Link
    d2h: Link
    slot: Slot | None = None
    uplink: Uplink | None = None

    def __post_init__(self) -> None:
        """Check how the parts fit together."""
        raw = self.slot and self.slot.raw_bytes_per_s
        for name in ("h2d", "d2h"):
            given = getattr(self, name).raw_bytes_per_s
            if raw and abs(given / raw - 1) > _RAW_TOLERANCE:
                raise InputError(
                    f"{name}.raw_bandwidth",
                    f"{given / 1e9:.6g} GB/s",
                    f"{raw / 1e9:.2f} GB/s, the rate of {self.slot}",
                )

    def rate(self, direction: str, gpus: int = 1, both: bool = False) -> float:
        """Bytes per second of large pinned copies of one GPU among several that copy at once.

        Args:
            direction: ``h2d`` or ``d2h``.
            gpus: that copy at once on this host.
            both: whether the other direction is busy too.
        """
        link: Link = getattr(self, direction)
        alone = link.copy.rate()
        rate = link.shared_bytes_per_s() if both else alone
        if self.uplink is not None and gpus > 1:
            total = getattr(self.uplink, f"{direction}_bytes_per_s")
            rate = min(rate, total * (rate / alone) / min(gpus, self.uplink.gpus))
        return float(rate)

    def faster(self, rate: float) -> Links:
        """Every rate multiplied, times divided; no slot has those rates then."""
        uplink = self.uplink and replace(
            self.uplink,
            h2d_bytes_per_s=self.uplink.h2d_bytes_per_s * rate,
            d2h_bytes_per_s=self.uplink.d2h_bytes_per_s * rate,
        )
        return Links(h2d=self.h2d.faster(rate), d2h=self.d2h.faster(rate), uplink=uplink)

    def in_slot(self, slot: Slot) -> Links:
        """The same machine with its GPU in another slot: rates in proportion to the raw ones.

        Rates of memory that is not pinned are limited by the CPU that stages it: they do not
        rise. An uplink stays as it is.
        """
        return replace(self, slot=slot, h2d=_in_slot(self.h2d, slot), d2h=_in_slot(self.d2h, slot))


def _in_slot(link: Link, slot: Slot) -> Link:
    raw = slot.raw_bytes_per_s
    if raw is None:
        raise InputError("link", str(slot), "a PCIe slot")
    factor = raw / link.raw_bytes_per_s
    copy = link.copy.scaled(1 / factor)
    pageable = link.pageable_bytes_per_s
    return Link(
        raw_bytes_per_s=raw,
        copy=copy,
        latency_s=link.latency_s,
        duplex_bytes_per_s=link.duplex_bytes_per_s and link.duplex_bytes_per_s * factor,
        pageable_bytes_per_s=pageable and min(pageable, copy.rate()),
        far_bytes_per_s=link.far_bytes_per_s and link.far_bytes_per_s * factor,
    )
