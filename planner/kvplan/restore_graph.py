"""The graph of a restore: a prefix brought back once, and the suffix computed behind it.

The same operations, edges, variables and buffers as a decode step's graph, closed by a barrier: its
period is the time from the first operation to the last, so the program, the simulator and traces
read it as they read a step.

Recomputing a token from tokens needs K and V of every token before it, so only a front of the
prefix is recomputed; K and V from the store, and rebuilds from activations, come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvplan import cost, prefill
from kvplan.curve import ZERO, affine
from kvplan.dtypes import element_bytes
from kvplan.graph import Buffer, GraphBuilder, Operation, StepGraph, Variable
from kvplan.paths import Leg, Path
from kvplan.restoration import STAGING, Restoration
from kvplan.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a prefix comes back, all but the numbers of tokens.

    Args:
        full: chunks of the front that are computed whole.
        meeting: whether part of the next chunk is computed too.
        depth: layers through which the front is computed; the others' tokens all come from the
            store.
        paths: ways in which the tokens behind the front come back, by layer.
        resident: nothing has to be brought back.
        spread: layers between whose arrivals the GPU computes the front; 0: before all of them.
        loose: for bounds: a rebuild waits for no copy, only the suffix does. Never later than any
            graph with the same work, wherever it computes the front.
    """

    full: int
    meeting: bool
    depth: int
    paths: tuple[tuple[Path, ...], ...]
    resident: bool = False
    spread: int = 0
    loose: bool = False


