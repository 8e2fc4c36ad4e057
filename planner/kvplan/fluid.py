"""The step graph with its order forgotten: only how much work each resource has.

What follows from the full program by adding up the precedence rows along each resource, and by
averaging over stages and equal layers, so its optimum is never above the full one's. It is small
whatever the model, so the search asks it first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan.chain import define_chain
from kvplan.errors import KvplanError
from kvplan.highs import Rows, minimise
from kvplan.staging import Staging, define_staging
from kvplan.statement import Statement, Sum, added
from kvplan.step import StepGraph


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


def bound(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
    *,
    staging: Staging | None = None,
) -> Fluid | None:
    """The least step any plan of this graph can have, or None where nothing fits.

    Args:
        graph: the step, with every path that may be used in its structure.
        classes: class number of every layer of the model; equal layers share one.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        staging: only plans whose staging buffers are within these limits; fixed parts of
            operations then weigh more.
    """
    statement = state(graph, classes, capacity, quality, staging=staging)
    return solve(statement)


def has_room(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
) -> bool:
    """Whether tiers can hold what is stored, buffers taking nothing: what every schedule needs.

    Arguments as those of `bound`.
    """
    statement = Statement(dataclasses.replace(graph, buffers=[]), classes)
    define_capacity(statement, capacity, widen=False)
    define_tokens(statement)
    define_quality(statement, quality or {})
    return solve(statement) is not None


def shortfall(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
) -> Fluid:
    """Widen tiers by as little as makes a plan possible."""
    found = solve(state(graph, classes, capacity, quality, widen=True))
    if found is None:
        raise KvplanError("no plan exists even with unlimited memory")
    return found


def state(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float] | None = None,
    *,
    widen: bool = False,
    staging: Staging | None = None,
) -> Statement:
    """State the program. Arguments as those of `bound`; ``widen`` gives each tier more bytes, of
    which the least are asked for instead of the least step.
    """
    statement = Statement(graph, classes)
    define_resources(statement, staging)
    if len({classes[layer] for layer in graph.tokens}) > 1:
        statement.size_buffers(("stages", "weights", "disk_reads"))
    define_capacity(statement, capacity, widen)
    define_tokens(statement)
    define_quality(statement, quality or {})
    return statement


def solve(statement: Statement) -> Fluid | None:
    """Solve a stated program; None where nothing fits."""
    scale, rows = statement.scale, Rows()
    row_scale = [rows.add_scaled(terms, most, scale) for terms, most, _ in statement.rows]
    for terms, total, _ in statement.equal:
        rows.add_scaled(terms, total, scale, equal=True)
    aim = statement.slack.values() or [statement.period]
    limits = [
        (0.0, None if u is None else u / s) for u, s in zip(statement.upper, scale, strict=True)
    ]
    found = minimise(dict.fromkeys(aim, 1.0), rows, limits)
    if found is None:
        return None
    values = [max(0.0, value * size) for value, size in zip(found.values, scale, strict=True)]
    cycles = statement.graph.cycles
    duals = {
        name: max(0.0, -dual / divided) * statement.time_s * cycles
        for (_, _, name), dual, divided in zip(statement.rows, found.duals, row_scale, strict=False)
    }
    return Fluid(
        step_s=values[statement.period] * cycles,
        tokens={key: values[column] for key, column in statement.of.items()},
        shortfall_bytes={tier: values[c] for tier, c in statement.slack.items()},
        capacity_s_per_byte={n[9:-1]: d for n, d in duals.items() if n.startswith("capacity[")},
        resource_weight={
            n[9:-1]: d / cycles for n, d in duals.items() if n.startswith("resource[")
        },
    )


def define_resources(statement: Statement, staging: Staging | None) -> None:
    """For each resource: the durations of its operations add up to at most T."""
    operations = statement.graph.operations
    taken = [
        statement.duration(o, staging.ceiling(o) if staging else o.ceiling) for o in operations
    ]
    busy: dict[str, Sum] = {}
    for operation, part in zip(operations, taken, strict=True):
        if operation.resource is not None:
            known = busy.get(operation.resource, ({}, 0.0))
            busy[operation.resource] = added(known, part, statement.graph.copies_of(operation))
    if staging is not None:
        define_staging(statement, staging, busy)
    for resource, total in busy.items():
        statement.within_period(total, f"resource[{resource}]")
    define_chain(statement, taken)


def define_capacity(statement: Statement, capacity: Mapping[str, float], widen: bool) -> None:
    """For each tier: constant, stored and buffers (at their mean tenant, or their size) fit."""
    graph = statement.graph
    for tier, limit in capacity.items():
        stored = {
            i: v.stored[tier] for i, v in enumerate(graph.variables) if v.stored.get(tier, 0.0)
        }
        total: Sum = (statement.whole(stored), graph.constant_bytes.get(tier, 0.0))
        for number, buffer in enumerate(graph.buffers):
            if tier in buffer.tiers:
                column = statement.largest.get(number)
                size = {column: 1.0} if column is not None else statement.mean_tenant(buffer)
                total = added(total, ({c: buffer.count * v for c, v in size.items()}, 0.0))
        terms, constant = total
        if widen:
            column = statement.column(None, max(limit, constant, 2.0**30))
            statement.slack[tier] = column
            terms[column] = -1.0
        statement.rows.append((terms, limit - constant, f"capacity[{tier}]"))


def define_tokens(statement: Statement) -> None:
    """For each class: the tokens of its paths add up to the tokens a layer caches."""
    tokens = {statement.classes[layer]: n for layer, n in statement.graph.tokens.items()}
    for each, count in tokens.items():
        terms = {
            c: 1.0
            for (of, path), c in statement.of.items()
            if of == each and path != "stream_weights"
        }
        statement.equal.append((terms, float(count), f"tokens[{each}]"))


def define_quality(statement: Statement, quality: Mapping[str, float]) -> None:
    """For each inexact path with a limit: its tokens are at most its share of all tokens."""
    graph = statement.graph
    for path, share in quality.items():
        members = {i: 1.0 for i, v in enumerate(graph.variables) if v.path == path}
        if members and share < 1:
            limit = share * sum(n * graph.copies.get(layer, 1) for layer, n in graph.tokens.items())
            statement.rows.append((statement.whole(members), limit, f"quality[{path}]"))
