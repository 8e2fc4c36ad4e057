"""From a candidate's fractional tokens to whole blocks that fit every tier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from kvplan import fluid
from kvplan.allocation import Allocation, rounded
from kvplan.candidates import Candidate, streamed, targets
from kvplan.evaluate import Evaluation, evaluate
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.step import StepGraph


def round_to(
    scenario: Scenario,
    candidate: Candidate,
    pattern: str | Sequence[Mapping[str, float]],
    block: int,
    layers: int,
) -> Allocation:
    """Round the candidate's allocation to blocks, for its first layers."""
    wanted = targets(scenario, candidate.relaxation)[:layers]
    count = [scenario.cached_tokens(i) for i in range(layers)]
    schedule = candidate.schedule
    stages = schedule.stages
    if schedule.axis == "layer" and layers < len(scenario.model.layers):
        stages = layers * stages // len(scenario.model.layers)
    return rounded(count, wanted, scenario.classes[:layers], schedule.axis, stages, block, pattern)


def fitted(scenario: Scenario, candidate: Candidate) -> Evaluation | None:
    """Round a candidate; where rounding overflows a tier, plan again with that much less."""
    capacity = dict(scenario.capacity)
    layers = len(scenario.model.layers)
    trial = whole_blocks_away(scenario, candidate)
    quality = {**scenario.quality, **away_shares(scenario, trial)}
    margin = block_bytes(scenario, candidate.unit)
    for _ in range(8):
        allocation = round_to(scenario, trial, trial.pattern, scenario.workload.block, layers)
        evaluation = evaluate(
            scenario, trial.schedule, allocation, streamed(scenario, trial.relaxation)
        )
        over = evaluation.overflow(scenario.capacity)
        if over is None:
            return evaluation
        capacity[over[0]] -= over[1] + margin.get(over[0], 0.0)
        relaxation = fluid.bound(trial.unit, scenario.classes, capacity, quality)
        if relaxation is None:
            return None
        trial = dataclasses.replace(trial, relaxation=relaxation)
    return None


def away_shares(scenario: Scenario, candidate: Candidate) -> dict[str, float]:
    """Share of all tokens that each path attended where it lies takes."""
    total = sum(scenario.cached_tokens(i) for i in range(len(scenario.model.layers)))
    shares: dict[str, float] = {}
    for wanted in targets(scenario, candidate.relaxation):
        for name, tokens in wanted.items():
            if REGISTRY[name].attends == "away" and total:
                shares[name] = shares.get(name, 0.0) + tokens / total
    return shares


def whole_blocks_away(scenario: Scenario, candidate: Candidate) -> Candidate:
    """The candidate with whole blocks attended where they lie, the same in all equal layers.

    The link can work ahead and make up for a layer with one block more; what attends elsewhere
    needs the query first and cannot, so a layer with one block more there is late.
    """
    block, tokens = scenario.workload.block, dict(candidate.relaxation.tokens)
    changed = False
    for (of, name), count in candidate.relaxation.tokens.items():
        if name not in REGISTRY or REGISTRY[name].attends != "away" or count % block < 1e-6:
            continue
        whole = count // block * block
        others = {
            k: t
            for k, t in tokens.items()
            if k[0] == of
            and k[1] != name
            and t > 0
            and k[1] in REGISTRY
            and REGISTRY[k[1]].attends == "stage"
        }
        if not others:
            continue
        total = sum(others.values())
        for key, t in others.items():
            tokens[key] = t * (1 + (count - whole) / total)
        tokens[of, name] = whole
        changed = True
    if not changed:
        return candidate
    relaxation = dataclasses.replace(candidate.relaxation, tokens=tokens)
    return dataclasses.replace(candidate, relaxation=relaxation)


def block_bytes(scenario: Scenario, graph: StepGraph) -> dict[str, float]:
    """Bytes that rounding one block of one layer can move in each tier."""
    repeat = len(scenario.model.layers) // len(graph.tokens)
    most: dict[str, float] = {}
    for variable in graph.variables:
        if variable.path != "stream_weights":
            for tier, size in variable.stored.items():
                block = size * scenario.workload.block / repeat
                most[tier] = max(most.get(tier, 0.0), block)
    return most
