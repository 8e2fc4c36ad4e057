"""A sharper lower bound: branch and bound over the size of the largest stage.

The fluid program charges the fixed part of an operation in proportion to its volume over the most
it could be. That is little where only a small share of the tokens is staged. No stage is larger
than the largest one, whose size the staging buffers have; so that size is cut into intervals. In
each one the fixed parts weigh as much as its upper end says, and the buffers take the HBM that its
lower end says, until every interval's bound is above the target. Waits are what the mixture of a
schedule's layers adds to that.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from kvplan import fluid, mixture
from kvplan.block_size import block_sizes
from kvplan.candidates import Candidate, filled_groups, unit_graph
from kvplan.highs import Related
from kvplan.scenario import Scenario
from kvplan.staging import Staging, staging_bytes
from kvplan.step import StepGraph

MOST_SOLVES = 60
"""Fluid programs solved for one schedule at most; stopping early only loosens the bound."""

MOST_STATED = 12_000
"""Operations of all of these programs at most."""

Level = Literal["coarse", "following", "whole", "fine"]
"""What a mixture knows beside kinds and shapes of layers: nothing; what follows each; that and that
there are whole numbers of them; how many of their stages hold tokens.
"""

LEVELS: tuple[Level, ...] = ("coarse", "following", "whole", "fine")
"""What is asked in turn of each range; the last one where it is not cut further."""

STREAMED_LEVELS: tuple[Level, ...] = ("coarse", "fine")
"""The same with streamed weights, where it brings nothing to tell what follows."""

GUESSES: tuple[Level, ...] = ("following", "whole")
"""What brings much in every range of a schedule, or nothing in any."""

MOST_MISSES = 2
"""Ranges in which such a level may bring nothing before it is asked no more."""

LEAST_RISE = 1e-4
"""Share by which a bound rises where something was brought."""

MOST_WHOLE_ROWS = 2_500
"""Rows of a mixture program with whole numbers, at most."""

FEW_NODES = 20
"""Nodes of branch and bound that such a program is given."""

AS_LONG = 10
"""How many times its rows count, for the time it may take."""

OFTENER = 4
"""How many times as many programs may be where mixtures are solved too, which take longer; of as
many times the operations each.
"""

MOST_MIXED_ROWS = 150_000
"""Rows of the mixture programs solved while branching over one schedule, about."""

MOST_NEAR_ROWS = 400_000
"""The same where the bound is near its target."""

NEAR = 0.3e-2
"""What such a bound lacks at most, as a share of the target."""

WORTH_MIXING = 15e-2
"""Gap up to which mixture programs are asked: they raise bounds by a percent or two."""

MOST_ROWS = 50_000
"""Rows of mixture programs stated in one search, beside those of branching, at most."""

MOST_FINE_ROWS = 7_000
"""Rows of a mixture program with fine shapes at most."""

MOST_APART = 12
"""Layers that may stage tokens up to which all layers are told apart."""

MOST_NODES = 100
"""Nodes of branch and bound that a program of layers told apart is given."""

ROUNDING = 1e-12
"""Share by which bounds aim too high, so that one at its target is within the gap asked for."""

NEAR_ENDS = 1.5
"""Ratio of an interval's ends below which its mixture is asked."""

NARROW = 1.02
"""Ratio of an interval's ends below which it is not cut."""

MOST_PARTS = 256
"""Ratio of the largest buffer of streamed weights to one that is no longer cut."""


