"""The step graph: operations, what they may decide, and the memory they take.

The step repeats every T seconds, so the graph is cyclic: an edge ``(operation, lag)`` means that
an operation waits for the end of another one ``lag`` steps earlier. Each resource serves its
operations in the order in which they are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvplan.curve import ZERO, Curve
from kvplan.paths import Path
from kvplan.schedule import Schedule

Structure = Mapping[tuple[int, "int | None"], Sequence[Path]]
"""(layer, stage) to the paths in use there; stage None holds paths outside the pipeline."""


@dataclass(slots=True)
class Variable:
    """A quantity that a plan decides.

    Args:
        layer: which layer.
        stage: stage in the layer (token axis) or group of layers (layer axis); None outside.
        path: name of the path, or ``stream_weights``.
        ceiling: most it can be: tokens per sequence, or 1 for the share of streamed weights.
        stored: bytes per unit in each tier, over the whole batch.
        exact: whether attention sees the bits that were computed.
        also: further layers whose tokens it counts for.
    """

    layer: int
    stage: int | None
    path: str
    ceiling: float
    stored: dict[str, float]
    exact: bool = True
    also: tuple[int, ...] = ()


@dataclass(slots=True)
class Operation:
    """One piece of work.

    Args:
        operation: its word, for example ``copy_kv``.
        resource: what serves it, in order; None: costs latency and occupies nothing.
        curve: seconds over the sum of its variables.
        variables: indices of those variables; empty: the curve is a constant.
        after: (index of an operation, lag in steps) that it waits for.
        bytes_per_unit: bytes it moves per unit of its variables, for link rates.
        kernels: kernels to launch for it in eager mode.
        ceiling: most the sum of its variables can be.
        present: whether every plan of this graph has it, so that bounds charge its fixed part.
    """

    operation: str
    resource: str | None
    curve: Curve
    variables: tuple[int, ...] = ()
    after: list[tuple[int, int]] = field(default_factory=list)
    layer: int = 0
    micro_batch: int = 0
    stage: int | None = None
    path: str | None = None
    bytes_per_unit: float = 0.0
    kernels: float = 0
    ceiling: float = 0.0
    present: bool = False

    def seconds(self, values: Sequence[float]) -> float:
        """Duration for given values of all variables of the graph."""
        return self.curve.seconds(sum([values[v] for v in self.variables]))


@dataclass(slots=True)
class Buffer:
    """``count`` equal buffers in some tiers, each as large as its largest tenant.

    Tenants use them in turn, step after step: the first ``count`` tenants one each, the next ones
    those that have been left.

    Args:
        holds: what is in them: ``stages``, ``weights`` or ``disk_reads``.
        tiers: tiers they take room in.
        count: how many there are.
        tenants: for each use in turn, variables to bytes per unit.
        enters: for each use, operations that fill the buffer; empty where not told.
        leaves: for each use, operations after which the buffer is free.
    """

    holds: str
    tiers: tuple[str, ...]
    count: int
    tenants: list[dict[int, float]]
    enters: list[list[int]] = field(default_factory=list)
    leaves: list[list[int]] = field(default_factory=list)

    def scaled(self, factor: float) -> Buffer:
        """The same with so many times what its tenants hold."""
        tenants = [{v: size * factor for v, size in t.items()} for t in self.tenants]
        return replace(self, tenants=tenants)

    def filled_bytes(self, values: Sequence[float]) -> list[float]:
        """Bytes of every tenant for given values of all variables of the graph."""
        return [sum([size * values[v] for v, size in t.items()]) for t in self.tenants]


@dataclass(slots=True)
class StepGraph:
    """Operations in an order that respects every edge of lag 0, and what they may decide.

    Args:
        cycles: how often the described cycle runs in one step: 1, or the number of equal units
            (layers or groups of layers) that one unit stands for.
        tokens: tokens per sequence each described layer must reach, by layer.
        constant_bytes: bytes per tier that no variable changes.
        edge_s: seconds that pass along an edge, by the resources of its two ends.
        copies: how many equal layers a described one stands for, where these are not in a row: then
            sums over layers mean something and the order of operations does not. Missing: one.
        buffer_edges: (operation, operation it waits for, lag) that stand for a buffer being free.
            A plan that leaves a tenant out waits less, so bounds do without them.
    """

    operations: list[Operation]
    variables: list[Variable]
    buffers: list[Buffer]
    tokens: dict[int, int]
    constant_bytes: dict[str, float]
    schedule: Schedule
    cycles: float = 1
    copies: Mapping[int, int] = field(default_factory=dict)
    buffer_edges: frozenset[tuple[int, int, int]] = frozenset()
    edge_s: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def delay_s(self, before: int, index: int) -> float:
        """Seconds from the end of one operation until one that waits for it may start."""
        ends = self.operations[before].resource, self.operations[index].resource
        return self.edge_s.get(ends, 0.0) if None not in ends else 0.0  # type: ignore[arg-type]

    def in_blocks(self, size: Mapping[int, int]) -> StepGraph:
        """The same with the tokens of each layer filled up to whole blocks of its size."""
        filled = {i: -(-count // size[i]) * size[i] for i, count in self.tokens.items()}
        return replace(self, tokens=filled)

    def copies_of(self, operation: Operation) -> int:
        """How many operations of a cycle one stands for."""
        return 1 if operation.operation == "head" else self.copies.get(operation.layer, 1)

    def durations(self, values: Sequence[float]) -> list[float]:
        """Seconds of every operation for given values of the variables."""
        return [operation.seconds(values) for operation in self.operations]

    def memory_bytes(self, values: Sequence[float]) -> dict[str, float]:
        """Bytes per tier for given values of the variables."""
        total = self.stored_bytes(values)
        for buffer in self.buffers:
            largest = max(buffer.filled_bytes(values), default=0.0)
            for tier in buffer.tiers:
                total[tier] = total.get(tier, 0.0) + buffer.count * largest
        return total

    def stored_bytes(self, values: Sequence[float]) -> dict[str, float]:
        """Bytes per tier without those of buffers."""
        total = dict.fromkeys(("hbm", "dram", "pinned", "disk"), 0.0) | self.constant_bytes
        for variable, value in zip(self.variables, values, strict=True):
            for tier, size in variable.stored.items():
                total[tier] = total.get(tier, 0.0) + size * value
        return total

    def link_bytes(self, values: Sequence[float]) -> dict[str, float]:
        """Bytes that cross each resource in one step."""
        total: dict[str, float] = {}
        for operation in self.operations:
            if operation.resource and operation.bytes_per_unit:
                volume = sum(values[v] for v in operation.variables) if operation.variables else 1.0
                moved = operation.bytes_per_unit * volume * self.cycles
                total[operation.resource] = total.get(operation.resource, 0.0) + moved
        return total

    def by_layer(
        self, values: Sequence[float]
    ) -> tuple[list[dict[tuple[int | None, str], float]], list[float]]:
        """For each layer of the graph: tokens by stage and path, and the share of its weights that
        is streamed.
        """
        tokens: list[dict[tuple[int | None, str], float]] = [{} for _ in self.tokens]
        streamed = [0.0] * len(self.tokens)
        for variable, value in zip(self.variables, values, strict=True):
            if variable.path == "stream_weights":
                streamed[variable.layer] = min(value, 1.0)
            else:
                tokens[variable.layer][variable.stage, variable.path] = value
        return tokens, streamed


class GraphBuilder:
    """Appends operations to a graph; each resource serves its own in the order of appending."""

    def __init__(self, graph: StepGraph) -> None:
        """Start with a graph that has no operations."""
        self.graph = graph
        self.last: dict[str, int] = {}
        self.first: dict[str, int] = {}

    def add(self, operation: Operation, after: Sequence[int | tuple[int, int]] = ()) -> int:
        """Append an operation behind the last one on its resource.

        Args:
            operation: the operation; its edges and its ceiling are set here.
            after: operations it waits for, or (operation, lag).

        Returns:
            Its index.
        """
        operations, resource = self.graph.operations, operation.resource
        edges = [(a, 0) if isinstance(a, int) else a for a in after]
        index = len(operations)
        if resource is not None:
            last = self.last.get(resource)
            if last is None:
                self.first[resource] = index
            else:
                edges.append((last, 0))
            self.last[resource] = index
        own = operation.variables
        if own and not operation.ceiling:
            variables = self.graph.variables
            operation.ceiling = max([variables[v].ceiling for v in own])
        operation.after = edges
        operations.append(operation)
        return index

    def barrier(self) -> None:
        """What comes next starts when everything has ended: the period is then the makespan."""
        operations = self.graph.operations
        awaited = {before for operation in operations for before, _ in operation.after}
        sinks = [i for i in range(len(operations)) if i not in awaited]
        sources = [operation for operation in operations if not operation.after]
        end = self.add(Operation("end_step", None, ZERO), sinks)
        for operation in sources:
            operation.after.append((end, 1))
