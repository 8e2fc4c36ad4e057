"""A step as a trace that Perfetto and ``chrome://tracing`` draw: one lane per resource."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan.simulate import Simulation
from kvplan.step import Operation, StepGraph

STEPS = 3
"""Steps drawn, so that what crosses from one step to the next can be seen."""

LATENCY = "latency"
"""Lane of operations that occupy no resource."""

PID = 1
"""Process of the events. To Perfetto process and thread 0 are the idle task: both count from 1."""

_ORDER = ("gpu", "h2d", "d2h", "host", "disk", "tier", "cpu")


def trace(
    graph: StepGraph, values: Sequence[float], simulation: Simulation, steps: int = STEPS,
    name: str = "decode step",
) -> dict[str, Any]:  # fmt: skip
    """The trace-event document of some consecutive steps in steady state.

    Args:
        graph: the step.
        values: value of every variable of the graph.
        simulation: its run.
        steps: how many steps to draw.
        name: what to call the process that the lanes belong to.

    Returns:
        A document of complete (``X``) events, times in microseconds to the nanosecond, and of
        metadata (``M``) events that name and order the lanes.

    Source: Trace Event Format, Google, 2016 (JSON object format; Perfetto and chrome://tracing).
    """
    period_s = simulation.step_s / graph.cycles
    spans = []
    for cycle in range(round(steps * graph.cycles)):
        for index, operation in enumerate(graph.operations):
            start_s = cycle * period_s + simulation.start_s[index]
            begin_ns = round(start_s * 1e9)
            end_ns = round((start_s + simulation.duration_s[index]) * 1e9)
            args = _arguments(operation, values) | {"step": cycle // graph.cycles}
            spans.append((begin_ns, end_ns, index, operation, args))
    spans.sort(key=lambda span: span[:3])
    lanes, events = _placed(spans)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"step_s": simulation.step_s, "bottleneck": simulation.bottleneck},
        "traceEvents": _names(lanes, name) + events,
    }


def _arguments(operation: Operation, values: Sequence[float]) -> dict[str, Any]:
    volume = sum(values[v] for v in operation.variables) if operation.variables else 1.0
    return {
        "layer": operation.layer,
        "stage": operation.stage,
        "path": operation.path,
        "micro_batch": operation.micro_batch,
        "bytes": operation.bytes_per_unit * volume,
    }


_Span = tuple[int, int, int, Operation, dict[str, Any]]


def _placed(spans: Sequence[_Span]) -> tuple[list[str], list[dict[str, Any]]]:
    """Lanes and events; what overlaps in time never shares a lane."""
    free_ns: dict[str, int] = {}
    placed = []
    for begin_ns, end_ns, _, operation, args in spans:
        lane = operation.resource or LATENCY
        if operation.resource is not None:
            begin_ns = max(begin_ns, free_ns.get(lane, 0))  # a rounding of one nanosecond
            end_ns = max(begin_ns, end_ns)
        number = 1
        while operation.resource is None and free_ns.get(lane, 0) > begin_ns:
            number += 1
            lane = f"{LATENCY} {number}"
        free_ns[lane] = end_ns
        placed.append((lane, begin_ns, end_ns, operation.operation, args))
    lanes = sorted(free_ns, key=lambda lane: (_rank(lane), lane))
    events = [
        {
            "name": name,
            "ph": "X",
            "pid": PID,
            "tid": lanes.index(lane) + 1,
            "ts": begin_ns / 1e3,
            "dur": (end_ns - begin_ns) / 1e3,
            "args": args,
        }
        for lane, begin_ns, end_ns, name, args in placed
    ]
    return lanes, events


def _rank(lane: str) -> int:
    if lane in _ORDER:
        return _ORDER.index(lane)
    return len(_ORDER) + lane.startswith(LATENCY)


def _names(lanes: Sequence[str], name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": PID, "tid": 0, "ts": 0, "args": {"name": name}}
    ]
    for index, lane in enumerate(lanes):
        own = {"ph": "M", "pid": PID, "tid": index + 1, "ts": 0}
        events.append({"name": "thread_name", **own, "args": {"name": lane}})
        events.append({"name": "thread_sort_index", **own, "args": {"sort_index": index}})
    return events
