"""Disk reads past the page cache, over block size and queue depth.

A figure is seconds per block: of one block at depth 1, of the queue divided by its blocks above.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from kvplan_validate.measure.base import Sampled, Series, Setting, wall_samples
from kvplan_validate.measure.machine import Machine

LARGEST_FILE = 4 << 30
LEAST_FILE = 16 << 20
CHUNK = 16 << 20
DEPTHS = (1, 4, 16)
BLOCKS = (1 << 20, 4 << 20, 16 << 20)


@dataclass(slots=True)
class File:
    """An open temporary file; reads go round in it, so that none hits what was just read."""

    descriptor: int
    size_bytes: int
    position: int = 0
    buffers: dict[tuple[int, int], mmap.mmap] = field(default_factory=dict)

    def offsets(self, block: int, count: int) -> list[int]:
        """The next offsets."""
        last = self.size_bytes // block * block
        found = []
        for _ in range(count):
            if self.position + block > last:
                self.position = 0
            found.append(self.position // block * block)
            self.position = found[-1] + block
        return found

    def read(self, worker: int, block: int, offsets: list[int]) -> None:
        """Read blocks into this worker's aligned buffer."""
        buffer = self.buffers.setdefault((worker, block), mmap.mmap(-1, block))
        for offset in offsets:
            if os.preadv(self.descriptor, [buffer], offset) != block:
                raise OSError(f"a short read at {offset}")


class Read(Series):
    """Direct reads."""

    key = "disk.read"
    sentence = "Direct reads from a temporary file, by threads that each have one read in flight."
    seconds = 14.0
    needs = ""

    def can_run(self, machine: Machine) -> str | None:
        """Why not: no direct reads, or a full disk."""
        if not hasattr(os, "O_DIRECT") or not hasattr(os, "preadv"):
            return "this system has no direct reads"
        try:
            free = shutil.disk_usage(machine.scratch).free
        except OSError as error:
            return f"{machine.scratch}: {error.strerror}"
        if free < 8 * LEAST_FILE:
            return f"less than 128 MiB are free in {machine.scratch}"
        return None

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """One page for the latency; then blocks over depth."""
        yield {"depth": 1, "bytes": 4096}
        for block in reversed(BLOCKS):
            for depth in DEPTHS:
                yield {"depth": depth, "bytes": block}

    def bench(self, machine: Machine) -> AbstractContextManager[File]:
        """A file of random bytes: 4 GiB, less on a small or slow disk."""
        return temporary_file(machine)

    def sample(self, machine: Machine, bench: File, at: Setting) -> Sampled:
        """Read queues for a share of the time; each thread reads several blocks of one."""
        depth, block = int(at["depth"]), int(at["bytes"])
        if depth * block > bench.size_bytes:
            raise ValueError("the file is too small for this queue")
        each = 1 if depth == 1 else max(2, (64 << 20) // (depth * block))
        with ThreadPoolExecutor(depth) as workers:

            def queue() -> None:
                parts = [bench.offsets(block, each) for _ in range(depth)]
                jobs = [workers.submit(bench.read, w, block, p) for w, p in enumerate(parts)]
                for job in jobs:
                    job.result()

            budget_s = min(0.8, max(machine.clock.left_s(), 0.1) / 8)
            times = wall_samples(queue, most=200, budget_s=budget_s, warm=0)
        bench.buffers.clear()
        return Sampled(samples=tuple(t / (depth * each) for t in times), volume=block)


@contextmanager
def temporary_file(machine: Machine) -> Iterator[File]:
    """A file of random bytes that is on the disk, opened for direct reads; removed at the end."""
    free = shutil.disk_usage(machine.scratch).free
    handle, path = tempfile.mkstemp(dir=machine.scratch, prefix=".kvplan-profile-")
    try:
        with os.fdopen(handle, "wb", buffering=0) as stream:
            size = _write(stream.fileno(), min(LARGEST_FILE, free // 4), machine)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            yield File(descriptor, size)
        finally:
            os.close(descriptor)
    finally:
        os.unlink(path)


def _write(descriptor: int, most: int, machine: Machine) -> int:
    """Write random chunks for at most a third of the time, drop them from the page cache."""
    end = time.monotonic() + max(machine.clock.left_s(), 0.5) / 3
    chunk = os.urandom(CHUNK)
    size = 0
    while size < LEAST_FILE or (size + CHUNK <= most and time.monotonic() < end):
        os.write(descriptor, chunk[size // CHUNK % 4096 :])
        os.write(descriptor, chunk[: size // CHUNK % 4096])
        size += CHUNK
        if size % (16 * CHUNK) == 0:
            os.fdatasync(descriptor)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return size
