"""The layers of one kind in a mixture: what shapes they may have, and the rows of each shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kvplan.allocation import unevenness
from kvplan.mixture_statement import NOT_AWAITED, Mixture, State, Terms, add
from kvplan.program import in_proportion
from kvplan.step import Operation

LEFT_OUT = ("make_way", "head")
"""Operations that are not in a layer's chain of waits: one takes the link's time beside all else,
the other stands behind the last layer."""


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
        silent: how many of its last stages copy nothing, so that weights behind them may load
            earlier.
        followed: whether the layer behind it is full; None: that is not told.
    """

    stages: int
    few: bool = False
    away: bool = False
    silent: int = 0
    followed: bool | None = None


def stages_of(mixture: Mixture, kind: Kind) -> int:
    """Stages that hold tokens in layers of a kind, at most."""
    return sum(o.operation == "attend" for o in mixture.members[kind.layer])


def is_full(shape: Shape, most: int) -> bool:
    """Whether each of the stages that a layer may have holds tokens and waits for its buffer."""
    return 0 < shape.stages == most and not (shape.few or shape.silent)


def tell_followed(mixture: Mixture, kinds: Sequence[Kind]) -> None:
    """Tell layers apart by what follows them: at each boundary, a full layer or another one, as far
    as there may be such.

    Where the states of a boundary only add up, a shape that no layer has can be late for all: one
    that waits for no buffer loses nothing by it. With this only full layers can be late for full
    ones, and they wait.
    """
    for kind in kinds:
        if kind.before != "begin":
            full = (True,) if stages_of(mixture, kind) else ()
            mixture.followed[kind.before] = (*full, False)


def shapes(mixture: Mixture, kind: Kind) -> Iterator[Shape]:
    """Every shape that layers of a kind may have, for each of what may follow them."""
    for shape in _shapes(mixture, kind):
        for followed in mixture.followed.get(kind.behind, (None,)):
            yield replace(shape, followed=followed)


def _shapes(mixture: Mixture, kind: Kind) -> Iterator[Shape]:
    operations, schedule = mixture.members[kind.layer], mixture.graph.schedule
    most = stages_of(mixture, kind)
    away = any(o.operation == "send_query" for o in operations)
    awaiting = max(most - schedule.queue_depth, 0)  # copies that wait for a stage of their layer
    silent = awaiting if schedule.stream_weights and _some_are_silent(operations) else 0
    for is_away in (False, True) if away else (False,):
        yield Shape(0, away=is_away)
        if most > 1 and not mixture.fine:
            yield Shape(1, few=True, away=is_away)
        for stages in range(1 if mixture.fine else most, most + 1):
            if stages:
                yield Shape(stages, away=is_away)
        for last in range(1, silent + 1):
            yield Shape(most, away=is_away, silent=last)


def _crossing(operations: Sequence[Operation]) -> set[int]:
    """Variables whose tokens are copied to a staging buffer over the link."""
    return {v for o in operations if o.resource == "h2d" and o.stage is not None
            for v in o.variables}  # fmt: skip


def _some_are_silent(operations: Sequence[Operation]) -> bool:
    """Whether stages may hold tokens that are not copied over the link."""
    crossing = _crossing(operations)
    return any(v not in crossing for o in operations if o.stage is not None for v in o.variables)


