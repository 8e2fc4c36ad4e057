"""The step graph: one decode step, described once.

The program reads it with symbolic durations, the simulator with numbers, the runtime with streams
and events, traces and plots to draw. No second description of the step exists.

Operations are added in an order that respects every wait inside a step; close() adds the waits
that reach back to earlier steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan import cost
from kvplan.curve import ZERO, Curve, affine
from kvplan.dtypes import element_bytes
from kvplan.graph import Buffer, GraphBuilder, Operation, StepGraph, Structure, Variable
from kvplan.hardware import HardwareProfile
from kvplan.layer_costs import LayerCosts
from kvplan.model import ModelSpec
from kvplan.paths import Leg, Path
from kvplan.ring import Ring, Tenant
from kvplan.schedule import Schedule
from kvplan.workload import Workload

__all__ = ["Buffer", "Operation", "StepGraph", "Structure", "Variable", "build_step", "group_of"]

OUTSIDE = frozenset(("dram", "disk", "tier"))
"""Tiers that a new token's K and V are sent to."""

WEIGHT_BUFFERS = 2
"""Layers' worth of streamed weights held at once: one in use, one arriving."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where a layer begins in the graph: what was there before it.

    Args:
        operation: number of operations.
        variable: number of variables.
        tenants: number of tenants of each ring.
    """

    operation: int
    variable: int
    tenants: tuple[int, ...]


