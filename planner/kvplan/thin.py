"""Plans from the whole program: paths that it hardly uses are left out, the rest is rounded.

The program of `program.state` is solved with every path in every stage, or with those of a plan.
An operation that it leaves without tokens still costs its fixed time there, so paths with few
tokens in a stage are dropped and it is solved again. Layers may differ: each place of a layer has
its own tokens, and what rounding to blocks leaves over goes to the same place of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvplan import program
from kvplan.allocation import Allocation, Place, laid_out, spread, unevenness
from kvplan.best import Best
from kvplan.block_size import block_sizes
from kvplan.candidates import (
    Candidate,
    build_unit,
    cyclic,
    full_structure,
    least_bound,
    unit_graph,
    unit_layers,
)
from kvplan.errors import KvplanError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.exchange import exchanged
from kvplan.graph import StepGraph
from kvplan.paths import REGISTRY, Path
from kvplan.program import Repeated, Solution
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule

FEW = 0.1
"""Share of a stage's tokens below which a path is dropped from it."""

ROUNDS = 3
"""Times that paths are dropped."""

TRIES = 6
"""Times that a plan which overflows a tier, or is uneven, is planned again with less of it."""

LARGEST = 1000
"""Operations of a graph up to which its program is solved here."""

LARGEST_PLAN = 700
"""Operations of a plan's graph up to which its program is solved here."""

PLAYED = 4
"""Candidates whose whole program is solved to find those worth rounding."""

THINNED = 2
"""Candidates whose whole program is solved and rounded where a gap is left."""

WORTH_THINNING = 1.003
"""Ratio to the optimum of the program behind the best plan up to which another one is rounded."""

Paths = dict[tuple[int, int | None], list[Path]]
"""(layer, stage) to the paths there."""


def thin_out(scenario: Scenario, candidates: Sequence[Candidate], best: Best) -> None:
    """Look for plans from the whole program, in the smallest blocks: with all paths where layers
    differ, then with the paths of the best plan's stages, at each queue depth, weights streamed or
    not.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    smallest = block_sizes(scenario)[-1]
    least_s = 0.0
    for optimum_s, candidate in worth_thinning(scenario, candidates):
        if best.step_s <= good_s or (least_s and optimum_s > least_s * WORTH_THINNING):
            break
        found = thinned(scenario, candidate.schedule, smallest, None, best.step_s)
        if best.offer(found, candidate, smallest):
            least_s = optimum_s
    first = best.candidate
    for candidate in [first, *(c for c in candidates if c is not first and alike(c, first))]:
        if best.step_s <= good_s:
            return
        own = paths_of(scenario, best.plan)
        found = thinned(scenario, candidate.schedule, smallest, own, best.step_s)
        best.offer(found, candidate, smallest)
    if best.step_s <= good_s * (1 + scenario.options.good_gap):
        best.plan = exchanged(scenario, best.plan, good_s, best.block)


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
        if candidate.schedule.axis == "token" and candidate.size <= LARGEST
    ]
    small.sort(key=lambda c: c.bound_s)
    return optima(scenario, small[:PLAYED], THINNED)


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
        solution = solved(repeated(scenario, unit, scenario.workload.block))
        if solution is not None:
            candidate.built = unit
            found.append((solution.step_s, candidate))
            found.sort(key=lambda pair: pair[0])
    return found[:most]


def thinned(
    scenario: Scenario,
    schedule: Schedule,
    block: int,
    structure: Paths | None = None,
    most_s: float = float("inf"),
    largest: int = LARGEST_PLAN,
) -> Evaluation | None:
    """The best plan found; None where no program fits, its graph is too large, or no plan takes
    less than ``most_s``.

    Args:
        scenario: the question; its blocks are what a stage may differ by from the mean of its
            layer.
        schedule: how the step is pipelined.
        block: tokens per block of the plan.
        structure: paths of each layer and stage; None: all, of one unit where layers repeat.
        most_s: only steps shorter than this are of use.
        largest: operations of a graph with these paths, at most.
    """
    whole, unit = structure is None, None
    if structure is None:
        unit = unit_layers(scenario.model, cyclic(schedule))
        layers = range(len(scenario.model.layers)) if unit is None else unit
        structure = {
            place: list(paths)
            for place, paths in full_structure(scenario, schedule, layers).items()
        }
    best: Evaluation | None = None
    for number in range(ROUNDS):
        graph = build_unit(scenario, schedule, structure, unit)
        if len(graph.operations) > (LARGEST if whole else largest):
            return best
        if number == 0 and whole:  # the optimum pays for paths that it does not use
            values, found = _rounded(scenario, schedule, graph, block, 1)
        else:
            values, found = _rounded(scenario, schedule, graph, block, TRIES, most_s)
        if found is not None and found.step_s < most_s:
            best, most_s = found, found.step_s
        fewer = without_few(structure, graph, values, block) if values else structure
        if fewer == structure:
            break
        structure = fewer
    return best


def paths_of(scenario: Scenario, plan: Evaluation) -> Paths:
    """The paths of each stage of a plan, and all that keep tokens in HBM for good."""
    found: Paths = {}
    for layer, segments in enumerate(plan.allocation):
        places = [(segment.stage, REGISTRY[segment.path]) for segment in segments]
        own = scenario.paths[scenario.model.layers[layer]]
        places += [(None, path) for path in own if path.attends == "resident"]
        for stage, path in dict.fromkeys(places):
            found.setdefault((layer, stage), []).append(path)
    return found


def without_few(structure: Paths, graph: StepGraph, values: Sequence[float], block: int) -> Paths:
    """Leave out the paths of a stage that few of its tokens take, and stages without any."""
    tokens = {
        (v.layer, v.stage, v.path): value for v, value in zip(graph.variables, values, strict=True)
    }
    found: Paths = {}
    for (layer, stage), paths in structure.items():
        if stage is None:
            found[layer, stage] = paths
            continue
        held = [tokens.get((layer, stage, path.name), 0.0) for path in paths]
        least = max(FEW * sum(held), block / 4)
        kept = [path for path, count in zip(paths, held, strict=True) if count > least]
        if kept:
            found[layer, stage] = kept
    return found


def _rounded(
    scenario: Scenario,
    schedule: Schedule,
    graph: StepGraph,
    block: int,
    tries: int,
    most_s: float = float("inf"),
) -> tuple[Sequence[float], Evaluation | None]:
    """The program's optimum, and its plan in blocks, with less of a tier where that overflows; no
    plan where the optimum takes ``most_s`` or more.
    """
    capacity = dict(scenario.capacity)
    uneven = max(scenario.workload.block - block, 0)
    stated = repeated(scenario, graph, uneven)
    solution, tightened = solved(stated), dict[str, float]()
    values: Sequence[float] = ()
    for _ in range(tries):
        if tightened:
            solution = solved(stated, tightened)
        if solution is None:
            break
        values = solution.values
        if solution.step_s >= most_s:
            break
        found = plan_near(scenario, schedule, graph, values, block)
        over = found.overflow(scenario.capacity)
        if over is not None:
            tier, excess = over
            capacity[tier] -= excess
            tightened = {f"capacity[{tier}]": capacity[tier] - graph.constant_bytes.get(tier, 0.0)}
        elif is_even(scenario, found):
            return values, found
        elif not uneven:
            break
        else:
            uneven = max(uneven - block, 0)
            tightened = {"even_stages[": float(uneven)}
    return values, None


def plan_near(
    scenario: Scenario, schedule: Schedule, graph: StepGraph, values: Sequence[float], block: int
) -> Evaluation:
    """The plan in blocks near the values of a graph's variables, whether it fits or not."""
    layers = range(len(scenario.model.layers))
    wanted, shares = graph.by_layer(values)
    places = [layer % len(wanted) for layer in layers]
    groups = scenario.classes if len(wanted) == len(layers) else places
    tokens = [scenario.cached_tokens(layer) for layer in layers]
    allocation = diffused(tokens, [wanted[place] for place in places], groups, block)
    return evaluate(scenario, schedule, allocation, [shares[place] for place in places])


