"""Better plans by moving single blocks off the cycle of operations that sets the period."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.allocation import Allocation, Place, laid_out, unevenness
from kvplan.evaluate import Evaluation, evaluate, overflow
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.simulate import Cycle, Waits, blocking, settled

MOST_PLAYED = 250_000
"""Operations played for one plan at most, over all moves tried."""

LEAST_GAIN = 1e-5
"""Share of the step that a move must bring."""

TRIED_PER_PLAYED = 15
"""Moves tried at most for one that may be played: most are spoilt by a cycle that is known."""

MOST_CYCLES = 100
"""Cycles remembered."""

ROUNDING = 1e-12
"""Share by which a cycle's period may be off."""

SOURCES = 4
"""Places on the critical cycle, spaced evenly, that a block is moved from to another layer."""

Move = tuple[tuple[int, int], ...]
"""Variables and the blocks each of them gains."""


def exchanged(scenario: Scenario, plan: Evaluation, target_s: float, block: int) -> Evaluation:
    """The plan with blocks moved one at a time, each move a gain.

    A block of an operation on the critical cycle goes to another path of its stage, or to HBM.
    Paths that a stage does not have are not added.

    Args:
        scenario: the question; its blocks are what a stage may differ by from the mean of its
            layer.
        plan: what to start from.
        target_s: step at which to stop.
        block: tokens per block of the plan.
    """
    board = _Board(scenario, plan, block)
    gained = True
    while gained and board.step_s > target_s:
        gained = False
        for move in [*board.within_layers(), *board.between_layers()]:
            gained = not board.tired and board.try_move(move)
            if gained or board.tired:
                break
    if board.allocation() == plan.allocation:
        return plan
    found = evaluate(scenario, plan.schedule, board.allocation(), plan.streamed)
    fits = overflow(found.memory_bytes, scenario.capacity) is None
    return found if fits and found.step_s < plan.step_s else plan