class Layers:
    """Layers of one kind and shape: every column is a sum over them.

    Where few of their stages hold tokens, one stands for all of these, and ``tenants`` is how many
    they are; else each stage has as many tenants as there are layers. ``n`` has the columns of
    tokens and ``present`` how many layers have any, by variable of the graph; ``durations`` and
    ``ends`` those of operations, by their identity.
    """

    def __init__(self, mixture: Mixture, kind: Kind, shape: Shape) -> None:
        """Nothing is stated yet but how many layers they are."""
        self.mixture, self.kind, self.shape = mixture, kind, shape
        self.before, self.behind = kind.before, kind.behind
        if kind.before in mixture.followed:
            self.before = kind.before, is_full(shape, stages_of(mixture, kind))
        if shape.followed is not None:
            self.behind = kind.behind, shape.followed
        self.share = mixture.column("share", 1.0)
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
        self.durations: dict[int, Terms] = {}
        self.ends: dict[int, Terms] = {}
        members = mixture.members[kind.layer]
        self.crossing = _crossing(members)
        self.operations = [o for o in members if self._kept(o)]
        # Which of the stages copies nothing is not told apart where others hold no tokens.
        streams = mixture.graph.schedule.stream_weights and shape.stages < self.stages
        self.may_load_earlier = streams and _some_are_silent(members)

    def _kept(self, operation: Operation) -> bool:
        """Whether layers of this shape may have an operation."""
        shape = self.shape
        if operation.operation == "write_back":
            return False
        if operation.stage is not None:
            last = operation.stage >= shape.stages - shape.silent
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
                variable, most = graph.variables[index], self.most(index)
                self.n[index] = mixture.column("n", max(most, 1e-9) * self.kind.count)
                for tier, size in variable.stored.items():
                    stored = mixture.stored.setdefault(tier, {})
                    add(stored, {self.n[index]: size / graph.cycles})
                key = (mixture.classes[self.kind.layer], variable.path)
                add(mixture.tokens.setdefault(key, {}), {self.n[index]: 1.0})
                if variable.path == "stream_weights":
                    most = self._ceiling(operation)
                    mixture.row("streamed", {self.n[index]: 1.0, self.share: -most})
                elif operation.operation != "attend_resident":
                    groups.setdefault(variable.stage, []).append(index)
        own = [c for i, c in self.n.items() if graph.variables[i].path != "stream_weights"]
        mixture.equal("tokens", dict.fromkeys(own, 1.0) | {self.share: -self.held})
        for members in groups.values():
            self._define_present(members)

    def most(self, index: int) -> float:
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
            most = add({self.n[index]: 1.0}, self.present[index], -self.most(index))
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
            taken = self.durations[id(operation)] = self._duration(operation)
            if operation.resource is not None:
                add(mixture.busy.setdefault(operation.resource, {}), taken)
            if operation.resource in NOT_AWAITED or operation.operation in LEFT_OUT:
                continue
            start = mixture.column("start", mixture.time_s)
            awaited = self._awaited(operation, inward, last, ends, attended)
            for before in (*awaited, *self._awaited_by_last(operation, taken, ends)):
                mixture.row("precedence", add({start: -1.0}, before))
            end = add({start: 1.0}, taken)
            ends[mixture.index_of[id(operation)]] = self.ends[id(operation)] = end
            if operation.resource is not None:
                last[operation.resource] = end
            if operation.operation == "attend":
                attended.append(end)
            if operation.operation == "finish" and "finished" in last:
                last["finished"], last["freed"] = end, last["finished"]
        depth = mixture.graph.schedule.queue_depth
        for turn in range(0 if self.mixture.groups else depth):
            place = turn + len(attended)  # where few stages stand for more: no later than theirs
            last[turn] = attended[place - depth] if place >= depth else {inward[place]: 1.0}
        for state in mixture.states:
            add(mixture.outward.setdefault((self.behind, state), {}), last[state])
            add(mixture.inward.setdefault((self.before, state), {}), {inward[state]: 1.0})
        self._limit_lags(inward)

    def _limit_lags(self, inward: Mapping[State, int]) -> None:
        """Before a layer the GPU has ended last: what others did for the layers behind it was
        waited for. Where a step is limited they are behind it by Q + 1 steps at most, since a
        buffer that they filled was free after Q of its tenants: so a shape that no layer has holds
        no time of any.
        """
        mixture = self.mixture
        lag_s = (mixture.graph.schedule.queue_depth + 1) * mixture.most_s
        for state, column in inward.items():
            if state != "gpu":
                ahead = {inward["gpu"]: 1.0, column: -1.0}
                mixture.row("last", {c: -v for c, v in ahead.items()})
                if mixture.most_s < float("inf"):
                    mixture.row("lag", ahead | {self.share: -lag_s})

    def define_neighbours(self) -> None:
        """Remember how many layers end and begin at each boundary."""
        neighbours = self.mixture.neighbours
        for label, number in ((self.behind, 1.0), (self.before, -1.0)):
            add(neighbours.setdefault(label, {}), {self.share: number})

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
            elif lag == 0 and before in ends and not self._overlap(before, operation):
                yield ends[before]
        if not entering:
            return
        if operation.operation == "load_weights":
            yield {inward["freed"]: 1.0}
        elif operation.stage is None or self.mixture.groups:
            return
        elif operation.stage < depth:
            yield {inward[operation.stage]: 1.0}
        elif not (self.may_load_earlier and operation.resource == "h2d"):
            yield attended[operation.stage - depth]

    def _overlap(self, before: int, operation: Operation) -> bool:
        """Whether an operation that stands for those of several stages starts while the one that
        each of them waits for goes on for others.
        """
        own = self.shape.few and operation.stage is not None
        return own and self.mixture.graph.operations[before].stage is not None

    def _awaited_by_last(
        self, operation: Operation, taken: Mapping[int, float], ends: Mapping[int, Terms]
    ) -> Iterator[Terms]:
        """Where one attend stands for those of several stages, whose copies overlap with them: the
        last of these starts after all copies, and takes its fixed time at least.
        """
        if operation.operation != "attend" or not self.shape.few:
            return
        fixed_s = max(piece.fixed_s for piece in operation.curve.pieces)
        graph = self.mixture.graph
        for before, end in ends.items():
            other = graph.operations[before]
            if other.stage is not None and other.resource != operation.resource:
                yield add(add({self.share: fixed_s}, end), taken, -1.0)

    def _ceiling(self, operation: Operation) -> float:
        """Most volume of an operation of one layer."""
        staging = self.mixture.staging
        return staging.ceiling(operation) if staging is not None else operation.ceiling

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
                    part = in_proportion(piece, self._ceiling(operation))
            terms = add({}, fixed, part.fixed_s)
            volume = {self.n[v]: part.s_per_unit for v in operation.variables if v in self.n}
            found.append(add(terms, volume))
        if len(found) == 1:
            return found[0]
        column = self.mixture.column("d", self.mixture.time_s)
        for terms in found:
            self.mixture.row("duration", add({column: -1.0}, terms))
        return {column: 1.0}
