"""Plans by local search over layouts: one change at a time, as long as the step gets shorter.

The optimum of a layout's program on a sample of the layers says how long a step would take if
tokens could be split freely. From a few layouts the search goes to a better neighbour until there
is none. The layouts with the least optima then get whole blocks: by the program in blocks where
layers repeat, one place at a time where they do not.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence

from kvplan import block_program, program
from kvplan.best import Best
from kvplan.block_program import Goal
from kvplan.block_size import block_sizes
from kvplan.candidates import Candidate, build_unit, least_bound
from kvplan.curve import ZERO
from kvplan.dive import LARGEST as LARGEST_DIVE
from kvplan.dive import Dive, offer_rounded
from kvplan.errors import KvplanError
from kvplan.evaluate import Evaluation
from kvplan.exchange import exchanged
from kvplan.highs import minimise
from kvplan.layout import (
    Layout,
    allowed,
    layout_of,
    other_in_paths,
    other_in_stages,
    structure,
    with_every_path,
    with_one_path,
)
from kvplan.paths import REGISTRY
from kvplan.polish import in_blocks
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.thin import thinned

MOST_STATED = 5_000
"""Operations of the programs solved in one search, about, for each layer of the sample."""

LARGEST = 400
"""Operations of a sample up to which layouts are searched."""

SPARED = 0.4
"""Share of what is left to be solved that one start leaves to others."""

MOST_LAYERS = 2
"""Layers of a sample for which so much is solved, at most."""

SMALL = 500
"""Operations of a whole step up to which places are rounded on their own, too, where layers repeat.
"""

MOST_PLACES = 36
"""Places of tokens of layers that get whole blocks together, at most."""

LARGEST_WHOLE = 2000
"""Operations of a whole step whose program is solved once to get whole blocks, at most."""

STREAMED = 4
"""The same where weights may be streamed: there it takes several stages more to fill the link."""

LONGEST = 8
"""Layers of a sample, at most, where it is not all of them."""

NEARLY = 0.85
"""Share of the layers that are as a repeated sample has them, at least."""

LEAST_GAIN = 1e-6
"""Share of the step that a change must bring."""

NEAR = 1.004
"""Ratio to the least optimum up to which a layout gets whole blocks."""

MOST_ROUNDED = 2
"""Layouts that get whole blocks, at most."""

REPEATS = (1, 2)
"""Units that get whole blocks together, as others then have."""

MOST_NODES = 1500
"""Nodes of branch and bound for each of these."""

MOST_SEARCHED = 30_000
"""Operations times nodes of these."""

NEAR_ENOUGH = 5e-4
"""Distance from the goal at which the program in blocks stops."""

EXCHANGE_REACH = 3e-3
"""Share by which exchanging blocks shortens a step at most, as a rule."""

ENDS = 2
"""Layers on each side of the head that differ from the others."""

WORTH_TRYING = 1.004
"""Ratio to the best step up to which plans in blocks are of use."""


def descend(scenario: Scenario, candidates: Sequence[Candidate], best: Best) -> None:
    """Look for a plan with other paths in its stages.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    if best.step_s <= good_s:
        return
    by_schedule = {
        c.schedule: c for c in candidates if c.schedule.axis == "token" and c.bound_s < best.step_s
    }
    search, rounding = Descent(scenario, by_schedule), Rounding(scenario, best, good_s)
    least_s = best.step_s
    for start in starts(scenario, by_schedule, best):
        end = search.descend(start)
        if search.step_s(end) < min(least_s * (1 - LEAST_GAIN), good_s):
            least_s = search.step_s(end)
            rounding.offer(end, by_schedule[end.schedule])
            if best.step_s <= good_s:
                return
    for layout in search.least(best.step_s):
        rounding.offer(layout, by_schedule[layout.schedule])
        if best.step_s <= good_s:
            return
    best.plan = exchanged(scenario, best.plan, good_s, best.block)


def starts(
    scenario: Scenario, by_schedule: dict[Schedule, Candidate], best: Best
) -> Iterator[Layout]:
    """Layouts to start from: the best plan's, every path at the fewest stages and buffers, and each
    path alone there; every path at the schedule of the least bound, at once with streamed weights,
    for which many stages leave gaps, else at last.
    """
    if not by_schedule:
        return
    chosen = best.plan.schedule
    least = min(by_schedule, key=lambda s: by_schedule[s].bound_s)
    if least.stream_weights:
        yield with_every_path(scenario, least)
    if chosen.axis == "token":
        yield layout_of(scenario, best.plan)
    same = [s for s in by_schedule if s.stream_weights == chosen.stream_weights]
    fewest = min(same or by_schedule, key=lambda s: (s.stages, s.queue_depth))
    every = with_every_path(scenario, fewest)
    yield every
    for name in sorted({n for layer in every.layers for held in layer.stages for n in held}):
        yield with_one_path(every, name)
    if not least.stream_weights:
        yield with_every_path(scenario, least)


