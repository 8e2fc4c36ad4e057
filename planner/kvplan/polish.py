"""Where the fluid program leaves a gap: plans from the program in whole blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from kvplan import block_program, program
from kvplan.allocation import Place, in_groups, placed
from kvplan.block_program import Goal
from kvplan.candidates import Candidate, least_bound, unit_graph
from kvplan.evaluate import Evaluation, evaluate, overflow
from kvplan.exchange import exchanged
from kvplan.fitting import attends, block_bytes, memory_bytes
from kvplan.program import Repeated
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.thin import solved, thinned

NEAR_ENOUGH = 1e-3
"""Distance from the bound at which the block program stops."""

LARGEST_BLOCKS = 120
"""Operations of a unit up to which its block program is solved in the search."""

POLISHED = 4
"""Candidates whose block program is solved where a gap is left."""

MOST_TRIALS = 4
"""Block programs solved in one search."""

SEEDS = 3
"""Seeds of the solver's heuristics that those in the smallest blocks are solved with, while the
plan is near the goal.
"""

AGAIN = 3
"""Block programs solved with another seed in one search."""

NEAR_AGAIN = 1.007
"""Ratio to the best step of what a seed brought up to which another one is tried."""

WORTH_AGAIN = 1.005
"""Ratio of the best step to a good one up to which another seed is tried."""

WORTH_TRYING = 1.02
"""Ratio to the best step up to which the block program looks: a limit too near hides mixes from
its heuristics, and blocks that move afterwards gain some of it back."""

WORTH_EXCHANGING = 3e-3
"""Share by which a plan may be behind the best one for its blocks to be exchanged."""

BLOCKS_PER_STAGE = 8
"""Blocks in a mean stage from which the block program does without smaller ones."""

GEMM_TILE = 128
"""Rows that a matrix product works on at once; blocks are kept at multiples of it."""

LEAST_BLOCK = 4
"""Tokens below which a block is not cut."""

LARGEST_THINNED = 1000
"""Operations of a unit up to which its whole program is solved and rounded."""

PLAYED = 10
"""Candidates whose whole program is solved to find those worth rounding."""

THINNED = 4
"""Candidates whose whole program is solved and rounded where a gap is left."""

WORTH_THINNING = 1.003
"""Ratio to the optimum of the program behind the best plan up to which another one is rounded."""

TRIES = 3
"""Times that a plan which overflows a tier is planned again with less of it."""


def finer_blocks(scenario: Scenario) -> Iterator[int]:
    """Halves of the block size whose rows over a micro-batch still fill whole GEMM tiles."""
    block = scenario.workload.block
    while (
        scenario.options.refine_blocks
        and block % 2 == 0
        and block // 2 >= LEAST_BLOCK
        and block // 2 * scenario.workload.micro_batch % GEMM_TILE == 0
    ):
        block //= 2
        yield block


def with_block(scenario: Scenario, block: int) -> Scenario:
    """The same question in other blocks."""
    workload = replace(scenario.workload, block=block)
    return replace(scenario, workload=workload)


def thin_out(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    best: Evaluation,
    chosen: Candidate,
    block: int,
) -> tuple[Evaluation, Candidate, int, int]:
    """Plans from the whole program, in the smallest blocks: with all paths where layers differ,
    then with the paths of the best plan's stages, at each queue depth, weights streamed or not.

    Arguments and result as those of `tighten`.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    smallest, judged = [scenario.workload.block, *finer_blocks(scenario)][-1], 0
    least_s = 0.0
    for optimum_s, candidate in worth_thinning(scenario, candidates):
        if best.step_s <= good_s or (least_s and optimum_s > least_s * WORTH_THINNING):
            break
        found = thinned(scenario, candidate.schedule, smallest, None, best.step_s)
        judged += 1
        if found is not None:
            best, chosen, block, least_s = found, candidate, smallest, optimum_s
    for candidate in [chosen, *(c for c in candidates if c is not chosen and alike(c, chosen))]:
        if best.step_s <= good_s:
            return best, chosen, block, judged
        found = thinned(scenario, candidate.schedule, smallest, best, best.step_s)
        judged += 1
        if found is not None:
            best, chosen, block = found, candidate, smallest
    if best.step_s <= good_s * (1 + scenario.options.good_gap):
        best = exchanged(scenario, best, good_s, block)
    return best, chosen, block, judged


def alike(candidate: Candidate, other: Candidate) -> bool:
    """Whether two schedules have the same stages."""
    one, two = candidate.schedule, other.schedule
    return (one.axis, one.stages) == (two.axis, two.stages)


def worth_thinning(
    scenario: Scenario, candidates: Sequence[Candidate]
) -> list[tuple[float, Candidate]]:
    """Where layers differ: candidates with the least optimum of the whole program, among those with
    the least bounds, beside it.
    """
    if len(set(scenario.classes)) == 1:
        return []
    small = [
        candidate
        for candidate in candidates
        if candidate.schedule.axis == "token" and candidate.size <= LARGEST_THINNED
    ]
    small.sort(key=lambda c: c.bound_s)
    return optima(scenario, small[:PLAYED], THINNED)


