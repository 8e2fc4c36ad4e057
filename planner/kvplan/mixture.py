"""A sharper lower bound on the token axis: the layers of a step as a mixture of shapes.

The fluid program forgets the order of a step. Here each kind of layer keeps its operations in the
order of the step graph, and what the layers before it leave behind is a state: when each resource
is free, and when each of the next staging buffers is. What a layer may look like is cut into
shapes, by whether all, some or none of its stages hold tokens. The layers of any plan are such a
mixture, and their times, added up, obey the rows below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvplan import program
from kvplan.allocation import unevenness
from kvplan.errors import KvplanError
from kvplan.highs import minimise
from kvplan.program import Program, Row, in_proportion, time_scale
from kvplan.staging import Staging, idle_link_s, staging_bytes
from kvplan.step import Operation, StepGraph

Terms = dict[int, float]
"""Columns and what they are multiplied by."""

State = str | int
"""When a resource has ended its work so far, by its name; when the next staging buffers are free,
by their turn; with streamed weights also when the last layer has finished, and the one before."""

NOT_AWAITED = ("d2h", "cpu", "disk")
"""Resources whose waits the bound does without."""

LEFT_OUT = ("make_way", "head")
"""Operations that are not in a layer's chain of waits: one takes the link's time beside all else,
the other stands behind the last layer."""

MOST_KINDS = 24
"""Kinds of layers up to which the bound is worth its time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Equal layers between equal neighbours.

    Args:
        layer: one of them, in the graph.
        count: how many there are.
        before: label of the boundary before each of them.
        behind: label of the boundary behind each of them.
    """

    layer: int
    count: int
    before: object
    behind: object


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer may look like.

    Args:
        stages: how many of its stages are described.
        few: whether the one described stands for all that hold tokens, which are not all it has.
        away: whether it has tokens that are attended where they lie.
        silent: whether its last stage copies nothing, so that weights behind it may load earlier.
    """

    stages: int
    few: bool = False
    away: bool = False
    silent: bool = False


def kinds(graph: StepGraph, classes: Sequence[int]) -> list[Kind]:
    """Kinds of layers; the head stands between the boundaries ``end`` and ``begin``."""
    first = {classes[layer]: layer for layer in sorted(graph.tokens, reverse=True)}
    found: dict[tuple[int, object, object], int] = {}
    for index, each in enumerate(classes):
        before: object = (classes[index - 1], each) if index else "begin"
        behind: object = (each, classes[index + 1]) if index + 1 < len(classes) else "end"
        found[each, before, behind] = found.get((each, before, behind), 0) + 1
    return [Kind(first[each], n, before, behind) for (each, before, behind), n in found.items()]


def applies(graph: StepGraph, classes: Sequence[int]) -> bool:
    """Whether the step's waits are those of the rows here: token ranges, one micro-batch, no
    barrier, copies that run ahead.
    """
    schedule = graph.schedule
    return (
        schedule.axis == "token"
        and schedule.boundary == "overlap"
        and schedule.prefetch
        and schedule.queue_depth <= schedule.stages
        and all(o.micro_batch == 0 for o in graph.operations)
        and graph.cycles * len(graph.tokens) == len(classes)
        and len(kinds(graph, classes)) <= MOST_KINDS
    )


def bound(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    block: int,
    staging: Staging | None = None,
    *,
    fine: bool = False,
) -> float:
    """The least step any plan of this graph can have, seconds; infinite where nothing fits.

    Args:
        graph: the step, with every path that may be used in its structure.
        classes: class number of every layer of the model; equal layers share one.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        block: tokens of the largest block a plan may be made of.
        staging: only plans whose staging buffers are within these limits.
        fine: tell layers with some empty stages apart by how many hold tokens.
    """
    return solve(state(graph, classes, capacity, quality, block, staging, fine=fine))


def state(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    block: int,
    staging: Staging | None = None,
    *,
    fine: bool = False,
) -> Mixture:
    """State the program; arguments as those of `bound`."""
    mixture = Mixture(graph, classes, block, staging, fine)
    for kind in kinds(graph, classes):
        define_kind(mixture, kind)
    define_head(mixture)
    define_boundaries(mixture)
    define_resources(mixture)
    define_capacity(mixture, capacity)
    define_quality(mixture, quality)
    return mixture


