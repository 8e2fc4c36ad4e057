"""The step graph with its order forgotten: only how much work each resource has.

What follows from the full program by adding up the precedence rows along each resource, and by
averaging over stages and equal layers, so its optimum is never above the full one's. It is small
whatever the model, so the search asks it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvplan.errors import KvplanError
from kvplan.highs import minimise
from kvplan.program import Array, in_proportion
from kvplan.step import Operation, StepGraph


@dataclass(frozen=True, slots=True)
class Fluid:
    """An optimum of the fluid program.

    Args:
        step_s: lower bound on the step, seconds.
        tokens: tokens per sequence of every layer of a class that take each path, or the share
            of streamed weights under ``stream_weights``; by (class, path).
        shortfall_bytes: bytes by which each tier had to be widened (see `shortfall`).
        capacity_s_per_byte: dual of each tier: how much a byte more shortens the step.
        resource_weight: dual of each resource: how much the step shortens per second less work.
    """

    step_s: float
    tokens: dict[tuple[int, str], float]
    shortfall_bytes: dict[str, float]
    capacity_s_per_byte: dict[str, float]
    resource_weight: dict[str, float]


@dataclass(frozen=True, slots=True)
class Staging:
    """Limits on the tokens that each layer sends through the pipeline.

    Args:
        least: tokens per layer, at least.
        most: tokens per layer, at most.
        block: tokens per block; equal layers stage within one block of each other.
    """

    least: float
    most: float
    block: int

    def always(self, graph: StepGraph, operation: Operation) -> bool:
        """Whether an operation is there in every plan: with a block for every stage, its attend."""
        stages = graph.schedule.stages if graph.schedule.axis == "token" else 1
        return operation.operation == "attend" and self.least >= stages * self.block

    def ceiling(self, graph: StepGraph, operation: Operation) -> float:
        """Most volume of an operation under these limits."""
        if operation.stage is None:
            return min(operation.ceiling, max(graph.tokens.values()) - self.least)
        blocks = -(-self.most // self.block)
        if graph.schedule.axis == "token":
            blocks = -(-blocks // graph.schedule.stages)
        return min(operation.ceiling, max(blocks, 1.0) * self.block)


def bound(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
    staging: Staging | None = None,
) -> Fluid | None:
    """The least step any plan of this graph can have, or None where nothing fits.

    Args:
        graph: the step, with every path that may be used in its structure.
        classes: class number of every layer of the model; equal layers share one.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        staging: only plans within these limits; fixed parts of operations then weigh more.
    """
    return _solve(graph, classes, capacity, quality or {}, False, staging)


def shortfall(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
) -> Fluid:
    """Widen tiers by as little as makes a plan possible."""
    found = _solve(graph, classes, capacity, quality or {}, True, None)
    if found is None:
        raise KvplanError("no plan exists even with unlimited memory")
    return found


_Row = tuple[dict[int, float], float, str]
"""Terms, upper bound, name."""


@dataclass(slots=True)
class _Columns:
    """Columns of the fluid program: one per (class, path), then T, durations, buffers, slack."""

    of: dict[tuple[int, str], int]
    upper: list[float | None]
    scale: list[float]

    def add(self, upper: float | None, scale: float) -> int:
        self.upper.append(upper)
        self.scale.append(scale)
        return len(self.scale) - 1


def _solve(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    widen: bool,
    staging: Staging | None,
) -> Fluid | None:
    columns, column_of, share_of = _columns(graph, classes)
    rows: list[_Row] = []
    period = _resource_rows(graph, columns, column_of, share_of, rows, staging)
    if staging is not None:
        _staging_rows(graph, column_of, share_of, staging, rows)
    slack = _capacity_rows(graph, columns, column_of, share_of, capacity, widen, rows)
    equal = _token_rows(graph, classes, columns)
    for path, share in quality.items():
        terms: dict[int, float] = {}
        for index, variable in enumerate(graph.variables):
            if variable.path == path:
                terms[column_of[index]] = terms.get(column_of[index], 0.0) + share_of[index]
        if terms and share < 1:
            rows.append((terms, share * sum(graph.tokens.values()), f"quality[{path}]"))
    scale = np.asarray(columns.scale)
    matrix, bounds, row_scale = _dense(rows, scale)
    equal_matrix, equal_bounds, _ = _dense(equal, scale)
    cost = np.zeros(len(scale))
    for column in slack.values():
        cost[column] = 1.0
    if not widen:
        cost[period] = 1.0
    limits = [
        (0.0, None if u is None else u / s) for u, s in zip(columns.upper, scale, strict=True)
    ]
    result = minimise(cost, matrix, bounds, equal_matrix, equal_bounds, limits)
    if result is None:
        return None
    values = np.maximum(result.x * scale, 0.0)
    gain = np.maximum(-result.ineqlin.marginals / row_scale, 0.0)
    duals = {
        row[2]: float(g) * columns.scale[period] * graph.cycles
        for row, g in zip(rows, gain, strict=True)
    }
    return Fluid(
        step_s=float(values[period]) * graph.cycles,
        tokens={key: float(values[column]) for key, column in columns.of.items()},
        shortfall_bytes={tier: float(values[column]) for tier, column in slack.items()},
        capacity_s_per_byte={tier: duals[f"capacity[{tier}]"] for tier in capacity},
        resource_weight={
            n[9:-1]: d / graph.cycles for n, d in duals.items() if n.startswith("resource[")
        },
    )


def _columns(graph: StepGraph, classes: Sequence[int]) -> tuple[_Columns, list[int], list[float]]:
    """One column per (class, path); for each variable its column and its share of it."""
    columns = _Columns({}, [], [])
    column_of: list[int] = []
    members: dict[tuple[int, str, int], int] = {}
    for variable in graph.variables:
        key = (classes[variable.layer], variable.path)
        if key not in columns.of:
            whole = graph.tokens[variable.layer]
            most = 1.0 if variable.path == "stream_weights" else float(whole)
            columns.of[key] = columns.add(most, most)
        column_of.append(columns.of[key])
        each = (*key, variable.layer)
        members[each] = members.get(each, 0) + 1
    share_of = [1.0 / members[classes[v.layer], v.path, v.layer] for v in graph.variables]
    return columns, column_of, share_of


@dataclass(slots=True)
class _Durations:
    """Durations of operations over the fluid program's columns.

    A curve of several pieces gets a column of its own, shared by operations that are equal.
    """

    graph: StepGraph
    columns: _Columns
    column_of: Sequence[int]
    share_of: Sequence[float]
    rows: list[_Row]
    staging: Staging | None
    time_s: float
    many: dict[object, int] = field(default_factory=dict)

    def of(self, operation: Operation) -> tuple[dict[int, float], float]:
        """Terms and constant of one operation's duration."""
        if not operation.variables:
            return {}, operation.curve.seconds(0.0)
        staging = self.staging
        ceiling = staging.ceiling(self.graph, operation) if staging else operation.ceiling
        pieces = list(operation.curve.pieces)
        if staging is None or not staging.always(self.graph, operation):
            pieces = [in_proportion(p, max(ceiling, 1e-9)) for p in pieces]
        volume: dict[int, float] = {}
        for v in operation.variables:
            column = self.column_of[v]
            volume[column] = volume.get(column, 0.0) + self.share_of[v]
        if len(pieces) == 1:
            return {c: s * pieces[0].s_per_unit for c, s in volume.items()}, pieces[0].fixed_s
        key = (id(operation.curve), ceiling, tuple(sorted(volume.items())))
        if key not in self.many:
            self.many[key] = self.columns.add(None, self.time_s)
            for piece in pieces:
                row = {c: s * piece.s_per_unit for c, s in volume.items()}
                self.rows.append(({**row, self.many[key]: -1.0}, -piece.fixed_s, "duration"))
        return {self.many[key]: 1.0}, 0.0


