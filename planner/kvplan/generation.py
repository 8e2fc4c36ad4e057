"""A generation of many tokens: segments with their own decisions, and what passes between them.

A plan is for one context. While tokens are generated the cache grows, so a decision that is right
for the last token keeps too little in HBM for the first. Each segment has the plan of its own last
step; between segments some tokens change their path, once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan import solve
from kvplan.allocation import Allocation
from kvplan.candidates import NEAR, bounded_candidates
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.moves import Moves, moves, shrunk
from kvplan.ranks import with_workload
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario

FILLED_LAST = (("stage", "away", "resident"), ("away", "stage", "resident"))
"""Places that tokens still to come are left out of, in turn."""


@dataclass(frozen=True, slots=True)
class Part:
    """One segment: steps ``begin`` to ``end`` of the generation.

    Args:
        begin: tokens generated before it.
        end: tokens generated after it.
        scenario: the workload at its end.
        evaluation: its decision, judged at its end.
        bound_s: no step at its end takes less.
        first_s: its first step, under the same decision.
        block: tokens per block.
        moves: what passes to it from the segment before.
    """

    begin: int
    end: int
    scenario: Scenario
    evaluation: Evaluation
    bound_s: float
    first_s: float
    block: int
    moves: Moves

    @property
    def steps(self) -> int:
        """Tokens generated in it, per sequence."""
        return self.end - self.begin

    @property
    def steps_s(self) -> float:
        """Seconds of its steps: as a step's time grows with the context along a convex curve,
        the mean of the first and the last is no less than the mean of all.
        """
        return self.steps * (self.first_s + self.evaluation.step_s) / 2

    @property
    def total_s(self) -> float:
        """Seconds with what passes to it from the segment before."""
        return self.steps_s + self.moves.seconds(self.scenario)


@dataclass(frozen=True, slots=True)
class Generation:
    """All segments of a generation.

    Args:
        parts: in order.
        uniform_s: seconds of the whole generation with the last step's plan throughout.
        least_s: no plans take less in all: every step bounded by that at its segment's beginning.
    """

    parts: tuple[Part, ...]
    uniform_s: float
    least_s: float

    @property
    def total_s(self) -> float:
        """Seconds of all steps and of what passes between segments."""
        return sum(part.total_s for part in self.parts)

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all sequences over the whole generation."""
        last = self.parts[-1]
        return last.scenario.workload.batch * last.end / self.total_s

    def kept_bytes(self, index: int) -> float:
        """Activations a segment keeps in host memory for later ones."""
        return sum(part.moves.kept_bytes for part in self.parts[index + 1 :])


def last_resident(scenario: Scenario) -> int:
    """Tokens that can be generated before anything must leave HBM; 0 if none, or all."""
    gen = scenario.workload.gen
    if everything_resident(scenario) is not None or everything_resident(at(scenario, 0)) is None:
        return 0
    low, high = 0, gen
    while high - low > 1:
        middle = (low + high) // 2
        if everything_resident(at(scenario, middle)) is None:
            high = middle
        else:
            low = middle
    return low


def ends_of(scenario: Scenario, count: int) -> list[int]:
    """Ends of segments: the first where KV must leave HBM, if it must on the way; then equal."""
    gen, block = scenario.workload.gen, scenario.workload.block
    turn = last_resident(scenario) if count > 1 else 0
    if not turn:
        return cuts(gen, count, block)
    return [turn, *(turn + end for end in cuts(gen - turn, count - 1, block))]


def cuts(gen: int, count: int, block: int) -> list[int]:
    """Ends of segments: equal, at whole blocks where they are as long.

    >>> cuts(512, 4, 64), cuts(10, 3, 64), cuts(2, 4, 64)
    ([128, 256, 384, 512], [3, 7, 10], [1, 2])
    """
    count = min(count, gen)
    whole = block if gen >= 2 * count * block else 1
    ends = {round(gen * i / count / whole) * whole for i in range(1, count)}
    return sorted({end for end in ends if 0 < end < gen} | {gen})


def at(scenario: Scenario, generated: int) -> Scenario:
    """The scenario after some tokens were generated."""
    return with_workload(scenario, dataclasses.replace(scenario.workload, gen=generated))