def solve(mixture: Mixture) -> float:
    """Seconds of a step at the optimum: infinite if nothing fits, 0 if the solver gives up."""
    stated = mixture.program
    rows, _ = program.scaled_rows(stated)
    try:
        found = minimise({stated.period: 1.0}, rows, program.scaled_limits(stated))
    except KvplanError:
        return 0.0
    if found is None:
        return float("inf")
    return found.values[stated.period] * stated.scale[stated.period]


@dataclass(slots=True)
class Mixture:
    """A program while it is being stated; T is the whole step.

    Args:
        graph: the step, of one unit where layers repeat.
        classes: class number of every layer of the model.
        block: tokens of the largest block.
        staging: limits of a staging buffer.
        fine: whether layers with some empty stages are told apart.
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
    """

    graph: StepGraph
    classes: Sequence[int]
    block: int
    staging: Staging | None
    fine: bool
    program: Program = field(init=False)
    members: dict[int, list[Operation]] = field(default_factory=dict)
    states: list[State] = field(default_factory=list)
    inward: dict[tuple[object, State], Terms] = field(default_factory=dict)
    outward: dict[tuple[object, State], Terms] = field(default_factory=dict)
    busy: dict[str, Terms] = field(default_factory=dict)
    tokens: dict[tuple[int, str], Terms] = field(default_factory=dict)
    stored: dict[str, Terms] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
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


def shapes(mixture: Mixture, kind: Kind) -> Iterator[Shape]:
    """Every shape that layers of a kind may have."""
    operations, schedule = mixture.members[kind.layer], mixture.graph.schedule
    most = sum(o.operation == "attend" for o in operations)
    away = any(o.operation == "send_query" for o in operations)
    crossing = _crossing(operations)
    quiet = any(v not in crossing for o in operations if o.stage is not None for v in o.variables)
    silent = schedule.stream_weights and quiet and most > schedule.queue_depth
    for is_away in (False, True) if away else (False,):
        yield Shape(0, away=is_away)
        if most > 1 and not mixture.fine:
            yield Shape(1, few=True, away=is_away)
        for stages in range(1 if mixture.fine else most, most + 1):
            if stages:
                yield Shape(stages, away=is_away)
        if silent:
            yield Shape(most, away=is_away, silent=True)


def _crossing(operations: Sequence[Operation]) -> set[int]:
    """Variables whose tokens are copied to a staging buffer over the link."""
    return {v for o in operations if o.resource == "h2d" and o.stage is not None
            for v in o.variables}  # fmt: skip


def define_kind(mixture: Mixture, kind: Kind) -> None:
    """For each kind: its layers are a mixture of shapes; buffers hold the mean tenant of each of
    its stages.
    """
    shares: list[int] = []
    tenants: dict[tuple[str, int | None], Terms] = {}
    for shape in shapes(mixture, kind):
        layers = _Layers(mixture, kind, shape)
        shares.append(layers.share)
        layers.define_tokens()
        layers.define_even_stages()
        layers.define_tenants(tenants)
        layers.define_times()
    mixture.equal("shapes", dict.fromkeys(shares, 1.0), float(kind.count))
    for (holds, _), size in tenants.items():
        if holds not in mixture.sizes:
            mixture.sizes[holds] = mixture.column("buffer", 2.0**20)
        mixture.row("buffer", add({mixture.sizes[holds]: -1.0}, size, 1.0 / kind.count))


