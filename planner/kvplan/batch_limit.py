"""What keeps a batch from growing."""

from __future__ import annotations

import dataclasses

from kvplan import solve
from kvplan.batch_scan import Scan
from kvplan.batching import Batching, Trial, next_larger, with_batching
from kvplan.infeasible import least_shortfall
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.units import format_bytes, format_seconds


def reason(
    scenario: Scenario,
    scan: Scan,
    trials: dict[Batching, Trial],
    batching: Batching,
    found: solve.Search,
) -> tuple[str, str]:
    """What keeps the batch from growing, as a word and as a sentence."""
    more = next_larger(scenario, batching)
    if more is None:
        return "asked", f"{scenario.objective.batches[1]} is the most that --batch allows"
    bound_s, trial = scan.bound_s(more), trials.get(more)
    if bound_s is None:
        short = least_shortfall(with_batching(scenario, more))
        tier = max(sorted(short), key=lambda t: short[t])
        held = format_bytes(scenario.capacity[tier])
        return "memory", f"{more.batch} sequences do not fit: {held} of {tier} are full"
    limit_s = scenario.objective.max_step_s
    step_s = trial.step_s if trial and trial.step_s else bound_s
    if limit_s is not None and not scenario.objective.accepts(step_s):
        least = "" if trial and trial.step_s else "at least "
        return "max_step", (
            f"{more.batch} sequences take {least}{format_seconds(step_s)} per step, more than "
            f"the {format_seconds(limit_s)} of --max-step-latency"
        )
    return "throughput", saturated(scenario, scan, trial, batching, found)


def saturated(
    scenario: Scenario, scan: Scan, trial: Trial | None, batching: Batching, found: solve.Search
) -> str:
    """Why more sequences bring no more tokens per second."""
    resident = everything_resident(with_batching(scenario, batching)) is not None
    busy = (
        f"{batching.batch} sequences are the most that HBM holds without offload"
        if resident
        else f"{found.best.simulation.bottleneck} is the limit"
    )
    if trial is not None and trial.step_s is not None:
        return f"{busy}; {trial.batching.batch} make {trial.tokens_per_s:.4g} tokens/s"
    most = scenario.objective.batches[1] // batching.micro_batches * batching.micro_batches
    for size in (min(2 * batching.batch, most), batching.batch + batching.micro_batches):
        larger = dataclasses.replace(batching, batch=size)
        bound_s = scan.bound_s(larger)
        if bound_s is not None and scenario.objective.accepts(bound_s):
            break
    assert bound_s is not None, "one sequence more was found to fit"
    extra_s = max(bound_s - found.bound_s, 0.0) / (larger.batch - batching.batch)
    return (
        f"{busy}; each further sequence adds {format_seconds(extra_s)} to the step, so "
        f"{larger.batch} make at most {larger.tokens_per_s(bound_s):.4g} tokens/s"
    )
