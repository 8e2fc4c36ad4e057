"""The linear program: a step graph with symbolic durations, period T minimised.

Reads as: every token has a path, stages are even, operations follow each other, buffers hold
their largest tenant, tiers hold what is stored. FORMULATION.md has the equations; every row here
is named after the function that states it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.curve import Piece
from kvplan.highs import Optimum, Rows, Standing, minimise
from kvplan.step import StepGraph


@dataclass(frozen=True, slots=True)
class Row:
    """``sum(coefficient * column) <= bound`` (or ``==``)."""

    name: str
    terms: Mapping[int, float]
    bound: float
    equal: bool = False


Affine = tuple[dict[int, float], float]
"""Terms over columns, and a constant."""


@dataclass(slots=True)
class Program:
    """Columns and rows in SI units: seconds, tokens, shares, bytes.

    Column order: the graph's variables, then start times, period, durations, buffer sizes.
    ``durations`` has what each operation takes, over columns.
    """

    graph: StepGraph
    columns: list[str] = field(default_factory=list)
    upper: list[float | None] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    period: int = -1
    start: int = -1
    buffers: list[int] = field(default_factory=list)
    durations: list[Affine] = field(default_factory=list)

    def column(self, name: str, upper: float | None, scale: float) -> int:
        """Add a column that is zero or more."""
        self.columns.append(name)
        self.upper.append(upper)
        self.scale.append(scale)
        return len(self.columns) - 1


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum.

    Args:
        step_s: seconds of one decode step (period times cycles).
        values: value of every variable of the graph.
        start_s: start of every operation.
        capacity_s_per_byte: how much a byte more of each tier shortens the step.
        weight: for every operation, seconds a step shortens per second less of its duration.
    """

    step_s: float
    values: tuple[float, ...]
    start_s: tuple[float, ...]
    capacity_s_per_byte: dict[str, float]
    weight: tuple[float, ...]


def state(
    graph: StepGraph,
    capacity: Mapping[str, float],
    *,
    quality: Mapping[str, float] | None = None,
    relaxed: bool = False,
    block: int = 0,
) -> Program:
    """State the program of a step graph.

    Args:
        graph: the step.
        capacity: bytes each tier may hold; a tier that is missing has no limit.
        quality: most share of all tokens that each inexact path may take.
        relaxed: charge the fixed part of an operation in proportion to its volume over the most
            it can be. Never more than the true cost, so the optimum bounds every plan, also one
            that leaves the operation out.
        block: tokens by which a stage may differ from the mean of its layer.

    Returns:
        The program, not yet solved.
    """
    program = Program(graph)
    time_s = time_scale(graph)
    for index, variable in enumerate(graph.variables):
        name = f"n[{variable.layer},{variable.stage},{variable.path}]"
        program.column(name, variable.ceiling, max(variable.ceiling, 1e-9))
        assert index == len(program.columns) - 1
    program.start = len(program.columns)
    for index, operation in enumerate(graph.operations):
        program.column(f"start[{index},{operation.operation}]", None, time_s)
    program.period = program.column("T", None, time_s)
    program.durations = define_duration(program, relaxed, time_s)
    define_precedence(program, program.durations, relaxed)
    define_tokens(program)
    define_even_stages(program, block)
    program.buffers = define_buffer(program)
    define_capacity(program, capacity, program.buffers)
    define_quality(program, quality or {})
    return program


def time_scale(graph: StepGraph) -> float:
    """A time near the period, so that solver tolerances are relative."""
    busy: dict[str | None, float] = {}
    for operation in graph.operations:
        share = [graph.variables[v].ceiling / 2 for v in operation.variables]
        seconds = operation.curve.seconds(sum(share)) * graph.copies_of(operation)
        busy[operation.resource] = busy.get(operation.resource, 0.0) + seconds
    return max(max(busy.values()), 1e-12)