class _Layers:
    """Layers of one kind and shape: every column is a sum over them.

    Where few of their stages hold tokens, one stands for all of these, and ``tenants`` is how many
    they are; else each stage has as many tenants as there are layers.
    """

    def __init__(self, mixture: Mixture, kind: Kind, shape: Shape) -> None:
        self.mixture, self.kind, self.shape = mixture, kind, shape
        self.share = mixture.column("share", float(kind.count))
        self.held = float(mixture.graph.tokens[kind.layer])
        self.spread = float(unevenness(int(self.held), mixture.block))
        self.stages = mixture.graph.schedule.stages
        self.tenants: Terms = {self.share: 1.0}
        if shape.few:
            column = mixture.column("tenants", float(kind.count * self.stages))
            self.tenants = {column: 1.0}
            mixture.row("tenants", {self.share: 1.0, column: -1.0})
            mixture.row("tenants", {self.share: 1.0 - self.stages, column: 1.0})
        self.n: dict[int, int] = {}
        self.present: dict[int, Terms] = {}
        members = mixture.members[kind.layer]
        self.crossing = _crossing(members)
        self.operations = [o for o in members if self._kept(o)]

    def _kept(self, operation: Operation) -> bool:
        """Whether layers of this shape may have an operation."""
        shape = self.shape
        if operation.operation == "write_back":
            return False
        if operation.stage is not None:
            last = shape.silent and operation.stage == shape.stages - 1
            own = operation.operation != "attend" and not self.crossing.isdisjoint(
                operation.variables
            )
            return operation.stage < shape.stages and not (last and own)
        resident = operation.operation in ("attend_resident", "load_weights")
        return shape.away or resident or not operation.variables

    def define_tokens(self) -> None:
        """Tokens of each path; those of all paths add up. A stage that holds tokens, and what is
        attended away, has at least one path, whose fixed times it takes.
        """
        mixture, graph = self.mixture, self.mixture.graph
        groups: dict[int | None, list[int]] = {}
        for operation in self.operations:
            if operation.operation == "attend":
                continue
            for index in operation.variables:
                if index in self.n:
                    continue
                variable, most = graph.variables[index], self._most(index)
                self.n[index] = mixture.column("n", max(most, 1e-9) * self.kind.count)
                for tier, size in variable.stored.items():
                    stored = mixture.stored.setdefault(tier, {})
                    add(stored, {self.n[index]: size / graph.cycles})
                key = (mixture.classes[self.kind.layer], variable.path)
                add(mixture.tokens.setdefault(key, {}), {self.n[index]: 1.0})
                if variable.path == "stream_weights":
                    mixture.row("streamed", {self.n[index]: 1.0, self.share: -1.0})
                elif operation.operation != "attend_resident":
                    groups.setdefault(variable.stage, []).append(index)
        own = [c for i, c in self.n.items() if graph.variables[i].path != "stream_weights"]
        mixture.equal("tokens", dict.fromkeys(own, 1.0) | {self.share: -self.held})
        for members in groups.values():
            self._define_present(members)

    def _most(self, index: int) -> float:
        """Most tokens of a variable in a layer, or in one of its stages."""
        mixture, variable = self.mixture, self.mixture.graph.variables[index]
        if variable.stage is None:
            return variable.ceiling
        most = min(self.held / self.stages + self.spread, self.held)
        if self.shape.few or self.shape.stages < self.stages:
            most = min(most, 2 * self.spread)
        if mixture.staging is not None and index in mixture.staging.per_token:
            most = min(most, mixture.staging.most_bytes / mixture.staging.per_token[index])
        return most

    def _define_present(self, members: Sequence[int]) -> None:
        """Where each path of a stage is present: where it has tokens; one of them is."""
        staged = self.mixture.graph.variables[members[0]].stage is not None
        whole = self.tenants if staged else {self.share: 1.0}
        one = add({}, whole)
        for index in members:
            self.present[index] = whole
            if len(members) > 1:
                column = self.mixture.column("present", float(self.kind.count))
                self.present[index] = {column: 1.0}
                one[column] = -1.0
            most = add({self.n[index]: 1.0}, self.present[index], -self._most(index))
            self.mixture.row("present", most)
        if len(members) > 1:
            self.mixture.row("present", one)

    def define_even_stages(self) -> None:
        """For each stage: its tokens are near the mean of the layer's stages; where one is empty,
        that mean is near nothing.
        """
        if self.shape.few:
            most = self.stages * self.spread
            self.mixture.row("even_stages", self._stage(0) | {self.share: -most})
        elif self.shape.stages:
            mean = self.mixture.column("mean", self.held * self.kind.count)
            sizes = [self._stage(stage) for stage in range(self.shape.stages)]
            if self.shape.stages < self.stages:
                self.mixture.row("even_stages", {mean: 1.0, self.share: -self.spread})
            total = {column: 1.0 / self.stages for size in sizes for column in size}
            self.mixture.equal("even_stages", total | {mean: -1.0})
            for size in sizes:
                self.mixture.row("even_stages", size | {mean: -1.0, self.share: -self.spread})
                below = dict.fromkeys(size, -1.0)
                self.mixture.row("even_stages", below | {mean: 1.0, self.share: -self.spread})

    def _stage(self, stage: int) -> Terms:
        variables = self.mixture.graph.variables
        return {column: 1.0 for i, column in self.n.items() if variables[i].stage == stage}

    def define_tenants(self, tenants: dict[tuple[str, int | None], Terms]) -> None:
        """Bytes of the tenants of buffers: of each stage, and of streamed weights."""
        mixture = self.mixture
        for index, column in self.n.items():
            variable = mixture.graph.variables[index]
            if variable.path == "stream_weights":
                size = variable.stored["dram"] / mixture.graph.cycles
                add(tenants.setdefault(("weights", None), {}), {column: size})
            elif variable.stage is not None:
                size = mixture.staged_bytes[index]
                stages: Sequence[int] = (variable.stage,)
                if self.shape.few:
                    stages, size = range(self.stages), size / (self.stages - 1)
                for stage in stages:
                    add(tenants.setdefault(("stages", stage), {}), {column: size})
        if mixture.staging is None:
            return
        for stage in range(self.shape.stages):
            whole = {
                column: mixture.staged_bytes[index]
                for index, column in self.n.items()
                if mixture.graph.variables[index].stage == stage
            }
            mixture.row("tenant", add(whole, self.tenants, -mixture.staging.most_bytes))

    def define_times(self) -> None:
        """For each operation: it starts after what it needs in its layer, after the one before it
        on its resource, and when its buffer is free; and the state that the layer leaves behind.
        """
        mixture = self.mixture
        inward = {state: mixture.column("in", mixture.time_s) for state in mixture.states}
        last: dict[State, Terms] = {state: {column: 1.0} for state, column in inward.items()}
        ends: dict[int, Terms] = {}
        attended: list[Terms] = []
        for operation in self.operations:
            taken = self._duration(operation)
            if operation.resource is not None:
                add(mixture.busy.setdefault(operation.resource, {}), taken)
            if operation.resource in NOT_AWAITED or operation.operation in LEFT_OUT:
                continue
            start = mixture.column("start", mixture.time_s)
            for before in self._awaited(operation, inward, last, ends, attended):
                mixture.row("precedence", add({start: -1.0}, before))
            end = add({start: 1.0}, taken)
            ends[mixture.index_of[id(operation)]] = end
            if operation.resource is not None:
                last[operation.resource] = end
            if operation.operation == "attend":
                attended.append(end)
            if operation.operation == "finish" and "finished" in last:
                last["finished"], last["freed"] = end, last["finished"]
        depth = mixture.graph.schedule.queue_depth
        for turn in range(0 if self.shape.few else depth):
            place = turn + len(attended)
            last[turn] = attended[place - depth] if place >= depth else {inward[place]: 1.0}
        for state in mixture.states:
            add(mixture.outward.setdefault((self.kind.behind, state), {}), last[state])
            add(mixture.inward.setdefault((self.kind.before, state), {}), {inward[state]: 1.0})

    def _awaited(
        self,
        operation: Operation,
        inward: Mapping[State, int],
        last: Mapping[State, Terms],
        ends: Mapping[int, Terms],
        attended: Sequence[Terms],
    ) -> Iterator[Terms]:
        """Ends of what an operation waits for."""
        graph, depth = self.mixture.graph, self.mixture.graph.schedule.queue_depth
        index = self.mixture.index_of[id(operation)]
        if operation.resource is not None:
            yield last[operation.resource]
        entering = False
        for before, lag in operation.after:
            if (index, before, lag) in graph.buffer_edges:
                entering = True
            elif lag == 0 and before in ends:
                yield ends[before]
        if not entering:
            return
        if operation.operation == "load_weights":
            yield {inward["freed"]: 1.0}
        elif operation.stage is None or self.shape.few:
            return
        elif operation.stage < depth:
            yield {inward[operation.stage]: 1.0}
        elif not (self._may_be_silent and operation.resource == "h2d"):
            yield attended[operation.stage - depth]

    @property
    def _may_be_silent(self) -> bool:
        """Whether weights behind the copies may load before earlier buffers are free, the last
        stages having nothing to copy.
        """
        streams = self.mixture.graph.schedule.stream_weights
        return self.shape.silent or (streams and self.shape.stages < self.stages)

    def _duration(self, operation: Operation) -> Terms:
        """Seconds of an operation; its fixed part where it is present, or in proportion."""
        found: list[Terms] = []
        for piece in operation.curve.pieces:
            fixed: Terms = {self.share: 1.0}
            part = piece
            if operation.operation == "attend":
                fixed = self.tenants
            elif operation.variables:
                first = operation.variables[0]
                fixed = self.present.get(first, fixed)
                if first not in self.present:
                    part = in_proportion(piece, operation.ceiling)
            terms = add({}, fixed, part.fixed_s)
            volume = {self.n[v]: part.s_per_unit for v in operation.variables if v in self.n}
            found.append(add(terms, volume))
        if len(found) == 1:
            return found[0]
        column = self.mixture.column("d", self.mixture.time_s)
        for terms in found:
            self.mixture.row("duration", add({column: -1.0}, terms))
        return {column: 1.0}


