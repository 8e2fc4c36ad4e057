"""Plans that people run today, as rungs of a ladder; each goes through the same judge.

A rung is an evaluation or the reason why it is not possible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from kvplan import cost, solve, throughput
from kvplan.batching import Batching, batching_of, with_batching
from kvplan.errors import InfeasibleError
from kvplan.evaluate import Evaluation
from kvplan.flexgen_baseline import flexgen_percentages
from kvplan.forced import Played, forced, forced_schedule
from kvplan.hardware import ONE_POOL
from kvplan.kvpr_baseline import kvpr_pipelined, kvpr_serial
from kvplan.objective import Objective
from kvplan.peak import peak
from kvplan.scenario import Options, Scenario
from kvplan.units import format_seconds

RULE_OF_THUMB_RATIO = 0.3
"""Middle of "recompute 20 to 40 % where the link is under 10 % of compute"."""

RULE_OF_THUMB_LINK = 0.1
"""Bytes per second of the link over FLOP per second below which the rule applies."""

NARROW = 1 / 16
"""Share of a batch to which a baseline's best batch is found."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One trivial or published plan.

    Args:
        name: key in JSON.
        title: for people.
        plan: scenario to evaluation, or the reason why it is not possible.
        search: scenario to the plan at the batch that makes most tokens per second; None tries
            batches with ``plan``.
    """

    name: str
    title: str
    plan: Callable[[Scenario], Evaluation | Played | str]
    search: Callable[[Scenario], Played | str] | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    """A baseline's result: its evaluation and batch, or None and the reason.

    Args:
        name: key in JSON.
        title: for people.
        evaluation: its plan, judged; None where it is not possible.
        reason: why it is not.
        batching: its batch, micro-batches and order.
        note: one sentence on what was chosen.
        new_tokens: tokens each sequence decodes in one step.
    """

    name: str
    title: str
    evaluation: Evaluation | None
    reason: str | None
    batching: Batching
    note: str | None = None
    new_tokens: int = 1

    @property
    def step_s(self) -> float | None:
        """Seconds of one decode step; None where it is not possible."""
        return self.evaluation.step_s if self.evaluation else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second; None where it is not possible."""
        if self.evaluation is None:
            return None
        return self.batching.tokens_per_s(self.evaluation.step_s, self.new_tokens)


def no_offload(scenario: Scenario) -> Evaluation | str:
    """Everything in HBM."""
    schedule = forced_schedule(scenario, stages=1, queue_depth=1, stream_weights=False)
    return forced(scenario, schedule, {"resident": 1.0})


def synchronous_fetch(scenario: Scenario) -> Evaluation | str:
    """All K and V in host memory; a layer copies, then computes."""
    schedule = forced_schedule(scenario, stages=1, queue_depth=1, prefetch=False)
    return forced(scenario, schedule, {"fetch": 1.0})


def overlapped_fetch(scenario: Scenario) -> Evaluation | str:
    """All K and V in host memory; the next layer is copied into a second buffer meanwhile."""
    return forced(scenario, forced_schedule(scenario, stages=1, queue_depth=2), {"fetch": 1.0})


def staged_pipeline(scenario: Scenario) -> Evaluation | str:
    """Stages of a layer need small buffers, so K and V fill the HBM that is left."""
    try:
        return solve.search(_staged(scenario)).best
    except InfeasibleError as error:
        return f"{error.budget}: {error.reason}"


def staged_throughput(scenario: Scenario) -> Played | str:
    """The staged pipeline at the batch that makes most tokens per second."""
    objective = dataclasses.replace(scenario.objective, micro_batches=(1,), schedules=("column",))
    staged = dataclasses.replace(_staged(scenario), objective=objective)
    try:
        found = throughput.search(staged)
    except InfeasibleError as error:
        return f"{error.budget}: {error.reason}"
    return Played(found.search.best, found.batching)


