"""Copies over the link: by kind of host memory, size and direction; in queues; both ways at once.

A figure is seconds per copy. ``h2d`` is host to GPU, ``d2h`` GPU to host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting, wall_samples
from kvplan_validate.measure.machine import Machine

SIZES = tuple(4096 << 2 * n for n in range(10))
"""4 KiB to 1 GiB in steps of four."""

BUFFER = 64 << 20
"""Bytes that small copies go round in, and of one copy that keeps the link busy."""

DIRECTIONS = ("h2d", "d2h")


@dataclass(frozen=True, slots=True)
class Ends:
    """Both ends of a copy: equally many bytes on the host and on the GPU."""

    host: Any
    gpu: Any

    def copier(self, direction: str, size_bytes: int) -> Callable[[int], Any]:
        """A function that launches copy number ``i``; consecutive ones use other bytes."""
        to, source = (self.gpu, self.host) if direction == "h2d" else (self.host, self.gpu)
        places = max(1, self.host.nbytes // size_bytes)

        def copy(index: int) -> None:
            start = index % places * size_bytes
            end = start + size_bytes
            to[start:end].copy_(source[start:end], non_blocking=True)

        return copy


@contextmanager
def ends(machine: Machine, kind: Callable[..., Any], size_bytes: int) -> Iterator[Ends]:
    """Host memory of a kind and GPU memory, of a size or of a quarter of what is free."""
    size = min(size_bytes, machine.free_dram_bytes() // 4, machine.free_hbm_bytes() // 4)
    torch = machine.torch
    with kind(torch, size) as host:
        gpu = buffers.fill(torch, torch.empty(size, dtype=torch.uint8, device="cuda"))
        yield Ends(host, gpu)
        torch.cuda.synchronize()


class _Copies(Series):
    """Copies of several sizes in both directions from one kind of memory."""

    kind: ClassVar[Any] = buffers.registered
    sizes: ClassVar[tuple[int, ...]] = SIZES
    seconds = 3.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every size in both directions."""
        for size in self.sizes:
            for direction in DIRECTIONS:
                yield {"direction": direction, "bytes": size}

    def bench(self, machine: Machine) -> AbstractContextManager[Ends]:
        """Both ends, as large as the largest copy."""
        return ends(machine, type(self).kind, max(*self.sizes, BUFFER))

    def sample(self, machine: Machine, bench: Ends, at: Setting) -> Sampled:
        """Time one size."""
        size = int(at["bytes"])
        if size > bench.host.nbytes:
            raise MemoryError("not enough memory is free for a copy of this size")
        copy = bench.copier(str(at["direction"]), size)
        return Sampled(samples=self.times(machine, copy), volume=size)

    def times(self, machine: Machine, copy: Callable[[int], Any]) -> tuple[float, ...]:
        """Seconds per copy, from back-to-back copies in a CUDA graph."""
        return machine.timer.per_operation(copy, copies=64, burst_s=2e-3)


class Registered(_Copies):
    """Copies as the runtime makes them."""

    key = "copies.registered"
    sentence = "Back-to-back copies from and to registered memory, in a CUDA graph."
    visits = 2


class Pinned(_Copies):
    """Copies from torch's pinned allocator."""

    key = "copies.pinned"
    sentence = "Back-to-back copies from and to memory of torch's pinned allocator, in a graph."
    kind = buffers.pinned


class _SingleCopies(_Copies):
    """Copies each of which is waited for."""

    def times(self, machine: Machine, copy: Callable[[int], Any]) -> tuple[float, ...]:
        """Wall-clock seconds from the call until the copy is done."""

        def single() -> None:
            copy(0)
            machine.torch.cuda.synchronize()

        return wall_samples(single, most=self.repeats, budget_s=self.budget_s, warm=2)

    repeats: ClassVar[int] = 7
    budget_s: ClassVar[float] = 1.0


class Pageable(_SingleCopies):
    """Copies from memory that is not pinned."""

    key = "copies.pageable"
    sentence = "Single copies from and to ordinary memory, each waited for."
    kind = buffers.pageable
    seconds = 4.0


class Latency(_SingleCopies):
    """Tiny transfers, end to end."""

    key = "copies.latency"
    sentence = "Tiny copies from and to registered memory, each waited for, as the CPU sees them."
    sizes = (4096, 65536)
    repeats = 200
    seconds = 0.5


