"""Timing on the GPU: repetitions in a CUDA graph, events around it, all held behind a spin.

Launching is never what is measured: by the time the spin ends, the graph is in the queue.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

_SPIN_CYCLES_PER_S = 2e9
"""Clock cycles of the GPU per second, at most; a slower clock spins longer."""

_GRAPH_LAUNCH_S = 2e-3
"""A launch of some hundred nodes takes less."""

_EAGER_LAUNCH_S = 100e-6
"""A launch of one operation from Python takes less."""

WARM_WIDTH = 4096
"""Width of the products that raise the clocks of an idle GPU."""

MOST_NODES = 400
"""Repetitions in one graph."""


class GpuTimer:
    """Times operations on device 0.

    Args:
        torch: the torch module; it must find a CUDA device.
    """

    def __init__(self, torch: Any) -> None:
        """Make the stream that is timed and a second one."""
        self.torch = torch
        self.stream, self.side = torch.cuda.Stream(), torch.cuda.Stream()

    def warm_up(self) -> None:
        """Raise the clocks of an idle GPU."""
        torch = self.torch
        busy = torch.randn(WARM_WIDTH, WARM_WIDTH, device="cuda", dtype=torch.float16)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            torch.mm(busy, busy)
            torch.cuda.synchronize()

    def capture(self, body: Callable[[], None]) -> Any:
        """A CUDA graph of what ``body`` launches on the timer's stream; run once before."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(self.stream):
            body()
            self.stream.synchronize()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                body()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error says what is wrong
                    graph.capture_end()
                raise
            graph.capture_end()
        self.torch.cuda.synchronize()
        return graph

    def spanned(self, body: Callable[[], None], launch_s: float = _GRAPH_LAUNCH_S) -> float:
        """GPU seconds of what ``body`` launches on the timer's stream.

        Args:
            body: launches work.
            launch_s: the CPU needs no longer to launch all of it.
        """
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            self.torch.cuda._sleep(int(launch_s * _SPIN_CYCLES_PER_S))
            start.record()
            body()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    def graph_samples(
        self,
        body: Callable[[], None],
        *,
        samples: int = 7,
        gap_s: float = 0.0,
        launch_s: float = _GRAPH_LAUNCH_S,
    ) -> tuple[float, ...]:
        """GPU seconds of everything ``body`` launches, replayed from one graph.

        Args:
            body: launches work that may be captured.
            samples: replays that are timed, after one that is not.
            gap_s: idle time before each, so that heat and power budgets recover.
            launch_s: the CPU needs no longer to launch the graph.
        """
        graph = self.capture(body)
        try:
            self.spanned(graph.replay, launch_s)
            times = []
            for _ in range(samples):
                time.sleep(gap_s)
                times.append(self.spanned(graph.replay, launch_s))
            return tuple(times)
        finally:
            self.torch.cuda.synchronize()
            graph.reset()
            self.torch.cuda.empty_cache()

    def per_operation(
        self,
        operation: Callable[[int], Any],
        *,
        copies: int = 1,
        burst_s: float = 2e-3,
        samples: int = 7,
        gap_s: float = 0.0,
    ) -> tuple[float, ...]:
        """GPU seconds of one operation, from a graph of many.

        Args:
            operation: launches the operation on buffer number ``i``.
            copies: how many buffers it rotates over.
            burst_s: length of the graph, about.
            samples: replays that are timed.
            gap_s: idle time before each.
        """
        count = self._repetitions(operation, copies, burst_s)

        def body() -> None:
            for index in range(count):
                operation(index % copies)

        times = self.graph_samples(body, samples=samples, gap_s=gap_s)
        return tuple(seconds / count for seconds in times)

    def sustained(
        self, operation: Callable[[int], Any], *, copies: int, piece_s: float, pieces: int
    ) -> tuple[float, ...]:
        """GPU seconds of one operation in the second half of a long burst, one figure per piece.

        Args:
            operation: launches the operation on buffer number ``i``.
            copies: how many buffers it rotates over.
            piece_s: length of one piece, about.
            pieces: pieces of the burst.
        """
        count = self._repetitions(operation, copies, piece_s)

        def body() -> None:
            for index in range(count):
                operation(index % copies)

        graph = self.capture(body)
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(pieces + 1)]
        with self.torch.cuda.stream(self.stream):
            marks[0].record()
            for mark in marks[1:]:
                graph.replay()
                mark.record()
        self.torch.cuda.synchronize()
        graph.reset()
        times = [a.elapsed_time(b) * 1e-3 / count for a, b in pairwise(marks)]
        return tuple(float(seconds) for seconds in times[pieces // 2 :])

    def _repetitions(self, operation: Callable[[int], Any], copies: int, burst_s: float) -> int:
        """How many operations make a burst: a multiple of ``copies`` where that is not too many."""
        trial = min(4, copies) or 1

        def some() -> None:
            for index in range(trial):
                operation(index)

        self.spanned(some, 0.0)
        once_s = self.spanned(some, trial * _EAGER_LAUNCH_S) / trial
        count = max(1, min(MOST_NODES, math.ceil(burst_s / max(once_s, 1e-7))))
        if copies > 1 and once_s * copies <= 2 * burst_s:
            count = copies * math.ceil(count / copies)
        return min(count, max(MOST_NODES, copies))

    def cpu_samples(
        self, body: Callable[[], None], operations: int, samples: int = 9
    ) -> tuple[float, ...]:
        """CPU seconds per operation to launch what ``body`` launches on an idle GPU."""
        times = []
        with self.torch.cuda.stream(self.stream):
            body()
            for _ in range(samples):
                self.stream.synchronize()
                start = time.perf_counter()
                body()
                times.append((time.perf_counter() - start) / operations)
            self.stream.synchronize()
        return tuple(times)
