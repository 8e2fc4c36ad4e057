"""Page-locked host memory: how much is really taken, how long it takes, what may be locked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.units import GIB

Allocator = Literal["caching", "exact"]

LARGEST_REGISTRATION_BYTES = 512 * GIB
"""One registration of this size fails, whatever is free. Source: vllm-project/vllm issue 51080:
549.7e9 bytes were registered, 549.9e9 not."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to get page-locked memory.

    Args:
        words: for people.
        slow_bytes_per_s: the slowest report.
        fast_bytes_per_s: the fastest report.
        source: of both.
    """

    words: str
    slow_bytes_per_s: float
    fast_bytes_per_s: float
    source: str

    def seconds(self, size: float) -> tuple[float, float]:
        """Shortest and longest time for so many bytes.

        >>> [round(s) for s in SERIAL.seconds(300e9)]
        [97, 196]
        """
        return size / self.fast_bytes_per_s, size / self.slow_bytes_per_s


SERIAL = Way(
    "allocated by the driver, one thread",
    GIB / 0.7,
    2.87 * GIB,
    "0.35 to 0.7 s per GiB on the host of h200-sxm-141gb; 2.87 GiB/s in ai-dynamo/dynamo 13710, "
    "1.86 on a small cloud VM in rapidsai/rmm 2496",
)

TOUCHED = Way(
    "mapped, touched by many threads, registered",
    5.76 * GIB,
    14.23 * GIB,
    "8.7 GiB/s with 32 threads in ai-dynamo/dynamo 13710; 5.76 with pages of 4 KiB and 14.23 with "
    "pages of 2 MiB in ROCm/mori 679",
)

WAYS = {"caching": SERIAL, "exact": TOUCHED}


def taken_bytes(size: int, allocator: Allocator = "caching") -> int:
    """Bytes that a pinned buffer takes: the next power of two from a framework's allocator.

    Args:
        size: asked for, in one buffer.
        allocator: ``caching`` for ``torch.empty(pin_memory=True)`` and the like, ``exact`` for
            mapped memory that is registered.

    Source: pytorch/pytorch issue 150517; LMCache/LMCache issue 1147: 4.1 GiB took 8.

    >>> [taken_bytes(int(g * GIB)) / GIB for g in (4.0, 4.1, 5.0, 8.0, 14, 20.4, 234)]
    [4.0, 8.0, 8.0, 8.0, 16.0, 32.0, 256.0]
    >>> taken_bytes(5 * GIB, "exact") / GIB
    5.0
    """
    if allocator == "exact" or size <= 1:
        return size
    return 1 << (size - 1).bit_length()


def serial_bytes_per_s(touch_bytes_per_s: float, copy_bytes_per_s: float) -> float:
    """Rate of copies whose buffer is allocated anew each time: first touch, then the copy.

    >>> round(serial_bytes_per_s(5e9, 10e9) / 1e9, 2)
    3.33
    """
    return 1 / (1 / touch_bytes_per_s + 1 / copy_bytes_per_s)
