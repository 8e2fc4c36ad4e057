"""Plans with the paths of the best one in another number of stages.

Where layers differ, the whole program with every path is too large to be solved for many stages,
and what a fluid program says of a schedule tells little. The paths that the best plan uses are few,
so their program is solved for other schedules, those with the least bounds first.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.best import Best
from kvplan.block_size import block_sizes
from kvplan.candidates import Candidate, build_unit, least_bound
from kvplan.evaluate import Evaluation
from kvplan.scenario import Scenario
from kvplan.thin import Paths, alike, paths_of, repeated, solved, thinned

LARGEST = 1200
"""Operations of a graph up to which its program is solved."""

TRIED = 5
"""Schedules whose program is solved, at most."""

WORTH_IT = 2e-3
"""Share of the best step by which an optimum must be shorter for its plan to be rounded."""


def restage(scenario: Scenario, candidates: Sequence[Candidate], best: Best) -> None:
    """Look for a plan with the best one's paths in other stages.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    alone = len(set(scenario.classes)) == 1  # trials on one layer have told stages apart
    if alone or best.step_s <= good_s or best.plan.schedule.axis != "token":
        return
    block = block_sizes(scenario)[-1]
    least_s, found = best.step_s * (1 - WORTH_IT), None
    others = [c for c in candidates if c.schedule.axis == "token" and not alike(c, best.candidate)]
    for candidate in sorted(others, key=lambda c: c.bound_s)[:TRIED]:
        if candidate.bound_s >= least_s:
            break
        structure = restaged(scenario, best.plan, candidate.schedule.stages)
        graph = build_unit(scenario, candidate.schedule, structure, None)
        if len(graph.operations) > LARGEST:
            continue
        uneven = max(scenario.workload.block - block, 0)
        optimum = solved(repeated(scenario, graph, uneven))
        if optimum is not None and optimum.step_s < least_s:
            least_s, found = optimum.step_s, (candidate, structure)
    if found is None:
        return
    candidate, structure = found
    plan = thinned(scenario, candidate.schedule, block, structure, best.step_s, LARGEST)
    best.offer(plan, candidate, block)


def restaged(scenario: Scenario, plan: Evaluation, stages: int) -> Paths:
    """The paths of each layer and stage where every stage may have what any stage of any layer of
    the class has in a plan.
    """
    own, classes = paths_of(scenario, plan), scenario.classes
    used: dict[int, dict[str, None]] = {each: {} for each in classes}
    found: Paths = {}
    for (layer, stage), paths in own.items():
        if stage is not None:
            used[classes[layer]] |= dict.fromkeys(path.name for path in paths)
    for layer, each in enumerate(classes):
        found[layer, None] = own.get((layer, None), [])
        staged = [p for p in scenario.paths[scenario.model.layers[layer]] if p.name in used[each]]
        found |= {(layer, stage): staged for stage in range(stages) if staged}
    return found
