"""Plans by local search over layouts: one change at a time, as long as the step gets shorter.

The optimum of a layout's program on a sample of the layers says how long a step would take if
tokens could be split freely. From a few layouts the search goes to a better neighbour until there
is none. The layouts with the least optima then get whole blocks.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence

from kvplan import program
from kvplan.best import Best
from kvplan.candidates import Candidate, build_unit, least_bound
from kvplan.errors import KvplanError
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
from kvplan.layout_blocks import Rounding
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph

MOST_STATED = 5_000
"""Operations of the programs solved in one search, about, for each layer of the sample."""

MOST_LAYERS = 2
"""Layers of a sample for which so much is solved, at most."""

STREAMED = 4
"""The same where weights may be streamed: there it takes several stages more to fill the link."""

SPARED = 0.4
"""Share of what is left to be solved that one start leaves to others."""

LARGEST = 400
"""Operations of a sample up to which layouts are searched."""

LONGEST = 8
"""Layers of a sample, at most, where it is not all of them."""

NEARLY = 0.85
"""Share of the layers that are as a repeated sample has them, at least."""

LEAST_GAIN = 1e-6
"""Share of the step that a change must bring."""

NEAR = 1.004
"""Ratio to the least optimum up to which a layout gets whole blocks."""


def descend(
    scenario: Scenario, candidates: Sequence[Candidate], best: Best, *, effort: int = 1
) -> None:
    """Look for a plan with other paths in its stages.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
        effort: how much may be done; another one takes other ways.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    if best.step_s <= good_s:
        return
    by_schedule = {
        c.schedule: c for c in candidates if c.schedule.axis == "token" and c.bound_s < best.step_s
    }
    search = Descent(scenario, by_schedule, effort)
    rounding = Rounding(scenario, best, good_s, effort)
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

    def __init__(
        self, scenario: Scenario, schedules: Collection[Schedule], effort: int = 1
    ) -> None:
        """Nothing is known yet.

        Args:
            scenario: the question.
            schedules: schedules that layouts may have.
            effort: how much may be solved; another one takes other ways.
        """
        self.scenario, self.schedules = scenario, schedules
        self.sample = sample_of(scenario)
        self.leaders = leaders_of(scenario, self.sample)
        streams = any(schedule.stream_weights for schedule in schedules)
        each = STREAMED if streams else min(len(self.sample), MOST_LAYERS)
        self.left = MOST_STATED * each * effort
        self.spared = 0
        self.known: dict[Layout, float] = {}
        self.at_least: dict[Layout, float] = {}
        self.ends: dict[Layout, float] = {}
        self.random = random.Random(effort - 1)

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
