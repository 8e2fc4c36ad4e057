"""What lanes of a timeline show: operations and held buffers, predicted or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.evaluate import Evaluation

ZOOMED = 60
"""Operations about which the lower panel shows."""


@dataclass(frozen=True, slots=True)
class Span:
    """One operation on its lane.

    Args:
        lane: resource, or ``buffer N``.
        begin_s: start, seconds.
        end_s: end, seconds.
        operation: its word.
        path: the path it serves; None where several or none.
        layer: its layer.
        stage: its stage; None outside the pipeline.
    """

    lane: str
    begin_s: float
    end_s: float
    operation: str
    path: str | None
    layer: int
    stage: int | None


def spans_of(evaluation: Evaluation, begin_s: float, end_s: float) -> list[Span]:
    """Operations and buffers in use between two times of the steady state.

    Time 0 is when a step starts; what earlier steps left and what later ones begin is there too.
    """
    graph, simulation = evaluation.graph, evaluation.simulation
    period_s = simulation.step_s / graph.cycles
    latest_s = max(
        (simulation.start_s[i] + d for i, d in enumerate(simulation.duration_s)), default=0.0
    )
    first = -int(latest_s // period_s) - 1 if period_s else 0
    found = []
    for cycle in range(first, int(end_s // period_s) + 1 if period_s else 1):
        shift_s = cycle * period_s
        for index, operation in enumerate(graph.operations):
            start_s = shift_s + simulation.start_s[index]
            stop_s = start_s + simulation.duration_s[index]
            if operation.resource and stop_s > start_s and stop_s > begin_s and start_s < end_s:
                found.append(
                    Span(
                        operation.resource,
                        start_s,
                        stop_s,
                        operation.operation,
                        operation.path,
                        operation.layer,
                        operation.stage,
                    )
                )
        found += _held(evaluation, cycle, shift_s, begin_s, end_s)
    return sorted(found, key=lambda s: (s.lane, s.begin_s))


def _held(
    evaluation: Evaluation, cycle: int, shift_s: float, begin_s: float, end_s: float
) -> list[Span]:
    """Who holds each staging buffer in one cycle."""
    graph, simulation = evaluation.graph, evaluation.simulation
    found = []
    for buffer in graph.buffers:
        if buffer.holds != "stages":
            continue
        count = len(buffer.enters)
        for number, (enters, leaves) in enumerate(zip(buffer.enters, buffer.leaves, strict=True)):
            if not enters or not leaves:
                continue
            start_s = shift_s + min(simulation.start_s[i] for i in enters)
            stop_s = shift_s + max(simulation.start_s[i] + simulation.duration_s[i] for i in leaves)
            if stop_s > begin_s and start_s < end_s:
                slot = (cycle * count + number) % buffer.count + 1
                own = graph.operations[leaves[0]]
                name = f"buffer {slot}"
                found.append(Span(name, start_s, stop_s, "hold", None, own.layer, own.stage))
    return found


def measured_spans(
    trace: Mapping[str, Any], resources: Mapping[str, str] | None = None
) -> list[Span]:
    """The measured half of a trace that ``kvplan validate --trace`` wrote; empty if it has none.

    Args:
        trace: the document.
        resources: operation to its resource, for events whose lane has no name.
    """
    names = {
        event["pid"]: event["args"]["name"]
        for event in trace.get("traceEvents", ())
        if event.get("name") == "process_name"
    }
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace.get("traceEvents", ())
        if event.get("name") == "thread_name"
    }
    found = []
    for event in trace.get("traceEvents", ()):
        if event.get("ph") != "X" or names.get(event.get("pid")) != "measured":
            continue
        given, begin_s = event.get("args", {}), event["ts"] / 1e6
        own = (resources or {}).get(event["name"], "gpu")
        lane = lanes.get((event["pid"], event["tid"]), own)
        found.append(
            Span(
                lane,
                begin_s,
                begin_s + event["dur"] / 1e6,
                event["name"],
                given.get("path"),
                given.get("layer", 0),
                given.get("stage"),
            )
        )
    first_s = min((s.begin_s for s in found), default=0.0)
    return [
        Span(s.lane, s.begin_s - first_s, s.end_s - first_s, s.operation, s.path, s.layer, s.stage)
        for s in found
    ]


def window(spans: Sequence[Span]) -> tuple[float, float]:
    """A stretch in the middle of a step that holds about as many operations as can be read."""
    begins = {s.layer: s.begin_s for s in spans if s.operation == "project" and s.begin_s >= 0}
    ordered = sorted(begins)
    if len(ordered) < 3:
        ends = [s.end_s for s in spans]
        return 0.0, max(ends, default=1.0)
    per_layer = sum(1 for s in spans if not s.lane.startswith("buffer")) / len(ordered)
    count = max(1, min(round(ZOOMED / per_layer), len(ordered) - 1))
    first = (len(ordered) - count) // 2
    return begins[ordered[first]], begins[ordered[first + count]]
