"""The program in whole blocks: what each stage of a unit holds, and which paths it has.

The program of `program.state` splits tokens freely, and an operation that it leaves without tokens
still costs its fixed time. Here tokens come in blocks and a path may be absent from a stage, which
takes integer columns. One path of one stage may be left free: its tokens, and the resident ones,
are means over the layers, some of which get a block more than others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan import program
from kvplan.allocation import Place
from kvplan.blocks import Blocks
from kvplan.highs import minimise_whole
from kvplan.paths import REGISTRY
from kvplan.program import Program, Row
from kvplan.step import StepGraph

MOST_NODES = 1
"""Nodes of the branch and bound: later ones seldom better what its heuristics find at the root."""


@dataclass(frozen=True, slots=True)
class Goal:
    """When to stop.

    Args:
        least_s: no step is shorter than this; one within ``near`` of it is good enough.
        most_s: only steps shorter than this are of use.
        near: share.
    """

    least_s: float
    most_s: float
    near: float


def solve(
    graph: StepGraph,
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    blocks: Blocks,
    spread: int,
    free: Place | None,
    goal: Goal,
    nodes: int = MOST_NODES,
    *,
    optional: bool = True,
) -> list[float] | None:
    """Tokens of every variable of a unit's graph (and the share of streamed weights).

    Args:
        graph: one unit with every allowed path.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        blocks: tokens per block.
        spread: tokens by which a stage may differ from the mean of its layer.
        free: stage and path whose tokens need not be whole blocks; None: all are whole.
        goal: when to stop.
        nodes: nodes of branch and bound, at most.
        optional: whether a stage may do without a path; else all have their fixed times.

    Returns:
        A value for each variable, whole blocks but for the free ones; None where nothing of use
        was found.
    """
    statement, whole = state(graph, capacity, quality, blocks, spread, free, optional=optional)
    scale, period = statement.scale, statement.period
    rows, _ = program.scaled_rows(statement)
    limits = program.scaled_limits(statement)
    period_s = scale[period] * graph.cycles
    limits[period] = (goal.least_s / period_s, goal.most_s / period_s)
    found = minimise_whole({period: 1.0}, rows, limits, whole, nodes, goal.near)
    if found is None:
        return None
    return [
        (round(found[column]) if whole[column] else max(0.0, found[column])) * scale[column]
        for column in range(len(graph.variables))
    ]


def state(
    graph: StepGraph,
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    blocks: Blocks,
    spread: int,
    free: Place | None,
    *,
    optional: bool = True,
) -> tuple[Program, list[bool]]:
    """The program with a column for the presence of each path in each stage, in blocks.

    Returns:
        The program, and which of its columns are whole.
    """
    graph = blocks.filled(graph)
    statement, time_s = Program(graph), program.time_scale(graph)
    whole: dict[int, bool] = {}
    for variable in graph.variables:
        unit = 1.0 if variable.path == "stream_weights" else float(blocks.of(variable.path))
        column = statement.column("n", variable.ceiling, unit)
        away = variable.path in REGISTRY and REGISTRY[variable.path].attends == "away"
        staged = variable.stage is not None and (variable.stage, variable.path) != free
        whole[column] = away or staged
    statement.start = len(statement.columns)
    for _ in graph.operations:
        statement.column("start", None, time_s)
    statement.period = statement.column("T", None, time_s)
    present = {}
    for index, variable in enumerate(graph.variables):
        if variable.stage is not None and optional:
            present[index] = statement.column("present", 1.0, 1.0)
            whole[present[index]] = True
            terms = {index: 1.0, present[index]: -variable.ceiling}
            statement.rows.append(Row(f"present[{index}]", terms, 0.0))
    durations = program.define_duration(statement, False, time_s, present if optional else None)
    program.define_precedence(statement, durations)
    program.define_tokens(statement)
    program.define_even_stages(statement, spread)
    ceilings = {}
    for index, variable in enumerate(graph.variables):
        if (variable.stage, variable.path) == free:
            ceilings[index] = statement.column("ceiling", None, float(blocks.of(variable.path)))
            whole[ceilings[index]] = True
            terms = {index: 1.0, ceilings[index]: -1.0}
            statement.rows.append(Row(f"ceiling[{index}]", terms, 0.0))
    buffers = program.define_buffer(statement, ceilings)
    program.define_capacity(statement, capacity, buffers)
    program.define_quality(statement, quality)
    return statement, [whole.get(c, False) for c in range(len(statement.columns))]
