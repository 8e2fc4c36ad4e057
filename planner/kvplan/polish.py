"""Where the fluid program leaves a gap: plans from the program in whole blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from kvplan import block_program
from kvplan.allocation import Place, in_groups, placed
from kvplan.best import Best
from kvplan.block_program import MOST_NODES, Goal
from kvplan.block_size import block_sizes, blocks_in, with_block
from kvplan.candidates import Candidate, least_bound
from kvplan.dive import LARGEST as LARGEST_DIVE
from kvplan.dive import Dive, offer_rounded
from kvplan.evaluate import Evaluation, evaluate, overflow
from kvplan.exchange import exchanged
from kvplan.fitting import attends, block_bytes, memory_bytes
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.thin import optima

NEAR_ENOUGH = 1e-3
"""Distance from the bound at which the block program stops."""

LARGEST_BLOCKS = 120
"""Operations of a unit up to which its block program is solved in the search."""

POLISHED = 4
"""Candidates whose block program is solved where a gap is left."""

MOST_TRIALS = 2
"""Block programs solved in one search."""

WORTH_TRYING = 1.02
"""Ratio to the best step up to which the block program looks: a limit too near hides mixes from
its heuristics, and blocks that move afterwards gain some of it back."""

BLOCKS_PER_STAGE = 8
"""Blocks in a mean stage from which the block program does without smaller ones."""

TRIES = 3
"""Times that a plan which overflows a tier is planned again with less of it."""


def tighten(scenario: Scenario, candidates: Sequence[Candidate], best: Best) -> None:
    """Where sharper bounds leave a gap: plans from the block program, the best of them rounded
    again with the whole step in view, and blocks exchanged.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    if best.step_s <= good_s:
        return
    plans: list[tuple[Evaluation, Candidate, int]] = []
    for candidate, size in islice(trials(scenario, promising(scenario, candidates)), MOST_TRIALS):
        least_s = good_s / (1 + scenario.options.good_gap)
        goal = Goal(least_s, best.step_s * WORTH_TRYING, NEAR_ENOUGH)
        free = free_place(candidate)
        plan = in_blocks(scenario, candidate.schedule, candidate.unit, size, free, goal)
        if plan is None:
            continue
        best.offer(plan, candidate, size)
        if best.step_s <= good_s:
            return
        plans.append((plan, candidate, size))
    if plans:
        plan, candidate, size = min(plans, key=lambda found: found[0].step_s)
        if len(plan.graph.operations) <= LARGEST_DIVE:
            offer_rounded(best, good_s, Dive(scenario, plan.graph, size), candidate)
    best.plan = exchanged(scenario, best.plan, good_s, best.block)


def trials(scenario: Scenario, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, int]]:
    """Each candidate with its own block size, and with the smallest."""
    smallest = block_sizes(scenario)[-1]
    for candidate in candidates:
        own = block_for(scenario, candidate)
        yield candidate, own
        if own != smallest:
            yield candidate, smallest


def promising(scenario: Scenario, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates whose block program is small, the least optimum of the full program first."""
    small = [
        candidate
        for candidate in candidates
        if candidate.size <= LARGEST_BLOCKS and candidate.schedule.boundary == "overlap"
    ]
    return [candidate for _, candidate in optima(scenario, small, POLISHED)]


def block_for(scenario: Scenario, candidate: Candidate) -> int:
    """The largest block of which the candidate's mean stage holds a few; else the smallest."""
    staged = [
        tokens
        for (_, name), tokens in candidate.relaxation.tokens.items()
        if attends(name, "stage")
    ]
    mean = sum(staged) / len(set(scenario.classes)) / candidate.schedule.stages
    blocks = block_sizes(scenario)
    return next((b for b in blocks if b * BLOCKS_PER_STAGE <= mean), blocks[-1])


def free_place(candidate: Candidate) -> Place | None:
    """The place whose tokens are means over layers: in the last stage, what crosses the link
    least. With streamed weights none: their share takes up what whole blocks leave.
    """
    if candidate.schedule.stream_weights:
        return None
    last = candidate.schedule.stages - 1
    used = {
        name: tokens
        for (_, name), tokens in candidate.relaxation.tokens.items()
        if attends(name, "stage") and tokens > 0
    }
    names = [n for n in ("recompute_resident", "recompute") if used.get(n, 0.0) > 0]
    return (last, (names or sorted(used) or ["fetch"])[0])


def in_blocks(
    scenario: Scenario,
    schedule: Schedule,
    unit: StepGraph,
    block: int,
    free: Place | None,
    goal: Goal,
    nodes: int = MOST_NODES,
    *,
    optional: bool = True,
) -> Evaluation | None:
    """The plan of the block program of a unit; None where it has none of use."""
    capacity, blocks = dict(scenario.capacity), blocks_in(scenario, block)
    margin = block_bytes(with_block(scenario, block))
    if free is not None:
        capacity = {tier: limit - margin.get(tier, 0.0) for tier, limit in capacity.items()}
    for _ in range(TRIES):
        values = block_program.solve(
            unit, capacity, scenario.quality, blocks, scenario.workload.block, free, goal, nodes,
            optional=optional,
        )  # fmt: skip
        if values is None:
            return None
        wanted, shares = unit.by_layer(values)
        layers = range(len(scenario.model.layers))
        tokens = [scenario.cached_tokens(i) for i in layers]
        allocation = placed(tokens, wanted, block, free)
        if schedule.axis == "layer":
            allocation = in_groups(allocation, schedule.stages)
        streamed = [shares[i % len(shares)] for i in layers]
        over = overflow(memory_bytes(unit, allocation, streamed), scenario.capacity)
        if over is None:
            return evaluate(scenario, schedule, allocation, streamed)
        capacity[over[0]] -= over[1] + margin.get(over[0], 0.0)
    return None
