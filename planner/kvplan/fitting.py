"""From a candidate's fractional tokens to whole blocks that fit every tier."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from kvplan import fluid
from kvplan.allocation import Allocation, rounded
from kvplan.candidates import Candidate, cyclic, streamed, targets, unit_layers
from kvplan.evaluate import Evaluation, evaluate, overflow
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.step import StepGraph

SPLITS = 16
"""Splits tried where nothing else fits."""


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
    """The best whole-block plan of a candidate that fits every tier; None where none does."""
    return min(roundings(scenario, candidate), key=lambda e: e.step_s, default=None)


def roundings(scenario: Scenario, candidate: Candidate) -> Iterator[Evaluation]:
    """Whole-block plans of a candidate that fit every tier.

    What attends tokens where they lie needs the query first and cannot work ahead, as the link
    does, so a layer with one block more there is late. Whole blocks below and above the wanted
    tokens, the same in all equal layers, are tried beside blocks that differ between layers.
    """
    for trial in (
        candidate,
        whole_blocks_away(scenario, candidate, up=False),
        whole_blocks_away(scenario, candidate, up=True),
    ):
        found = fit(scenario, trial) if trial is not None else None
        if found is not None:
            yield found


def fit(scenario: Scenario, trial: Candidate) -> Evaluation | None:
    """Round a candidate; where rounding overflows a tier, plan again with that much less."""
    capacity = dict(scenario.capacity)
    layers = len(scenario.model.layers)
    quality = {**scenario.quality, **away_shares(scenario, trial)}
    margin = block_bytes(scenario)
    repeats = unit_layers(scenario.model, cyclic(trial.schedule)) is not None
    for _ in range(8):
        allocation = round_to(scenario, trial, trial.pattern, scenario.workload.block, layers)
        shares = streamed(scenario, trial.relaxation)
        over = None
        if repeats:  # the graph of a unit is small
            held = memory_bytes(trial.unit, allocation, shares)
            over = overflow(held, scenario.capacity)
        if over is None:
            evaluation = evaluate(scenario, trial.schedule, allocation, shares)
            over = evaluation.overflow(scenario.capacity)
            if over is None:
                return evaluation
        capacity[over[0]] -= over[1] + margin.get(over[0], 0.0)
        relaxation = fluid.bound(trial.flow, scenario.classes, capacity, quality)
        if relaxation is None:
            return None
        trial = dataclasses.replace(trial, relaxation=relaxation)
    return None


def memory_bytes(
    unit: StepGraph, allocation: Allocation, shares: Sequence[float]
) -> dict[str, float]:
    """Bytes per tier of a whole allocation, read off the graph of one unit.

    Layer i of the model is layer i modulo the unit's length of the unit; equal runs of layers are
    added up once.
    """
    length = len(unit.tokens)
    repeat = len(allocation) // length
    index = {(v.layer, v.stage, v.path): i for i, v in enumerate(unit.variables)}
    total = dict.fromkeys(("hbm", "dram", "pinned", "disk"), 0.0) | unit.constant_bytes
    largest = [0.0] * len(unit.buffers)
    groups = 1 + max((v.stage for v in unit.variables if v.stage is not None), default=0)
    runs: dict[object, tuple[int, int]] = {}
    for cycle in range(repeat):
        own = slice(cycle * length, (cycle + 1) * length)
        like = None if unit.schedule.axis == "token" else cycle
        key = (like, tuple(allocation[own]), tuple(shares[own]))
        runs[key] = (cycle, runs.get(key, (cycle, 0))[1] + 1)
    for cycle, count in runs.values():
        values = [0.0] * len(unit.variables)
        for layer in range(length):
            number = cycle * length + layer
            if (layer, None, "stream_weights") in index:
                values[index[layer, None, "stream_weights"]] = shares[number]
            for segment in allocation[number]:
                stage = segment.stage
                if stage is not None and unit.schedule.axis == "layer":
                    stage -= cycle * groups
                values[index[layer, stage, segment.path]] += segment.tokens
        for variable, value in zip(unit.variables, values, strict=True):
            for tier, size in variable.stored.items():
                total[tier] = total.get(tier, 0.0) + size * value * count / repeat
        for number, buffer in enumerate(unit.buffers):
            sizes = (sum(b * values[v] for v, b in t.items()) for t in buffer.tenants)
            largest[number] = max(largest[number], *sizes)
    for size, buffer in zip(largest, unit.buffers, strict=True):
        for tier in buffer.tiers:
            total[tier] = total.get(tier, 0.0) + buffer.count * size
    return total


def simplest(scenario: Scenario, candidate: Candidate) -> Evaluation | None:
    """For tight memory and few blocks: one path for what is not resident, and as much resident as
    fits. Tries every such split, coarsely where there are many blocks.
    """
    layers = range(len(scenario.model.layers))
    block = scenario.workload.block
    most = max(-(-scenario.cached_tokens(i) // block) for i in layers)
    names = scenario.path_names
    keeps = "resident" in names
    best: Evaluation | None = None
    for name in (n for n in names if n != "resident"):
        for kept in sorted({most * i // SPLITS for i in range(SPLITS)}, reverse=True):
            if kept and not keeps:
                continue
            wanted = [{name: float(most - kept), "resident": float(kept)} for _ in layers]
            allocation = rounded(
                [scenario.cached_tokens(i) for i in layers],
                wanted,
                scenario.classes,
                candidate.schedule.axis,
                candidate.schedule.stages,
                block,
            )
            shares = streamed(scenario, candidate.relaxation)
            evaluation = evaluate(scenario, candidate.schedule, allocation, shares)
            if evaluation.overflow(scenario.capacity) is None:
                if best is None or evaluation.step_s < best.step_s:
                    best = evaluation
                break
    return best


def away_shares(scenario: Scenario, candidate: Candidate) -> dict[str, float]:
    """Share of all tokens that each path attended where it lies takes."""
    total = sum(scenario.cached_tokens(i) for i in range(len(scenario.model.layers)))
    shares: dict[str, float] = {}
    for wanted in targets(scenario, candidate.relaxation):
        for name, tokens in wanted.items():
            if attends(name, "away") and total:
                shares[name] = shares.get(name, 0.0) + tokens / total
    return shares


def whole_blocks_away(scenario: Scenario, candidate: Candidate, *, up: bool) -> Candidate | None:
    """The candidate with whole blocks attended where they lie; staged paths take up the rest.

    Returns:
        None where nothing is attended away, or nothing is staged that could take up the rest.
    """
    block, tokens = scenario.workload.block, dict(candidate.relaxation.tokens)
    changed = False
    for (of, name), count in candidate.relaxation.tokens.items():
        if not attends(name, "away") or count <= 0:
            continue
        whole = float((int(count / block + 1e-6) + up) * block)
        others = {k: t for k, t in tokens.items() if k[0] == of and attends(k[1], "stage")}
        total = sum(others.values())
        if total <= max(whole - count, 0.0):
            return None
        for key, staged in others.items():
            tokens[key] = staged * (1 + (count - whole) / total)
        tokens[of, name] = whole
        changed = True
    if not changed:
        return None
    relaxation = dataclasses.replace(candidate.relaxation, tokens=tokens)
    return dataclasses.replace(candidate, relaxation=relaxation)


def attends(name: str, place: str) -> bool:
    """Whether a name is a path whose tokens are attended in a place."""
    return name in REGISTRY and REGISTRY[name].attends == place


def block_bytes(scenario: Scenario) -> dict[str, float]:
    """Bytes that rounding one block of one layer can move in each tier."""
    load = scenario.workload
    most: dict[str, float] = {}
    for layer, paths in scenario.paths.items():
        for path in paths:
            for tier, size in path.stored(layer, load.kv_dtype).items():
                most[tier] = max(most.get(tier, 0.0), size * load.batch * load.block)
    return most