def define_duration(
    program: Program, relaxed: bool, time_s: float, present: Mapping[int, int] | None = None
) -> list[Affine]:
    """For each operation: d >= fixed + slope * sum(n), one row per piece of its curve.

    A curve of one piece is put straight into the precedence rows. Where a variable has a column
    that says whether it is present, an operation of this variable alone has its fixed part times
    that column.
    """
    durations: list[Affine] = []
    for index, operation in enumerate(program.graph.operations):
        pieces = list(operation.curve.pieces)
        if not operation.variables:
            durations.append(({}, operation.curve.seconds(0.0)))
            continue
        if relaxed and not operation.present:
            pieces = [in_proportion(piece, operation.ceiling) for piece in pieces]
        here = present.get(operation.variables[0]) if present else None
        if len(operation.variables) > 1 or operation.operation == "attend":
            here = None
        fixed = [{} if here is None else {here: p.fixed_s} for p in pieces]
        always = [p.fixed_s if here is None else 0.0 for p in pieces]
        if len(pieces) == 1:
            slope = dict.fromkeys(operation.variables, pieces[0].s_per_unit)
            durations.append((slope | fixed[0], always[0]))
            continue
        column = program.column(f"d[{index},{operation.operation}]", None, time_s)
        for number, piece in enumerate(pieces):
            terms = {column: -1.0, **fixed[number]}
            for variable in operation.variables:
                terms[variable] = terms.get(variable, 0.0) + piece.s_per_unit
            program.rows.append(Row(f"duration[{index},{number}]", terms, -always[number]))
        durations.append(({column: 1.0}, 0.0))
    return durations


def in_proportion(piece: Piece, ceiling: float) -> Piece:
    """The piece with its fixed part charged per unit, full at the ceiling.

    >>> in_proportion(Piece(2.0, 1.0), 4.0)
    Piece(fixed_s=0.0, s_per_unit=1.5)
    """
    if piece.fixed_s <= 0:
        return piece
    return Piece(0.0, piece.s_per_unit + piece.fixed_s / ceiling)


def define_precedence(program: Program, durations: Sequence[Affine], relaxed: bool = False) -> None:
    """For each edge (a, lag) of b: start[a] + d[a] + edge - lag * T <= start[b].

    Relaxed, edges that stand for free buffers are left out and the others take no time: a plan
    that leaves an operation out does not wait for it.
    """
    graph = program.graph
    for index, operation in enumerate(graph.operations):
        for before, lag in operation.after:
            if relaxed and (index, before, lag) in graph.buffer_edges:
                continue
            delay_s = 0.0 if relaxed else graph.delay_s(before, index)
            edge = (index, before, lag)
            program.rows.append(precedence(program, durations[before], edge, delay_s))


def precedence(
    program: Program, duration: Affine, edge: tuple[int, int, int], delay_s: float
) -> Row:
    """The row of one edge.

    Args:
        program: the program.
        duration: of what is waited for.
        edge: (operation, operation it waits for, lag in steps).
        delay_s: seconds from the end of the one to the start of the other.
    """
    index, before, lag = edge
    terms, constant = duration
    row = dict(terms)
    if before != index:
        row[program.start + before] = row.get(program.start + before, 0.0) + 1.0
        row[program.start + index] = row.get(program.start + index, 0.0) - 1.0
    if lag:
        row[program.period] = row.get(program.period, 0.0) - float(lag)
    return Row(f"precedence[{before},{index},{lag}]", row, -(constant + delay_s))


def define_tokens(program: Program) -> None:
    """For each layer: the tokens of all its paths add up to the tokens it caches."""
    for layer, tokens in program.graph.tokens.items():
        terms = {
            i: 1.0
            for i, v in enumerate(program.graph.variables)
            if (v.layer == layer or layer in v.also) and v.path != "stream_weights"
        }
        program.rows.append(Row(f"tokens[{layer}]", terms, float(tokens), equal=True))


