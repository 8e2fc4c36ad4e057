"""Limits on the size of a staging buffer, and what follows from them for the fluid program.

A stage is no larger than the buffer it is held in. So a small buffer means many stages, each with
its fixed times, and a link that cannot run far ahead; a large one takes HBM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.statement import Statement, Sum
from kvplan.step import Operation, StepGraph


@dataclass(frozen=True, slots=True)
class Staging:
    """Plans whose largest stage is within limits, whatever the layers it is found in.

    Args:
        least_bytes: bytes of one staging buffer, at least.
        most_bytes: bytes of one staging buffer, at most.
        per_token: staging bytes per token of each variable of the graph that is staged.
    """

    least_bytes: float
    most_bytes: float
    per_token: dict[int, float] = field(default_factory=dict)

    def ceiling(self, operation: Operation) -> float:
        """Most volume of an operation: what fits in a buffer, where it is staged."""
        sizes = [self.per_token[v] for v in operation.variables if v in self.per_token]
        if operation.stage is None or not sizes or min(sizes) <= 0:
            return operation.ceiling
        return min(operation.ceiling, self.most_bytes / min(sizes))


def staging_bytes(graph: StepGraph) -> dict[int, float]:
    """Staging bytes per token of every variable that goes through a staging buffer."""
    return {
        variable: size
        for buffer in graph.buffers
        if buffer.holds == "stages"
        for tenant in buffer.tenants
        for variable, size in tenant.items()
    }


def define_staging(statement: Statement, staging: Staging, link: Sum) -> None:
    """Size the staging buffers within the limits; the link waits around the head."""
    statement.size_buffers(("stages",), staging.most_bytes)
    for number, column in statement.largest.items():
        assert statement.graph.buffers[number].holds == "stages", "others are sized later"
        statement.rows.append(({column: -1.0}, -staging.least_bytes, "staging[least]"))
    if not statement.graph.schedule.stream_weights:
        statement.within_period(
            link, "idle_link", -idle_link_s(statement.graph, statement.classes, staging)
        )


def idle_link_s(graph: StepGraph, classes: Sequence[int], staging: Staging) -> float:
    """Seconds per cycle around the head in which the link has nothing to copy, whatever the tokens.

    From the last attend of a step to the first of the next, the GPU finishes the last layer, runs
    the head, projects the first and attends what it has resident. Meanwhile the link can fill the
    staging buffers; beyond that it waits, or loads weights.
    """
    first = min(layer for layer in graph.tokens if classes[layer] == classes[0])
    last = max(layer for layer in graph.tokens if classes[layer] == classes[-1])
    behind_s, fill_s = 0.0, 0.0
    fixed_s: dict[int, dict[str | None, float]] = {}
    for operation in graph.operations:
        if operation.micro_batch:
            return 0.0
        place = {"finish": last, "head": last, "project": first}.get(operation.operation)
        if operation.layer == place:
            share = graph.cycles if operation.operation == "head" else 1
            behind_s += operation.curve.seconds(0.0) * share
        if operation.resource == "h2d" and operation.stage is not None:
            pieces, size = operation.curve.pieces, staging.per_token[operation.variables[0]]
            most = max(p.fixed_s for p in pieces)
            fixed_s.setdefault(operation.layer, {})[operation.path] = most
            fill_s = max(fill_s, max(p.s_per_unit for p in pieces) / size * staging.most_bytes)
    behind_s += resident_s(graph, staging)
    # A buffer holds any mix of paths, of a layer or of a group: all fixed parts, dearest slope.
    each = [sum(paths.values()) for paths in fixed_s.values()]
    if not each:
        return 0.0
    fill_s += sum(each) if graph.schedule.axis == "layer" else max(each)
    return max(behind_s - graph.schedule.queue_depth * fill_s, 0.0) / graph.cycles


def resident_s(graph: StepGraph, staging: Staging) -> float:
    """Seconds that any layer attends resident tokens: all that its stages cannot hold."""
    if any(o.operation == "send_query" for o in graph.operations):
        return 0.0
    stages = graph.schedule.stages if graph.schedule.axis == "token" else 1
    most = stages * staging.most_bytes / min(staging.per_token.values())
    found = {
        o.layer: o.curve.seconds(graph.tokens[o.layer] - most)
        if graph.tokens[o.layer] > most
        else 0.0
        for o in graph.operations
        if o.operation == "attend_resident"
    }
    return min(found.get(layer, 0.0) for layer in graph.tokens)
