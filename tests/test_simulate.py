"""The simulator against plain play of many steps, by hand, and against reported decode times."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from strategies import evaluations, examples, graphs, ideal, layer, model

from kvplan.allocation import Segment
from kvplan.curve import affine
from kvplan.evaluate import Evaluation, evaluate
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import simulate, steady_state
from kvplan.step import Operation, StepGraph, Variable
from kvplan.workload import Workload

STEPS = 200


def play(graph: StepGraph, durations: Sequence[float], steps: int) -> list[list[float]]:
    """Ends of all operations, step by step, each starting as soon as it can on an idle machine."""
    ends: list[list[float]] = []
    for step in range(steps):
        now: list[float] = []
        ends.append(now)
        for index, operation in enumerate(graph.operations):
            seconds = durations[index]
            waits = [
                ends[step - lag][before] + graph.delay_s(before, index)
                for before, lag in operation.after
                if step >= lag
            ]
            now.append(max(waits, default=0.0) + seconds)
    return ends


def check_against_play(graph: StepGraph, values: Sequence[float]) -> None:
    """Plain play keeps pace with the period, and the critical cycle is as slow as that.

    Nothing ever ends later than its simulated time in its step. An operation on the critical
    cycle, which spans some steps, is a whole number of periods later as many steps on.
    """
    found = simulate(graph, values)
    period = found.step_s / graph.cycles
    ends = play(graph, graph.durations(values), STEPS)
    latest = [s + d for s, d in zip(found.start_s, found.duration_s, strict=True)]
    for step, now in enumerate(ends):
        for end, last in zip(now, latest, strict=True):
            assert end <= last + step * period + 1e-9 * (period + last)
    span = 0
    for position, index in enumerate(found.critical):
        before = found.critical[position - 1]
        lags = [lag for b, lag in graph.operations[index].after if b == before]
        span += min(lags, default=int(position == 0))  # round a barrier there is no direct edge
    steps = STEPS // 2 // span * span
    for index in found.critical:
        mean = (ends[-1][index] - ends[-1 - steps][index]) / steps
        assert mean == pytest.approx(period, rel=1e-9)


@examples(200)
@given(graphs())
def test_period_is_that_of_plain_play(drawn: tuple[StepGraph, list[float]]) -> None:
    check_against_play(*drawn)


@examples(60)
@given(evaluations(2))
def test_step_is_that_of_plain_play(judged: tuple[Scenario, Evaluation]) -> None:
    _, plan = judged
    if len(plan.graph.operations) < 150:
        check_against_play(plan.graph, plan.values)


@examples(100)
@given(graphs())
def test_what_a_simulation_shows(drawn: tuple[StepGraph, list[float]]) -> None:
    graph, values = drawn
    found = simulate(graph, values)
    assert found == simulate(graph, values)
    assert max(found.busy_s.values()) <= found.step_s * (1 + 1e-12)
    period = found.step_s / graph.cycles
    for index, operation in enumerate(graph.operations):
        for before, lag in operation.after:
            ready = found.start_s[before] + found.duration_s[before] - lag * period
            ready += graph.delay_s(before, index)
            assert found.start_s[index] >= ready - 1e-9 * period
    assert found.bottleneck in {o.resource or "latency" for o in graph.operations}
    critical = {graph.operations[i].resource or "latency" for i in found.critical}
    assert found.bottleneck in critical


# -- by hand -----------------------------------------------------------------------------------


def by_hand(
    works: Sequence[tuple[str, str | None, float]], after: Sequence[Sequence[tuple[int, int]]]
) -> StepGraph:
    """A graph of fixed durations: (word, resource, seconds), and what each waits for."""
    operations = [
        Operation(word, resource, affine(seconds, 0.0), after=list(waits))
        for (word, resource, seconds), waits in zip(works, after, strict=True)
    ]
    return StepGraph(operations, [], [], {}, {}, Schedule())


def test_one_operation_repeats() -> None:
    found = simulate(by_hand([("work", "gpu", 2.0)], [[(0, 1)]]), ())
    assert (found.step_s, found.start_s, found.critical) == (2.0, (0.0,), (0,))
    assert (found.busy_s, found.bottleneck) == ({"gpu": 2.0}, "gpu")


@pytest.mark.parametrize(
    ("copy_s", "attend_s", "depth", "step_s", "bottleneck"),
    [(3.0, 2.0, 1, 5.0, "h2d"), (3.0, 2.0, 2, 3.0, "h2d"), (2.0, 3.0, 1, 5.0, "gpu"),
     (2.0, 3.0, 2, 3.0, "gpu"), (3.0, 2.0, 9, 3.0, "h2d")],
)  # fmt: skip
def test_copy_and_attend(
    copy_s: float, attend_s: float, depth: int, step_s: float, bottleneck: str
) -> None:
    """A buffer is free again when it has been attended: in series with one, in parallel with two.

    In series the bottleneck is the longer of the two.
    """
    graph = by_hand([("copy_kv", "h2d", copy_s), ("attend", "gpu", attend_s)],
                    [[(0, 1), (1, depth)], [(0, 0), (1, 1)]])  # fmt: skip
    found = simulate(graph, ())
    assert found.step_s == step_s
    assert found.bottleneck == bottleneck


def test_a_cycle_of_several_steps() -> None:
    """6 s of work that must come round in 4 steps, 5 s in 3: 5/3 is the longer period."""
    graph = by_hand([("a", "gpu", 1.0), ("b", None, 5.0), ("c", None, 4.0)],
                    [[(0, 1), (1, 4), (2, 3)], [(0, 0)], [(0, 0)]])  # fmt: skip
    found = simulate(graph, ())
    assert found.step_s == pytest.approx(5 / 3)
    assert sorted(found.critical) == [0, 2]
    assert found.bottleneck == "latency"


def test_latency_is_not_occupied() -> None:
    """Two latencies of 4 s run side by side although the GPU serves one thing at a time."""
    graph = by_hand(
        [("project", "gpu", 1.0), ("a", None, 4.0), ("b", None, 4.0), ("finish", "gpu", 1.0)],
        [[(3, 1)], [(0, 0)], [(0, 0)], [(0, 0), (1, 0), (2, 0)]])  # fmt: skip
    assert simulate(graph, ()).step_s == 6.0


def test_durations_follow_the_values() -> None:
    graph = by_hand([("copy_kv", "h2d", 0.0)], [[(0, 1)]])
    graph.variables.append(Variable(0, 0, "fetch", 10.0, {}))
    graph.operations[0] = Operation("copy_kv", "h2d", affine(1.0, 0.5), (0,), [(0, 1)])
    assert simulate(graph, [4.0]).step_s == 3.0
    graph.cycles = 8
    found = simulate(graph, [4.0])
    assert (found.step_s, found.busy_s) == (24.0, {"h2d": 24.0})


def test_no_work_takes_no_time() -> None:
    assert steady_state([[(1, 1)], [(0, 0)]], [0.0, 0.0])[0] == 0.0


# -- against reported times --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth_tokens", "decode_ms", "copy_ms", "serial_ms", "overlap_ms", "ordered", "unordered"),
    [(4096, 25.31, 6.31, 31.62, 25.31, 31.72, 38.49),
     (16384, 27.59, 24.05, 51.64, 27.59, 19.69, 34.86),
     (32768, 30.55, 47.1, 77.65, 47.1, 13.03, 20.83)],
)  # fmt: skip
def test_serial_and_overlapped_copies(
    depth_tokens: int, decode_ms: float, copy_ms: float, serial_ms: float, overlap_ms: float,
    ordered: float, unordered: float,
) -> None:  # fmt: skip
    """Attention K and V of 16 layers in host memory, decode and copy times as measured.

    In series a step is copy + compute, within 3 % of the ordered rate; overlapped it is the
    larger one, within 5 % of the unordered rate where that was reached by copying meanwhile.

    Source: GenerelSchwerz/llama.cpp issue 31. 1024 + 1024 elements a layer at 34 bytes per 32.
    """
    per_token = 16 * 2048 * 34 // 32
    assert per_token == 34816
    assert per_token * depth_tokens in (142606336, 570425344, 1140850688)
    works = [("copy_kv", "h2d", copy_ms / 16), ("attend", "gpu", decode_ms / 16)] * 16
    step_ms = {}
    for depth in (1, 2):
        after: list[list[tuple[int, int]]] = []
        for each in range(16):
            copy, attend = 2 * each, 2 * each + 1
            waits = (each - depth) * 2 + 1
            before = (copy - 2, 0) if each else (30, 1)
            after.append([before, (waits, 0) if waits >= 0 else (waits + 32, 1)])
            after.append([(copy, 0), (attend - 2, 0) if each else (31, 1)])
        step_ms[depth] = simulate(by_hand(works, after), ()).step_s
    assert step_ms[1] == pytest.approx(serial_ms, abs=0.011)
    assert step_ms[2] == pytest.approx(overlap_ms, abs=0.011)
    assert step_ms[1] == pytest.approx(1000 / ordered, rel=0.03)
    assert step_ms[2] == pytest.approx(1000 / unordered, rel=0.05)


@pytest.mark.parametrize("queue_depth", [1, 2, 4, 8, 32])
def test_prefetch_cannot_fix_a_bandwidth_deficit(queue_depth: int) -> None:
    """64 layers of 470 us, 32 of them with 10 ms of K and V to bring: 320 ms whatever the depth.

    Compute alone is 30.08 ms, so at most 3 layers' K and V can be hidden behind it.

    Source: vllm-project/vllm issue 15123: a proposal to load K and V 32 layers ahead.
    """
    works: list[tuple[str, str | None, float]] = []
    after: list[list[tuple[int, int]]] = []
    copies: list[int] = []
    attends: list[int] = []
    finish: int | None = None
    for each in range(64):
        if each % 2:
            copies.append(len(works))
            works.append(("copy_kv", "h2d", 10e-3))
            after.append([(copies[-2], 0)] if len(copies) > 1 else [])
        waits = [] if finish is None else [(finish, 0)]
        if each % 2:
            waits.append((copies[-1], 0))
            attends.append(len(works))
        finish = len(works)
        works.append(("layer", "gpu", 470e-6))
        after.append(waits)
    assert finish is not None
    after[0].append((finish, 1))
    after[copies[0]].append((copies[-1], 1))
    for index, copy in enumerate(copies):
        lag, before = -((index - queue_depth) // 32), (index - queue_depth) % 32
        after[copy].append((attends[before], lag))
    found = simulate(by_hand(works, after), ())
    one_buffer = 32 * 470e-6 if queue_depth == 1 else 0.0
    assert found.step_s == pytest.approx(0.320 + one_buffer)
    assert found.step_s >= 0.320 * (1 - 1e-12)
    assert found.bottleneck == "h2d"
    assert found.busy_s["gpu"] == pytest.approx(30.08e-3)
    assert found.step_s / found.busy_s["gpu"] == pytest.approx(10.6, rel=0.061)


@pytest.mark.parametrize("queue_depth", [2, 3, 4, 8, 64])
@pytest.mark.parametrize("axis", ["token", "layer"])
def test_a_plan_that_lacks_bandwidth_is_bound_by_it_at_any_depth(
    axis: str, queue_depth: int
) -> None:
    """Eight layers of 1000 tokens at one token per millisecond, everything else free."""
    scenario = Scenario(model=model([layer()] * 8), hardware=ideal(link=256e3),
                        workload=Workload(batch=1, context=1000))  # fmt: skip
    schedule = Schedule(axis=axis, stages=4, queue_depth=queue_depth)
    if axis == "token":
        one = tuple(Segment(250 * c, 250 * c + 250, "fetch", c) for c in range(4))
        plan = evaluate(scenario, schedule, (one,) * 8)
    else:
        plan = evaluate(scenario, schedule,
                        tuple((Segment(0, 1000, "fetch", i // 2),) for i in range(8)))  # fmt: skip
    assert plan.step_s == pytest.approx(8.0)
    assert plan.simulation.bottleneck == "h2d"