class Eager(_Copies):
    """Queues of copies that Python launches one by one."""

    key = "copies.eager"
    sentence = "Queues of copies from registered memory, launched one by one from Python."
    sizes = (4096, 65536, 1 << 20, 4 << 20, 16 << 20)
    seconds = 1.5

    def times(self, machine: Machine, copy: Callable[[int], Any]) -> tuple[float, ...]:
        """Wall-clock seconds per copy of a queue of a hundred."""
        count, stream = 100, machine.timer.stream

        def queue() -> None:
            with machine.torch.cuda.stream(stream):
                for index in range(count):
                    copy(index)
            stream.synchronize()

        times = wall_samples(queue, most=7, budget_s=0.5)
        return tuple(seconds / count for seconds in times)


class Duplex(_Copies):
    """Both directions at once."""

    key = "copies.duplex"
    sentence = "Copies in one direction while a longer queue of copies runs in the other."
    sizes = (16 << 20, 64 << 20)
    seconds = 1.5

    def sample(self, machine: Machine, bench: Ends, at: Setting) -> Sampled:
        """Time eight copies while the other direction is busy."""
        size, direction = int(at["bytes"]), str(at["direction"])
        other = DIRECTIONS[1 - DIRECTIONS.index(direction)]
        with ends(machine, buffers.registered, bench.host.nbytes) as opposite:
            copy, against = bench.copier(direction, size), opposite.copier(other, size)
            times = tuple(_beside(machine, copy, against, 8) for _ in range(5))
        return Sampled(samples=times, volume=size)


def _beside(
    machine: Machine, copy: Callable[[int], Any], against: Callable[[int], Any], count: int
) -> float:
    """GPU seconds per copy; the other direction starts earlier and ends later."""
    cuda = machine.torch.cuda
    stream, busy = machine.timer.stream, cuda.Stream()
    begun = cuda.Event()
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    with cuda.stream(busy):
        against(0)
        begun.record()
        for index in range(3 * count):
            against(index)
    with cuda.stream(stream):
        stream.wait_event(begun)
        copy(0)
        start.record()
        for index in range(count):
            copy(index)
        end.record()
    cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3 / count


class Strided(Series):
    """Copies of a part of each row."""

    key = "copies.strided"
    sentence = "Copies of 32 rows out of longer ones from registered memory, each waited for."
    seconds = 1.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Rows of three lengths."""
        for width in (8192, 65536, 1 << 20):
            yield {"direction": "h2d", "row_bytes": width, "bytes": 32 * width}

    def bench(self, machine: Machine) -> AbstractContextManager[Ends]:
        """Both ends; rows are as long as four of the longest pieces."""
        return ends(machine, buffers.registered, 128 << 20)

    def sample(self, machine: Machine, bench: Ends, at: Setting) -> Sampled:
        """Time one length of rows."""
        width = int(at["row_bytes"])
        source = bench.host.view(32, -1)[:, :width]
        to = bench.gpu[: 32 * width].view(32, width)

        def single() -> None:
            to.copy_(source, non_blocking=True)
            machine.torch.cuda.synchronize()

        times = wall_samples(single, most=9, budget_s=0.5, warm=2)
        return Sampled(samples=times, volume=32 * width)


@contextmanager
def running(machine: Machine, size_bytes: int = 4 * BUFFER) -> Iterator[Callable[[], float]]:
    """A thread that keeps the link busy with copies to the GPU.

    Args:
        machine: where.
        size_bytes: host memory the copies go round in; more than a cache holds where memory that
            the CPU uses too shall be felt.

    Yields:
        A function that gives the bytes per second since it was called last.
    """
    cuda, stop, done = machine.torch.cuda, threading.Event(), [0]

    def work(both: Ends) -> None:
        stream, copy = cuda.Stream(), both.copier("h2d", BUFFER)
        queue: list[Any] = []
        while not stop.is_set():
            with cuda.stream(stream):
                copy(done[0])
                event = cuda.Event(blocking=True)
                event.record()
            queue.append(event)
            if len(queue) > 3:
                queue.pop(0).synchronize()
                done[0] += 1
        stream.synchronize()

    with ends(machine, buffers.registered, size_bytes) as both:
        thread = threading.Thread(target=work, args=(both,), daemon=True)
        thread.start()
        last = [time.perf_counter(), 0]

        def rate() -> float:
            now, count = time.perf_counter(), done[0]
            speed = (count - last[1]) * BUFFER / (now - last[0])
            last[:] = [now, count]
            return float(speed)

        try:
            yield rate
        finally:
            stop.set()
            thread.join()
