"""Where the fluid program leaves a gap: better mixes from the full program, and sharper bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvplan import certificate, program
from kvplan.candidates import (
    PATTERNS,
    Candidate,
    build_unit,
    cyclic,
    fractional,
    unit_graph,
    unit_layers,
)
from kvplan.evaluate import Evaluation
from kvplan.fitting import fitted
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.step import StepGraph

GOOD_GAP = 1e-2
"""A gap above this share is worth smaller blocks, and solving the full program for."""

SLIVER = 0.08
"""Share of a stage below which the relaxed program's use of a path is not worth an operation."""

LARGEST_PROGRAM = 2500
"""Operations up to which the full program of a graph is solved in the search."""

LARGEST_BOUND = 600
"""Operations up to which it is solved for a sharper bound."""

POLISHED = 4
"""Candidates whose split of tokens is refined by the full program where a gap is left."""


def tighten(
    scenario: Scenario, candidates: Sequence[Candidate], best: Evaluation, chosen: Candidate
) -> tuple[Evaluation, Candidate, int]:
    """Solve full programs where the fluid ones leave a gap, for better mixes and bounds."""
    judged = 0
    small = [c for c in candidates if len(c.unit.operations) <= LARGEST_PROGRAM]
    for candidate in sorted(small, key=lambda c: c.trial_s)[:POLISHED]:
        bound_s = min(c.bound_s for c in candidates)
        if best.step_s <= bound_s * (1 + GOOD_GAP) or candidate.trial_s > best.step_s:
            break
        for pattern in (*PATTERNS, "program"):
            polished = polish(scenario, candidate, pattern)
            evaluation = fitted(scenario, polished) if polished else None
            judged += 1
            if evaluation is not None and evaluation.step_s < best.step_s:
                best, chosen = evaluation, candidate
    raise_bounds(scenario, small, best.step_s)
    return best, chosen, judged


def raise_bounds(scenario: Scenario, candidates: Sequence[Candidate], step_s: float) -> None:
    """Sharpen the least bounds until they reach the plan found, or no longer rise."""
    target_s = step_s / (1 + GOOD_GAP)
    uniform = len(set(scenario.classes)) == 1
    for candidate in sorted(candidates, key=lambda c: c.bound_s):
        if candidate.bound_s >= target_s:
            return
        if uniform:
            sharper = certificate.sharpened(
                candidate.unit,
                scenario.classes,
                scenario.capacity,
                scenario.quality,
                scenario.workload.block,
                target_s,
            )
            candidate.bound_s = max(candidate.bound_s, sharper)
        if candidate.bound_s < target_s and len(candidate.unit.operations) <= LARGEST_BOUND:
            solution = relaxed(scenario, unit_graph(scenario, candidate.schedule))
            solved_s = float("inf") if solution is None else solution.step_s
            candidate.bound_s = max(candidate.bound_s, solved_s)


def relaxed(scenario: Scenario, unit: StepGraph) -> program.Solution | None:
    """The relaxed program of a unit (see `program.state`): its optimum is a lower bound."""
    statement = program.state(
        unit,
        scenario.capacity,
        quality=scenario.quality,
        relaxed=True,
        block=scenario.workload.block,
    )
    return program.solve(statement)


def polish(scenario: Scenario, candidate: Candidate, pattern: str) -> Candidate | None:
    """The best split of tokens for the operations that a pattern leaves in each stage.

    The pattern ``program`` keeps what the relaxed program uses for more than a sliver of a stage.
    """
    unit = unit_layers(scenario.model, cyclic(candidate.schedule))
    layers = list(range(len(scenario.model.layers))) if unit is None else unit
    if pattern == "program":
        structure = program_structure(scenario, candidate, layers)
    else:
        structure, _ = fractional(scenario, candidate, pattern, layers)
    if structure is None:
        return None
    graph = build_unit(scenario, candidate.schedule, structure, unit)
    statement = program.state(
        graph, scenario.capacity, quality=scenario.quality, block=scenario.workload.block
    )
    solution = program.solve(statement)
    return None if solution is None else from_program(scenario, candidate, graph, solution)


def program_structure(
    scenario: Scenario, candidate: Candidate, layers: Sequence[int]
) -> dict[tuple[int, int | None], list[Path]] | None:
    """Paths that the relaxed program uses for more than a sliver of each stage."""
    unit = unit_graph(scenario, candidate.schedule)
    solution = relaxed(scenario, unit)
    if solution is None:
        return None
    held: dict[tuple[int, int | None], dict[str, float]] = {}
    for variable, value in zip(unit.variables, solution.values, strict=True):
        if variable.path in REGISTRY:
            held.setdefault((variable.layer, variable.stage), {})[variable.path] = value
    structure: dict[tuple[int, int | None], list[Path]] = {}
    for place, paths in held.items():
        total = sum(paths.values())
        kept = [REGISTRY[n] for n, v in paths.items() if total > 0 and v > SLIVER * total]
        if kept:
            structure[place] = kept
    return structure


def from_program(
    scenario: Scenario, candidate: Candidate, unit: StepGraph, solution: program.Solution
) -> Candidate:
    """The candidate with the full program's tokens, and its mix of stages where layers agree."""
    tokens: dict[tuple[int, str], float] = {}
    layers: dict[int, set[int]] = {}
    for variable in unit.variables:
        layers.setdefault(scenario.classes[variable.layer], set()).add(variable.layer)
    mixes: list[dict[str, float]] = [{} for _ in range(candidate.schedule.stages)]
    for variable, value in zip(unit.variables, solution.values, strict=True):
        key = (scenario.classes[variable.layer], variable.path)
        tokens[key] = tokens.get(key, 0.0) + max(value, 0.0) / len(layers[key[0]])
        if variable.stage is not None and candidate.schedule.axis == "token":
            mix = mixes[variable.stage]
            mix[variable.path] = mix.get(variable.path, 0.0) + max(value, 0.0)
    relaxation = dataclasses.replace(candidate.relaxation, tokens=tokens)
    pattern = mixes if len(layers) == 1 and candidate.schedule.axis == "token" else "even"
    return dataclasses.replace(candidate, relaxation=relaxation, pattern=pattern)
