from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from kvplan.allocation import rounded
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.trace import trace
from kvplan.workload import Workload

MIXES: dict[str, dict[str, float]] = {
    "fetch": {"fetch": 1.0},
    "mixed": {"resident": 0.4, "recompute": 0.3, "fetch": 0.3},
    "host": {"attend_host": 0.5, "fetch": 0.5},
}


def evaluated(mix: Mapping[str, float], schedule: Schedule, micro_batches: int = 1) -> Evaluation:
    scenario = Scenario(
        model=load_model("opt-125m"),
        hardware=load_hardware("a100"),
        workload=Workload(batch=8, context=1024, micro_batches=micro_batches),
    )
    layers = range(len(scenario.model.layers))
    allocation = rounded(
        [scenario.cached_tokens(layer) for layer in layers],
        [dict(mix) for _ in layers],
        scenario.classes,
        schedule.axis,
        schedule.stages,
        scenario.workload.block,
        "grouped",
    )
    return evaluate(scenario, schedule, allocation)


def traced(evaluation: Evaluation, steps: int = 3) -> dict[str, Any]:
    return trace(evaluation.graph, evaluation.values, evaluation.simulation, steps)


def lanes(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    names = {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


@pytest.fixture(params=[(mix, mode) for mix in MIXES for mode in ("graph", "eager")], ids=str)
def evaluation(request: pytest.FixtureRequest) -> Evaluation:
    mix, mode = request.param
    return evaluated(MIXES[mix], Schedule(mode=mode), micro_batches=2 if mix == "host" else 1)


def test_every_operation_is_drawn_once_per_step(evaluation: Evaluation) -> None:
    events = [event for lane in lanes(traced(evaluation)).values() for event in lane]
    assert len(events) == 3 * len(evaluation.graph.operations)
    for step in range(3):
        names = sorted(event["name"] for event in events if event["args"]["step"] == step)
        assert names == sorted(o.operation for o in evaluation.graph.operations)


def test_one_lane_per_resource(evaluation: Evaluation) -> None:
    used = {o.resource or "latency" for o in evaluation.graph.operations}
    assert {lane.split(" ")[0] for lane in lanes(traced(evaluation))} == used


def test_no_two_events_of_a_lane_overlap(evaluation: Evaluation) -> None:
    for name, events in lanes(traced(evaluation)).items():
        events.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
        for before, after in pairwise(events):
            end_ns = round(1e3 * (before["ts"] + before["dur"]))
            assert end_ns <= round(1e3 * after["ts"]), name


def test_lanes_are_busy_as_simulated(evaluation: Evaluation) -> None:
    found = lanes(traced(evaluation))
    for resource, busy_s in evaluation.simulation.busy_s.items():
        drawn_s = sum(event["dur"] for event in found[resource]) / 3 / 1e6
        assert drawn_s == pytest.approx(busy_s, abs=1e-9 * len(evaluation.graph.operations))


def test_bytes_are_those_of_the_link(evaluation: Evaluation) -> None:
    found = lanes(traced(evaluation, steps=1))
    for resource, moved in evaluation.graph.link_bytes(evaluation.values).items():
        drawn = sum(event["args"]["bytes"] for event in found[resource])
        assert drawn == pytest.approx(moved)


def test_steps_follow_at_the_period(evaluation: Evaluation) -> None:
    events = [e for lane in lanes(traced(evaluation)).values() for e in lane if e["name"] == "head"]
    first = sorted(e["ts"] for e in events if e["args"]["step"] == 0)
    third = sorted(e["ts"] for e in events if e["args"]["step"] == 2)
    for early, late in zip(first, third, strict=True):
        assert late - early == pytest.approx(2e6 * evaluation.step_s, abs=0.01)


def test_it_is_deterministic_and_strict_json(evaluation: Evaluation) -> None:
    texts = {json.dumps(traced(evaluation), allow_nan=False) for _ in range(2)}
    assert len(texts) == 1
    event = next(e for e in json.loads(texts.pop())["traceEvents"] if e["ph"] == "X")
    assert set(event["args"]) == {"layer", "stage", "path", "micro_batch", "bytes", "step"}


def conforms(document: dict[str, Any]) -> None:
    """The trace-event format as Perfetto and chrome://tracing read it.

    Source: Trace Event Format (Google, 2016), sections "JSON Object Format", "Duration Events",
    "Complete Events" and "Metadata Events".
    """
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: dict[str, set[tuple[int, int]]] = {"process_name": set(), "thread_name": set()}
    used = set()
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts"} <= event.keys()
        assert all(isinstance(event[key], int) for key in ("pid", "tid"))
        assert event["pid"] > 0  # process 0 is the idle task to Perfetto
        if event["ph"] == "M":
            arguments = {"process_name": "name", "thread_name": "name",
                         "thread_sort_index": "sort_index"}  # fmt: skip
            assert list(event["args"]) == [arguments[event["name"]]]
            if event["name"] in named:
                named[event["name"]].add((event["pid"], event["tid"]))
        else:
            assert event["ph"] == "X"
            assert isinstance(event["args"], dict)
            assert event["tid"] > 0
            assert event["dur"] >= 0
            used.add((event["pid"], event["tid"]))
    assert used <= named["thread_name"]
    assert {pid for pid, _ in used} == {pid for pid, _ in named["process_name"]}


def test_it_is_what_perfetto_reads(evaluation: Evaluation) -> None:
    conforms(traced(evaluation))