def shrink(scenario: Scenario, allocation: Allocation, order: Sequence[str]) -> Allocation:
    """An allocation before its last tokens have come."""
    return tuple(
        shrunk(segments, scenario.cached_tokens(layer), order)
        for layer, segments in enumerate(allocation)
    )


def replayed(scenario: Scenario, last: Evaluation) -> Evaluation:
    """A decision at an earlier token, the dearer places filled last."""
    found = [
        evaluate(scenario, last.schedule, allocation, last.streamed)
        for allocation in {shrink(scenario, last.allocation, order) for order in FILLED_LAST}
    ]
    return min(found, key=lambda evaluation: evaluation.step_s)


def generate(
    scenario: Scenario, last: Evaluation, bound_s: float, block: int, count: int
) -> Generation:
    """Plan a generation in segments, or in one where its plan serves throughout as well.

    Args:
        scenario: the workload at the last token, batch chosen.
        last: the plan for it.
        bound_s: lower bound on its step.
        block: its tokens per block.
        count: segments.

    Raises:
        InputError: nothing is generated.
    """
    gen = scenario.workload.gen
    if gen < 1:
        raise InputError("segments", count, "a generation: give --gen")
    ends = ends_of(scenario, count)
    begins = [0, *ends[:-1]]
    uniform = uniform_parts(scenario, last, bound_s, block, begins, ends)
    uniform_s = sum(part.steps_s for part in uniform)
    found = segment_parts(scenario, last, bound_s, block, begins, ends)
    bounds = [least_step_s(at(scenario, 0)), *(part.bound_s for part in found[:-1])]
    least_s = sum(p.steps * b for p, b in zip(found, bounds, strict=True))
    generation = Generation(tuple(found), uniform_s, min(least_s, uniform_s))
    if fits(generation) and generation.total_s < uniform_s * (1 - NEAR):
        return generation
    first = replayed(at(scenario, 0), last).step_s
    whole = Part(0, gen, scenario, last, bound_s, first, block, Moves())
    return Generation((whole,), whole.steps_s, min(least_s, whole.steps_s))


def uniform_parts(
    scenario: Scenario, last: Evaluation, bound_s: float, block: int,
    begins: Sequence[int], ends: Sequence[int],
) -> list[Part]:  # fmt: skip
    """The last plan in every segment."""
    parts = []
    for begin, end in zip(begins, ends, strict=True):
        final = last if end == ends[-1] else replayed(at(scenario, end), last)
        first_s = replayed(at(scenario, begin), last).step_s
        parts.append(Part(begin, end, at(scenario, end), final, bound_s, first_s, block, Moves()))
    return parts


def segment_parts(
    scenario: Scenario, last: Evaluation, bound_s: float, block: int,
    begins: Sequence[int], ends: Sequence[int],
) -> list[Part]:  # fmt: skip
    """Every segment with a plan of its own; the last has the plan that was given."""
    parts: list[Part] = []
    for begin, end in zip(begins, ends, strict=True):
        asked = at(scenario, end)
        chosen, least_s, size = last, bound_s, block
        if end != ends[-1]:
            found = solve.search(asked)
            chosen, least_s, size = found.best, found.bound_s, found.block
        start = replayed(at(scenario, begin), chosen)
        passed = Moves()
        if parts:
            passed = moves(asked, parts[-1].evaluation.allocation, start.allocation)
        parts.append(Part(begin, end, asked, chosen, least_s, start.step_s, size, passed))
    return parts


def least_step_s(scenario: Scenario) -> float:
    """Lower bound on a step over all schedules."""
    resident = everything_resident(scenario)
    found = [c.bound_s for c in bounded_candidates(scenario)]
    if resident is not None:
        found.append(resident.step_s)
    return min(found)


def fits(generation: Generation) -> bool:
    """Whether what segments keep for later ones fits in host memory beside their own plans."""
    for index, part in enumerate(generation.parts):
        kept = generation.kept_bytes(index)
        held = part.evaluation.memory_bytes
        if any(held.get(t, 0.0) + kept > part.scenario.capacity[t] for t in ("dram", "pinned")):
            return False
    return True