def raise_bounds(
    scenario: Scenario, candidates: Sequence[Candidate], step_s: float, *, mixing: bool = False
) -> None:
    """Sharpen the least bounds until they reach the plan found, or one of them no longer rises:
    then the others need not be above that one.

    Args:
        scenario: the question.
        candidates: every schedule; their bounds are raised in place.
        step_s: step of the plan found.
        mixing: whether to ask mixtures of layers where branching alone does not reach it.
    """
    target_s, rows = step_s / (1 + scenario.options.good_gap) * (1 + ROUNDING), 0
    sparse = mixing and is_sparse(scenario)
    while rows < MOST_ROWS:
        candidate = min(candidates, key=lambda c: c.bound_s)
        if candidate.bound_s >= target_s:
            return
        if not candidate.sharp:
            candidate.bound_s = max(candidate.bound_s, branched(scenario, candidate, target_s))
            candidate.sharp = candidate.bound_s < target_s
            if candidate.sharp and mixing:
                continue
        elif mixing and not candidate.mixed:
            candidate.mixed = True
            found_s, more = mixed(scenario, candidate, target_s)
            rows += more
            candidate.bound_s = max(candidate.bound_s, found_s)
            if sparse:
                continue
        elif sparse and not candidate.apart:
            candidate.apart = True
            candidate.bound_s = max(candidate.bound_s, apart(scenario, candidate, target_s))
        else:
            return
        target_s = min(target_s, candidate.bound_s)


def is_sparse(scenario: Scenario) -> bool:
    """Whether so few layers may stage tokens that it pays to tell all layers apart."""
    paths = [scenario.paths[layer] for layer in scenario.model.layers]
    return sum(any(p.attends == "stage" for p in own) for own in paths) <= MOST_APART


def apart(scenario: Scenario, candidate: Candidate, target_s: float) -> float:
    """A bound, seconds, at most the target, from layers that are told apart and have one shape
    each. Where few of them stage tokens, what lies between any two matters, and so does that a
    layer cannot be resident by a half.
    """
    if candidate.schedule.axis != "token":
        return 0.0
    unit, _ = mixed_unit(scenario, candidate)
    if not mixture.applies(unit, scenario.classes):
        return 0.0
    given = (unit, scenario.classes, scenario.capacity, scenario.quality)
    stated = mixture.state(*given, block_sizes(scenario)[0], apart=True, most_s=target_s)
    return mixture.solve_whole(stated, MOST_NODES)


def branched(scenario: Scenario, candidate: Candidate, target_s: float) -> float:
    """A bound by branching; with streamed weights, where waits are long, by a mixture too if that
    does not reach the target.
    """
    blocks = block_sizes(scenario)
    given = (scenario.classes, scenario.capacity, scenario.quality)
    flow = candidate.flow if candidate.schedule.axis == "token" else candidate.unit
    found_s = sharpened(flow, *given, blocks, target_s)
    if found_s < target_s and candidate.schedule.stream_weights:
        mixtures = mixtures_of(scenario, candidate)
        if mixtures is not None:
            return max(found_s, mixtures.bound_s(target_s))
    return found_s


def mixed_unit(scenario: Scenario, candidate: Candidate) -> tuple[StepGraph, int]:
    """The graph whose layers a mixture is made of, and how many groups of layers share its staging
    buffers: none on the token axis.
    """
    schedule = candidate.schedule
    if schedule.axis == "token":
        return unit_graph(scenario, schedule), 0
    whole = replace(schedule, axis="token", stages=1)
    return unit_graph(scenario, whole), filled_groups(candidate.flow, scenario.classes)


def mixed(scenario: Scenario, candidate: Candidate, target_s: float) -> tuple[float, int]:
    """A bound from the mixture of a candidate's layers, seconds, and the rows it took beside those
    of branching: coarse shapes (asked before with streamed weights), then on the layer axis fine
    ones, on the token axis both while branching.
    """
    mixtures = mixtures_of(scenario, candidate)
    if mixtures is None:
        return 0.0, 0
    bounds = [0.0]
    if not candidate.schedule.stream_weights:
        bounds.append(mixtures.bound_s(target_s))
    if max(bounds) < target_s and mixtures.groups:
        bounds.append(mixtures.bound_s(target_s, level="fine"))
    rows = mixtures.rows
    if max(bounds) < target_s and not mixtures.groups:
        given = (scenario.classes, scenario.capacity, scenario.quality, block_sizes(scenario))
        bounds.append(sharpened(candidate.flow, *given, target_s, mixtures))
    return max(bounds), rows


def mixtures_of(scenario: Scenario, candidate: Candidate) -> Mixtures | None:
    """The mixture programs of a candidate; None where its waits are not theirs."""
    unit, groups = mixed_unit(scenario, candidate)
    if not mixture.applies(unit, scenario.classes, groups):
        return None
    given = (scenario.classes, scenario.capacity, scenario.quality, block_sizes(scenario)[0])
    return Mixtures(unit, *given, groups)


