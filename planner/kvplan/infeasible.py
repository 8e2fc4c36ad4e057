"""Why nothing fits, and the smallest change that makes a plan possible."""

from __future__ import annotations

import dataclasses

from kvplan import fluid
from kvplan.candidates import bounded_candidates, schedules, unit_graph
from kvplan.errors import InfeasibleError
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.units import format_bytes


def explain_infeasible(scenario: Scenario) -> InfeasibleError:
    """Which budget binds, and the smallest change that makes a plan possible."""
    stream = scenario.options.weights != "resident"
    least: tuple[float, dict[str, float]] | None = None
    for schedule in schedules(scenario, stream, min(scenario.options.queue_depths)):
        unit = unit_graph(scenario, schedule)
        found = fluid.shortfall(unit, scenario.classes, scenario.capacity, scenario.quality)
        total = sum(found.shortfall_bytes.values())
        if least is None or total < least[0]:
            least = (total, found.shortfall_bytes)
    assert least is not None
    short = {tier: size for tier, size in least[1].items() if size > 0.5}
    short = short or {"hbm": float(scenario.workload.block)}
    tier = max(sorted(short), key=lambda t: short[t])
    flag = {"hbm": "--hbm", "dram": "--dram", "pinned": "--pinned", "disk": "--disk"}[tier]
    have = scenario.capacity[tier]
    change = f"give {flag} at least {format_bytes(have + short[tier] * 1.01)}"
    smaller = largest_batch(scenario)
    if smaller:
        change += f" or lower --batch to {smaller}"
    return InfeasibleError(
        tier, f"{format_bytes(short[tier])} short of a budget of {format_bytes(have)}", change
    )


def largest_batch(scenario: Scenario) -> int:
    """The largest smaller batch that some schedule can hold; 0 if none."""
    low, high = 0, scenario.workload.batch
    while high - low > 1:
        batch = (low + high) // 2
        workload = dataclasses.replace(scenario.workload, batch=batch, micro_batches=1)
        trial = dataclasses.replace(scenario, workload=workload)
        if fits(trial):
            low = batch
        else:
            high = batch
    return low


def fits(scenario: Scenario) -> bool:
    """Whether any schedule has a fluid plan, or everything is resident."""
    return everything_resident(scenario) is not None or bool(bounded_candidates(scenario))