def _time_scale(graph: StepGraph) -> float:
    """Seconds near the period: the busiest resource if every operation took half of its most."""
    busy: dict[str, float] = {}
    for operation in graph.operations:
        if operation.resource is not None:
            seconds = operation.curve.seconds(operation.ceiling / 2)
            busy[operation.resource] = busy.get(operation.resource, 0.0) + seconds
    return max(busy.values(), default=0.0) or 1.0


_Sum = tuple[dict[int, float], float]
"""Terms and constant of a sum of durations."""


def _add(total: _Sum, part: _Sum) -> _Sum:
    terms, constant = total
    for column, value in part[0].items():
        terms[column] = terms.get(column, 0.0) + value
    return terms, constant + part[1]


def _resource_rows(
    graph: StepGraph,
    columns: _Columns,
    column_of: Sequence[int],
    share_of: Sequence[float],
    rows: list[_Row],
    staging: Staging | None,
) -> int:
    """For each resource: the durations of its operations add up to at most T."""
    time_s = _time_scale(graph)
    period = columns.add(None, time_s)
    durations = _Durations(graph, columns, column_of, share_of, rows, staging, time_s)
    taken = [durations.of(operation) for operation in graph.operations]
    busy: dict[str, _Sum] = {}
    for operation, part in zip(graph.operations, taken, strict=True):
        if operation.resource is not None:
            busy[operation.resource] = _add(busy.get(operation.resource, ({}, 0.0)), part)
    if staging is not None and "h2d" in busy:
        terms, constant = busy["h2d"]
        idle_s = idle_link_s(graph, staging)
        rows.append(({**terms, period: -1.0}, -constant - idle_s, "idle_link"))
    for resource, (terms, constant) in busy.items():
        rows.append(({**terms, period: -1.0}, -constant, f"resource[{resource}]"))
    _layer_rows(graph, columns, taken, rows, period, time_s)
    return period


