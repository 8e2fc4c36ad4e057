"""Layouts in whole blocks: how many tokens each stage has on each of its paths.

Where layers repeat, branch and bound finds blocks for one or two of them, without the head, which
most others then have; the layers beside the head, where links wait, make up for it in the program
of the whole step. Where layers do not repeat, places are rounded one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan import block_program
from kvplan.best import Best
from kvplan.block_program import Goal
from kvplan.block_size import blocks_in, finest
from kvplan.candidates import Candidate, build_unit
from kvplan.curve import ZERO
from kvplan.dive import Dive, offer_rounded
from kvplan.evaluate import Evaluation
from kvplan.exchange import exchanged
from kvplan.layout import Layout, structure
from kvplan.paths import REGISTRY
from kvplan.polish import in_blocks
from kvplan.resident import capacity_for
from kvplan.sample import ENDS, period_of
from kvplan.scenario import Scenario
from kvplan.step import StepGraph

REPEATS = (1, 2)
"""Units that get whole blocks together, as others then have."""

MOST_PLACES = 36
"""Places of tokens of layers that get whole blocks together, at most."""

MOST_DIVED = 150
"""The same where places are rounded one after the other."""

MOST_NODES = 1500
"""Nodes of branch and bound for these."""

MOST_SEARCHED = 30_000
"""Operations times nodes of these."""

NEAR_ENOUGH = 5e-4
"""Distance from the goal at which the program in blocks stops."""

WORTH_TRYING = 1.004
"""Ratio to the best step up to which plans in blocks are of use."""

EXCHANGE_REACH = 5e-3
"""Share by which exchanging blocks shortens a step at most, as a rule."""

SMALL = 500
"""Operations of a whole step up to which places are rounded on their own, too, where layers repeat.
"""

LARGEST_WHOLE = 3000
"""Operations of a whole step whose program is solved to get whole blocks, at most."""


class Rounding:
    """Plans of layouts in whole blocks."""

    def __init__(
        self, scenario: Scenario, best: Best, good_s: float, most: int, effort: int = 1
    ) -> None:
        """Nothing is rounded yet.

        Args:
            scenario: the question.
            best: the best plan so far.
            good_s: a step that would do.
            most: layouts that get whole blocks, at most.
            effort: how much branch and bound may do for each.
        """
        self.scenario, self.best, self.good_s = scenario, best, good_s
        self.block = finest(scenario)
        self.most, self.effort, self.done = most, effort, set[Layout]()

    def offer(self, layout: Layout, candidate: Candidate) -> None:
        """Offer plans of a layout, unless it was offered before, enough others were, or it is too
        large.
        """
        each = layout.over(tuple(range(len(layout.kinds))))
        if each in self.done or len(self.done) >= self.most:
            return
        scenario, count = self.scenario, len(self.scenario.classes)
        held = structure(scenario, layout, range(count))
        whole = build_unit(scenario, layout.schedule, held, None)
        runs, told_apart = list(self.runs(layout)), max(layout.kinds) > max(scenario.classes)
        repeats = runs and period_of(layout.kinds) == len(runs[0]) and count % len(runs[0]) == 0
        if len(whole.operations) > LARGEST_WHOLE and not repeats:
            return
        self.done.add(each)
        if len(whole.operations) <= LARGEST_WHOLE:
            dive = Dive(scenario, whole, self.block)
            for run in runs:
                if dive.step_s >= self.best.step_s or self.best.step_s <= self.good_s:
                    return
                self.with_ends(layout, candidate, run, dive)
            if not runs or len(whole.operations) <= SMALL or told_apart:
                offer_rounded(self.best, self.good_s, dive, candidate)
        else:
            self.repeated(layout, candidate, range(len(runs[0])))

    def runs(self, layout: Layout) -> Iterator[range]:
        """Runs of layers that may get whole blocks together, as others between the ends then
        have.
        """
        count = len(layout.kinds)
        period = period_of(layout.kinds[ENDS : count - ENDS])
        for repeat in REPEATS if period else ():
            run = range(ENDS, ENDS + period * repeat)
            if run.stop + ENDS > count:
                return
            held = structure(self.scenario, layout, run)
            if sum(map(len, held.values())) <= (MOST_DIVED if repeat == 1 else MOST_PLACES):
                yield run

    def with_ends(self, layout: Layout, candidate: Candidate, run: range, dive: Dive) -> None:
        """Most layers have the blocks of a run of layers without the head; those beside the head
        make up for it, or where they cannot in whole blocks, have the same.
        """
        goal = Goal(0.0, self.best.step_s, NEAR_ENOUGH)
        tokens = blocks_of(self.scenario, layout, run, self.block, goal, self.effort)
        if tokens is None:
            return
        most_s = self.best.step_s * WORTH_TRYING
        for ends in (ENDS, 0):
            inner = range(ends, len(self.scenario.classes) - ends)
            places = [
                (run[(v.layer - run.start) % len(run)], v.stage, v.path)
                for v in dive.graph.variables
            ]
            known = {
                index: tokens[place]
                for index, place in enumerate(places)
                if dive.graph.variables[index].layer in inner and place in tokens
            }
            plan = dive.plan(layout.schedule, most_s, known=known)
            if plan is not None:
                self.exchange(plan, candidate)
                return

    def repeated(self, layout: Layout, candidate: Candidate, run: Sequence[int]) -> None:
        """All layers have the blocks of a run of layers, the head being a part of each."""
        unit = build_unit(
            self.scenario, layout.schedule, structure(self.scenario, layout, run), run
        )
        goal = Goal(self.good_s * (1 - NEAR_ENOUGH), self.best.step_s, NEAR_ENOUGH)
        given = (unit, self.block, None, goal, self.effort * most_nodes(unit))
        plan = in_blocks(self.scenario, layout.schedule, *given, optional=False)
        self.exchange(plan, candidate)

    def exchange(self, plan: Evaluation | None, candidate: Candidate) -> None:
        """Offer a plan, its blocks exchanged where that may make it good enough."""
        if plan is not None and self.good_s < plan.step_s <= self.good_s * (1 + EXCHANGE_REACH):
            plan = exchanged(self.scenario, plan, self.good_s, self.block)
        self.best.offer(plan, candidate, self.block)


def most_nodes(unit: StepGraph) -> int:
    """Nodes of branch and bound that a unit's program in blocks is worth."""
    return min(MOST_NODES, MOST_SEARCHED // len(unit.operations))


def blocks_of(
    scenario: Scenario, layout: Layout, layers: Sequence[int], block: int, goal: Goal, effort: int
) -> dict[tuple[int, int | None, str], float] | None:
    """Tokens of each place of a run of layers, whole blocks, where nothing but these layers is in a
    step; without those that are resident. None where nothing of use was found.
    """
    unit = build_unit(scenario, layout.schedule, structure(scenario, layout, layers), layers)
    for operation in unit.operations:
        if operation.operation == "head":
            operation.curve = ZERO
    capacity, load = capacity_for(scenario, unit, layers), scenario.workload
    values: Sequence[float] | None
    if len(unit.variables) <= MOST_PLACES:
        values = block_program.solve(
            unit, capacity, scenario.quality, blocks_in(scenario, block), load.block, None, goal,
            effort * most_nodes(unit), optional=False,
        )  # fmt: skip
    else:
        values = Dive(scenario, unit, block, capacity).rounded(goal.most_s)
    if values is None:
        return None
    return {
        (v.layer, v.stage, v.path): value
        for v, value in zip(unit.variables, values, strict=True)
        if v.path in REGISTRY and REGISTRY[v.path].attends != "resident"
    }
