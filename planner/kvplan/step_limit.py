"""No plan fits, or none is fast enough: what would have to change."""

from __future__ import annotations

from kvplan import solve
from kvplan.batching import Batching, with_batching
from kvplan.errors import InfeasibleError
from kvplan.infeasible import explain_infeasible
from kvplan.scenario import Scenario
from kvplan.units import format_seconds


def infeasible(scenario: Scenario) -> InfeasibleError:
    """Why no batch does."""
    objective = scenario.objective
    least, micro_batches = objective.batches[0], min(objective.micro_batches)
    least = -(-least // micro_batches) * micro_batches
    smallest = with_batching(scenario, Batching(least, micro_batches, min(objective.schedules)))
    found = solve.find(smallest)
    if found is None:
        return explain_infeasible(smallest)
    return too_long(smallest, found)


def too_long(scenario: Scenario, found: solve.Search) -> InfeasibleError:
    """A plan fits, and its step is longer than accepted."""
    limit_s = scenario.objective.max_step_s
    assert limit_s is not None, "a plan was found and refused"
    batch = scenario.workload.batch
    changes = [f"accept --max-step-latency {compact_s(found.best.step_s)}"]
    least = scenario.objective.batches[0] if scenario.objective.seeks_throughput else 1
    smaller = largest_in_time(scenario, least, batch)
    if smaller:
        changes.append(f"lower --batch to {smaller}")
    return InfeasibleError(
        "step latency",
        f"a step of {batch} sequences takes {format_seconds(found.best.step_s)}, "
        f"longer than {format_seconds(limit_s)}",
        " or ".join(changes),
    )


def largest_in_time(scenario: Scenario, least: int, batch: int) -> int:
    """The largest smaller batch with a plan that is fast enough; 0 where there is none."""
    low, high = least - 1, batch
    while high - low > 1:
        middle = (low + high) // 2
        found = solve.find(with_batching(scenario, Batching(middle)))
        if found is not None and scenario.objective.accepts(found.best.step_s):
            low = middle
        else:
            high = middle
    return low if low >= least else 0


def compact_s(seconds: float) -> str:
    """A time that can be typed and is no shorter.

    >>> compact_s(0.1234567), compact_s(12.3451)
    ('123.5ms', '12.35s')
    """
    value, unit = (seconds * 1e3, "ms") if seconds < 1 else (seconds, "s")
    digits = 1 if value >= 100 else 2
    rounded = round(value, digits)
    if rounded < value:
        rounded = round(rounded + 10**-digits, digits)
    return f"{rounded:g}{unit}"