def tighten(
    scenario: Scenario,
    candidates: Sequence[Candidate],
    best: Evaluation,
    chosen: Candidate,
    block: int,
) -> tuple[Evaluation, Candidate, int, int]:
    """Where sharper bounds leave a gap: plans from the block program, and blocks exchanged.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
        chosen: its candidate.
        block: tokens per block of it.

    Returns:
        The best plan, its candidate, tokens per block of it, and how many were judged.
    """
    judged = 0
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    if best.step_s <= good_s:
        return best, chosen, block, judged
    few = list(islice(trials(scenario, promising(scenario, candidates)), MOST_TRIALS))
    first_s: dict[Schedule, float] = {}
    for (candidate, size), seed in ((trial, seed) for seed in range(SEEDS) for trial in few):
        if judged >= MOST_TRIALS + AGAIN or (seed and best.step_s > good_s * WORTH_AGAIN):
            break
        if seed and (
            size > min(own for _, own in few)
            or first_s.get(candidate.schedule, best.step_s) > best.step_s * NEAR_AGAIN
        ):
            continue
        goal = Goal(
            least_s=good_s / (1 + scenario.options.good_gap),
            most_s=best.step_s * WORTH_TRYING,
            near=NEAR_ENOUGH,
            seed=seed,
        )
        evaluation = in_blocks(scenario, candidate, size, free_place(candidate), goal)
        judged += 1
        if evaluation is None:
            continue
        first_s[candidate.schedule] = evaluation.step_s
        if evaluation.step_s < best.step_s * (1 + WORTH_EXCHANGING):
            evaluation = exchanged(scenario, evaluation, good_s, size)
        if evaluation.step_s < best.step_s:
            best, chosen, block = evaluation, candidate, size
        if best.step_s <= good_s:
            break
    best = exchanged(scenario, best, good_s, block)
    return best, chosen, block, judged


def trials(scenario: Scenario, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, int]]:
    """Each candidate with its own block size, and with the smallest."""
    smallest = [scenario.workload.block, *finer_blocks(scenario)][-1]
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


def optima(
    scenario: Scenario, candidates: Sequence[Candidate], most: int
) -> list[tuple[float, Candidate]]:
    """The least optima of the full program of a unit with their candidates, so many at most; found
    in order of the bounds, which no optimum is below.
    """
    found: list[tuple[float, Candidate]] = []
    for candidate in sorted(candidates, key=lambda c: c.bound_s):
        if len(found) >= most and found[most - 1][0] <= candidate.bound_s:
            break
        unit = unit_graph(scenario, candidate.schedule)
        solution = solved(
            Repeated(
                program.state(
                    unit, scenario.capacity, quality=scenario.quality, block=scenario.workload.block
                )
            )
        )
        if solution is not None:
            candidate.built = unit
            found.append((solution.step_s, candidate))
            found.sort(key=lambda pair: pair[0])
    return found[:most]


def block_for(scenario: Scenario, candidate: Candidate) -> int:
    """The largest block of which the candidate's mean stage holds a few; else the smallest."""
    staged = [
        tokens
        for (_, name), tokens in candidate.relaxation.tokens.items()
        if attends(name, "stage")
    ]
    mean = sum(staged) / len(set(scenario.classes)) / candidate.schedule.stages
    blocks = [scenario.workload.block, *finer_blocks(scenario)]
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
    scenario: Scenario, candidate: Candidate, block: int, free: Place | None, goal: Goal
) -> Evaluation | None:
    """The plan of a candidate's block program; None where it has none of use."""
    unit, capacity = candidate.unit, dict(scenario.capacity)
    margin = block_bytes(with_block(scenario, block))
    if free is not None:
        capacity = {tier: limit - margin.get(tier, 0.0) for tier, limit in capacity.items()}
    for _ in range(TRIES):
        values = block_program.solve(
            unit, capacity, scenario.quality, block, scenario.workload.block, free, goal
        )
        if values is None:
            return None
        wanted, shares = unit.by_layer(values)
        layers = range(len(scenario.model.layers))
        tokens = [scenario.cached_tokens(i) for i in layers]
        allocation = placed(tokens, wanted, block, free)
        if candidate.schedule.axis == "layer":
            allocation = in_groups(allocation, candidate.schedule.stages)
        streamed = [shares[i % len(shares)] for i in layers]
        over = overflow(memory_bytes(unit, allocation, streamed), scenario.capacity)
        if over is None:
            return evaluate(scenario, candidate.schedule, allocation, streamed)
        capacity[over[0]] -= over[1] + margin.get(over[0], 0.0)
    return None