def define_head(mixture: Mixture) -> None:
    """Behind the last layer the GPU runs the head; all else is as it was. Then a step is over."""
    for state in mixture.states:
        column = mixture.column("in", mixture.time_s)
        mixture.inward["end", state] = {column: 1.0}
        mixture.outward["begin", state] = {column: 1.0, mixture.program.period: -1.0}


def head_s(graph: StepGraph) -> float:
    """Seconds of the head of the whole step."""
    heads = (o.curve.seconds(0.0) for o in graph.operations if o.operation == "head")
    return sum(heads) * graph.cycles


def define_boundaries(mixture: Mixture) -> None:
    """For each boundary and state: what layers leave there is no later than what those behind it
    find, both added up over all boundaries with that label.
    """
    for (label, state), left in mixture.outward.items():
        most = -head_s(mixture.graph) if (label, state) == ("begin", "gpu") else 0.0
        mixture.row("boundary", add(dict(left), mixture.inward[label, state], -1.0), most)


def define_resources(mixture: Mixture) -> None:
    """For each resource: the durations of its operations add up to at most T; around the head the
    link waits, or fills the buffers of streamed weights.
    """
    graph, staging = mixture.graph, mixture.staging
    for resource, total in mixture.busy.items():
        most = -head_s(graph) if resource == "gpu" else 0.0
        mixture.row("resource", add({mixture.program.period: -1.0}, total), most)
    if staging is not None and staging.per_token and "h2d" in mixture.busy:
        idle_s = idle_link_s(graph, mixture.classes, staging) * graph.cycles
        terms, most = _loads(mixture)
        add(terms, mixture.busy["h2d"])
        mixture.row("idle_link", add(terms, {mixture.program.period: -1.0}), most - idle_s)