def _staged(scenario: Scenario) -> Scenario:
    """Only resident and fetched tokens, in four stages."""
    options = Options(
        paths=("resident", "fetch"),
        axes=("token",),
        stages=(4,),
        queue_depths=(3,),
        boundary=scenario.options.boundary,
        mode=scenario.options.mode,
        weights=scenario.options.weights,
    )
    return dataclasses.replace(scenario, options=options)


def rule_of_thumb(scenario: Scenario) -> Evaluation | str:
    """Recompute a fixed share whatever the model."""
    rate = cost.flop_per_s(scenario.hardware, scenario.model.weight_dtype)
    applies = scenario.hardware.h2d.copy.rate() < RULE_OF_THUMB_LINK * rate
    ratio = RULE_OF_THUMB_RATIO if applies else 0.0
    schedule = forced_schedule(scenario, stages=4, queue_depth=3)
    return forced(scenario, schedule, {"recompute": ratio, "fetch": 1.0 - ratio})


BASELINES = (
    Baseline("no_offload", "no offload", no_offload),
    Baseline("synchronous_fetch", "synchronous fetch", synchronous_fetch),
    Baseline("overlapped_fetch", "overlapped fetch (double buffer)", overlapped_fetch),
    Baseline("staged_pipeline", "staged pipeline, HBM filled", staged_pipeline, staged_throughput),
    Baseline("rule_of_thumb", "rule of thumb (recompute 30 %)", rule_of_thumb),
    Baseline("flexgen", "FlexGen percentages", flexgen_percentages),
    Baseline("kvpr_serial", "KVPR split, serial", kvpr_serial),
    Baseline("kvpr_pipelined", "KVPR split, pipelined", kvpr_pipelined),
)
"""In the order an engineer would try them."""


def ladder(scenario: Scenario) -> tuple[Rung, ...]:
    """Every baseline of a scenario; for throughput, each at its own best batch."""
    climb = at_best_batch if scenario.objective.seeks_throughput else at_batch
    return tuple(climb(scenario, baseline) for baseline in BASELINES)


def at_batch(scenario: Scenario, baseline: Baseline) -> Rung:
    """A baseline with the workload as it is."""
    if scenario.hardware.unified and baseline.plan is not no_offload:
        return rung_of(scenario, baseline, ONE_POOL)
    return rung_of(scenario, baseline, baseline.plan(scenario))


def rung_of(scenario: Scenario, baseline: Baseline, result: Evaluation | Played | str) -> Rung:
    """A baseline's result, refused where its step is longer than accepted."""
    batching = batching_of(scenario)
    if isinstance(result, str):
        return Rung(baseline.name, baseline.title, None, result, batching)
    played = result if isinstance(result, Played) else Played(result, batching)
    if not scenario.objective.accepts(played.evaluation.step_s):
        reason = too_slow(scenario.objective, played.evaluation)
        return Rung(baseline.name, baseline.title, None, reason, batching)
    return Rung(
        baseline.name, baseline.title, played.evaluation, None, played.batching, played.note,
        scenario.workload.new_tokens,
    )  # fmt: skip


def at_best_batch(scenario: Scenario, baseline: Baseline) -> Rung:
    """A baseline with the batch that makes most tokens per second; micro-batches are its own."""
    least, most = scenario.objective.batches
    if scenario.hardware.unified and baseline.plan is not no_offload:
        return at_batch(scenario, baseline)
    if baseline.search is not None:
        return rung_of(scenario, baseline, baseline.search(scenario))
    known: dict[int, Rung] = {}

    def rung(batch: int) -> Rung:
        if batch not in known:
            known[batch] = at_batch(with_batching(scenario, Batching(batch)), baseline)
        return known[batch]

    batch = peak(lambda size: rung(size).tokens_per_s, least, most, NARROW)
    return rung(least if batch is None else batch)


def too_slow(objective: Objective, evaluation: Evaluation) -> str:
    """Why a plan that fits is not taken."""
    limit = format_seconds(objective.max_step_s or 0.0)
    return f"its step takes {format_seconds(evaluation.step_s)}, longer than {limit}"
