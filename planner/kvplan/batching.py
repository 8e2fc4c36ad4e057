"""Sequences, the parts they are decoded in, and what was tried of these."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvplan.ranks import with_workload
from kvplan.scenario import Scenario
from kvplan.workload import tokens_per_s


@dataclass(frozen=True, slots=True, order=True)
class Batching:
    """Sequences, the equal parts they are decoded in, and the order of these."""

    batch: int
    micro_batches: int = 1
    schedule: str = "column"

    def tokens_per_s(self, step_s: float, new_tokens: int = 1) -> float:
        """New tokens per second; a search for throughput decodes one of each sequence."""
        return tokens_per_s(self.batch, step_s, new_tokens)


@dataclass(frozen=True, slots=True)
class Trial:
    """A batching that was tried.

    Args:
        batching: which.
        bound_s: no plan for it takes less, seconds.
        step_s: the step of the plan found for it; None where only the bound was asked for.
    """

    batching: Batching
    bound_s: float
    step_s: float | None

    @property
    def tokens_per_s(self) -> float:
        """Most tokens per second: of its plan, or of its bound where none was made."""
        return self.batching.tokens_per_s(self.bound_s if self.step_s is None else self.step_s)


def batching_of(scenario: Scenario) -> Batching:
    """The batching of a scenario's workload."""
    workload = scenario.workload
    return Batching(workload.batch, workload.micro_batches, workload.schedule)


def with_batching(scenario: Scenario, batching: Batching) -> Scenario:
    """The scenario with another batch, micro-batches and order."""
    changed = dataclasses.replace(scenario.workload, **dataclasses.asdict(batching))
    return with_workload(scenario, changed)


def next_larger(scenario: Scenario, batching: Batching) -> Batching | None:
    """One sequence more in each micro-batch; None beyond what was asked for."""
    batch = batching.batch + batching.micro_batches
    if batch > scenario.objective.batches[1]:
        return None
    return dataclasses.replace(batching, batch=batch)