def _loads(mixture: Mixture) -> tuple[Terms, float]:
    """Seconds less than nothing: filling every buffer of streamed weights, which is as large as the
    largest share of a layer; over its column, and what is fixed of it.
    """
    graph = mixture.graph
    loads = [o for o in graph.operations if o.operation == "load_weights"]
    if not loads:
        return {}, 0.0
    count = sum(b.count for b in graph.buffers if b.holds == "weights")
    pieces = [(p.fixed_s, p.s_per_unit / o.bytes_per_unit) for o in loads for p in o.curve.pieces]
    slope = max(per_byte for _, per_byte in pieces)
    fixed_s = max(fixed for fixed, _ in pieces)
    return {mixture.sizes["weights"]: -count * slope}, count * max(fixed_s, 0.0)


def define_capacity(mixture: Mixture, capacity: Mapping[str, float]) -> None:
    """For each tier: constant, stored and buffers fit."""
    graph, staging = mixture.graph, mixture.staging
    for tier, limit in capacity.items():
        terms = dict(mixture.stored.get(tier, {}))
        for buffer in graph.buffers:
            if tier in buffer.tiers and buffer.holds in mixture.sizes:
                add(terms, {mixture.sizes[buffer.holds]: float(buffer.count)})
        mixture.row("capacity", terms, limit - graph.constant_bytes.get(tier, 0.0))
    if staging is not None and "stages" in mixture.sizes:
        mixture.row("least", {mixture.sizes["stages"]: -1.0}, -staging.least_bytes)


def define_quality(mixture: Mixture, quality: Mapping[str, float]) -> None:
    """For each inexact path with a limit: its tokens are at most its share of all tokens."""
    graph = mixture.graph
    total = graph.cycles * sum(graph.tokens.values())
    for path, share in quality.items():
        taken: Terms = {}
        for (_, name), terms in mixture.tokens.items():
            if name == path:
                add(taken, terms)
        if taken and share < 1:
            mixture.row("quality", taken, share * total)