@dataclass(slots=True)
class _Turns:
    """Buffers used in turn: a tenant enters when the one ``depth`` before it has left."""

    depth: int
    left: list[int] = field(default_factory=list)
    tenants: list[dict[int, float]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether the next tenant's buffer has not been left by an operation appended so far."""
        return len(self.tenants) - len(self.left) >= self.depth

    def enter(self, tenant: dict[int, float]) -> list[int]:
        """Add a tenant; returns the operation it waits for, if any."""
        before = len(self.tenants) - self.depth
        self.tenants.append(tenant)
        return [self.left[before]] if before >= 0 else []


class _Builder(GraphBuilder):
    def __init__(self, restoration: Restoration, shape: Shape) -> None:
        schedule = Schedule(axis="layer", stages=1, queue_depth=STAGING, boundary="barrier")
        edges = cost.edge_s(restoration.hardware)
        super().__init__(StepGraph([], [], [], {}, {}, schedule, edge_s=edges))
        self.restoration, self.shape = restoration, shape
        self.layers = restoration.model.layers
        self.staging, self.host = _Turns(STAGING), _Turns(STAGING)
        self.indices: dict[tuple[int, str], int] = {}
        self.front: int | None = None
        self.arrived: dict[int, list[int]] = {}
        self.queue: list[Callable[[], None]] = []
        self.buffer_edges: set[tuple[int, int, int]] = set()

    # -- what may be decided -------------------------------------------------------------------

    def decide(self) -> None:
        """Variables and the tokens that each layer needs."""
        given, shape, graph = self.restoration, self.shape, self.graph
        begin = given.edges[shape.full]
        if shape.meeting:
            size = given.edges[shape.full + 1] - begin
            relieved = [
                layer
                for layer in range(shape.depth)
                if given.cached[layer] and given.prefix.tokens - begin <= given.cached[layer]
            ]
            # A layer whose window begins later needs its whole window all the same.
            first = relieved[0] if relieved else -1
            self.front = len(graph.variables)
            graph.variables.append(
                Variable(first, shape.full, "prefill", float(size), {}, also=tuple(relieved[1:]))
            )
        for layer, spec in enumerate(self.layers):
            needed = given.behind(layer, begin if layer < shape.depth else 0)
            if not needed or not shape.paths[layer]:
                continue
            graph.tokens[layer] = needed
            for path in shape.paths[layer]:
                stored = {
                    tier: size * given.prefix.requests
                    for tier, size in path.stored(spec, given.prefix.kv_dtype).items()
                }
                self.indices[layer, path.name] = len(graph.variables)
                graph.variables.append(
                    Variable(layer, None, path.name, float(needed), stored, path.exact)
                )

    # -- operations ----------------------------------------------------------------------------

    def request(self, number: int) -> None:
        """One request: copies as early as buffers allow, the GPU's work in its own order."""
        self.arrived = {}
        self.queue = self.on_gpu(number)
        for layer in range(len(self.layers)):
            self.bring_held(number, layer)
            for path in self.shape.paths[layer]:
                if (layer, path.name) in self.indices:
                    self.bring(number, layer, path)
        while self.queue:
            self.place()

    def place(self) -> None:
        """Append the next of the GPU's operations."""
        self.queue.pop(0)()

    def on_gpu(self, number: int) -> list[Callable[[], None]]:
        """The GPU's work for one request, in order."""
        shape, layers = self.shape, range(len(self.layers))
        chunks = shape.full + shape.meeting
        parts = max(-(-shape.spread // chunks), 1) if chunks else 1
        front = [
            partial(self.compute, number, chunk, parts)
            for chunk in range(chunks)
            for _ in range(parts)
        ]
        arrive = [partial(self.finish, number, layer) for layer in layers]
        suffix = [partial(self.first_chunk, number, layer) for layer in layers]
        order = _merged(front, arrive[: shape.spread])
        if self.together:
            order += arrive[shape.spread :] + suffix
        else:
            order += _merged(arrive[shape.spread :], suffix, even=True)
        return [*order, partial(self.rest, number)]

    @property
    def together(self) -> bool:
        """Whether the suffix waits for all that is brought back."""
        prefix = self.restoration.prefix
        return not prefix.overlap or prefix.granularity == "whole-block"

    def compute(self, number: int, chunk: int, parts: int) -> None:
        """Recompute one chunk of the front through one of so many equal parts of its layers."""
        given, depth = self.restoration, self.shape.depth
        begin, end = given.edges[chunk : chunk + 2]
        meeting = chunk == self.shape.full
        curve = (
            given.chunk(begin, end - begin, depth)
            if meeting
            else affine(given.chunk_s(begin, end - begin, depth), 0.0)
        )
        assert not meeting or self.front is not None
        variables = (self.front,) if meeting and self.front is not None else ()
        self.add(
            Operation(
                "prefill",
                "gpu",
                curve.times(1 / parts),
                variables,
                stage=chunk,
                micro_batch=number,
                path="prefill",
                present=True,
            )
        )

    def bring(self, number: int, layer: int, path: Path) -> None:
        """Read and copy what a layer's tokens need; what the GPU does with it comes in its turn."""
        variable = self.indices[layer, path.name]
        legs = self.restoration.legs(path, self.layers[layer])
        staged = any(leg.resource == "gpu" for leg in legs)
        last: list[int] = []
        for leg in legs:
            if leg.resource == "gpu":
                continue
            freed: list[int] = []
            if leg.resource == "disk":
                freed = self.host.enter({variable: leg.per_token})
            elif staged and not self.shape.loose:
                while self.staging.full:
                    self.place()
                freed = self.staging.enter({variable: leg.per_token})
            index = self.add(self.operation(leg, number, layer, path.name), [*last, *freed])
            self.buffer_edges |= {(index, before, 0) for before in freed}
            last = [index]
            if leg.resource == "h2d" and legs[0].resource == "disk":
                self.host.left.append(index)
        self.arrived.setdefault(layer, []).extend(last)

    def bring_held(self, number: int, layer: int) -> None:
        """Bring what a layer keeps beside tokens (a state, a source) after the prefix."""
        given, shape = self.restoration, self.shape
        computed = layer < shape.depth and given.edges[shape.full] == given.prefix.tokens
        size = given.held(layer)
        if not size or computed or shape.resident:
            return
        last: list[int] = []
        if given.prefix.source == "disk" and given.hardware.disk is not None:
            seconds = given.hardware.disk.read.seconds(size)
            last = [
                self.add(
                    Operation(
                        "read_disk",
                        "disk",
                        affine(seconds, 0.0),
                        layer=layer,
                        micro_batch=number,
                        path="held",
                        bytes_per_unit=size,
                    )
                )
            ]
        copied = self.add(
            Operation(
                "copy_held",
                "h2d",
                affine(given.one_copy.seconds(size), 0.0),
                layer=layer,
                micro_batch=number,
                path="held",
                bytes_per_unit=size,
            ),
            last,
        )
        self.arrived.setdefault(layer, []).append(copied)

    def operation(self, leg: Leg, number: int, layer: int, path: str) -> Operation:
        """One leg of a path as an operation."""
        moved = leg.per_token if leg.resource != "gpu" else 0.0
        return Operation(
            leg.operation, leg.resource, leg.curve or ZERO, (self.indices[layer, path],),
            layer=layer, micro_batch=number, path=path, bytes_per_unit=moved, kernels=leg.kernels,
        )  # fmt: skip

    def finish(self, number: int, layer: int) -> None:
        """Rebuild or unpack what has arrived for a layer."""
        copied = self.arrived.get(layer, [])
        loose = self.shape.loose
        paths = [p for p in self.shape.paths[layer] if (layer, p.name) in self.indices]
        for position, path in enumerate(paths, len(copied) - len(paths)):
            last = copied[position]
            for leg in self.restoration.legs(path, self.layers[layer]):
                if leg.resource == "gpu":
                    operation = self.operation(leg, number, layer, path.name)
                    last = self.add(operation, [] if loose else [last])
            if last != copied[position] and not loose:
                self.staging.left.append(last)
                copied[position] = last

    def first_chunk(self, number: int, layer: int) -> None:
        """One layer of the suffix's first chunk, behind the K and V it attends."""
        given = self.restoration
        if self.together:
            waits = [i for found in self.arrived.values() for i in found] if not layer else []
        else:
            waits = self.arrived.get(layer, [])
        size = min(given.prefix.suffix, given.prefix.chunk)
        seconds = given.layer_s(self.layers[layer], given.prefix.tokens, size)
        self.add(
            Operation(
                "prefill",
                "gpu",
                affine(seconds, 0.0),
                layer=layer,
                micro_batch=number,
                stage=len(given.edges) - 1,
                path="suffix",
            ),
            waits,
        )

    def rest(self, number: int) -> None:
        """Further chunks of the suffix, and the first new token."""
        given = self.restoration
        begin, end = given.prefix.tokens, given.prefix.tokens + given.prefix.suffix
        starts = range(begin + given.prefix.chunk, end, given.prefix.chunk)
        for position, start in enumerate(starts):
            size = min(given.prefix.chunk, end - start)
            seconds = given.chunk_s(start, size, len(self.layers))
            self.add(
                Operation(
                    "prefill",
                    "gpu",
                    affine(seconds, 0.0),
                    micro_batch=number,
                    stage=len(given.edges) + position,
                    path="suffix",
                )
            )
        self.add(
            Operation(
                "head",
                "gpu",
                affine(given.head_s(), 0.0),
                layer=len(self.layers) - 1,
                micro_batch=number,
            )
        )

    # -- memory --------------------------------------------------------------------------------

    def memory(self) -> None:
        """Weights, workspace, the whole cache, and buffers."""
        graph = self.graph
        graph.buffer_edges = frozenset(self.buffer_edges)
        graph.constant_bytes = {"hbm": held_bytes(self.restoration)}
        if self.staging.tenants:
            graph.buffers.append(Buffer("stages", ("hbm",), STAGING, self.staging.tenants))
        if self.host.tenants:
            graph.buffers.append(
                Buffer("disk_reads", ("dram", "pinned"), STAGING, self.host.tenants)
            )


def _merged(
    one: Sequence[Callable[[], None]], other: Sequence[Callable[[], None]], even: bool = False
) -> list[Callable[[], None]]:
    """Two lists as one, both spread evenly: the first one early and the other late, or abreast."""
    early, late = (0.5, 0.5) if even else (0.0, 1.0)
    placed = [((i + early) / len(one), add) for i, add in enumerate(one)]
    placed += [((i + late) / len(other), add) for i, add in enumerate(other)]
    return [add for _, add in sorted(placed, key=lambda item: item[0])]


def held_bytes(restoration: Restoration) -> float:
    """Bytes of HBM at the first new token: weights, workspace, K and V of every request."""
    prefix, model = restoration.prefix, restoration.model
    whole = prefix.tokens + prefix.suffix
    weights = sum(cost.weight_bytes(model, layer) for layer in model.layers)
    cache = model.kv_bytes(whole, element_bytes(prefix.kv_dtype)) * prefix.requests
    chunk = min(prefix.chunk, whole)
    return weights + cost.shared_weight_bytes(model) + prefill.workspace_bytes(model, chunk) + cache


def build_restore(restoration: Restoration, shape: Shape) -> StepGraph:
    """Describe a restore of all requests, one after the other.

    Args:
        restoration: model, machine, prefix.
        shape: how the prefix comes back.

    Returns:
        The graph; its period is the time until the last request has its first new token.
    """
    builder = _Builder(restoration, shape)
    builder.decide()
    for number in range(restoration.prefix.requests):
        builder.request(number)
    builder.memory()
    builder.barrier()
    return builder.graph
