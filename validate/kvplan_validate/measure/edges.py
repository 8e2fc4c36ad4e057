"""What passes between a copy engine and the kernels that wait for it, inside a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting
from kvplan_validate.measure.machine import Machine

BYTES = 1 << 20
"""Bytes of one copy."""

ROUNDS = 100
"""Copies and kernels of one graph."""


class Waiting(Series):
    """Between a copy engine and the kernels, inside a graph."""

    key = "edges.waiting"
    sentence = (
        "Copies and kernels that wait for each other in a graph, less their own time: seconds per "
        "wait; and what a kernel takes longer that waits for a copy long done."
    )
    unit = ""
    seconds = 1.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Waiting in turn; waiting for what is done."""
        for waiting in ("in turn", "done"):
            yield {"waiting": waiting, "bytes": BYTES}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[_Engines]:
        torch = machine.torch
        with buffers.registered(torch, BYTES) as host:
            to = torch.empty_like(host, device="cuda")
            tiny, long = torch.randn(256, device="cuda"), torch.randn(1 << 29, device="cuda")
            yield _Engines(machine, host, to, tiny, long)

    def bench(self, machine: Machine) -> AbstractContextManager[_Engines]:
        """A copy, a tiny kernel, and one that takes longer than all copies."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: _Engines, at: Setting) -> Sampled:
        """Time rounds with and without waiting."""
        bodies: tuple[Callable[[], None], ...]
        if at["waiting"] == "in turn":
            bodies = (bench.in_turn, bench.copies, bench.kernels)
            edges = 2 * ROUNDS
        else:
            bodies = (bench.behind, bench.ahead)
            edges = ROUNDS
        timed = [machine.timer.graph_samples(body, launch_s=8e-3) for body in bodies]
        rounds = zip(*timed, strict=True)
        return Sampled(samples=tuple(max(a - sum(rest), 0.0) / edges for a, *rest in rounds))


@dataclass(frozen=True, slots=True)
class _Engines:
    """Copies on one stream, kernels on another."""

    machine: Machine
    host: Any
    to: Any
    tiny: Any
    long: Any

    def copies(self) -> None:
        """Copies alone."""
        for _ in range(ROUNDS):
            self.to.copy_(self.host, non_blocking=True)

    def kernels(self) -> None:
        """Kernels alone."""
        for _ in range(ROUNDS):
            self.tiny.add_(1.0)

    def in_turn(self) -> None:
        """Each copy waits for a kernel, each kernel for a copy."""
        main, side = self.machine.timer.stream, self.machine.timer.side
        for _ in range(ROUNDS):
            side.wait_stream(main)
            with self.machine.torch.cuda.stream(side):
                self.to.copy_(self.host, non_blocking=True)
            main.wait_stream(side)
            self.tiny.add_(1.0)

    def behind(self) -> None:
        """Kernels that each wait for a copy which ended while a long kernel ran."""
        self._after_long(wait=True)

    def ahead(self) -> None:
        """The same kernels without waiting for a copy each."""
        self._after_long(wait=False)

    def _after_long(self, *, wait: bool) -> None:
        cuda, small = self.machine.torch.cuda, 4096
        main, side = self.machine.timer.stream, self.machine.timer.side
        side.wait_stream(main)
        done = [cuda.Event() for _ in range(ROUNDS)]
        with cuda.stream(side):
            for event in done:
                self.to[:small].copy_(self.host[:small], non_blocking=True)
                event.record(side)
        self.long.mul_(1.0)
        for event in done:
            if wait:
                main.wait_event(event)
            self.tiny.add_(1.0)
        main.wait_stream(side)
