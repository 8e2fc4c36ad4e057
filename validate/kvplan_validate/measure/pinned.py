"""How much host memory can be pinned, how fast, and what torch's pinned allocator makes of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import (
    NO_TIME,
    Measured,
    Measurement,
    Point,
    Sampled,
    Series,
    Setting,
    reason,
)
from kvplan_validate.measure.machine import Machine, memory_bytes

STEP = 256 << 20
MOST = 16 << 30
"""More is not tried, nor more than half of what is available."""


class Limit(Measurement):
    """How much can be registered."""

    key = "pinned.limit"
    sentence = "Registering 256 MiB after 256 MiB until it is refused, 16 GiB or half is reached."
    seconds = 8.0

    def can_run(self, machine: Machine) -> str | None:
        """Why not: memory is short, or the system does not say how much there is."""
        if why := super().can_run(machine):
            return why
        if memory_bytes("MemAvailable") < 4 * STEP:
            return "less than 1 GiB of host memory is known to be available"
        return None

    def run(self, machine: Machine) -> Measured:
        """Touch and register step by step; everything is freed again."""
        torch, why = machine.torch, ""
        held: list[Any] = []
        times: dict[str, list[float]] = {"touch": [], "register": []}
        most = min(MOST, memory_bytes("MemAvailable") // 2)
        try:
            while (len(held) + 1) * STEP <= most and not why:
                if machine.clock.left_s() <= 0:
                    why = NO_TIME
                    break
                start = time.perf_counter()
                block = buffers.untouched(torch, STEP)
                block.fill_(1)
                touched = time.perf_counter()
                try:
                    buffers.register(torch, block)
                except RuntimeError as error:
                    why = reason(error)
                    break
                times["touch"].append(touched - start)
                times["register"].append(time.perf_counter() - touched)
                held.append(block)
        finally:
            for block in held:
                buffers.unregister(torch, block)
        return Measured(points=(*_times(times), _limit(len(held) * STEP, most, why)))


def _times(times: dict[str, list[float]]) -> Iterator[Point]:
    for action, samples in times.items():
        at: Setting = {"action": action, "bytes": STEP}
        if samples:
            yield Point(at=at, sampled=Sampled(samples=tuple(samples), volume=STEP))
        else:
            yield Point(at=at, error="nothing could be registered")


def _limit(size: int, most: int, why: str) -> Point:
    """The largest total; ``refused`` is 1 where the next step was refused by CUDA."""
    if not size:
        return Point(at={"action": "limit"}, error=why or "nothing could be registered")
    refused = float(bool(why) and why != NO_TIME)
    notes = {"refused": refused, "tried_bytes": float(most)}
    at = {"action": "limit"}
    return Point(at=at, sampled=Sampled(samples=(float(size),), unit="B", notes=notes))


class Allocator(Series):
    """torch's pinned allocator."""

    key = "pinned.allocator"
    sentence = "What torch's pinned allocator takes for odd sizes, and how long."
    seconds = 6.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """1.1 GiB and 5 GiB, in MiB."""
        for size in (1126, 5120):
            yield {"bytes": size << 20}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """An empty cache."""
        buffers.empty_pinned_cache(machine.torch)
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Allocate once; the note is how much less memory is available then."""
        size = int(at["bytes"])
        if size * 4 > machine.free_dram_bytes():
            raise MemoryError("not enough host memory is available")
        with _allocated(machine.torch, size) as (seconds, taken):
            notes = {"taken_bytes": float(taken)}
            return Sampled(samples=(seconds,), volume=size, notes=notes)


@contextmanager
def _allocated(torch: Any, size: int) -> Iterator[tuple[float, int]]:
    before = memory_bytes("MemAvailable")
    start = time.perf_counter()
    tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    seconds = time.perf_counter() - start
    try:
        yield seconds, before - memory_bytes("MemAvailable")
    finally:
        del tensor
        buffers.empty_pinned_cache(torch)
