"""The search: axis, stages, queue depth, paths; rounding to blocks; the certificate.

Every candidate first gets a lower bound from the fluid program, then its allocation is played on
one unit of the step graph. The best are rounded to blocks and judged on the whole graph. The
least bound over all candidates bounds every plan of the search space, so the distance between it
and the chosen plan is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan import fluid
from kvplan.apart import tell_apart
from kvplan.best import Best
from kvplan.block_size import finer_blocks, with_block
from kvplan.candidates import (
    NEAR,
    Candidate,
    bounded_candidates,
    deeper_candidates,
    least_bound,
    simplicity,
    try_on_unit,
    unbuilt,
)
from kvplan.certificate import WORTH_MIXING, is_sparse, raise_bounds
from kvplan.concentrate import concentrate
from kvplan.descent import descend
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted, simplest
from kvplan.gap import gap
from kvplan.infeasible import explain_infeasible
from kvplan.polish import tighten
from kvplan.quick import good_enough
from kvplan.resident import everything_resident
from kvplan.restage import restage
from kvplan.scenario import GOOD_GAP, Scenario
from kvplan.thin import thin_out

PATIENCE = 3
"""Judged candidates without a gain that end a round."""

PATIENCE_ALIKE = 2
"""The same where all layers are equal, so that trials tell more."""

FAR = 5e-2
"""Gap from which better plans are looked for before bounds are raised, and with a path fewer where
local search leaves it.
"""

WORTH_HALVING = 0.05
"""Share of what is left to a good step that smaller blocks must bring for others to be tried."""

DESCENDED = 1e-3
"""Share by which local search must shorten a step for its paths to be taken as the ones."""

DESCENDED_TO = 2e-2
"""Gap that it must have left at most."""

ALMOST = 1.5
"""Ratio to the gap asked for up to which local search goes on."""

AGAIN = 3
"""How much more it may do then."""

LIKELY = 4
"""Candidates tried again with smaller blocks."""


@dataclass(frozen=True, slots=True)
class Search:
    """What the search found.

    Args:
        best: the judged allocation.
        bound_s: lower bound over the whole search space.
        relaxation: fluid optimum of the chosen schedule, for duals.
        considered: schedules with a bound.
        judged: allocations played on the whole graph.
        block: tokens per block of the best allocation.
    """

    best: Evaluation
    bound_s: float
    relaxation: fluid.Fluid
    considered: int
    judged: int
    block: int

    @property
    def gap(self) -> float:
        """Proven distance from the optimum, as a share of the bound."""
        return gap(self.best.step_s, self.bound_s)


def search(scenario: Scenario) -> Search:
    """Find a plan and prove how good it is.

    Raises:
        InfeasibleError: nothing fits; names the budget and the smallest change.
    """
    found = find(scenario)
    if found is None:
        raise explain_infeasible(scenario)
    return found


def find(scenario: Scenario) -> Search | None:
    """Find a plan and prove how good it is; None where nothing fits."""
    resident = everything_resident(scenario)
    if resident is not None:
        return without_offload(scenario, resident)
    if scenario.options.good_gap > GOOD_GAP:
        quick = good_enough(scenario)
        if quick is not None:
            near, bound_s = quick
            return Search(near.plan, bound_s, near.candidate.relaxation, 1, near.judged, near.block)
    candidates, best = explore(scenario)
    if best is None:
        best = simplest_of(scenario, candidates)
    if best is None:
        return None
    if best.step_s > least_bound(candidates) * (1 + scenario.options.good_gap):
        close_gap(scenario, candidates, best)
    bound_s, relaxation = min(least_bound(candidates), best.step_s), best.candidate.relaxation
    return Search(best.plan, bound_s, relaxation, len(candidates), best.judged, best.block)


def explore(
    scenario: Scenario, most_s: float = float("inf")
) -> tuple[list[Candidate], Best | None]:
    """Every schedule with its bound, and the best plan of them; none where rounding found none that
    fits, or no trial takes less than ``most_s``.
    """
    candidates = bounded_candidates(scenario)
    for candidate in candidates:
        try_on_unit(scenario, candidate)
    if candidates:
        candidates += deeper_candidates(scenario, candidates)
    if min((c.trial_s for c in candidates), default=most_s) >= most_s:
        return candidates, None
    return candidates, judge(scenario, candidates)


def leave_out(scenario: Scenario, best: Best) -> None:
    """Look for plans with one path fewer, as long as that makes them better.

    Where a path's operations wait for each other in every stage, the fluid optimum mixes it in for
    what it takes off another resource, and the plan pays for the waits.
    """
    names = list(scenario.path_names)
    while len(names) > 1:
        found: list[tuple[Best, list[str]]] = []
        for name in sorted(best.plan.paths.intersection(names)):
            fewer = [other for other in names if other != name]
            options = replace(scenario.options, paths=tuple(fewer))
            try:
                _, trial = explore(replace(scenario, options=options), best.step_s)
            except InputError:  # a kind of layer that has no other path
                continue
            if trial is not None:
                best.judged += trial.judged - 1
                found.append((trial, fewer))
        if not found:
            break
        trial, names = min(found, key=lambda pair: pair[0].step_s)
        if not best.offer(trial.plan, trial.candidate, trial.block, NEAR):
            break


def close_gap(scenario: Scenario, candidates: list[Candidate], best: Best) -> None:
    """Raise bounds and look for better plans in turn, what takes least time first, until the gap
    is small. Candidates that the search has left out so far are added.
    """
    good_gap = scenario.options.good_gap
    likely = sorted(candidates, key=lambda c: c.trial_s)[:LIKELY]
    candidates += unbuilt(scenario, candidates)
    if best.step_s <= least_bound(candidates) * (1 + FAR):
        raise_bounds(scenario, candidates, best.step_s)
    for finer in finer_blocks(scenario):
        left_s = best.step_s - least_bound(candidates) * (1 + good_gap)
        if left_s <= 0:
            break
        before_s = best.step_s
        enough_s = least_bound(candidates) * (1 + good_gap)
        trial = judge(with_block(scenario, finer), likely, enough_s)
        if trial is not None:
            best.judged += trial.judged - 1
            best.offer(trial.plan, trial.candidate, finer, NEAR)
        if before_s - best.step_s < WORTH_HALVING * left_s:
            break
    before_s = best.step_s
    layouts = descend(scenario, candidates, best)
    if best.step_s > least_bound(candidates) * (1 + FAR):
        leave_out(scenario, best)
    raise_again(scenario, candidates, best)
    for better in (thin_out, restage, tighten, concentrate):
        near = best.step_s <= least_bound(candidates) * (1 + DESCENDED_TO)
        if better in (thin_out, restage) and near and best.step_s < before_s * (1 - DESCENDED):
            continue  # whole programs with all paths seldom find better ones
        better(scenario, candidates, best)
        raise_again(scenario, candidates, best, mixing=better is concentrate)
    if best.step_s <= least_bound(candidates) * (1 + good_gap * ALMOST):
        descend(scenario, candidates, best, effort=AGAIN)
    if best.step_s > least_bound(candidates) * (1 + good_gap):
        tell_apart(scenario, candidates, best, layouts)


def raise_again(
    scenario: Scenario, candidates: Sequence[Candidate], best: Best, *, mixing: bool = False
) -> None:
    """Raise bounds where a plan is not good enough; with mixtures, where these may be worth it."""
    left = best.step_s / least_bound(candidates) - 1
    if left > scenario.options.good_gap:
        mixing = mixing and (left <= WORTH_MIXING or is_sparse(scenario))
        raise_bounds(scenario, candidates, best.step_s, mixing=mixing)


def without_offload(scenario: Scenario, resident: Evaluation) -> Search:
    """The search's result where everything fits: the bound is the GPU's work alone."""
    relaxation = fluid.bound(resident.graph, scenario.classes, scenario.capacity)
    assert relaxation is not None, "what was judged to fit must fit"
    bound_s = min(relaxation.step_s, resident.step_s)
    return Search(resident, bound_s, relaxation, 1, 1, scenario.workload.block)


def simplest_of(scenario: Scenario, candidates: Sequence[Candidate]) -> Best | None:
    """The best simple plan, where rounding found none that fits."""
    found = [(simplest(scenario, candidate), candidate) for candidate in candidates]
    fitting = [(evaluation, candidate) for evaluation, candidate in found if evaluation]
    if not fitting:
        return None
    plan, candidate = min(fitting, key=lambda pair: pair[0].step_s)
    return Best(plan, candidate, scenario.workload.block, len(found))


def judge(
    scenario: Scenario, candidates: Sequence[Candidate], enough_s: float = 0.0
) -> Best | None:
    """Round and play the best candidates whole, until no other can be better by more than NEAR, or
    one is good enough.

    Where layers differ there are no trials to go by, and rounding may cost more than trials differ
    by; so some candidates without a gain end the round.
    """
    patience = PATIENCE_ALIKE if len(set(scenario.classes)) == 1 else PATIENCE
    least = min(c.trial_s for c in candidates)
    near = [c for c in candidates if c.trial_s <= least * (1 + NEAR)]
    rest = sorted((c for c in candidates if c not in near), key=lambda c: c.trial_s)
    best: Best | None = None
    idle = 0
    for judged, candidate in enumerate([*sorted(near, key=simplicity), *rest], start=1):
        if best is not None and best.step_s <= max(candidate.trial_s * (1 + NEAR), enough_s):
            break
        if best is not None and idle >= patience:
            break
        plan = fitted(scenario, candidate)
        gained = best is None and plan is not None
        if best is not None:
            gained = best.offer(plan, candidate, scenario.workload.block, NEAR)
        elif plan is not None:
            best = Best(plan, candidate, scenario.workload.block, judged)
        idle = 0 if gained else idle + 1
    return best