def define_even_stages(program: Program, block: int) -> None:
    """On the token axis, for each stage: its tokens are within a block of its layer's mean; where
    the graph leaves a stage out, it has none, so that mean is a block at most.
    """
    graph = program.graph
    if graph.schedule.axis != "token" or graph.schedule.stages == 1:
        return
    stages: dict[int, dict[int, list[int]]] = {}
    for index, variable in enumerate(graph.variables):
        if variable.stage is not None:
            stages.setdefault(variable.layer, {}).setdefault(variable.stage, []).append(index)
    for layer, members in stages.items():
        mean = {i: 1.0 / graph.schedule.stages for own in members.values() for i in own}
        for stage, own in members.items():
            above = {i: (1.0 if i in own else 0.0) - m for i, m in mean.items()}
            below = {i: -a for i, a in above.items()}
            program.rows.append(Row(f"even_stages[{layer},{stage},above]", above, float(block)))
            program.rows.append(Row(f"even_stages[{layer},{stage},below]", below, float(block)))
        if len(members) < graph.schedule.stages:
            program.rows.append(Row(f"even_stages[{layer},empty]", mean, float(block)))


def define_buffer(program: Program, instead: Mapping[int, int] | None = None) -> list[int]:
    """For each buffer and tenant: size >= bytes of the tenant. Returns the size columns.

    Args:
        program: the program.
        instead: columns that stand for variables, where a tenant may be larger than its mean.
    """
    columns, other = [], instead or {}
    for number, buffer in enumerate(program.graph.buffers):
        largest = max(
            sum(b * program.graph.variables[v].ceiling for v, b in t.items())
            for t in buffer.tenants
        )
        column = program.column(f"buffer[{number}]", None, max(largest, 1.0))
        for position, tenant in enumerate(buffer.tenants):
            terms = {column: -1.0} | {other.get(v, v): size for v, size in tenant.items()}
            program.rows.append(Row(f"buffer[{number},{position}]", terms, 0.0))
        columns.append(column)
    return columns


def define_capacity(
    program: Program, capacity: Mapping[str, float], buffers: Sequence[int]
) -> None:
    """For each tier with a limit: constant + stored + buffers <= capacity."""
    graph = program.graph
    for tier, limit in capacity.items():
        terms: dict[int, float] = {}
        for index, variable in enumerate(graph.variables):
            if variable.stored.get(tier):
                terms[index] = variable.stored[tier]
        for column, buffer in zip(buffers, graph.buffers, strict=True):
            if tier in buffer.tiers:
                terms[column] = terms.get(column, 0.0) + float(buffer.count)
        bound = limit - graph.constant_bytes.get(tier, 0.0)
        program.rows.append(Row(f"capacity[{tier}]", terms, bound))


def define_quality(program: Program, quality: Mapping[str, float]) -> None:
    """For each inexact path: its tokens are at most its share of all tokens."""
    graph = program.graph
    total = sum(graph.tokens.values())
    for path, share in quality.items():
        terms = {i: 1.0 for i, v in enumerate(graph.variables) if v.path == path}
        if terms and share < 1:
            program.rows.append(Row(f"quality[{path}]", terms, share * total))


def solve(program: Program, fixed: Sequence[float] | None = None) -> Solution | None:
    """Solve with HiGHS.

    Args:
        program: what `state` returned.
        fixed: values to hold every variable of the graph at; None leaves them free.

    Returns:
        The optimum, or None where no allocation is feasible.
    """
    rows, row_scale = scaled_rows(program)
    limits = scaled_limits(program)
    if fixed is not None:
        count = len(program.graph.variables)
        limits[:count] = [(v / s, v / s) for v, s in zip(fixed, program.scale, strict=False)]
    found = minimise({program.period: 1.0}, rows, limits)
    return None if found is None else _solution(program, found, row_scale)


@dataclass(frozen=True, slots=True)
class Least:
    """The least step of a program.

    Args:
        step_s: seconds of a step.
        values: value of every column, SI.
    """

    step_s: float
    values: list[float]