class Descent:
    """A local search, which remembers every layout it has seen."""

    def __init__(self, scenario: Scenario, schedules: Collection[Schedule]) -> None:
        """Nothing is known yet.

        Args:
            scenario: the question.
            schedules: schedules that layouts may have.
        """
        self.scenario, self.schedules = scenario, schedules
        self.sample = sample_of(scenario)
        self.leaders = leaders_of(scenario, self.sample)
        streams = any(schedule.stream_weights for schedule in schedules)
        each = STREAMED if streams else min(len(self.sample), MOST_LAYERS)
        self.left = MOST_STATED * each
        self.spared = 0
        self.known: dict[Layout, float] = {}
        self.at_least: dict[Layout, float] = {}
        self.ends: dict[Layout, float] = {}
        self.random = random.Random(0)

    def descend(self, layout: Layout) -> Layout:
        """Go to better neighbours until there is none, or enough was solved; other stages and
        buffers are tried where no other paths are better.

        Returns:
            Where it ended.
        """
        better: Layout | None = layout.led(self.leaders)
        self.spared = int(self.left * SPARED)
        while better is not None:
            layout = better
            better = self.better(other_in_paths(self.scenario, layout, self.leaders), layout)
            if better is None:
                others = other_in_stages(layout, self.leaders)
                better = self.better((o for o in others if o.schedule in self.schedules), layout)
        self.ends[layout] = self.step_s(layout)
        return layout

    def better(self, others: Iterable[Layout], than: Layout) -> Layout | None:
        """The first of some layouts, in any order, with a shorter step than another one has."""
        most_s = self.step_s(than) * (1 - LEAST_GAIN)
        shuffled = list(dict.fromkeys(others))
        self.random.shuffle(shuffled)
        for other in shuffled:
            if self.left <= self.spared:
                return None
            if self.is_shorter(other, most_s):
                return other
        return None

    def is_shorter(self, layout: Layout, most_s: float) -> bool:
        """Whether a step is shorter than that at the optimum of a layout's program."""
        if layout in self.known:
            return self.known[layout] < most_s
        if self.at_least.get(layout, 0.0) >= most_s:
            return False
        step_s = self._solved(layout, most_s)
        if step_s < most_s:
            self.known[layout] = step_s
            return True
        self.at_least[layout] = most_s
        return False

    def step_s(self, layout: Layout) -> float:
        """Seconds of a step at the optimum of the program of a sample of a layout's layers."""
        if layout not in self.known:
            self.known[layout] = self._solved(layout)
        return self.known[layout]

    def _solved(self, layout: Layout, most_s: float = float("inf")) -> float:
        scenario = self.scenario
        held = structure(scenario, layout, self.sample)
        for layer in self.sample:
            places = (None, *range(layout.schedule.stages))
            able = scenario.paths[scenario.model.layers[layer]]
            if able and not any(held.get((layer, place)) for place in places):
                return float("inf")
        graph = build_unit(scenario, layout.schedule, held, self.sample)
        self.left -= len(graph.operations)
        if len(graph.operations) > LARGEST:
            return float("inf")
        return least_step_s(scenario, graph, most_s)

    def least(self, most_s: float) -> list[Layout]:
        """The layouts with the least optima that were found, one of each optimum."""
        found: dict[str, Layout] = {}
        for layout, step_s in sorted(self.ends.items(), key=lambda end: end[1]):
            if step_s < most_s:
                found.setdefault(f"{step_s:.6e}", layout)
        least = list(found.values())
        return [o for o in least if self.ends[o] <= self.ends[least[0]] * NEAR]


