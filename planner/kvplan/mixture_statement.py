"""Columns and rows of a mixture of layers while it is being stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.program import Program, Row, time_scale
from kvplan.staging import Staging, staging_bytes
from kvplan.step import Operation, StepGraph

Terms = dict[int, float]
"""Columns and what they are multiplied by."""

State = str | int
"""When a resource has ended its work so far, by its name; when the next staging buffers are free,
by their turn; with streamed weights also when the last layer has finished, and the one before."""

NOT_AWAITED = ("d2h", "cpu", "disk")
"""Resources whose waits the bound does without."""


@dataclass(slots=True)
class Mixture:
    """A program while it is being stated; T is the whole step.

    Args:
        graph: the step, of one unit where layers repeat.
        classes: class number of every layer of the model.
        block: tokens of the largest block.
        staging: limits of a staging buffer.
        fine: whether layers with some empty stages are told apart.
        groups: how many groups of layers share staging buffers, which no layer then waits for;
            0: each stage of a layer has its own.
        apart: whether every layer is told apart from all others.
        most_s: only steps that take no longer matter; infinite: all.
        program: columns and rows.
        members: operations of each layer of the graph.
        states: what a layer leaves behind.
        inward: sums of the states before layers, by boundary and state.
        outward: sums of the states behind layers.
        busy: seconds of each resource.
        tokens: tokens of all layers of each class that take each path; shares of their weights
            under ``stream_weights``.
        stored: bytes in each tier.
        sizes: column of the size of each buffer, by what it holds.
        shared: bytes that all groups stage.
        shares: columns of how many layers have each shape.
        followed: for boundaries at which layers are told apart by what follows: whether full layers
            do, each of what may be.
        neighbours: how many layers end there, less how many begin, by boundary.
    """

    graph: StepGraph
    classes: Sequence[int]
    block: int
    staging: Staging | None
    fine: bool
    groups: int = 0
    apart: bool = False
    most_s: float = float("inf")
    program: Program = field(init=False)
    members: dict[int, list[Operation]] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    inward: dict[tuple[object, State], Terms] = field(default_factory=dict)
    outward: dict[tuple[object, State], Terms] = field(default_factory=dict)
    busy: dict[str, Terms] = field(default_factory=dict)
    tokens: dict[tuple[int, str], Terms] = field(default_factory=dict)
    stored: dict[str, Terms] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    shared: Terms = field(default_factory=dict)
    shares: list[int] = field(default_factory=list)
    followed: dict[object, tuple[bool, ...]] = field(default_factory=dict)
    neighbours: dict[object, Terms] = field(default_factory=dict)
    time_s: float = field(init=False)
    staged_bytes: dict[int, float] = field(init=False)
    index_of: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        """Column of the period, and what a layer leaves behind."""
        graph, self.program = self.graph, Program(self.graph)
        self.time_s = time_scale(graph) * graph.cycles
        self.program.period = self.program.column("T", None, self.time_s)
        self.staged_bytes = staging_bytes(graph)
        self.index_of = {id(o): i for i, o in enumerate(graph.operations)}
        for operation in graph.operations:
            if operation.operation != "head":
                self.members.setdefault(operation.layer, []).append(operation)
        used = dict.fromkeys(o.resource for o in graph.operations if o.resource)
        self.states += [name for name in used if name not in NOT_AWAITED]
        if not self.groups:
            self.states += range(graph.schedule.queue_depth)
        if graph.schedule.stream_weights:
            self.states += ["finished", "freed"]

    def column(self, name: str, scale: float) -> int:
        """Add a column that is zero or more."""
        return self.program.column(name, None, scale)

    def row(self, name: str, terms: Mapping[int, float], most: float = 0.0) -> None:
        """Add a row: the terms are at most so much."""
        self.program.rows.append(Row(name, terms, most))

    def equal(self, name: str, terms: Mapping[int, float], to: float = 0.0) -> None:
        """Add an equation."""
        self.program.rows.append(Row(name, terms, to, equal=True))


def add(total: Terms, part: Mapping[int, float], factor: float = 1.0) -> Terms:
    """Add to a sum, in place.

    >>> add({0: 1.0}, {0: 1.0, 1: 2.0}, 2.0)
    {0: 3.0, 1: 4.0}
    """
    for column, value in part.items():
        total[column] = total.get(column, 0.0) + factor * value
    return total