def _layer_rows(
    graph: StepGraph,
    columns: _Columns,
    taken: Sequence[_Sum],
    rows: list[_Row],
    period: int,
    time_s: float,
) -> None:
    """For the chain of layers: project, the longer of what the GPU and each path attended away
    take, and finish, summed over layers and the head, are at most T.
    """
    around: _Sum = ({}, 0.0)
    branches: dict[int, dict[str, _Sum]] = {}
    for operation, part in zip(graph.operations, taken, strict=True):
        if operation.micro_batch:
            continue
        if operation.operation in ("project", "finish", "head"):
            around = _add(around, part)
            continue
        away = (
            operation.stage is None and operation.path and operation.resource not in ("d2h", "h2d")
        )
        if operation.resource == "gpu":
            name = "gpu"
        elif away and operation.operation != "load_weights":
            name = str(operation.path)
        else:
            continue
        own = branches.setdefault(operation.layer, {})
        own[name] = _add(own.get(name, ({}, 0.0)), part)
    if all(set(own) == {"gpu"} for own in branches.values()):
        return  # the GPU's own row says as much
    chain: _Sum = around
    spans: dict[object, int] = {}
    for own in branches.values():
        key = tuple((name, tuple(sorted(t.items())), c) for name, (t, c) in sorted(own.items()))
        if key not in spans:
            spans[key] = columns.add(None, time_s)
            for terms, constant in own.values():
                rows.append(({**terms, spans[key]: -1.0}, -constant, "span"))
        chain = _add(chain, ({spans[key]: 1.0}, 0.0))
    rows.append(({**chain[0], period: -1.0}, -chain[1], "chain"))