class Mixtures:
    """Mixture programs of one schedule, each solved from the one before; ``rows`` counts theirs."""

    def __init__(
        self,
        unit: StepGraph,
        classes: Sequence[int],
        capacity: Mapping[str, float],
        quality: Mapping[str, float],
        block: int,
        groups: int = 0,
    ) -> None:
        """None is solved yet.

        Args:
            unit: step graph of one unit with every allowed path.
            classes: class number of every layer.
            capacity: bytes each tier may hold.
            quality: most share of all tokens that each inexact path may take.
            block: tokens of the largest block that plans may be made of.
            groups: groups of layers that may stage tokens, on the layer axis; 0: token axis.
        """
        self.groups, self.rows = groups, 0
        self._given = (unit, classes, capacity, quality, block)
        self._per_token = staging_bytes(unit)
        self._programs: dict[Level, Related] = {}

    def bound_s(
        self, target_s: float, staging: Staging | None = None, level: Level = "coarse"
    ) -> float:
        """Seconds that no plan is below, as far as the target; 0 where the program is too large.

        Args:
            target_s: where to stop.
            staging: only plans whose buffers are within these limits.
            level: what is told apart, one of `LEVELS`.
        """
        if staging is not None:
            staging = replace(staging, per_token=self._per_token)
        fine, whole = level == "fine", level == "whole"
        stated = mixture.state(
            *self._given, staging, fine=fine, groups=self.groups,
            following=level in ("following", "whole"), most_s=target_s if whole else float("inf"),
        )  # fmt: skip
        rows = len(stated.program.rows)
        if (fine and rows > MOST_FINE_ROWS) or (whole and rows > MOST_WHOLE_ROWS):
            return 0.0
        if whole:
            self.rows += rows * AS_LONG
            return mixture.solve_whole(stated, FEW_NODES)
        self.rows += rows
        return mixture.solve(stated, target_s, self._programs.setdefault(level, Related()))