class Repeated:
    """A program that is solved again and again with other bounds of its rows and columns."""

    def __init__(self, program: Program) -> None:
        """State it to the solver, which keeps it and each optimum to start the next one from."""
        self.program = program
        rows, self._divided = scaled_rows(program)
        self._standing = Standing({program.period: 1.0}, rows, scaled_limits(program))

    def solve(self, bounds: Mapping[str, float] | None = None) -> Solution | None:
        """The optimum, or None where no allocation is feasible.

        Args:
            bounds: start of a row's name to the row's new bound, which stays.

        Raises:
            KvplanError: the solver gave up.
        """
        found = self._standing.minimise(self._scaled(bounds))
        return None if found is None else _solution(self.program, found, self._divided)

    def _scaled(self, bounds: Mapping[str, float] | None) -> dict[int, float]:
        """Bounds of rows by their number, as the solver has them."""
        return {
            number: bound / self._divided[number]
            for start, bound in (bounds or {}).items()
            for number, row in enumerate(self.program.rows)
            if row.name.startswith(start)
        }

    def hold(self, column: int, least: float, most: float) -> None:
        """Keep a column between two values from now on, SI."""
        scale = self.program.scale[column]
        self._standing.hold(column, least / scale, most / scale)

    def release(self, column: int) -> None:
        """Let a column have any value that the program allows again."""
        upper = self.program.upper[column]
        self.hold(column, 0.0, float("inf") if upper is None else upper)

    def least(self, bounds: Mapping[str, float] | None = None) -> Least | None:
        """The optimum without duals, or None where no allocation is feasible.

        Args:
            bounds: as `solve` takes them.

        Raises:
            KvplanError: the solver gave up.
        """
        found = self._standing.minimise(self._scaled(bounds))
        if found is None:
            return None
        stated = self.program
        values = [value * size for value, size in zip(found.values, stated.scale, strict=True)]
        return Least(values[stated.period] * stated.graph.cycles, values)


def _solution(program: Program, found: Optimum, row_scale: Sequence[float]) -> Solution:
    """An optimum in SI units."""
    values = [value * size for value, size in zip(found.values, program.scale, strict=True)]
    capacity, weight = _duals(program, found.duals, row_scale)
    return Solution(
        step_s=values[program.period] * program.graph.cycles,
        values=tuple(values[: len(program.graph.variables)]),
        start_s=tuple(values[program.start : program.start + len(program.graph.operations)]),
        capacity_s_per_byte=capacity,
        weight=weight,
    )


def scaled_rows(program: Program) -> tuple[Rows, list[float]]:
    """Rows with columns in units of their scale and divided by their largest entry, and what each
    was divided by.
    """
    rows = program.rows
    return Rows.scaled(
        [row.terms for row in rows],
        [row.bound for row in rows],
        [row.equal for row in rows],
        program.scale,
    )


def scaled_limits(program: Program) -> list[tuple[float, float | None]]:
    """Least and most of every column in units of its scale."""
    return [
        (0.0, None if u is None else u / s)
        for u, s in zip(program.upper, program.scale, strict=True)
    ]


def _duals(
    program: Program, duals: Sequence[float], row_scale: Sequence[float]
) -> tuple[dict[str, float], tuple[float, ...]]:
    """Duals back in seconds per byte, and the weight of every operation's duration.

    A relaxed row or a shorter duration by one unit changes the scaled optimum by the dual; T is
    measured in the period's scale.
    """
    step_s = program.scale[program.period] * program.graph.cycles
    capacity: dict[str, float] = {}
    weight = [0.0] * len(program.graph.operations)
    for row, dual, divided in zip(program.rows, duals, row_scale, strict=True):
        gain = max(0.0, -dual / divided * step_s)
        kind, _, rest = row.name.partition("[")
        if kind == "capacity":
            capacity[rest[:-1]] = gain
        elif kind == "precedence":
            weight[int(rest.split(",")[0])] += gain
    return capacity, tuple(weight)
