"""When each action of a step began and ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kvplan_validate.action import Action
from kvplan_validate.runtime import Runtime

SPIN_CYCLES_PER_S = 2e9
"""Clock cycles of the GPU per second, at most; a slower clock spins longer."""

LAUNCH_S = 20e-6
"""Seconds to launch a kernel or to record an event from Python, about."""

MOST_HOLD_S = 0.2
"""A step that takes longer to launch waits for copies meanwhile."""

MOST_QUEUED = 400
"""Entries in a stream's queue; CUDA makes the launching thread wait at about a thousand."""

QUEUED_WITH_EACH = 4
"""Events around an operation."""

Timed = tuple[Action, float, float]
"""An action, its begin and its end in seconds."""


def timed_step(runtime: Runtime) -> list[Timed]:
    """One eager step with an event before and after each action.

    The GPU is held until about everything is launched, so that launching is not what is timed.
    Where work of the CPU takes its turn in a stream, it is not, and the launching thread stops
    now and then: it must not wait for a full queue while that work waits for it.
    """
    if not runtime.state.cuda:
        return _timed_on_cpu(runtime)
    runtime.synchronise()
    actions, streams = runtime.actions, runtime.state.streams
    on_host = any(a.operation.operation in ("attend_host", "read_disk") for a in actions)
    hold_s = 0.0 if on_host else _launch_s(actions)
    begun = torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(streams["gpu"]):
        torch.cuda._sleep(int(hold_s * SPIN_CYCLES_PER_S))
        begun.record()
    for stream in streams.values():
        stream.wait_event(begun)
    marks = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in actions
    ]
    plain = [action.run for action in actions]
    queued = 0.0
    for action, run, (first, last) in zip(actions, plain, marks, strict=True):
        queued += action.operation.kernels + QUEUED_WITH_EACH
        stops = on_host and action.lane == "gpu" and queued > MOST_QUEUED
        queued = 0.0 if stops else queued
        stream = streams[action.lane]
        action.run = partial(_between, run, first, last, stream, stops=stops)
    try:
        runtime.issue(reach_back=False)
        runtime.synchronise()
    finally:
        for action, run in zip(actions, plain, strict=True):
            action.run = run
    return [
        (action, begun.elapsed_time(first) / 1e3, begun.elapsed_time(last) / 1e3)
        for action, (first, last) in zip(actions, marks, strict=True)
    ]


def _launch_s(actions: list[Action]) -> float:
    """About how long the CPU takes to launch a timed step, at most `MOST_HOLD_S`."""
    queued = sum(a.operation.kernels + QUEUED_WITH_EACH for a in actions)
    return min(queued * LAUNCH_S, MOST_HOLD_S)


def _timed_on_cpu(runtime: Runtime) -> list[Timed]:
    spans = []
    begun = time.perf_counter()
    for action in runtime.actions:
        first = time.perf_counter()
        action.run()
        spans.append((action, first - begun, time.perf_counter() - begun))
    return spans


def _between(run: Callable[[], None], first: Any, last: Any, stream: Any, *, stops: bool) -> None:
    """Run with an event recorded before and after; wait for it where told so."""
    first.record(stream)
    run()
    last.record(stream)
    if stops:
        stream.synchronize()