class _Builder(GraphBuilder):
    """Adds the operations of a step in order; one method per row of the design's table."""

    def __init__(
        self, costs: LayerCosts, structure: Structure, layers: Sequence[int], cycles: float
    ) -> None:
        self.costs, self.structure, self.layers = costs, structure, layers
        self.model, self.hardware, self.workload = costs.model, costs.hardware, costs.workload
        self.schedule, self.repeat = costs.schedule, costs.repeat
        edges = cost.edge_s(self.hardware)
        super().__init__(StepGraph([], [], [], {}, {}, self.schedule, cycles, edge_s=edges))
        self.finished: dict[int, int] = {}
        self.projects: dict[int, int] = {}
        self.indices: dict[tuple[int, int | None, str], int] = {}
        self.staging = Ring(self.schedule.queue_depth)
        self.weights = Ring(WEIGHT_BUFFERS)
        self.disk: dict[str, Ring] = {}
        self.group: tuple[object, Tenant] | None = None
        self.marks: list[_Mark] = []
        self.before: object = None
        self.known: dict[tuple[object, object], int] = {}

    # -- bookkeeping ---------------------------------------------------------------------------

    def add(self, operation: Operation, after: Sequence[int | tuple[int, int]] = ()) -> int:
        """Append an operation behind the last one on its resource (and its launches)."""
        if self.schedule.mode == "eager" and operation.kernels:
            after = [*after, self.add(self.launch(operation))]
        return super().add(operation, after)

    def launch(self, operation: Operation) -> Operation:
        """The launching thread's part of an operation, absent where the operation is."""
        curve = affine(operation.kernels * self.hardware.gpu.launch_s, 0.0)
        return Operation(
            "launch",
            "cpu",
            curve,
            operation.variables,
            layer=operation.layer,
            micro_batch=operation.micro_batch,
            stage=operation.stage,
            ceiling=operation.ceiling,
        )

    def variable(self, layer: int, stage: int | None, path: Path) -> int:
        """Index of the tokens of a layer and stage that take a path."""
        key = (layer, stage, path.name)
        index = self.indices.get(key)
        if index is None:
            stored = self.costs.stored_bytes(layer, path)
            ceiling = self.costs.most_tokens(layer, staged=stage is not None)
            index = self.indices[key] = len(self.graph.variables)
            self.graph.variables.append(
                Variable(layer, stage, path.name, ceiling, stored, path.exact)
            )
        return index

    # -- operations ----------------------------------------------------------------------------

    def describe(self, layer: int, micro_batch: int) -> None:
        """One layer of one micro-batch, copied where an equal one behind an equal one is known."""
        key = self.key(layer)
        before, number = self.before, len(self.marks)
        self.mark()
        known = self.known.get((before, key)) if key is not None else None
        if known is not None:
            self.copy(layer, known)
        else:
            self.cell(layer, micro_batch)
            rings = len(self.marks[number].tenants)
            if before is not None and rings == len(self.rings) and self.awaits_neighbour(number):
                self.known[before, key] = number
        self.before = key
        if layer == self.layers[-1]:
            self.mark()
            self.head(micro_batch, self.finished[micro_batch])

    def mark(self) -> None:
        """Remember where the next layer begins."""
        tenants = tuple([len(ring.tenants) for ring in self.rings])
        graph = self.graph
        self.marks.append(_Mark(len(graph.operations), len(graph.variables), tenants))

    def awaits_neighbour(self, number: int) -> bool:
        """Whether the last layer, of this number, waits for its neighbour on each of its resources,
        and for none before that one.
        """
        begin, neighbour = self.marks[number].operation, self.marks[number - 1].operation
        operations = self.graph.operations
        awaited = [b for o in operations[begin:] for b, _ in o.after]
        served = {o.resource for o in operations[neighbour:begin]}
        own = {o.resource for o in operations[begin:] if o.resource is not None}
        return min(awaited, default=begin) >= neighbour and own <= served

    def key(self, layer: int) -> object:
        """What tells cells apart; None where copies would not do: micro-batches share variables,
        groups of layers share buffers.
        """
        if self.workload.micro_batches > 1 or self.schedule.axis != "token":
            return None
        places = (None, *self.stages_of(layer))
        return self.costs.kind[layer], tuple(
            [tuple([p.name for p in self.structure.get((layer, place), ())]) for place in places]
        )

    @property
    def rings(self) -> list[Ring]:
        """Buffers that are reused in turn."""
        return [self.staging, self.weights, *self.disk.values()]

    def copy(self, layer: int, number: int) -> None:
        """The layer of a number once more, for another layer.

        What it waits for is in itself and in the layer before, which is equal to the one before
        this: so all its operations, variables and tenants are the same, so many places later.
        """
        begin, end = self.marks[number : number + 2]
        operations, variables = self.graph.operations, self.graph.variables
        later, more = len(operations) - begin.operation, len(variables) - begin.variable
        for v in variables[begin.variable : end.variable]:
            self.indices[layer, v.stage, v.path] = len(variables)
            variables.append(Variable(layer, v.stage, v.path, v.ceiling, v.stored, v.exact))
        for o in operations[begin.operation : end.operation]:
            if o.resource is not None:
                self.last[o.resource] = len(operations)
            if o.operation == "finish":
                self.finished[o.micro_batch] = len(operations)
            own = tuple([v + more for v in o.variables])
            after = [(before + later, lag) for before, lag in o.after]
            operations.append(
                Operation(
                    o.operation, o.resource, o.curve, own, after, layer, o.micro_batch, o.stage,
                    o.path, o.bytes_per_unit, o.kernels, o.ceiling, o.present,
                )
            )  # fmt: skip
        # Rings that came after that layer have none of its tenants.
        for ring, first, last in zip(self.rings, begin.tenants, end.tenants, strict=False):
            ring.tenants += [tenant.moved(later, more) for tenant in ring.tenants[first:last]]

    def cell(self, layer: int, micro_batch: int) -> None:
        """One layer of one micro-batch."""
        loaded = self.load_weights(layer, micro_batch)
        projected = self.project(layer, micro_batch, loaded)
        attended = [
            self.attend_away(layer, micro_batch, path, projected)
            for path in self.structure.get((layer, None), ())
            if path.attends == "away"
        ]
        attended += self.attend_resident(layer, micro_batch, projected)
        for stage in self.stages_of(layer):
            attended += self.stage(layer, micro_batch, stage, projected)
        curve = self.costs.finish(layer)
        finish = self.add(
            Operation(
                "finish",
                "gpu",
                curve,
                layer=layer,
                micro_batch=micro_batch,
                kernels=cost.FINISH_KERNELS,
            ),
            [*attended, projected],
        )
        self.finished[micro_batch] = finish
        if self.schedule.stream_weights:
            self.weights.tenants[-1].leaves.append(finish)
        self.write_back(layer, micro_batch, projected)

    def stages_of(self, layer: int) -> Sequence[int]:
        """Stages of a layer: its token ranges, or the group of layers it is in."""
        if self.schedule.axis == "token":
            return range(self.schedule.stages)
        return (group_of(layer, len(self.model.layers), self.schedule.stages),)

    def load_weights(self, layer: int, micro_batch: int) -> list[int]:
        """Bring the streamed share of a layer's weights (not K, V) into one of two buffers."""
        if not self.schedule.stream_weights:
            return []
        key = (layer, None, "stream_weights")
        size = cost.streamable_bytes(self.model, self.model.layers[layer])
        if key not in self.indices:
            self.indices[key] = len(self.graph.variables)
            total = size * self.repeat
            stored = {"hbm": -total, "dram": total, "pinned": total}
            self.graph.variables.append(Variable(layer, None, key[2], 1.0, stored))
        if self.workload.schedule == "column" and micro_batch > 0:
            return [self.weights.tenants[-1].enters[0]]
        enters = self.weights.tenant().enters
        curve = cost.copy_to_gpu(self.hardware).scaled(size)
        enters.append(
            self.add(
                Operation(
                    "load_weights",
                    "h2d",
                    curve,
                    (self.indices[key],),
                    layer=layer,
                    micro_batch=micro_batch,
                    bytes_per_unit=size,
                    kernels=1,
                )
            )
        )
        return list(enters)

    def project(self, layer: int, micro_batch: int, after: Sequence[int]) -> int:
        """Norm and QKV projection of the new token."""
        curve = self.costs.project(layer)
        before = [self.finished[micro_batch]] if micro_batch in self.finished else []
        index = self.add(
            Operation(
                "project",
                "gpu",
                curve,
                layer=layer,
                micro_batch=micro_batch,
                kernels=cost.project_kernels(self.model.layers[layer]),
            ),
            [*before, *after],
        )
        self.projects.setdefault(micro_batch, index)
        return index

    def attend_resident(self, layer: int, micro_batch: int, projected: int) -> list[int]:
        """Attention over tokens whose K and V stay in HBM."""
        paths = [p for p in self.structure.get((layer, None), ()) if p.attends == "resident"]
        if not paths:
            return []
        curve = self.costs.attention(layer, staged=False)
        variables = tuple(self.variable(layer, None, p) for p in paths)
        return [
            self.add(
                Operation(
                    "attend_resident",
                    "gpu",
                    curve,
                    variables,
                    layer=layer,
                    micro_batch=micro_batch,
                    path=paths[0].name,
                    kernels=cost.ATTEND_KERNELS,
                ),
                [projected],
            )
        ]

    def attend_away(self, layer: int, micro_batch: int, path: Path, projected: int) -> int:
        """Send the query to where the tokens lie, attend there, return the partial result."""
        spec = self.model.layers[layer]
        variables = (self.variable(layer, None, path),)
        there_s = cost.query_s(self.hardware, spec, self.workload.kv_dtype, self.workload.rows)
        back_s = cost.partial_s(self.hardware, spec, self.workload.rows)
        latency_s = path.latency(self.hardware)
        if latency_s is not None:
            there_s = back_s = latency_s

        def operation(name: str, leg: Leg | None, curve: Curve) -> Operation:
            return Operation(
                name,
                leg.resource if leg else None,
                curve,
                variables,
                path=path.name,
                bytes_per_unit=leg.per_token if leg and not leg.beside else 0.0,
                kernels=leg.kernels if leg else 1,
                layer=layer,
                micro_batch=micro_batch,
            )

        index = self.add(operation("send_query", None, affine(there_s, 0.0)), [projected])
        for leg in self.costs.legs(layer, path):
            added = self.add(
                operation(leg.operation, leg, leg.curve or ZERO), [] if leg.beside else [index]
            )
            index = index if leg.beside else added
        return self.add(operation("return_partial", None, affine(back_s, 0.0)), [index])

    def stage(self, layer: int, micro_batch: int, stage: int, projected: int) -> list[int]:
        """Copies, rebuilds and partial attention of one stage."""
        paths = self.structure.get((layer, stage), ())
        if not paths:
            return []
        tenant = self.buffer(micro_batch, stage)
        ready, variables = [], []
        for path in self.costs.in_turn(layer, paths):
            variable = self.variable(layer, stage, path)
            variables.append(variable)
            size = self.costs.staging_bytes(layer, path)
            tenant.held[variable] = tenant.held.get(variable, 0.0) + size
            waits = [] if self.schedule.prefetch else [projected]
            ready += self.walk(layer, micro_batch, stage, path, variable, tenant.enters, waits)
        curve = self.costs.attention(layer, staged=True)
        attend = self.add(
            Operation(
                "attend",
                "gpu",
                curve,
                tuple(variables),
                layer=layer,
                stage=stage,
                micro_batch=micro_batch,
                kernels=cost.ATTEND_KERNELS,
            ),
            [projected, *ready],
        )
        tenant.leaves.append(attend)
        return [attend]

    def buffer(self, micro_batch: int, stage: int) -> Tenant:
        """The staging buffer a stage fills: its own, or the one its group of layers shares."""
        column = self.workload.schedule == "column"
        key: object = (stage,) if column else (stage, micro_batch)
        if self.schedule.axis == "layer" and self.group is not None and self.group[0] == key:
            return self.group[1]
        self.group = (key, self.staging.tenant())
        return self.group[1]

    def walk(
        self,
        layer: int,
        micro_batch: int,
        stage: int,
        path: Path,
        variable: int,
        enters: list[int],
        waits: list[int],
    ) -> list[int]:
        """The legs of a path in one stage, one after the other; returns the last one.

        The first leg that is not a disk read writes to the staging buffer; a disk read fills a
        host buffer, which the leg behind it empties.
        """
        last = waits
        host_buffer: list[int] | None = None
        staged = False
        for leg in self.costs.legs(layer, path):
            index = self.add(
                Operation(
                    leg.operation,
                    leg.resource,
                    leg.curve or ZERO,
                    (variable,),
                    layer=layer,
                    micro_batch=micro_batch,
                    stage=stage,
                    path=path.name,
                    bytes_per_unit=leg.per_token if leg.resource != "gpu" else 0.0,
                    kernels=leg.kernels,
                ),
                last,
            )
            last = [index]
            if leg.resource == "disk":
                ring = self.disk.setdefault(path.name, Ring(self.schedule.queue_depth))
                read = ring.tenant()
                read.enters.append(index)
                read.held[variable] = leg.per_token
                host_buffer = read.leaves
                continue
            if host_buffer is not None:
                host_buffer.append(index)
                host_buffer = None
            if not staged:
                enters.append(index)
                staged = True
        return last

    def write_back(self, layer: int, micro_batch: int, projected: int) -> None:
        """Send the new token's K and V to host memory where the layer keeps tokens there."""
        variables = [
            self.variable(layer, stage, path)
            for stage in (None, *self.stages_of(layer))
            for path in self.structure.get((layer, stage), ())
        ]
        stored = self.graph.variables
        kept = tuple([v for v in variables if not OUTSIDE.isdisjoint(stored[v].stored)])
        if not kept:
            return
        curve = self.costs.write_back(layer)
        self.add(
            Operation(
                "write_back",
                "d2h",
                curve,
                kept,
                layer=layer,
                micro_batch=micro_batch,
                ceiling=float(self.model.layers[layer].cached_tokens(self.workload.tokens)),
                kernels=1,
            ),
            [projected],
        )

    def head(self, micro_batch: int, finish: int) -> None:
        """Vocabulary projection; one unit of several carries its part of it."""
        seconds = cost.head_s(self.hardware, self.model, self.workload.rows) / self.repeat
        self.finished[micro_batch] = self.add(
            Operation(
                "head",
                "gpu",
                affine(seconds, 0.0),
                layer=self.layers[-1],
                micro_batch=micro_batch,
                kernels=cost.HEAD_KERNELS / self.repeat,
            ),
            [finish],
        )

    # -- closing the cycle ---------------------------------------------------------------------

    def close(self) -> StepGraph:
        """Add buffer, wrap-around and memory statements."""
        operations = self.graph.operations
        edges = [edge for ring in self.rings for edge in ring.edges()]
        self.graph.buffer_edges = frozenset(edges)
        edges += [(self.first[r], self.last[r], 1) for r in self.first]
        edges += [(project, self.finished[m], 1) for m, project in self.projects.items()]
        barrier = self.schedule.boundary == "barrier"
        for index, before, lag in edges:
            if lag == 0 or not barrier:
                operations[index].after.append((before, lag))
        if barrier:
            self.barrier()
        self.memory()
        return self.graph

    def memory(self) -> None:
        """Weights, workspace and buffers."""
        graph, model, depth = self.graph, self.model, self.schedule.queue_depth
        for layer in self.layers:
            spec = model.layers[layer]
            graph.tokens[layer] = spec.cached_tokens(self.workload.tokens)
        resident = sum(cost.weight_bytes(model, layer) for layer in model.layers)
        size, source = element_bytes(self.workload.kv_dtype), self.workload.source_tokens or 0
        held = sum(
            count * layer.held_bytes(self.workload.tokens, size, source)
            for layer, count, _ in model.layer_classes
        )
        graph.constant_bytes = {
            "hbm": resident
            + held * self.workload.batch
            + cost.shared_weight_bytes(model)
            + cost.workspace_bytes(model, self.workload.rows)
            + cost.new_bytes(
                model, self.workload.kv_dtype, self.workload.micro_batch, self.workload.new_tokens
            )
        }
        if self.staging.tenants:
            tenants = self.staging.tenants
            graph.buffers.append(
                Buffer(
                    "stages", ("hbm",), depth, [t.held for t in tenants],
                    [t.enters for t in tenants], [t.leaves for t in tenants],
                )
            )  # fmt: skip
        if self.schedule.stream_weights:
            streamed = [
                {v: cost.streamable_bytes(model, model.layers[layer])}
                for (layer, _, name), v in self.indices.items()
                if name == "stream_weights"
            ]
            graph.buffers.append(Buffer("weights", ("hbm",), WEIGHT_BUFFERS, streamed))
        for ring in self.disk.values():
            reads = ring.tenants
            graph.buffers.append(
                Buffer(
                    "disk_reads", ("dram", "pinned"), depth, [t.held for t in reads],
                    [t.enters for t in reads], [t.leaves for t in reads],
                )
            )  # fmt: skip


