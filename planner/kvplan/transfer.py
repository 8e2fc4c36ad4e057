"""How long bytes take between host memory, a disk and a GPU, and what slows them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.link import Link

Direction = Literal["h2d", "d2h", "disk"]
Memory = Literal["pinned", "pageable", "far"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
MEMORIES: tuple[Memory, ...] = get_args(Memory)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """What is to be moved, and how.

    Args:
        size_bytes: of all pieces together.
        piece_bytes: of one piece, in a call (or a read) of its own; None: all in one.
        direction: ``h2d``, ``d2h``, or ``disk`` to host memory.
        memory: the host's: ``pinned``, ``pageable``, or ``far``: pinned on the other NUMA node.
        both: whether the other direction is busy too.
        gpus: that copy at once on this host.
        batched: all pieces in one call.
        depth: reads of the disk in flight.
    """

    size_bytes: int
    piece_bytes: int | None = None
    direction: Direction = "h2d"
    memory: Memory = "pinned"
    both: bool = False
    gpus: int = 1
    batched: bool = False
    depth: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("size_bytes", "gpus", "depth"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "1 or more")
        if self.piece_bytes is not None and not 1 <= self.piece_bytes <= self.size_bytes:
            raise InputError("piece_bytes", self.piece_bytes, "1 byte to the whole size")
        for name, words in (("direction", DIRECTIONS), ("memory", MEMORIES)):
            if getattr(self, name) not in words:
                raise InputError(name, getattr(self, name), f"one of {', '.join(words)}")

    @property
    def pieces(self) -> int:
        """Calls or reads."""
        return math.ceil(self.size_bytes / (self.piece_bytes or self.size_bytes))


def seconds(hardware: HardwareProfile, moved: Transfer) -> float:
    """Seconds from the first byte to the last.

    Raises:
        InputError: no link, no disk, or no figure for this kind of memory.

    >>> from kvplan.hardware_library import load_hardware
    >>> a100 = load_hardware("a100")  # 8 us a call, 24.5 GB/s
    >>> round(seconds(a100, Transfer(size_bytes=245 * 10**6)) * 1e3, 3)
    10.008
    >>> round(seconds(a100, Transfer(size_bytes=245 * 10**6, piece_bytes=245_000)) * 1e3, 3)
    18.0
    """
    piece = moved.piece_bytes or moved.size_bytes
    if moved.direction == "disk":
        if hardware.disk is None:
            raise InputError(
                "direction", "disk", f"a machine with a disk; {hardware.name} has none"
            )
        return moved.size_bytes / hardware.disk.rate(piece, min(moved.depth, moved.pieces))
    link: Link = getattr(hardware, moved.direction)
    rate = sustained_bytes_per_s(hardware, moved)
    slowed = link.copy.scaled(link.copy.rate() / rate)
    at_once_s = slowed.seconds(moved.size_bytes)
    if moved.pieces == 1:
        return at_once_s
    if link.loop is None and link.batch is None:
        return max(moved.pieces * slowed.seconds(piece), at_once_s)
    return max(link.pieces_s(moved.pieces, piece, moved.batched), at_once_s)


def sustained_bytes_per_s(hardware: HardwareProfile, moved: Transfer) -> float:
    """Rate of large copies under what slows them: the least of all that applies.

    Raises:
        InputError: no link, or no figure for this kind of memory.
    """
    link: Link = getattr(hardware, moved.direction)
    assert hardware.links is not None, "a link was just read"
    rate = hardware.links.rate(moved.direction, moved.gpus, moved.both)
    if moved.memory == "pinned":
        return rate
    other = link.pageable_bytes_per_s if moved.memory == "pageable" else link.far_bytes_per_s
    if other is None:
        accepted = f"pinned: {hardware.name} has no rate from such memory"
        raise InputError("memory", moved.memory, accepted)
    return min(rate, other)


def origin(moved: Transfer) -> list[str]:
    """Key paths of the numbers in a profile that the time comes from, the most special first."""
    if moved.direction == "disk":
        return ["disk.queue", "disk.read"]
    paths = [f"{moved.direction}.copy"]
    if moved.pieces > 1:
        paths[:0] = [f"{moved.direction}.{'batch' if moved.batched else 'loop'}"]
    if moved.memory != "pinned":
        paths[:0] = [f"{moved.direction}.{moved.memory}_bandwidth"]
    if moved.both:
        paths[:0] = [f"{moved.direction}.duplex_bandwidth"]
    if moved.gpus > 1:
        paths[:0] = [f"link.uplink.{moved.direction}_bandwidth"]
    return paths
