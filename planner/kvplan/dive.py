"""Whole blocks for a plan's stages, one place after the other.

The program of a plan's own paths says how its tokens are best split, in fractions. Rounded all at
once, stages grow past their buffers and layers wait for each other. Here one place at a time gets
whole blocks, the nearest first, and the program is solved again for all that are still free, which
take up what that one gained or lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kvplan.allocation import Place, laid_out
from kvplan.best import Best
from kvplan.block_size import blocks_in
from kvplan.candidates import Candidate
from kvplan.errors import KvplanError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.exchange import exchanged
from kvplan.paths import REGISTRY
from kvplan.program import Least
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.thin import is_even, repeated

LARGEST = 1000
"""Operations of a graph up to which its plan is rounded this way."""

MOST_SOLVED = 150_000
"""Operations of the programs solved for one plan, about, above which it is not rounded this way."""

WORTH = 8e-3
"""Share of a step above which a gain is worth more programs."""

MOST_WORTH = 3.0
"""How many times as many they may be for it, at most."""

SOLVES = 1.2
"""Programs solved for each number of blocks, about."""

ROUNDING = 3e-4
"""Share of a step that rounding to blocks takes at least, as a rule."""

REACH = 3e-2
"""Share by which an optimum may be above a step that would do."""

WORTH_EXCHANGING = 1.0015
"""Ratio to the best step up to which blocks of a rounded plan are exchanged."""

WHOLE = 1e-6
"""Blocks by which a number may be off a whole one."""

ATTEMPTS = ((2, 0), (2, 1), (0, 0))
"""Blocks of one layer that tiers have room for beside a plan until its last layers are rounded, and
by which buffers are larger: one after the other until all layers fit.
"""

MOST_CHANGED = 4
"""Places of a layer that are tried to have a block more or less where its last one fits nowhere."""

NO_LATER = 1e-6
"""Share by which the step may grow for the nearest number to be taken with no look at the other."""


class Dive:
    """A step's program, with more and more of its columns held at whole blocks."""

    def __init__(
        self,
        scenario: Scenario,
        graph: StepGraph,
        block: int,
        capacity: Mapping[str, float] | None = None,
    ) -> None:
        """State the program, and solve it.

        Args:
            scenario: the question; its blocks are what a stage may differ by from the mean of its
                layer.
            graph: the whole step, or a run of layers; its paths are kept.
            block: tokens per block of the plan; larger where rebuilt, if products want that.
            capacity: bytes each tier may hold; None: the question's.
        """
        self.scenario, self.block, blocks = scenario, block, blocks_in(scenario, block)
        self.graph = blocks.filled(graph)
        self.sizes = [blocks.of(variable.path) for variable in graph.variables]
        self.solver = repeated(scenario, self.graph, scenario.workload.block, capacity)
        self.held: set[int] = set()
        self.has_spare = self.is_stuck = False
        self.optimum = self.least()

    @property
    def step_s(self) -> float:
        """Seconds of a step at the optimum; infinite where nothing fits."""
        return self.optimum.step_s if self.optimum else float("inf")

    def is_promising(self, best_s: float, good_s: float) -> bool:
        """Whether the optimum is shorter than the best step by more than rounding takes, and near
        enough to a step that would do, and the gain is worth the programs to be solved.
        """
        if self.step_s >= min(best_s * (1 - ROUNDING), good_s * (1 + REACH)):
            return False
        solved = SOLVES * sum(map(len, self.places(True))) * len(self.graph.operations)
        worth = (1 - self.step_s / best_s) / WORTH
        return solved <= MOST_SOLVED * min(max(worth, 1.0), MOST_WORTH)

    def plan(
        self,
        schedule: Schedule,
        most_s: float,
        *,
        backwards: bool = True,
        known: Mapping[int, float] | None = None,
    ) -> Evaluation | None:
        """The plan in whole blocks; None where none takes less than ``most_s``.

        Args:
            schedule: how the step is pipelined.
            most_s: only steps shorter than this are of use.
            backwards: the last layer gets whole blocks first.
            known: tokens of variables that have whole blocks already.
        """
        values = self.rounded(most_s, backwards=backwards, known=known)
        if values is None:
            return None
        wanted, streamed = self.graph.by_layer(values)
        allocation = tuple(
            laid_out(self.scenario.cached_tokens(layer), self.block, self.blocks(mix))
            for layer, mix in enumerate(wanted)
        )
        found = evaluate(self.scenario, schedule, allocation, streamed)
        fits = found.overflow(self.scenario.capacity) is None and is_even(self.scenario, found)
        return found if fits and found.step_s < most_s else None

    def rounded(
        self, most_s: float, *, backwards: bool = True, known: Mapping[int, float] | None = None
    ) -> Sequence[float] | None:
        """A value for every variable of the graph, in whole blocks. Arguments as those of `plan`.

        Returns:
            None where none takes less than ``most_s``.
        """
        for spare_blocks, larger in ATTEMPTS:
            if known and larger:
                continue  # buffers have the size that the known tokens need
            values = self.values(most_s, backwards, known or {}, spare_blocks, larger)
            if values is not None or not self.is_stuck:
                return values
        return None

    def blocks(self, mix: Mapping[Place, float]) -> dict[Place, int]:
        """Tokens of whole blocks, in blocks."""
        return {place: round(tokens / self.block) for place, tokens in mix.items()}

    def values(
        self,
        most_s: float,
        backwards: bool,
        known: Mapping[int, float],
        spare_blocks: int,
        larger: int,
    ) -> Sequence[float] | None:
        """A value for every variable of the graph, whole blocks; None where the step is longer
        than ``most_s``, or no whole number fits.
        """
        self.release()
        found = self.with_known(known) if known else self.optimum
        if found is not None and spare_blocks:
            found = self.put_by(spare_blocks)
            if found is not None and found.step_s > most_s:
                found = self.take_back()
        self.is_stuck = found is None
        for column, size in () if known or found is None else self.buffers(found):
            if found is None or found.step_s > most_s:
                return None
            wanted = found.values[column] / size + larger
            found = self.hold(column, size, wanted, found, at_most=True)
        for places in self.places(backwards):
            free = [index for index in places if index not in known]
            done: list[int] = []
            while free:
                if found is None or found.step_s > most_s:
                    return None
                blocks = {index: found.values[index] / self.sizes[index] for index in free}
                nearest = min(free, key=lambda index: abs(blocks[index] - round(blocks[index])))
                free.remove(nearest)
                before = found
                found = self.hold(nearest, float(self.sizes[nearest]), blocks[nearest], before)
                if found is None:
                    found = self.hold_instead(nearest, blocks[nearest], done, before)
                done.append(nearest)
        if found is None or found.step_s > most_s:
            return None
        return found.values[: len(self.graph.variables)]

    def with_known(self, known: Mapping[int, float]) -> Least | None:
        """The least step with variables held at so many tokens."""
        for column, tokens in known.items():
            self.held.add(column)
            self.solver.hold(column, tokens, tokens)
        return self.least()

    def release(self) -> None:
        """Hold no column, and leave nothing over."""
        if self.has_spare:
            self.take_back()
        for column in self.held:
            self.solver.release(column)
        self.held.clear()

    def put_by(self, blocks: int) -> Least | None:
        """The least step with room for so many blocks of a layer left over in every tier, and as
        many of each inexact path's share, so that the last layers to be rounded have a choice; with
        none where there is not as much.
        """
        self.has_spare = True
        return self.least(blocks) or self.take_back()

    def take_back(self) -> Least | None:
        """The least step with nothing left over."""
        self.has_spare = False
        return self.least(0)

    def bounds(self, spare_blocks: int) -> Iterator[tuple[str, float]]:
        """Rows that say what there is of something, and their bounds with so much left over."""
        variables = self.graph.variables
        for row in self.solver.program.rows:
            if row.name.startswith(("capacity[", "quality[")):
                sizes = [
                    size * self.sizes[column]
                    for column, size in row.terms.items()
                    if column < len(variables) and variables[column].path in REGISTRY
                ]
                yield row.name, row.bound - spare_blocks * max(sizes, default=0.0)

    def least(self, spare_blocks: int | None = None) -> Least | None:
        """The least step with what is held so far; None where nothing fits, or the solver gives
        up.

        Args:
            spare_blocks: what to leave over from now on; None: as before.
        """
        bounds = {} if spare_blocks is None else dict(self.bounds(spare_blocks))
        try:
            return self.solver.least(bounds)
        except KvplanError:
            return None

    def buffers(self, found: Least) -> Iterator[tuple[int, float]]:
        """Columns of the sizes of staging buffers, and the bytes of a block in them, on the path
        that most of the tokens in them have.
        """
        for column, buffer in zip(self.solver.program.buffers, self.graph.buffers, strict=True):
            tokens: dict[float, float] = {}
            for tenant in buffer.tenants:
                for index, each in tenant.items():
                    size = each * self.sizes[index]
                    tokens[size] = tokens.get(size, 0.0) + found.values[index]
            if buffer.holds == "stages" and tokens:
                yield column, max(tokens, key=tokens.__getitem__)

    def places(self, backwards: bool) -> Iterator[list[int]]:
        """Variables of each layer that are to be whole blocks; the others follow from them."""
        variables = self.graph.variables
        own: dict[int, list[int]] = {layer: [] for layer in self.graph.tokens}
        for index, variable in enumerate(variables):
            if variable.layer in own and variable.path in REGISTRY:
                own[variable.layer].append(index)
        for layer in sorted(own, reverse=backwards):
            members = own[layer]
            kept = [i for i in members if REGISTRY[variables[i].path].attends == "resident"]
            finest = sorted(members, key=lambda i: (self.sizes[i], -i))
            follows = kept[:1] or finest[:1]
            yield [index for index in members if index not in follows]

    def hold(
        self, column: int, size: float, wanted: float, before: Least, *, at_most: bool = False
    ) -> Least | None:
        """Hold a column at a whole number of sizes near the wanted one, or at most at it: the
        nearest if the step is no longer than before, else the better one.
        """
        found = self._hold(column, size, wanted, before, at_most=at_most)
        if found is None and self.has_spare:
            self.take_back()
            found = self._hold(column, size, wanted, before, at_most=at_most)
        self.is_stuck = found is None
        return found

    def hold_instead(
        self, index: int, wanted: float, others: Sequence[int], before: Least
    ) -> Least | None:
        """Hold a variable where none of its whole numbers fits beside the others of its layer: one
        of these has a block more or less instead.
        """
        self.is_stuck = False
        for other in others[:MOST_CHANGED]:
            number = round(before.values[other] / self.sizes[other])
            for changed in (number - 1, number + 1):
                for own in (math.floor(wanted), math.ceil(wanted)):
                    found = self.hold_all({other: changed, index: own})
                    if found is not None:
                        return found
            self.hold_all({other: number})
        self.is_stuck = True
        return None

    def hold_all(self, numbers: Mapping[int, int]) -> Least | None:
        """The least step with variables held at so many blocks."""
        if min(numbers.values()) < 0:
            return None
        for index, number in numbers.items():
            tokens = float(number * self.sizes[index])
            self.solver.hold(index, tokens, tokens)
        return self.least()

    def _hold(
        self, column: int, size: float, wanted: float, before: Least, *, at_most: bool
    ) -> Least | None:
        self.held.add(column)
        nearest = round(wanted)
        numbers = [nearest, nearest + (1 if wanted > nearest else -1)]
        if abs(wanted - nearest) <= WHOLE:
            self.solver.hold(column, 0.0 if at_most else nearest * size, nearest * size)
            return before
        best: Least | None = None
        chosen = nearest
        for number in numbers:
            if number < 0:
                continue
            self.solver.hold(column, 0.0 if at_most else number * size, number * size)
            found = self.least()
            if found is not None and (best is None or found.step_s < best.step_s):
                best, chosen = found, number
            if best is not None and best.step_s <= before.step_s * (1 + NO_LATER):
                break
        self.solver.hold(column, 0.0 if at_most else chosen * size, chosen * size)
        return best


def offer_rounded(best: Best, good_s: float, dive: Dive, candidate: Candidate) -> None:
    """Offer plans in whole blocks of a program, until one would do: rounded from the last layer,
    then from the first, each with blocks exchanged.
    """
    for backwards in (True, False):
        if best.step_s <= good_s or not dive.is_promising(best.step_s, good_s):
            return
        most_s = best.step_s * WORTH_EXCHANGING
        found = dive.plan(candidate.schedule, most_s, backwards=backwards)
        if found is not None:
            found = exchanged(dive.scenario, found, good_s, dive.block)
        best.offer(found, candidate, dive.block)