def sample_of(scenario: Scenario) -> range:
    """The shortest run of layers that, repeated, is nearly the model; all layers where there is
    none, or where a barrier makes the first one differ.
    """
    classes = scenario.classes
    count = len(classes)
    if scenario.options.boundary == "barrier":
        return range(count)
    for length in range(1, min(LONGEST, count // 2) + 1):
        for begin in range(min(length, count - length) + 1):
            alike = sum(
                own == classes[begin + (i - begin) % length] for i, own in enumerate(classes)
            )
            if alike >= NEARLY * count:
                return range(begin, begin + length)
    return range(count)


def leaders_of(scenario: Scenario, sample: Sequence[int]) -> list[int]:
    """For each class of layers the one whose layout it has: itself, or if it is not in the sample
    one that is and may use the same paths.
    """
    seen = dict.fromkeys(scenario.classes[layer] for layer in sample)
    paths = allowed(scenario)
    return [
        each if each in seen else next((s for s in seen if paths[s] == paths[each]), each)
        for each in range(len(paths))
    ]


def least_step_s(scenario: Scenario, graph: StepGraph, most_s: float = float("inf")) -> float:
    """Seconds of a step at the optimum of a graph's program; infinite where nothing fits, the
    solver gives up, or it is not shorter than ``most_s``.
    """
    stated = program.state(
        graph, scenario.capacity, quality=scenario.quality, block=scenario.workload.block
    )
    rows, _ = program.scaled_rows(stated)
    period_s = stated.scale[stated.period] * graph.cycles
    limits = program.scaled_limits(stated)
    try:
        found = minimise({stated.period: 1.0}, rows, limits, most_s / period_s)
    except KvplanError:
        return float("inf")
    if found is None:
        return float("inf")
    return found.values[stated.period] * period_s


class Rounding:
    """Plans of layouts in whole blocks."""

    def __init__(self, scenario: Scenario, best: Best, good_s: float) -> None:
        """Nothing is rounded yet.

        Args:
            scenario: the question.
            best: the best plan so far.
            good_s: a step that would do.
        """
        self.scenario, self.best, self.good_s = scenario, best, good_s
        self.block = block_sizes(scenario)[-1]
        self.done: set[Layout] = set()

    def offer(self, layout: Layout, candidate: Candidate) -> None:
        """Offer plans of a layout, unless it was offered before or enough others were."""
        if layout in self.done or len(self.done) >= MOST_ROUNDED:
            return
        self.done.add(layout)
        scenario, count = self.scenario, len(self.scenario.classes)
        held = structure(scenario, layout, range(count))
        whole = build_unit(scenario, layout.schedule, held, None)
        runs = list(self.runs(layout))
        if len(whole.operations) <= LARGEST_DIVE:
            dive = Dive(scenario, whole, self.block)
            for run in runs:
                if dive.step_s >= self.best.step_s or self.best.step_s <= self.good_s:
                    return
                self.with_ends(layout, candidate, run, dive)
            if not runs or len(whole.operations) <= SMALL:
                offer_rounded(self.best, self.good_s, dive, candidate)
        elif runs and count % len(runs[0]) == 0:
            self.repeated(layout, candidate, runs[0])
        elif len(whole.operations) <= LARGEST_WHOLE:
            own_paths = {place: list(paths) for place, paths in held.items()}
            given = (layout.schedule, self.block, own_paths, self.best.step_s, LARGEST_WHOLE)
            self.exchange(thinned(scenario, *given), candidate)

    def runs(self, layout: Layout) -> Iterator[range]:
        """Runs of layers that may get whole blocks together, as others then have."""
        count = len(self.scenario.classes)
        for repeat in REPEATS:
            run = range(period_of(self.scenario.classes) * repeat)
            if len(run) + 2 * ENDS > count:
                return
            held = structure(self.scenario, layout, run)
            if sum(map(len, held.values())) <= MOST_PLACES:
                yield run

    def with_ends(
        self, layout: Layout, candidate: Candidate, run: Sequence[int], dive: Dive
    ) -> None:
        """Most layers have the blocks of a run of layers without the head; those beside the head
        make up for it, or where they cannot in whole blocks, have the same.
        """
        goal = Goal(0.0, self.best.step_s, NEAR_ENOUGH)
        tokens = blocks_of(self.scenario, layout, run, self.block, goal)
        if tokens is None:
            return
        most_s = self.best.step_s * WORTH_TRYING
        for ends in (ENDS, 0):
            inner = range(ends, len(self.scenario.classes) - ends)
            places = [(v.layer % len(run), v.stage, v.path) for v in dive.graph.variables]
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
        plan = in_blocks(
            self.scenario, layout.schedule, unit, self.block, None, goal, most_nodes(unit),
            optional=False,
        )  # fmt: skip
        self.exchange(plan, candidate)

    def exchange(self, plan: Evaluation | None, candidate: Candidate) -> None:
        """Offer a plan, its blocks exchanged where that may make it good enough."""
        if plan is not None and self.good_s < plan.step_s <= self.good_s * (1 + EXCHANGE_REACH):
            plan = exchanged(self.scenario, plan, self.good_s, self.block)
        self.best.offer(plan, candidate, self.block)


def period_of(classes: Sequence[int]) -> int:
    """Layers after which the classes repeat, the last run being a part of one, maybe.

    >>> period_of((0, 0, 1, 0, 0, 1, 0))
    3
    """
    count = len(classes)
    return next(
        p for p in range(1, count + 1) if all(classes[i] == classes[i % p] for i in range(count))
    )


def most_nodes(unit: StepGraph) -> int:
    """Nodes of branch and bound that a unit's program in blocks is worth."""
    return min(MOST_NODES, MOST_SEARCHED // len(unit.operations))


def blocks_of(
    scenario: Scenario, layout: Layout, layers: Sequence[int], block: int, goal: Goal
) -> dict[tuple[int, int | None, str], float] | None:
    """Tokens of each place of a run of layers, whole blocks, where nothing but these layers is in a
    step; without those that are resident. None where nothing of use was found.
    """
    unit = build_unit(scenario, layout.schedule, structure(scenario, layout, layers), layers)
    for operation in unit.operations:
        if operation.operation == "head":
            operation.curve = ZERO
    load = scenario.workload
    values = block_program.solve(
        unit, scenario.capacity, scenario.quality, block, load.block, None, goal,
        most_nodes(unit), optional=False,
    )  # fmt: skip
    if values is None:
        return None
    return {
        (v.layer, v.stage, v.path): value
        for v, value in zip(unit.variables, values, strict=True)
        if v.path in REGISTRY and REGISTRY[v.path].attends != "resident"
    }
