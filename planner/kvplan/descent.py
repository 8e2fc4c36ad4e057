"""Plans by local search over layouts: one change at a time, as long as the step gets shorter.

The optimum of a layout's program on a sample of the layers says how long a step would take if
tokens could be split freely. From a few layouts the search goes to a better neighbour until there
is none. The layouts with the least optima then get whole blocks.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence

from kvplan.best import Best
from kvplan.candidates import Candidate, least_bound
from kvplan.exchange import exchanged
from kvplan.layout import (
    Layout,
    layout_of,
    other_in_kinds,
    other_in_paths,
    other_in_stages,
    with_every_path,
    with_one_path,
)
from kvplan.layout_blocks import Rounding
from kvplan.layout_program import LayoutProgram
from kvplan.sample import Sample, one_repeat
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule

MOST_STATED = 15_000
"""Operations of the programs stated and solved in one search, about, for each layer of the sample.
"""

MOST_LAYERS = 4
"""Layers of a sample for which so much is solved, at most."""

STREAMED = 4
"""The same where weights may be streamed: there it takes several stages more to fill the link."""

SPARED = 0.4
"""Share of what is left to be solved that one start leaves to others."""

MOST_ROUNDED = 3
"""Layouts that get whole blocks in one search, at most."""

LEAST_SOLVED = 40
"""Programs that a search must be able to solve."""

FIRST = 1.5
"""How many times an operation counts where the program of a schedule is stated and first solved."""

AGAIN = 0.2
"""The same where it is solved again for another layout."""

LEAST_GAIN = 1e-6
"""Share of the step that a change must bring."""

NEAR = 1.004
"""Ratio to the least optimum up to which a layout gets whole blocks."""


def descend(
    scenario: Scenario, candidates: Sequence[Candidate], best: Best, *, effort: int = 1
) -> list[Layout]:
    """Look for a plan with other paths in its stages, equal layers having the same.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
        effort: how much may be done; another one takes other ways.

    Returns:
        Where the search ended, the shortest step first; nothing where the plan is good enough.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    if best.step_s <= good_s:
        return []
    by_schedule = of_use(candidates, best)
    sample = one_repeat(scenario)
    streams = any(schedule.stream_weights for schedule in by_schedule)
    each = STREAMED if streams else min(len(sample.layers), MOST_LAYERS)
    search = Descent(scenario, by_schedule, sample, MOST_STATED * each * effort, effort - 1)
    rounding = Rounding(scenario, best, good_s, MOST_ROUNDED, effort)
    least_s = best.step_s
    for start in starts(scenario, by_schedule, best, sample.kinds):
        end = search.descend(start)
        if search.step_s(end) < min(least_s * (1 - LEAST_GAIN), good_s):
            least_s = search.step_s(end)
            rounding.offer(end, by_schedule[end.schedule])
            if best.step_s <= good_s:
                return []
    least = search.least(best.step_s)
    for layout in least:
        if search.step_s(layout) <= search.step_s(least[0]) * NEAR:
            rounding.offer(layout, by_schedule[layout.schedule])
        if best.step_s <= good_s:
            return []
    best.plan = exchanged(scenario, best.plan, good_s, best.block)
    return search.least(float("inf"))


def of_use(candidates: Sequence[Candidate], best: Best) -> dict[Schedule, Candidate]:
    """Schedules on the token axis that a better plan may have."""
    return {
        c.schedule: c for c in candidates if c.schedule.axis == "token" and c.bound_s < best.step_s
    }


def starts(
    scenario: Scenario, by_schedule: dict[Schedule, Candidate], best: Best, kinds: tuple[int, ...]
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
        yield with_every_path(scenario, least, kinds)
    if chosen.axis == "token":
        yield layout_of(best.plan, kinds)
    same = [s for s in by_schedule if s.stream_weights == chosen.stream_weights]
    fewest = min(same or by_schedule, key=lambda s: (s.stages, s.queue_depth))
    every = with_every_path(scenario, fewest, kinds)
    yield every
    for name in sorted({n for layer in every.layers for held in layer.stages for n in held}):
        yield with_one_path(every, name)
    if not least.stream_weights:
        yield with_every_path(scenario, least, kinds)


class Descent:
    """A local search, which remembers every layout it has seen."""

    def __init__(
        self,
        scenario: Scenario,
        schedules: Collection[Schedule],
        sample: Sample,
        most: int,
        seed: int = 0,
        enough_s: float = 0.0,
    ) -> None:
        """Nothing is known yet.

        Args:
            scenario: the question.
            schedules: schedules that layouts may have.
            sample: layers whose programs are solved.
            most: operations of all these programs, about.
            seed: another one takes other ways.
            enough_s: a step that ends the search.
        """
        self.scenario, self.schedules, self.sample = scenario, schedules, sample
        self.enough_s = enough_s
        self.left, self.spared = most, 0
        self.largest = most // LEAST_SOLVED
        self.programs: dict[Schedule, LayoutProgram] = {}
        self.known: dict[Layout, float] = {}
        self.at_least: dict[Layout, float] = {}
        self.ends: dict[Layout, float] = {}
        self.random = random.Random(seed)

    def descend(self, layout: Layout) -> Layout:
        """Go to better neighbours until there is none, or enough was solved; other stages and
        buffers are tried where no other paths are better.

        Returns:
            Where it ended.
        """
        leaders = self.sample.leaders
        better: Layout | None = layout.led(leaders)
        self.spared = int(self.left * SPARED)
        while better is not None:
            layout = better
            if self.step_s(layout) <= self.enough_s:
                break
            better = self.better(other_in_kinds(self.scenario, layout, leaders), layout)
            if better is None:
                better = self.better(other_in_paths(self.scenario, layout, leaders), layout)
            if better is None:
                others = other_in_stages(layout, leaders)
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
        schedule = layout.schedule
        stated = self.programs.get(schedule)
        if stated is None:
            stated = self.programs[schedule] = LayoutProgram(self.scenario, schedule, self.sample)
            self.left -= int(len(stated.graph.operations) * FIRST)
        if stated.operations > self.largest:
            return float("inf")
        self.left -= int(stated.operations * AGAIN)
        return stated.step_s(layout, most_s)

    def least(self, most_s: float) -> list[Layout]:
        """Where the search ended with a step shorter than that, the shortest first, one of each
        length.
        """
        found: dict[str, Layout] = {}
        for layout, step_s in sorted(self.ends.items(), key=lambda end: end[1]):
            if step_s < most_s:
                found.setdefault(f"{step_s:.6e}", layout)
        return list(found.values())