def repeated(
    scenario: Scenario, graph: StepGraph, uneven: int, capacity: Mapping[str, float] | None = None
) -> Repeated:
    """The program of a graph, whose stages differ by so many tokens from their mean at most; with
    other bytes in each tier than the question's, maybe.
    """
    held = scenario.capacity if capacity is None else capacity
    return Repeated(program.state(graph, held, quality=scenario.quality, block=uneven))


def solved(stated: Repeated, bounds: Mapping[str, float] | None = None) -> Solution | None:
    """The optimum of a program that the search can do without; None where the solver gives up."""
    try:
        return stated.solve(bounds)
    except KvplanError:
        return None


def is_even(scenario: Scenario, plan: Evaluation) -> bool:
    """Whether the stages of every layer are as near their mean as bounds take them to be."""
    if plan.schedule.axis != "token":
        return True
    for layer, segments in enumerate(plan.allocation):
        sizes = [0] * plan.schedule.stages
        for segment in segments:
            if segment.stage is not None:
                sizes[segment.stage] += segment.tokens
        mean = sum(sizes) / len(sizes)
        most = unevenness(scenario.cached_tokens(layer), scenario.workload.block)
        if max(abs(size - mean) for size in sizes) > most:
            return False
    return True


def diffused(
    tokens: Sequence[int], wanted: Sequence[dict[Place, float]], groups: Sequence[int], block: int
) -> Allocation:
    """Whole blocks near the tokens of each place; what is left over goes to the next layer.

    Args:
        tokens: tokens each layer caches.
        wanted: for each layer, tokens per stage and path.
        groups: layers with the same number pass on what they leave over.
        block: tokens per block; the last block of a layer may be shorter.

    >>> mix = {(0, "fetch"): 32.0, (None, "resident"): 96.0}
    >>> [[s.tokens for s in layer] for layer in diffused([128] * 2, [mix] * 2, [0, 0], 64)]
    [[64, 64], [128]]
    """
    carries: dict[int, dict[Place, float]] = {}
    layers = []
    for layer, count in enumerate(tokens):
        mix = {place: share for place, share in wanted[layer].items() if share > 1e-6 * count}
        carry = carries.setdefault(groups[layer], {})
        layers.append(laid_out(count, block, spread(mix, -(-count // block), carry) if mix else {}))
    return tuple(layers)
