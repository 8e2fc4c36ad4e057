"""GPU memory: how fast it is read and copied. A figure is seconds per pass over 1 GiB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting
from kvplan_validate.measure.machine import Machine

SIZE = 1 << 30


class Hbm(Series):
    """Streaming over device memory."""

    key = "memory.hbm"
    sentence = "Reading and copying 1 GiB of GPU memory; a copy counts the bytes of both sides."
    seconds = 1.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Two reading kernels and a copy."""
        for operation in ("sum", "max", "copy"):
            yield {"operation": operation, "bytes": SIZE}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Any]:
        pool = buffers.pool(machine, SIZE)
        yield pool[: pool.numel() // 4 * 4].view(machine.torch.float32)

    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """Random memory as fp32 numbers."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time one kernel."""
        torch = machine.torch
        copies = at["operation"] == "copy"
        to = torch.empty_like(bench if copies else bench[:1])
        launch: dict[str, Callable[[int], Any]] = {
            "sum": lambda index: torch.sum(bench),
            "max": lambda index: torch.amax(bench),
            "copy": lambda index: to.copy_(bench),
        }
        times = machine.timer.per_operation(launch[str(at["operation"])], burst_s=3e-3)
        return Sampled(samples=times, volume=bench.nbytes * (2 if copies else 1))