def group_of(layer: int, layers: int, groups: int) -> int:
    """Group of a layer when layers are cut into equal groups, the first ones larger.

    >>> [group_of(i, 7, 3) for i in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    """
    size, larger = divmod(layers, groups)
    if layer < larger * (size + 1):
        return layer // (size + 1)
    return larger + (layer - larger * (size + 1)) // size


def build_step(
    model: ModelSpec,
    hardware: HardwareProfile,
    workload: Workload,
    schedule: Schedule,
    structure: Structure,
    layers: Sequence[int] | None = None,
    copies: Mapping[int, int] | None = None,
) -> StepGraph:
    """Describe one decode step.

    Args:
        model: the model.
        hardware: the machine.
        workload: the batch.
        schedule: how the step is pipelined.
        structure: which paths each layer and stage uses.
        layers: a run of layers that stands for all of them, the model being made of equal runs:
            then the graph is one cycle of that run and ``cycles`` says how many make a step; where
            it is nearly so, that is no whole number. None describes every layer.
        copies: how many equal layers each of these stands for, wherever they are; the graph is then
            one cycle whose order means nothing.

    Returns:
        The graph.
    """
    chosen = list(range(len(model.layers))) if layers is None else list(layers)
    whole, rest = divmod(len(model.layers), len(chosen))
    repeat = 1 if copies else len(model.layers) / len(chosen) if rest else whole
    row_unit = repeat > 1 and workload.schedule == "row"
    batches = [0] if row_unit else list(range(workload.micro_batches))
    cycles = repeat * (workload.micro_batches if row_unit else 1)
    costs = LayerCosts(model, hardware, workload, schedule, repeat)
    builder = _Builder(costs, structure, chosen, cycles)
    builder.graph.copies = dict(copies or {})
    if workload.schedule == "column":
        cells = [(layer, m) for layer in chosen for m in batches]
    else:
        cells = [(layer, m) for m in batches for layer in chosen]
    for layer, micro_batch in cells:
        builder.describe(layer, micro_batch)
    return builder.close()
