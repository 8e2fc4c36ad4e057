"""The search for throughput: batch, micro-batches and their order, then the plan for them.

The batch is found on the bound (`batch_scan`), which is cheap, and only the best few are solved
whole.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvplan import solve
from kvplan.batch_limit import reason
from kvplan.batch_scan import Scan, ranked
from kvplan.batching import Batching, Trial, batching_of, next_larger, with_batching
from kvplan.candidates import NEAR
from kvplan.scenario import Scenario
from kvplan.step_limit import infeasible

MOST_SEARCHES = 8
"""Batches solved whole at most."""

RETRIES = 6
"""Times a batch is lowered because its plan is longer than accepted or does not fit."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What the search for throughput found.

    Args:
        scenario: the scenario with the chosen workload.
        search: the plan for it.
        limit: what keeps the batch from growing: ``asked``, ``memory``, ``max_step`` or
            ``throughput``.
        why: the same in a sentence.
        bound_tokens_per_s: no plan for any batch that was tried makes more.
        trials: every batch that was tried, by batching.
    """

    scenario: Scenario
    search: solve.Search
    limit: str
    why: str
    bound_tokens_per_s: float
    trials: tuple[Trial, ...]

    @property
    def batching(self) -> Batching:
        """The chosen batch."""
        return batching_of(self.scenario)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the chosen plan."""
        return self.batching.tokens_per_s(self.search.best.step_s)

    @property
    def gap(self) -> float:
        """Distance from the best bound, as a share of what was found."""
        return max(self.bound_tokens_per_s / self.tokens_per_s - 1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Settled:
    """A batching and the plan for it."""

    batching: Batching
    search: solve.Search

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of the plan."""
        return self.batching.tokens_per_s(self.search.best.step_s)

    @property
    def trial(self) -> Trial:
        """What was tried, without the plan."""
        return Trial(self.batching, self.search.bound_s, self.search.best.step_s)


def search(scenario: Scenario) -> Throughput:
    """Choose batch, micro-batches and their order for most tokens per second.

    Raises:
        InfeasibleError: not even the least batch fits, or none is fast enough.
    """
    scan = Scan(scenario)
    trials: dict[Batching, Trial] = {}
    best: Settled | None = None
    searches = 0
    first = ranked(scenario, scan)
    others = sorted(scan.bounds, key=lambda b: -(scan.score(b) or 0.0))
    for batching in dict.fromkeys([*first, *others]):
        bound = scan.score(batching) or 0.0
        if best is not None and bound <= best.tokens_per_s * (1 + NEAR):
            continue
        if best is not None and searches >= MOST_SEARCHES:
            break
        settled = settle(scenario, batching)
        searches += 1
        if settled is None:
            continue
        trials[settled.batching] = settled.trial
        if best is None or settled.tokens_per_s > best.tokens_per_s * (1 + NEAR):
            best = settled
    if best is None:
        raise infeasible(scenario)
    best = climb(scan, trials, best)
    for batching, bound_s in scan.bounds.items():
        if bound_s is not None and scenario.objective.accepts(bound_s):
            trials.setdefault(batching, Trial(batching, bound_s, None))
    limit, why = reason(scenario, scan, trials, best.batching, best.search)
    top = max(t.batching.tokens_per_s(t.bound_s) for t in trials.values())
    return Throughput(
        with_batching(scenario, best.batching), best.search, limit, why,
        max(top, best.tokens_per_s), tuple(trials[b] for b in sorted(trials)),
    )  # fmt: skip


def climb(scan: Scan, trials: dict[Batching, Trial], best: Settled) -> Settled:
    """The best plan, or that for a few sequences more while these could make more tokens/s."""
    for _ in range(MOST_SEARCHES):
        more = next_larger(scan.scenario, best.batching)
        if more is None or (scan.score(more) or 0.0) <= best.tokens_per_s * (1 + NEAR):
            return best
        if more in trials:
            return best
        found = solve.find(with_batching(scan.scenario, more))
        if found is None:
            return best
        settled = Settled(more, found)
        trials[more] = settled.trial
        accepted = scan.scenario.objective.accepts(found.best.step_s)
        if not accepted or found.best.step_s > more.batch / best.tokens_per_s:
            return best
        best = settled
    return best


def settle(scenario: Scenario, batching: Batching) -> Settled | None:
    """The plan for a batch, or for the largest smaller one that fits and is fast enough."""
    objective = scenario.objective
    for _ in range(RETRIES):
        found = solve.find(with_batching(scenario, batching))
        if found is not None and objective.accepts(found.best.step_s):
            return Settled(batching, found)
        share = 1.0 if found is None else (objective.max_step_s or 0.0) / found.best.step_s
        size = batching.batch // batching.micro_batches
        size = min(size - 1, int(size * min(share, 0.99)))
        if size * batching.micro_batches < max(objective.batches[0], 1):
            return None
        batching = dataclasses.replace(batching, batch=size * batching.micro_batches)
    return None
