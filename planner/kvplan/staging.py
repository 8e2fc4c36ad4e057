"""Limits on the size of a staging buffer, and what follows from them for the fluid program.

A stage is no larger than the buffer it is held in. So a small buffer means many stages, each with
its fixed times, and a link that cannot run far ahead; a large one takes HBM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.statement import Statement, Sum
from kvplan.step import Operation, StepGraph

LINKS = ("h2d", "tier")
"""Resources that fill staging buffers."""


@dataclass(frozen=True, slots=True)
class Staging:
    """Plans whose largest stage is within limits, whatever the layers it is found in, and so is
    the largest part of a layer's weights that is streamed.

    Args:
        least_bytes: bytes of one staging buffer, at least.
        most_bytes: bytes of one staging buffer, at most.
        per_token: staging bytes per token of each variable of the graph that is staged.
        least_weights: bytes of one buffer of streamed weights, at least.
        most_weights: bytes of one buffer of streamed weights, at most.
    """

    least_bytes: float
    most_bytes: float
    per_token: dict[int, float] = field(default_factory=dict)
    least_weights: float = 0.0
    most_weights: float = float("inf")

    def least(self, holds: str) -> float:
        """Bytes of one buffer that holds stages or weights, at least."""
        return self.least_bytes if holds == "stages" else self.least_weights

    def ceiling(self, operation: Operation) -> float:
        """Most volume of an operation: what fits in a buffer, where it goes through one."""
        if operation.operation == "load_weights" and operation.bytes_per_unit > 0:
            return min(operation.ceiling, self.most_weights / operation.bytes_per_unit)
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


@dataclass(frozen=True, slots=True)
class Pause:
    """What lies around the head: from the last attend of a step to the first of the next, the GPU
    finishes the last layer, runs those without stages and the head, projects the first with stages
    and attends what it has resident. Meanwhile links can fill the staging buffers; beyond that they
    wait, or load weights.

    Args:
        behind_s: seconds that it takes, whatever the tokens.
        fixed_s: most seconds of each link that do not depend on tokens, over all buffers.
        s_per_byte: most seconds of each link per byte of a buffer.
        most_bytes: most bytes of all buffers.
    """

    behind_s: float = 0.0
    fixed_s: dict[str, float] = field(default_factory=dict)
    s_per_byte: dict[str, float] = field(default_factory=dict)
    most_bytes: float = 0.0

    def filling(self, columns: Mapping[str, int]) -> Sum:
        """Bytes that links fill buffers with, at least, over the column of each one's seconds; no
        more than ``most_bytes``.
        """
        terms = {column: 1.0 / self.s_per_byte[link] for link, column in columns.items()}
        return terms, -sum(self.fixed_s[link] / self.s_per_byte[link] for link in columns)


def define_staging(statement: Statement, staging: Staging, busy: Mapping[str, Sum]) -> None:
    """Size the staging buffers within the limits; links wait around the head."""
    statement.size_buffers(("stages",), staging.most_bytes)
    if staging.most_weights < float("inf"):
        statement.size_buffers(("weights",), staging.most_weights)
    for number, column in statement.largest.items():
        least = staging.least(statement.graph.buffers[number].holds)
        statement.rows.append(({column: -1.0}, -least, "staging[least]"))
    if statement.graph.schedule.stream_weights:
        return
    graph = statement.graph
    pause = pause_of(graph, statement.classes, staging)
    if not pause.s_per_byte:
        return
    behind_s = pause.behind_s / graph.cycles
    columns = {link: statement.column(behind_s, max(behind_s, 1e-12)) for link in pause.s_per_byte}
    for link, column in columns.items():
        terms, constant = busy[link]
        statement.within_period(({**terms, column: -1.0}, constant + behind_s), "idle_link")
    terms, constant = pause.filling(columns)
    filled = {column: value * graph.cycles for column, value in terms.items()}
    statement.rows.append((filled, pause.most_bytes - constant, "filling"))


def pause_of(graph: StepGraph, classes: Sequence[int], staging: Staging) -> Pause:
    """What lies around the head of a step; nothing where micro-batches follow each other."""
    if any(o.micro_batch for o in graph.operations):
        return Pause()
    between, last, first = around_head(graph, classes)
    counts, sides = Counter(between), {"finish": last, "project": first}
    behind_s, slope_s = head_s(graph), dict[str, float]()
    fixed_s: dict[tuple[str, int], dict[str | None, float]] = {}
    for operation in graph.operations:
        if operation.resource == "gpu" and operation.operation != "head":
            times = counts[operation.layer] + (sides.get(operation.operation) == operation.layer)
            if times:
                behind_s += own_s(graph, operation) * times
        link = operation.resource
        if link in LINKS and operation.stage is not None:
            pieces, size = operation.curve.pieces, staging.per_token[operation.variables[0]]
            most = max(p.fixed_s for p in pieces)
            fixed_s.setdefault((link, operation.layer), {})[operation.path] = most
            dearest = max(p.s_per_unit for p in pieces) / size
            slope_s[link] = max(slope_s.get(link, 0.0), dearest)
    behind_s += resident_s(graph, staging, first)
    depth = graph.schedule.queue_depth
    # A buffer holds any mix of paths, of a layer or of a group: all fixed parts, dearest slope.
    many = sum if graph.schedule.axis == "layer" else max
    return Pause(
        behind_s,
        {
            link: depth
            * many([sum(paths.values()) for (of, _), paths in fixed_s.items() if of == link])
            for link in slope_s
        },
        slope_s,
        depth * staging.most_bytes,
    )


def head_s(graph: StepGraph) -> float:
    """Seconds of the head of the whole step."""
    heads = (o.curve.seconds(0.0) for o in graph.operations if o.operation == "head")
    return sum(heads) * graph.cycles


def staging_layers(graph: StepGraph) -> set[int]:
    """Layers of a graph that may stage tokens."""
    return {o.layer for o in graph.operations if o.operation == "attend"}


def around_head(graph: StepGraph, classes: Sequence[int]) -> tuple[list[int], int, int]:
    """Layers between the last one of a step that may stage tokens and the first one of the next
    step, then these two: each as the layer of the graph that stands for it. Where weights are
    streamed, links load those of the layers between, so that none of these counts.
    """
    of = {classes[layer]: layer for layer in graph.tokens}
    holding = staging_layers(graph)
    order = [of[each] for each in classes]
    places = [place for place, layer in enumerate(order) if layer in holding]
    if graph.schedule.stream_weights or not places:
        return [], order[-1], order[0]
    first, last = places[0], places[-1]
    return order[last + 1 :] + order[:first], order[last], order[first]


def own_s(graph: StepGraph, operation: Operation) -> float:
    """Seconds of an operation of a layer without stages, whatever path its tokens take: none where
    they may be attended away.
    """
    if not operation.variables:
        return operation.curve.seconds(0.0)
    away = any(o.operation == "send_query" for o in graph.operations if o.layer == operation.layer)
    return 0.0 if away else operation.curve.seconds(float(graph.tokens[operation.layer]))


def resident_s(graph: StepGraph, staging: Staging, first: int) -> float:
    """Seconds that any layer with stages attends resident tokens: all that these cannot hold. None
    where the first layer behind the head has no stages.
    """
    holding = staging_layers(graph)
    if first not in holding or any(o.operation == "send_query" for o in graph.operations):
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
    return min(found.get(layer, 0.0) for layer in holding)