def sharpened(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    blocks: Sequence[int],
    target_s: float,
    mixtures: Mixtures | None = None,
) -> float:
    """Lower bound on the step of one schedule, seconds; at most about ``target_s`` is tried.

    Args:
        graph: step graph that has the fluid program.
        classes: class number of every layer.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        blocks: tokens per block that plans may be made of, the largest first.
        target_s: where to stop.
        mixtures: what knows the waits of the schedule, too; None: nothing.
    """
    given = (classes, capacity, quality)
    ranges = Ranges(graph, capacity, blocks[-1])
    if not ranges.whole:
        found = fluid.bound(graph, *given)
        return float("inf") if found is None else found.step_s
    levels = STREAMED_LEVELS if graph.schedule.stream_weights else LEVELS
    heap: list[tuple[float, int, fluid.Fluid, Limits, int]] = []
    times = 1 if mixtures is None else OFTENER
    most = min(times * MOST_SOLVES, times**2 * MOST_STATED // len(graph.operations))
    most_solves = len(ranges.whole) * most
    misses: Counter[Level] = Counter()
    solves, rows = 0, 0 if mixtures is None else mixtures.rows

    def branch(limits: Limits, known_s: float = 0.0) -> None:
        nonlocal solves
        solves += 1
        found = fluid.bound(graph, *given, staging=ranges.staging(limits))
        if found is not None:
            heapq.heappush(heap, (max(found.step_s, known_s), solves, found, limits, 0))

    branch(ranges.whole)
    while heap:
        bound_s, number, found, limits, mixed = heap[0]
        if bound_s >= target_s:
            return bound_s
        holds = ranges.to_cut(limits, found, classes)
        while mixed < len(levels) and misses[levels[mixed]] >= MOST_MISSES:
            mixed += 1
        is_worth_it = ranges.is_narrow(limits) and mixed < len(levels) - (holds is not None)
        most_rows = MOST_NEAR_ROWS if bound_s >= target_s * (1 - NEAR) else MOST_MIXED_ROWS
        if mixtures is not None and is_worth_it and mixtures.rows - rows < most_rows:
            level = levels[mixed]
            mixed_s = mixtures.bound_s(target_s, ranges.staging(limits), level)
            misses[level] += level in GUESSES and mixed_s <= bound_s * (1 + LEAST_RISE)
            heapq.heapreplace(heap, (max(bound_s, mixed_s), number, found, limits, mixed + 1))
            continue
        if holds is None or solves + 2 > most_solves:
            return bound_s
        heapq.heappop(heap)
        for half in ranges.halves(limits, holds):
            branch(half, bound_s)
    return float("inf")


Limits = dict[str, tuple[float, float]]
"""Least and most bytes of one buffer, by what it holds."""


class Ranges:
    """What a buffer of stages, and one of streamed weights, may be as large as."""

    def __init__(self, graph: StepGraph, capacity: Mapping[str, float], block: int) -> None:
        """The whole ranges.

        Args:
            graph: step graph that has the fluid program.
            capacity: bytes each tier may hold.
            block: tokens of the smallest block.
        """
        self.graph, self.per_token = graph, staging_bytes(graph)
        self.whole, self.narrow = Limits(), dict[str, float]()
        for holds in ("stages", "weights"):
            most = largest_bytes(graph, capacity, holds)
            if most > 0:
                self.narrow[holds] = most / MOST_PARTS
                if holds == "stages":
                    self.narrow[holds] = block * min(self.per_token.values())
                self.whole[holds] = (0.0, max(self.narrow[holds], most))

    def staging(self, limits: Limits) -> Staging:
        """The plans within limits."""
        least, most = limits.get("stages", (0.0, 0.0))
        return Staging(least, most, self.per_token, *limits.get("weights", (0.0, float("inf"))))

    def ratio(self, limits: Limits, holds: str) -> float:
        """Ratio of a range's ends, the lower one being a block at least."""
        least, most = limits[holds]
        return most / max(least, self.narrow[holds])

    def is_narrow(self, limits: Limits) -> bool:
        """Whether a mixture is worth its time."""
        return "stages" not in limits or self.ratio(limits, "stages") <= NEAR_ENDS

    def to_cut(self, limits: Limits, found: fluid.Fluid, classes: Sequence[int]) -> str | None:
        """Which range to cut: where fixed parts weigh most that its lower half would raise; None
        where all are narrow.
        """
        wide = [holds for holds in limits if self.ratio(limits, holds) > NARROW]
        if len(wide) < 2:
            return wide[0] if wide else None
        staging, fixed_s = self.staging(limits), dict.fromkeys(wide, 0.0)
        for operation in self.graph.operations:
            if operation.resource != "h2d" or not operation.variables:
                continue
            variable = self.graph.variables[operation.variables[0]]
            tokens = found.tokens[classes[variable.layer], variable.path]
            holds = "weights" if operation.operation == "load_weights" else "stages"
            stages = self.graph.schedule.stages if holds == "stages" else 1
            most = max(piece.fixed_s for piece in operation.curve.pieces)
            fixed_s[holds] += most * tokens / stages / max(staging.ceiling(operation), 1e-9)
        return max(wide, key=lambda each: fixed_s[each] * (self.ratio(limits, each) ** 0.5 - 1))

    def halves(self, limits: Limits, holds: str) -> Iterator[Limits]:
        """Both parts of a range, halves of the ratio: fixed parts go with its inverse."""
        least, most = limits[holds]
        middle = (max(least, self.narrow[holds]) * most) ** 0.5
        yield {**limits, holds: (least, middle)}
        yield {**limits, holds: (middle, most)}


def largest_bytes(unit: StepGraph, capacity: Mapping[str, float], holds: str) -> float:
    """Bytes that one buffer can have at most; 0 where there is none."""
    sizes, tenants = [0.0], [0.0]
    for buffer in unit.buffers:
        if buffer.holds == holds:
            sizes.append(capacity["hbm"] / buffer.count)
            for tenant in buffer.tenants:
                tenants.append(sum(b * unit.variables[v].ceiling for v, b in tenant.items()))
    return min(max(sizes), max(tenants))
