"""Waits for a free staging buffer, in the fluid program of a step that streams weights.

A copy waits until the stage of Q stages before has been attended, and the next layer's weights
wait behind the copies. Two kinds of layers wait less, so their share is a column, and both cost
memory, since tokens that do not cross the link are in HBM or stay on the host:

- A layer with an empty stage. In the chain of waits it counts as its weights and its finish alone:
  everything else in it could happen at the moment when both the layer before has finished and its
  weights have come. Nothing that follows would be later, because the weights of the layer behind
  wait for the same two.
- A layer whose last stages have nothing to copy: the weights behind them start earlier, by no
  longer than it takes to copy, rebuild and attend the stages whose buffers these would wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.statement import Statement, Sum, Terms, added
from kvplan.step import Operation, StepGraph

IN_CHAIN = ("h2d", "gpu")
"""Resources whose operations are in the chain of waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Which plans the waits must hold for.

    Args:
        block: tokens of the largest block a plan may be made of.
    """

    block: int


def unevenness(tokens: int, block: int) -> int:
    """Tokens by which a stage of whole blocks differs from the mean of its layer at most.

    Stages differ by one block; where the last block is a part of one, by up to two.

    >>> unevenness(4096, 64), unevenness(4100, 64)
    (64, 128)
    """
    return block if tokens % block == 0 else 2 * block


def applies(graph: StepGraph) -> bool:
    """Whether the waits are those assumed here: token ranges, weights streamed in every layer, one
    micro-batch, copies that wait for the link and for buffers alone.
    """
    loaded = {o.layer for o in graph.operations if o.operation == "load_weights"}
    single = all(o.micro_batch == 0 for o in graph.operations)
    others = {o.resource for o in graph.operations} & {"disk", "cpu"}
    schedule = graph.schedule
    return (
        schedule.axis == "token"
        and schedule.boundary == "overlap"
        and schedule.prefetch
        and single
        and not others
        and loaded == set(graph.tokens)
    )


def define_waiting(statement: Statement, waiting: Waiting) -> None:
    """For each wait of the link and the GPU: start + duration - lag * T <= start."""
    graph = statement.graph
    if not applies(graph):
        return
    statement.size_buffers(("stages",))
    empty = {layer: statement.column(1.0, 1.0) for layer in graph.tokens}
    early = {
        (layer, stage): statement.column(1.0, 1.0)
        for layer in graph.tokens
        for stage in range(graph.schedule.queue_depth, graph.schedule.stages)
    }
    held = _held(statement, empty)
    _even(statement, waiting, held)
    _irregular(statement, waiting, empty, early)
    for number, column in statement.largest.items():
        for tenant in graph.buffers[number].tenants:
            sizes = {held[v]: size for v, size in tenant.items()}
            statement.rows.append(({**sizes, column: -1.0}, 0.0, "buffer"))
    kept = [i for i, o in enumerate(graph.operations) if _in_chain(o)]
    start = {i: statement.column(None, statement.time_s) for i in kept}
    taken = {i: _taken(statement, graph.operations[i], held, empty) for i in kept}
    longest = {layer: _stage_s(graph, layer, waiting) for layer in graph.tokens}
    for index in kept:
        operation = graph.operations[index]
        for before, lag in _waits(graph, index):
            terms, constant = added(({start[before]: 1.0}, 0.0), taken[before])
            terms, _ = added((terms, 0.0), ({start[index]: -1.0, statement.period: -lag}, 0.0))
            if (index, before, lag) in graph.buffer_edges and operation.resource == "h2d":
                for (layer, stage), column in early.items():
                    if layer == operation.layer and stage <= (operation.stage or 0):
                        terms[column] = -longest[layer][stage == graph.schedule.queue_depth]
            statement.rows.append((terms, -constant, "waiting"))


def _held(statement: Statement, empty: dict[int, int]) -> dict[int, int]:
    """For each variable a column: its tokens in layers without an empty stage, as a mean over all
    layers. In these layers as in all, tokens add up.
    """
    graph = statement.graph
    held = {
        index: statement.column(variable.ceiling, max(variable.ceiling, 1e-9))
        for index, variable in enumerate(graph.variables)
        if variable.path != "stream_weights"
    }
    for layer, tokens in graph.tokens.items():
        own = {c: 1.0 for i, c in held.items() if graph.variables[i].layer == layer}
        statement.equal.append(({**own, empty[layer]: float(tokens)}, float(tokens), "held"))
    parts: dict[int, Terms] = {column: {} for column in statement.of.values()}
    layers: dict[int, int] = {}
    for layer in graph.tokens:
        layers[statement.classes[layer]] = layers.get(statement.classes[layer], 0) + 1
    for index, column in held.items():
        share = 1.0 / layers[statement.classes[graph.variables[index].layer]]
        parts[statement.column_of[index]][column] = share
    for column, terms in parts.items():
        if terms:
            statement.rows.append(({**terms, column: -1.0}, 0.0, "held_path"))
    return held


def _even(statement: Statement, waiting: Waiting, held: dict[int, int]) -> None:
    """For each stage: its tokens are near the mean stage of its layer."""
    graph, stages = statement.graph, statement.graph.schedule.stages
    for layer, tokens in graph.tokens.items():
        staged = {
            column: graph.variables[i].stage
            for i, column in held.items()
            if graph.variables[i].layer == layer and graph.variables[i].stage is not None
        }
        spread = float(unevenness(tokens, waiting.block))
        for stage in range(stages):
            above = {c: (1.0 if at == stage else 0.0) - 1.0 / stages for c, at in staged.items()}
            statement.rows.append((above, spread, "even_stages"))
            statement.rows.append(({c: -v for c, v in above.items()}, spread, "even_stages"))


def _irregular(
    statement: Statement, waiting: Waiting, empty: dict[int, int], early: dict[tuple[int, int], int]
) -> None:
    """For each class: layers with empty stages, or with stages that have nothing to copy, hold so
    many tokens that do not cross the link.
    """
    graph, stages = statement.graph, statement.graph.schedule.stages
    crossing = {
        graph.variables[v].path
        for o in graph.operations
        if o.resource == "h2d" and o.stage is not None
        for v in o.variables
    }
    for each in {statement.classes[layer] for layer in graph.tokens}:
        layers = [layer for layer in graph.tokens if statement.classes[layer] == each]
        tokens = graph.tokens[layers[0]]
        spread = unevenness(tokens, waiting.block)
        terms = {
            column: -1.0
            for (of, path), column in statement.of.items()
            if of == each and path != "stream_weights" and path not in crossing
        }
        for layer in layers:
            terms[empty[layer]] = max(tokens - stages * spread, 0) / len(layers)
        for (layer, _), column in early.items():
            if layer in layers:
                terms[column] = max(tokens / stages - spread, 0) / len(layers)
        statement.rows.append((terms, 0.0, "irregular"))


def _stage_s(graph: StepGraph, layer: int, waiting: Waiting) -> tuple[float, float]:
    """Most seconds between the ends of a stage and the one before; and of the first stage and the
    layer before, its copies having come.
    """
    tokens, stages = graph.tokens[layer], graph.schedule.stages
    most = min(tokens / stages + unevenness(tokens, waiting.block), tokens)
    copies = work = whole = 0.0
    between_s = 4.0 * max(graph.edge_s.values(), default=0.0)
    for operation in graph.operations:
        if operation.layer != layer or not _in_chain(operation):
            continue
        if operation.stage == 0:
            seconds = operation.curve.seconds(most)
            copies += seconds * (operation.resource == "h2d")
            work += seconds * (operation.resource == "gpu")
        elif operation.stage is None and operation.operation != "load_weights":
            whole += operation.curve.seconds(operation.ceiling)
    return copies + work + between_s, whole + work + between_s


def _in_chain(operation: Operation) -> bool:
    """Copies, loads and the GPU's work. What makes way for the CPU is in the link's row alone."""
    staged = operation.stage is not None or operation.operation == "load_weights"
    return operation.resource in IN_CHAIN and (operation.resource == "gpu" or staged)


def _taken(
    statement: Statement, operation: Operation, held: dict[int, int], empty: dict[int, int]
) -> Sum:
    """Duration of an operation, as a mean in which layers with an empty stage count nothing."""
    if operation.operation == "load_weights":
        return statement.duration(operation, operation.ceiling)
    if operation.operation == "project":
        seconds = operation.curve.seconds(0.0)
        return {empty[operation.layer]: -seconds}, seconds
    if not operation.variables:
        return {}, operation.curve.seconds(0.0)
    volume = {held[v]: 1.0 for v in operation.variables}
    return statement.longest(operation, operation.ceiling, volume)


def _waits(graph: StepGraph, index: int) -> Iterator[tuple[int, int]]:
    """What an operation waits for in the chain; behind what is left out, what came before that on
    the resource.
    """
    resource = graph.operations[index].resource
    for before, lag in graph.operations[index].after:
        if _in_chain(graph.operations[before]):
            yield before, lag
        elif graph.operations[before].resource == resource:
            yield from ((b, lag + more) for b, more in _waits(graph, before))
