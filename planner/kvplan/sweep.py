"""Many scenarios, one row each, over the cores of this machine."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any, TypeVar

from kvplan import cost, solve, throughput
from kvplan.allocation import tokens_by_path
from kvplan.errors import InfeasibleError, InputError
from kvplan.estimate import Estimate, try_estimate
from kvplan.evaluate import Evaluation
from kvplan.infeasible import shortage
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.units import format_seconds

Item = TypeVar("Item")
Result = TypeVar("Result")

LEVELS = ("plan", "estimate")
"""``plan``: a whole search, rounded to blocks. ``estimate``: one schedule, tokens fractional."""

CHUNK = 8
"""Scenarios handed to a process at once."""

RESOURCES = ("gpu", "h2d", "d2h", "host", "disk", "cpu")
TIERS = ("hbm", "dram", "pinned", "disk")


def columns() -> tuple[str, ...]:
    """Names of what `row` finds, in order; units are in the names."""
    return (
        "level",
        "status",
        "reason",
        "step_s",
        "tokens_per_s",
        "bound_s",
        "gap",
        "bottleneck",
        "plan_batch",
        "plan_micro_batches",
        "plan_tokens",
        "plan_axis",
        "plan_stages",
        "plan_queue_depth",
        "recompute_ratio",
        *(f"share_{path}" for path in REGISTRY),
        *(f"busy_{name}_s" for name in RESOURCES),
        *(f"used_{tier}_bytes" for tier in TIERS),
        "link_bytes_per_s",
    )


def row(scenario: Scenario, level: str = "plan") -> dict[str, Any]:
    """Judge one scenario.

    Args:
        scenario: the question.
        level: ``plan`` searches as ``kvplan solve`` does (baselines are not compared);
            ``estimate`` takes one schedule and fractional tokens, about ten times as fast.

    Returns:
        A value for each of `columns`: ``status`` is ``ok``, ``infeasible`` or ``refused``, and
        then ``reason`` says why; what does not apply is None.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> from kvplan.workload import Workload
    >>> asked = Scenario(model=load_model("opt-125m"), hardware=load_hardware("l4"),
    ...                  workload=Workload(batch=1, context=1024))
    >>> found = row(asked, "estimate")
    >>> found["status"], found["share_resident"], found["level"]
    ('ok', 1.0, 'estimate')
    """
    if level not in LEVELS:
        raise InputError("level", level, " or ".join(LEVELS))
    if level == "estimate" and scenario.objective.seeks_throughput:
        raise InputError("objective", "throughput", "latency: estimates choose no batch")
    found: dict[str, Any] = dict.fromkeys(columns()) | {"level": level}
    try:
        asked, measured = _estimated(scenario) if level == "estimate" else _planned(scenario)
    except InfeasibleError as error:
        return found | {"status": "infeasible", "reason": str(error)}
    except InputError as error:
        return found | {"status": "refused", "reason": str(error)}
    load = asked.workload
    measured |= {
        "tokens_per_s": load.tokens_per_s(measured["step_s"]),
        "plan_batch": load.batch,
        "plan_micro_batches": load.micro_batches,
        "plan_tokens": load.tokens,
        "link_bytes_per_s": cost.copy_to_gpu(scenario.hardware).rate(),
    }
    limit = scenario.objective
    if not limit.accepts(measured["step_s"]):
        reason = f"a step takes {format_seconds(measured['step_s'])}, more than is accepted"
        return found | {"status": "infeasible", "reason": reason}
    return found | {"status": "ok"} | measured


def _estimated(scenario: Scenario) -> tuple[Scenario, dict[str, Any]]:
    judged = try_estimate(scenario)
    if judged is None:
        raise shortage(scenario)
    return scenario, _of_estimate(judged)


def _planned(scenario: Scenario) -> tuple[Scenario, dict[str, Any]]:
    """The scenario, with the batch that was chosen if one was, and what the search found."""
    if scenario.objective.seeks_throughput:
        choice = throughput.search(scenario)
        asked, found = choice.scenario, choice.search
    else:
        searched = solve.find(scenario)
        if searched is None:
            raise shortage(scenario)
        asked, found = scenario, searched
    return asked, _of_plan(found.best, found.bound_s, found.gap)


def _of_plan(best: Evaluation, bound_s: float, gap: float) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for segments in best.allocation:
        for path, tokens in tokens_by_path(segments).items():
            counts[path] = counts.get(path, 0) + tokens
    total = sum(counts.values()) or 1
    simulation = best.simulation
    return {
        "step_s": best.step_s,
        "bound_s": bound_s,
        "gap": gap,
        "bottleneck": simulation.bottleneck,
        **_shape(
            best.schedule,
            {path: n / total for path, n in counts.items()},
            simulation.busy_s,
            best.memory_bytes,
        ),
    }


def _of_estimate(found: Estimate) -> dict[str, Any]:
    return {
        "step_s": found.step_s,
        "bound_s": found.bound_s,
        "bottleneck": found.simulation.bottleneck,
        **_shape(found.schedule, found.shares, found.simulation.busy_s, found.memory_bytes),
    }


def _shape(
    schedule: Schedule,
    shares: dict[str, float],
    busy_s: dict[str, float],
    memory_bytes: dict[str, float],
) -> dict[str, Any]:
    rebuilt = sum(s for path, s in shares.items() if path.startswith("recompute"))
    return {
        "plan_axis": schedule.axis,
        "plan_stages": schedule.stages,
        "plan_queue_depth": schedule.queue_depth,
        "recompute_ratio": rebuilt,
        **{f"share_{path}": shares.get(path, 0.0) for path in REGISTRY},
        **{f"busy_{name}_s": busy_s.get(name, 0.0) for name in RESOURCES},
        **{f"used_{tier}_bytes": round(memory_bytes.get(tier, 0.0)) for tier in TIERS},
    }


def rows(
    scenarios: Iterable[Scenario], level: str = "plan", jobs: int | None = None
) -> list[dict[str, Any]]:
    """Judge many scenarios, in their order.

    Args:
        scenarios: the questions.
        level: as `row` takes it.
        jobs: processes; None takes one per core, 1 stays in this process.
    """
    asked = list(scenarios)
    found: list[dict[str, Any]] = [{} for _ in asked]
    for index, result in parallel(_judge, [(s, level) for s in asked], jobs):
        found[index] = result
    return found


def _judge(asked: tuple[Scenario, str]) -> dict[str, Any]:
    return row(*asked)


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parallel(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int | None = None
) -> Iterator[tuple[int, Result]]:
    """Results of a function over items, as they come, each with the index of its item.

    Args:
        function: picklable, as the items are.
        items: what to work on; neighbours go to the same process.
        jobs: processes; None takes one per core, 1 stays in this process.
    """
    count = min(cores() if jobs is None else jobs, -(-len(items) // CHUNK))
    if count <= 1:
        for index, item in enumerate(items):
            yield index, function(item)
        return
    method = "spawn" if sys.platform == "win32" else "forkserver"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(count, context, initializer=collect_seldom)
    starts = iter(range(0, len(items), CHUNK))
    running: dict[Future[list[Result]], int] = {}
    try:
        while True:
            for start in islice(starts, 2 * count - len(running)):
                chunk = items[start : start + CHUNK]
                running[pool.submit(_all_of, function, chunk)] = start
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                start = running.pop(done)
                for offset, result in enumerate(done.result()):
                    yield start + offset, result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def collect_seldom() -> None:
    """Let a process of its own look for circles of unused objects seldom: searches make many small
    objects and no circles.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def _all_of(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]
