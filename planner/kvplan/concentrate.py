"""Plans that stage tokens in some layers only, or in some stages of them, and more of them there.

Every stage takes its fixed times: of a copy, of a rebuild, of an attention kernel. Where most
tokens are resident these weigh more than the staging buffers, which all layers share. So layers in
between keep all their tokens, or have some in their first stages only, which the link fills while
the GPU works on another layer; the others have larger stages. The program of the whole step says
for each share of the layers how long a step would take; the plan of the best is rounded to blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvplan.best import Best
from kvplan.block_size import block_sizes, finest
from kvplan.candidates import Candidate, build_unit, least_bound
from kvplan.dive import LARGEST, Dive, offer_rounded
from kvplan.evaluate import Evaluation
from kvplan.exchange import exchanged
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.thin import Paths, alike, paths_of, without_few

SHARES = (0.8, 0.6, 0.4)
"""Shares of the layers that stage tokens, beside all of them."""

FULL = (0.5, 0.25, 0.1)
"""Shares of the layers that stage tokens in all their stages, where the others do in some."""

STEP = 0.1
"""How far from the best share its neighbours are."""

NEAR = 1.003
"""Ratio to the best step up to which other buffers are tried."""

ROUNDS = 3
"""Times that paths which few of a stage's tokens take are left out."""

Stages = tuple[tuple[int, tuple[Path, ...]], ...]
"""Stages that hold tokens, and the paths of each."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Which layers stage tokens.

    Args:
        share: of the layers that have tokens in all stages of the plan before.
        fewer: how many stages, the first ones, the other layers have tokens in.
    """

    share: float = 1.0
    fewer: int = 0

    def shifted(self, by: float) -> Spread:
        """The same with so much larger a share, from none to all."""
        return Spread(round(min(max(self.share + by, 0.0), 1.0), 2), self.fewer)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A schedule, the layers that stage tokens, and the program of such a step."""

    candidate: Candidate
    spread: Spread
    structure: Paths
    dive: Dive


def concentrate(scenario: Scenario, candidates: Sequence[Candidate], best: Best) -> None:
    """Look for a plan with the paths of the best one's stages in fewer layers, or with other
    buffers.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    plan, first = best.plan, best.candidate
    too_large = len(plan.graph.operations) > LARGEST
    if best.step_s <= good_s or plan.schedule.axis != "token" or too_large:
        return
    trials = _Trials(scenario, plan, finest(scenario))
    found = trials.falling(first)
    if found.dive.step_s > best.step_s * NEAR:
        return
    found = trials.least((c, found.spread) for c in candidates if alike(c, first))
    if found.spread.share < 1:
        near = [found.spread.shifted(by) for by in (0.0, -STEP, STEP)]
        found = trials.least((found.candidate, spread) for spread in near)
    thin = trials.without_few(found)
    offer_rounded(best, good_s, thin.dive, thin.candidate)
    best.plan = exchanged(scenario, best.plan, good_s, best.block)


class _Trials:
    """Programs of steps that stage tokens as a plan does, in more or fewer layers."""

    def __init__(self, scenario: Scenario, plan: Evaluation, block: int) -> None:
        self.scenario, self.block = scenario, block
        self.kept = paths_of(scenario, plan)
        self.stages = usual_stages(scenario, plan)
        self.known: dict[tuple[int, Spread], _Trial] = {}

    def least(self, pairs: Iterable[tuple[Candidate, Spread]]) -> _Trial:
        """The one with the least step."""
        return min((self.trial(*pair) for pair in pairs), key=lambda trial: trial.dive.step_s)

    def falling(self, candidate: Candidate) -> _Trial:
        """The one with the least step of a schedule; fewer and fewer layers stage tokens, or do in
        more than half of their stages, as long as that is not much worse.
        """
        best = self.trial(candidate, Spread())
        half = max((len(stages) for stages in self.stages.values()), default=0) // 2
        for fewer in dict.fromkeys((0, half)):
            for share in FULL if fewer else SHARES:
                found = self.trial(candidate, Spread(share, fewer))
                if found.dive.step_s > best.dive.step_s * NEAR:
                    break
                best = min(best, found, key=lambda trial: trial.dive.step_s)
        return best

    def trial(self, candidate: Candidate, spread: Spread) -> _Trial:
        """The program of one schedule and choice of layers, stated once."""
        key = (id(candidate), spread)
        if key not in self.known:
            structure = spread_over(self.scenario.classes, self.kept, self.stages, spread)
            self.known[key] = self.stated(candidate, spread, structure)
        return self.known[key]

    def stated(self, candidate: Candidate, spread: Spread, structure: Paths) -> _Trial:
        """The program of a schedule with these paths."""
        graph = build_unit(self.scenario, candidate.schedule, structure, None)
        return _Trial(candidate, spread, structure, Dive(self.scenario, graph, self.block))

    def without_few(self, trial: _Trial) -> _Trial:
        """The program without paths that few tokens take, as long as that shortens the step."""
        for _ in range(ROUNDS):
            optimum, graph = trial.dive.optimum, trial.dive.graph
            if optimum is None:
                break
            values = optimum.values[: len(graph.variables)]
            fewer = without_few(trial.structure, graph, values, block_sizes(self.scenario)[-1])
            if fewer == trial.structure:
                break
            found = self.stated(trial.candidate, trial.spread, fewer)
            if found.dive.step_s >= trial.dive.step_s:
                break
            trial = found
        return trial


def spread_over(
    classes: Sequence[int], kept: Paths, stages: Mapping[int, Stages], spread: Spread
) -> Paths:
    """Paths of each layer and stage where so many layers of each class stage tokens, evenly
    spaced; all of those that have no other path.

    Args:
        classes: class number of every layer.
        kept: paths of each layer outside its stages.
        stages: stages of each class and their paths.
        spread: which layers hold tokens in which of these stages.
    """
    found: Paths = {}
    seen: Counter[int] = Counter()
    for layer, each in enumerate(classes):
        staging = max(round(spread.share * classes.count(each)), 1) / classes.count(each)
        before, seen[each] = seen[each], seen[each] + 1
        found[layer, None] = kept.get((layer, None), [])
        due = int(seen[each] * staging + 0.5) > int(before * staging + 0.5)
        whole = due or not found[layer, None]
        held = stages[each] if whole else stages[each][: spread.fewer]
        found |= {(layer, stage): list(paths) for stage, paths in held}
    return found


def usual_stages(scenario: Scenario, plan: Evaluation) -> dict[int, Stages]:
    """For each class of layers, what most of those that stage tokens have in their stages."""
    counts: dict[int, Counter[Stages]] = {each: Counter() for each in scenario.classes}
    for layer, segments in enumerate(plan.allocation):
        held: dict[int, list[Path]] = {}
        for segment in segments:
            if segment.stage is not None:
                held.setdefault(segment.stage, []).append(REGISTRY[segment.path])
        if held:
            own = tuple((stage, tuple(dict.fromkeys(paths))) for stage, paths in held.items())
            counts[scenario.classes[layer]][own] += 1
    return {each: found.most_common(1)[0][0] if found else () for each, found in counts.items()}
