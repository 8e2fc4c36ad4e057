"""Columns and rows of a fluid program while it is being stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.curve import Piece
from kvplan.program import in_proportion, time_scale
from kvplan.step import Buffer, Operation, StepGraph

Terms = dict[int, float]
"""Columns and what they are multiplied by."""

Sum = tuple[Terms, float]
"""Terms and constant of a sum of durations."""

Row = tuple[Terms, float, str]
"""Terms, upper bound, name."""


Tenant = Mapping[int, float]
"""Variables of the graph and their bytes per unit in a buffer."""


def added(total: Sum, part: Sum, times: int = 1) -> Sum:
    """The sum of two sums, the second one so many times; the first one's terms are changed in
    place.
    """
    terms, constant = total
    for column, value in part[0].items():
        terms[column] = terms.get(column, 0.0) + value * times
    return terms, constant + part[1] * times


@dataclass(slots=True)
class Statement:
    """One column per (class, path), the mean over equal layers; then T and what rows need.

    Args:
        graph: the step.
        classes: class number of every layer of the model.
        of: column of each (class, path).
        column_of: column of each variable of the graph.
        share_of: share of its column that a variable stands for, stages being averaged.
        upper: most of each column.
        scale: size of each column, for the solver.
        rows: inequalities.
        equal: equations.
        period: column of T.
        time_s: seconds near the period.
        largest: column of the size of each buffer that has one, by its number.
        slack: column of the bytes by which a tier is widened.
        many: column of the duration of operations whose curve has several pieces.
        known: durations of operations so far; equal stages and layers share one.
    """

    graph: StepGraph
    classes: Sequence[int]
    of: dict[tuple[int, str], int] = field(default_factory=dict)
    column_of: list[int] = field(default_factory=list)
    share_of: list[float] = field(default_factory=list)
    upper: list[float | None] = field(default_factory=list)
    scale: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    equal: list[Row] = field(default_factory=list)
    period: int = -1
    time_s: float = 1.0
    largest: dict[int, int] = field(default_factory=dict)
    slack: dict[str, int] = field(default_factory=dict)
    many: dict[object, int] = field(default_factory=dict)
    known: dict[object, Sum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Columns of the graph's variables, and the period."""
        members: dict[tuple[int, str, int], int] = {}
        for variable in self.graph.variables:
            key = (self.classes[variable.layer], variable.path)
            if key not in self.of:
                whole = self.graph.tokens[variable.layer]
                most = 1.0 if variable.path == "stream_weights" else float(whole)
                self.of[key] = self.column(most, most)
            self.column_of.append(self.of[key])
            each = (*key, variable.layer)
            members[each] = members.get(each, 0) + 1
        self.share_of = [
            1.0 / members[self.classes[v.layer], v.path, v.layer] for v in self.graph.variables
        ]
        self.time_s = time_scale(self.graph)
        self.period = self.column(None, self.time_s)

    def column(self, upper: float | None, scale: float) -> int:
        """Add a column that is zero or more."""
        self.upper.append(upper)
        self.scale.append(scale)
        return len(self.scale) - 1

    def whole(self, units: Mapping[int, float]) -> Terms:
        """The same over all layers that the graph's stand for."""
        copies, variables = self.graph.copies, self.graph.variables
        if not copies:
            return self.terms(units)
        return self.terms({v: u * copies.get(variables[v].layer, 1) for v, u in units.items()})

    def terms(self, units: Mapping[int, float]) -> Terms:
        """Variables of the graph and what they are multiplied by, over columns."""
        total: Terms = {}
        for variable, value in units.items():
            column = self.column_of[variable]
            total[column] = total.get(column, 0.0) + value * self.share_of[variable]
        return total

    def duration(self, operation: Operation, ceiling: float) -> Sum:
        """Duration of one operation whose volume is at most the ceiling.

        A curve of several pieces gets a column of its own, shared by operations that are equal.
        """
        own = operation.variables
        if not own:
            return {}, operation.curve.seconds(0.0)
        places = tuple([(self.column_of[v], self.share_of[v]) for v in own])
        key = (id(operation.curve), ceiling, places)
        if key not in self.known:
            self.known[key] = self.longest(operation, ceiling, self.terms(dict.fromkeys(own, 1.0)))
        return self.known[key]

    def longest(self, operation: Operation, ceiling: float, volume: Terms) -> Sum:
        """The longest piece of an operation's curve, fixed parts in proportion to its volume."""
        pieces = [in_proportion(p, max(ceiling, 1e-9)) for p in operation.curve.pieces]
        if len(pieces) == 1:
            return scaled(volume, pieces[0]), pieces[0].fixed_s
        key = (id(operation.curve), ceiling, tuple(sorted(volume.items())))
        if key not in self.many:
            self.many[key] = self.column(None, self.time_s)
            for piece in pieces:
                row = {**scaled(volume, piece), self.many[key]: -1.0}
                self.rows.append((row, -piece.fixed_s, "duration"))
        return {self.many[key]: 1.0}, 0.0

    def within_period(self, total: Sum, name: str, slack_s: float = 0.0) -> None:
        """Add a row: the sum is at most T and the slack."""
        terms, constant = total
        self.rows.append(({**terms, self.period: -1.0}, slack_s - constant, name))

    def mean_tenant(self, buffer: Buffer) -> Terms:
        """Bytes of a buffer's mean tenant."""
        return self._mean(buffer.tenants)

    def _mean(self, tenants: Sequence[Tenant]) -> Terms:
        units: Terms = {}
        for tenant in tenants:
            for variable, size in tenant.items():
                units[variable] = units.get(variable, 0.0) + size / len(tenants)
        return self.terms(units)

    def size_buffers(self, holds: Sequence[str], most_bytes: float | None = None) -> None:
        """Give buffers a column for their size: at least the mean tenant of each kind of layers."""
        for number, buffer in enumerate(self.graph.buffers):
            if buffer.holds not in holds or number in self.largest:
                continue
            alike = self._by_class(buffer.tenants)
            whole = max(
                sum(size * self.graph.variables[v].ceiling for v, size in tenant.items())
                for tenant in buffer.tenants
            )
            column = self.column(most_bytes, max(whole, 1.0))
            self.largest[number] = column
            for tenants in alike:
                self.rows.append(({**self._mean(tenants), column: -1.0}, 0.0, "buffer"))

    def _by_class(self, tenants: Sequence[Tenant]) -> list[list[Tenant]]:
        """Tenants of equal layers together, where each is of one layer; else all of them.

        Columns are means over all layers of a class, so a part of these has no mean of its own.
        """
        alike: dict[int, list[Tenant]] = {}
        for tenant in tenants:
            layers = {self.graph.variables[v].layer for v in tenant}
            if len(layers) != 1:
                return [list(tenants)]
            alike.setdefault(self.classes[layers.pop()], []).append(tenant)
        return list(alike.values())


def scaled(volume: Terms, piece: Piece) -> Terms:
    """A volume times the slope of a piece."""
    return {column: share * piece.s_per_unit for column, share in volume.items()}