class _Board:
    """A plan's values on its graph, changed in place."""

    def __init__(self, scenario: Scenario, plan: Evaluation, block: int) -> None:
        self.scenario, self.graph = scenario, plan.graph
        self.block = block
        self.values = list(plan.values)
        self.waits = Waits.of(self.graph)
        self.durations = self.graph.durations(self.values)
        self.step_s = plan.step_s
        self.critical: Sequence[int] = plan.simulation.critical
        self.blocking: list[Cycle] = []
        self.played = self.tried = 0
        self.most = max(MOST_PLAYED // len(self.graph.operations), 1)
        self.own: dict[int, list[int]] = {}
        self.at: dict[tuple[int, int | None], list[int]] = {}
        for index, variable in enumerate(self.graph.variables):
            if variable.path in REGISTRY:
                self.at.setdefault((variable.layer, variable.stage), []).append(index)
        for number, operation in enumerate(self.graph.operations):
            for own in operation.variables:
                self.own.setdefault(own, []).append(number)
        self.held = self.graph.stored_bytes(self.values)
        self.filled = [buffer.filled_bytes(self.values) for buffer in self.graph.buffers]
        self.rooms: dict[int, list[tuple[int, int, float]]] = {}
        for number, buffer in enumerate(self.graph.buffers):
            for position, tenant in enumerate(buffer.tenants):
                for own, size in tenant.items():
                    self.rooms.setdefault(own, []).append((number, position, size))

    @property
    def tired(self) -> bool:
        """Whether enough was tried."""
        return self.played >= self.most or self.tried >= self.most * TRIED_PER_PLAYED

    def on_cycle(self) -> list[int]:
        """Staged variables that are copied, rebuilt or dequantised on the critical cycle."""
        operations = [self.graph.operations[i] for i in self.critical]
        found = (v for o in operations if o.operation != "attend" for v in o.variables)
        return [v for v in dict.fromkeys(found) if self.graph.variables[v].stage is not None]

    def giving(self) -> list[int]:
        """Those that can give a block."""
        return [v for v in self.on_cycle() if self.values[v] > self.block]

    def within_layers(self) -> Iterator[Move]:
        """A block on the critical cycle takes another path of its stage, or stays in HBM."""
        for source in self.giving():
            variable = self.graph.variables[source]
            for place in ((variable.layer, variable.stage), (variable.layer, None)):
                for sink in self.at.get(place, ()):
                    kind = REGISTRY[self.graph.variables[sink].path].attends
                    if sink != source and kind != "away":
                        yield ((source, -1), (sink, 1))

    def between_layers(self) -> Iterator[Move]:
        """A block on the critical cycle stays in HBM, and one of a layer that is not on it, on the
        same path, no longer does.
        """
        busy = set(self.on_cycle())
        sources = [v for v in self.giving() if self.kept(v) is not None]
        spaced = sources[:: max(len(sources) // SOURCES, 1)]
        for sink, variable in enumerate(self.graph.variables):
            kept = self.kept(sink) if variable.stage is not None and sink not in busy else None
            if kept is None or self.values[kept] <= self.block:
                continue
            for source in spaced:
                stays = self.kept(source)
                same = self.graph.variables[source].path == variable.path
                if same and stays is not None and stays != kept:
                    yield ((source, -1), (stays, 1), (kept, -1), (sink, 1))

    def kept(self, variable: int) -> int | None:
        """The variable of the resident tokens of a variable's layer, if it has any."""
        outside = self.at.get((self.graph.variables[variable].layer, None), ())
        resident = [
            i for i in outside if REGISTRY[self.graph.variables[i].path].attends == "resident"
        ]
        return resident[0] if resident else None

    def try_move(self, move: Move) -> bool:
        """Move blocks if that fits and shortens the step; whether it did."""
        self.tried += 1
        self._shift(move, 1)
        trial_s = self.step_s / self.graph.cycles * (1 - LEAST_GAIN)
        even = all(self._even(variable) for variable, _ in move)
        if even and self._fits() and self._shortens(trial_s):
            known = [(cycle.period(self.durations), cycle.operations) for cycle in self.blocking]
            start = max(known, default=(0.0, ()))
            period, _, self.critical = settled(self.waits, self.durations, *start)
            self.step_s = period * self.graph.cycles
            return True
        self._shift(move, -1)
        return False

    def _shortens(self, trial_s: float) -> bool:
        """Whether a period is possible; cycles that spoilt earlier moves are looked at first."""
        for number, cycle in enumerate(self.blocking):
            if cycle.period(self.durations) > trial_s * (1 + ROUNDING):
                self.blocking.insert(0, self.blocking.pop(number))
                return False
        self.played += 1
        found = blocking(self.waits, self.durations, trial_s)
        if found is not None:
            self.blocking = [found, *self.blocking[: MOST_CYCLES - 1]]
        return found is None

    def _shift(self, move: Move, sign: int) -> None:
        for variable, blocks in move:
            change = sign * blocks * self.block
            self.values[variable] += change
            for tier, size in self.graph.variables[variable].stored.items():
                self.held[tier] = self.held.get(tier, 0.0) + size * change
            for number, tenant, size in self.rooms.get(variable, ()):
                self.filled[number][tenant] += size * change
        for number in {number for variable, _ in move for number in self.own[variable]}:
            self.durations[number] = self.graph.operations[number].seconds(self.values)

    def _fits(self) -> bool:
        """Whether every tier holds what is stored and the buffers."""
        held = dict(self.held)
        for buffer, sizes in zip(self.graph.buffers, self.filled, strict=True):
            for tier in buffer.tiers:
                held[tier] = held.get(tier, 0.0) + buffer.count * max(sizes, default=0.0)
        return overflow(held, self.scenario.capacity) is None

    def _even(self, source: int) -> bool:
        """Whether the stages of the layer are still within a block of their mean."""
        if self.graph.schedule.axis != "token":
            return True
        layer = self.graph.variables[source].layer
        sizes = [
            sum(self.values[i] for i in self.at.get((layer, stage), ()))
            for stage in range(self.graph.schedule.stages)
        ]
        mean = sum(sizes) / len(sizes)
        spread = unevenness(self.graph.tokens[layer], self.scenario.workload.block)
        return max(abs(size - mean) for size in sizes) <= spread

    def allocation(self) -> Allocation:
        """The values as segments."""
        parts: list[dict[Place, int]] = [{} for _ in self.graph.tokens]
        for variable, value in zip(self.graph.variables, self.values, strict=True):
            if variable.path in REGISTRY:
                blocks = -(-round(value) // self.block)
                parts[variable.layer][variable.stage, variable.path] = blocks
        return tuple(
            laid_out(self.scenario.cached_tokens(layer), self.block, mix)
            for layer, mix in enumerate(parts)
        )