def idle_link_s(graph: StepGraph, staging: Staging) -> float:
    """Seconds per cycle that the link must wait around the head, whatever the tokens.

    From the last attend of a step to the first of the next, the GPU finishes the last layer, runs
    the head and projects the first. Meanwhile the link can fill the staging buffers and no more.
    Across a barrier it cannot fill any.
    """
    schedule = graph.schedule
    kinds = {"finish": 0.0, "head": 0.0, "project": 0.0}
    copies: dict[str | None, tuple[float, float]] = {}
    for operation in graph.operations:
        if operation.micro_batch:
            return 0.0
        if operation.operation in kinds and operation.layer == max(graph.tokens):
            share = graph.cycles if operation.operation == "head" else 1
            kinds[operation.operation] = operation.curve.seconds(0.0) * share
        if operation.resource == "h2d" and operation.stage is not None:
            piece = max(operation.curve.pieces, key=lambda p: p.s_per_unit)
            most = max(p.fixed_s for p in operation.curve.pieces)
            copies[operation.path] = (most, piece.s_per_unit)
    if not copies:
        return 0.0
    # A stage holds at most `blocks` blocks, on any mix of paths: all fixed parts, dearest slope.
    blocks = max(-(-staging.most // staging.block), 1.0)
    if schedule.axis == "token":
        tokens = -(-blocks // schedule.stages) * staging.block
    else:
        tokens = blocks * staging.block * max(len(graph.tokens), 1)
    layers = len(graph.tokens) if schedule.axis == "layer" else 1
    fixed_s = sum(f for f, _ in copies.values()) * layers
    fill_s = fixed_s + max(s for _, s in copies.values()) * tokens
    if schedule.boundary == "barrier":
        return (kinds["finish"] + kinds["head"]) / graph.cycles
    return max(sum(kinds.values()) - schedule.queue_depth * fill_s, 0.0) / graph.cycles


def _staging_rows(
    graph: StepGraph,
    column_of: Sequence[int],
    share_of: Sequence[float],
    staging: Staging,
    rows: list[_Row],
) -> None:
    """For the tokens of a layer that go through the pipeline: least <= sum <= most."""
    terms: dict[int, float] = {}
    for index, variable in enumerate(graph.variables):
        if variable.stage is not None:
            share = share_of[index] / len(graph.tokens)
            terms[column_of[index]] = terms.get(column_of[index], 0.0) + share
    rows.append((terms, staging.most, "staging[most]"))
    rows.append(({c: -v for c, v in terms.items()}, -staging.least, "staging[least]"))


def _capacity_rows(
    graph: StepGraph,
    columns: _Columns,
    column_of: Sequence[int],
    share_of: Sequence[float],
    capacity: Mapping[str, float],
    widen: bool,
    rows: list[_Row],
) -> dict[str, int]:
    """For each tier: constant, stored and buffers (at their mean tenant) fit."""
    slack = {}
    for tier, limit in capacity.items():
        terms: dict[int, float] = {}
        for index, variable in enumerate(graph.variables):
            size = variable.stored.get(tier, 0.0) * share_of[index]
            if size:
                terms[column_of[index]] = terms.get(column_of[index], 0.0) + size
        for buffer in graph.buffers:
            if tier not in buffer.tiers:
                continue
            each = buffer.count / len(buffer.tenants)
            for tenant in buffer.tenants:
                for v, size in tenant.items():
                    held = size * share_of[v] * each
                    terms[column_of[v]] = terms.get(column_of[v], 0.0) + held
        if widen:
            slack[tier] = columns.add(
                None, max(limit, graph.constant_bytes.get(tier, 0.0), 2.0**30)
            )
            terms[slack[tier]] = -1.0
        rows.append((terms, limit - graph.constant_bytes.get(tier, 0.0), f"capacity[{tier}]"))
    return slack


def _token_rows(graph: StepGraph, classes: Sequence[int], columns: _Columns) -> list[_Row]:
    """For each class: the tokens of its paths add up to the tokens a layer caches."""
    tokens = {classes[layer]: float(count) for layer, count in graph.tokens.items()}
    return [
        (
            {
                c: 1.0
                for (of, path), c in columns.of.items()
                if of == each and path != "stream_weights"
            },
            count,
            f"tokens[{each}]",
        )
        for each, count in tokens.items()
    ]


def _dense(rows: Sequence[_Row], scale: Array) -> tuple[Array, Array, Array]:
    """Dense scaled matrix: columns by their scale, rows by their largest entry."""
    matrix = np.zeros((len(rows), len(scale)))
    for number, (terms, _, _) in enumerate(rows):
        for column, value in terms.items():
            matrix[number, column] = value * scale[column]
    largest = np.abs(matrix).max(axis=1, initial=0.0)
    largest[largest == 0.0] = 1.0
    bounds = np.array([limit for _, limit, _ in rows]) / largest
    return matrix / largest[:, None], bounds, largest
