"""A disk that may hold KV: one read, and many reads in flight. SI, no IO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvplan.curve import Curve
from kvplan.errors import InputError
from kvplan.hardware_parts import check_curve, positive, whole
from kvplan.interpolation import between

SMALL_READ_BYTES = 41 * 1024
"""Read size at which the most a drive gives, at any depth, is half of its sequential rate.

Source: 0xBakeer/deepseek-v41-flash-spark issue 2: 3.9 of 6.4 GB/s for reads of 64 KiB on a drive
without DRAM; 0.61 = 64 / (64 + 41).
"""

ENOUGH = 0.995
"""Share of the most it gives that a depth must reach to be called deep enough."""

DEPTHS = tuple(2**n for n in range(11))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Measured reads of one size: rate over reads in flight.

    Args:
        size_bytes: of one read.
        points: ``(reads in flight, bytes per second)``, depths rising.
    """

    size_bytes: int
    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        """Check every field."""
        whole("size", self.size_bytes)
        if len(self.points) < 2 or any(a[0] >= b[0] for a, b in pairwise(self.points)):
            raise InputError("points", len(self.points), "two points or more, depths rising")
        for depth, rate in self.points:
            whole("points", depth)
            positive("points", rate)

    def rate(self, depth: int) -> float:
        """Bytes per second: between points on straight lines of the logarithms, then level.

        >>> queue = Queue(size_bytes=65536, points=((1, 1e9), (4, 2e9)))
        >>> [round(queue.rate(d) / 1e9, 3) for d in (1, 2, 4, 64)]
        [1.0, 1.414, 2.0, 2.0]
        """
        (first, first_rate), (last, last_rate) = self.points[0], self.points[-1]
        if depth <= first:
            return first_rate * depth / first
        if depth >= last:
            return last_rate
        return between(self.points, depth)


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """A disk that may hold KV.

    Args:
        read: seconds over bytes of one read, nothing else in flight.
        capacity_bytes: that may be used.
        queues: measured rates over depth; empty where none were.
    """

    read: Curve
    capacity_bytes: int
    queues: tuple[Queue, ...] = ()

    def __post_init__(self) -> None:
        """Check every field."""
        check_curve("read", self.read)
        whole("capacity", self.capacity_bytes)

    def faster(self, rate: float) -> Disk:
        """Every rate multiplied, times divided."""
        queues = tuple(
            replace(q, points=tuple((depth, r * rate) for depth, r in q.points))
            for q in self.queues
        )
        return replace(self, read=self.read.faster(rate), queues=queues)

    def most_bytes_per_s(self, size_bytes: int) -> float:
        """Most that reads of a size reach at any depth.

        >>> from kvplan.curve import affine
        >>> disk = Disk(read=affine(1e-4, 1 / 6.4e9), capacity_bytes=10**12)
        >>> round(disk.most_bytes_per_s(64 * 1024) / 1e9, 1)
        3.9
        """
        return self.read.rate() * size_bytes / (size_bytes + SMALL_READ_BYTES)

    def rate(self, size_bytes: int, depth: int) -> float:
        """Bytes per second of reads of a size, so many in flight.

        As measured where a size within a factor of two was; else ``depth x size / latency``
        bending into the most it gives, both summed as the inverses of their squares.

        >>> from kvplan.curve import affine
        >>> disk = Disk(read=affine(1e-4, 1 / 6.4e9), capacity_bytes=10**12)
        >>> [round(disk.rate(2**20, d) / 1e9, 2) for d in (1, 4, 16, 64)]
        [3.34, 5.74, 6.13, 6.15]
        """
        whole("size", size_bytes)
        whole("depth", depth)
        near = [q for q in self.queues if 0.5 <= q.size_bytes / size_bytes <= 2]
        if near:
            return min(near, key=lambda q: abs(math.log(q.size_bytes / size_bytes))).rate(depth)
        waiting = depth * size_bytes / self.read.seconds(size_bytes)
        most = self.most_bytes_per_s(size_bytes)
        return 1 / math.hypot(1 / waiting, 1 / most)

    def deep_enough(self, size_bytes: int, depths: Sequence[int] = DEPTHS) -> int:
        """Fewest reads in flight that bring nearly all there is.

        >>> from kvplan.curve import affine
        >>> disk = Disk(read=affine(1.237e-4, 1 / 6.4e9), capacity_bytes=10**12)
        >>> disk.deep_enough(64 * 1024)
        128
        """
        rates = {depth: self.rate(size_bytes, depth) for depth in depths}
        return min(d for d, rate in rates.items() if rate >= ENOUGH * max(rates.values()))
