"""Better plans by moving single blocks off the cycle of operations that sets the period."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.allocation import Allocation, Place, laid_out, unevenness
from kvplan.block_size import blocks_in
from kvplan.evaluate import Evaluation, evaluate, overflow
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.simulate import Cycle, Waits, blocking, settled

MOST_PLAYED = 100_000
"""Operations played for one plan at most, over all moves tried."""

LEAST_GAIN = 1e-5
"""Share of the step that a move must bring."""

WORTH_AGAIN = 1.005
"""Ratio to the target up to which moves are tried in the opposite order too."""

TRIED_PER_PLAYED = 30
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
    Paths that a stage does not have are not added. Moves end where none is a gain, which depends on
    their order: near the target, the opposite one is tried too.

    Args:
        scenario: the question; its blocks are what a stage may differ by from the mean of its
            layer.
        plan: what to start from.
        target_s: step at which to stop.
        block: tokens per block of the plan; as many move as a block of what is rebuilt has.
    """
    found = _exchanged(scenario, plan, target_s, block, backwards=False)
    if target_s < found.step_s <= target_s * WORTH_AGAIN:
        other = _exchanged(scenario, plan, target_s, block, backwards=True)
        return min(found, other, key=lambda e: e.step_s)
    return found


def _exchanged(
    scenario: Scenario, plan: Evaluation, target_s: float, block: int, *, backwards: bool
) -> Evaluation:
    """The plan after moves, tried in order or in the opposite one."""
    board = _Board(scenario, plan, block)
    gained = True
    while gained and board.step_s > target_s:
        gained = False
        moves = [*board.within_layers(), *board.between_layers()]
        for move in reversed(moves) if backwards else moves:
            gained = not board.tired and board.try_move(move)
            if gained or board.tired:
                break
    if board.allocation() == plan.allocation:
        return plan
    found = evaluate(scenario, plan.schedule, board.allocation(), plan.streamed)
    fits = overflow(found.memory_bytes, scenario.capacity) is None
    return found if fits and found.step_s < plan.step_s else plan


@dataclass(frozen=True, slots=True)
class _Spoiler:
    """A cycle that spoilt a move.

    Args:
        cycle: the cycle.
        members: its operations.
        around_s: seconds around it as blocks lie.
    """

    cycle: Cycle
    members: frozenset[int]
    around_s: float

    @staticmethod
    def of(cycle: Cycle, durations: Sequence[float]) -> _Spoiler:
        """A cycle with what it takes."""
        around_s = cycle.period(durations) * cycle.lags
        return _Spoiler(cycle, frozenset(cycle.operations), around_s)


class _Board:
    """A plan's values on its graph, changed in place."""

    def __init__(self, scenario: Scenario, plan: Evaluation, block: int) -> None:
        self.scenario, self.graph = scenario, plan.graph
        self.least, self.block = block, blocks_in(scenario, block).rebuilt
        self.values = list(plan.values)
        self.waits = Waits.of(self.graph)
        self.durations = self.graph.durations(self.values)
        self.step_s = plan.step_s
        self.critical: Sequence[int] = plan.simulation.critical
        self.spoilers: list[_Spoiler] = []
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
        trial_s = self.step_s / self.graph.cycles * (1 - LEAST_GAIN)
        if self._is_spoilt(self._changes_s(move), trial_s):
            return False
        self._shift(move, 1)
        spoilt: Cycle | None = None
        if all(self._even(variable) for variable, _ in move) and self._fits():
            self.played += 1
            spoilt = blocking(self.waits, self.durations, trial_s)
            if spoilt is None:
                self._settle()
                return True
        self._shift(move, -1)
        if spoilt is not None:
            known = _Spoiler.of(spoilt, self.durations)
            self.spoilers = [known, *self.spoilers[: MOST_CYCLES - 1]]
        return False

    def _changes_s(self, move: Move) -> dict[int, float]:
        """By how many seconds operations would take longer."""
        gained = {variable: blocks * self.block for variable, blocks in move}
        found: dict[int, float] = {}
        for variable in gained:
            for number in self.own[variable]:
                operation = self.graph.operations[number]
                volume = sum([self.values[v] + gained.get(v, 0.0) for v in operation.variables])
                found[number] = operation.curve.seconds(volume) - self.durations[number]
        return found

    def _is_spoilt(self, changes_s: dict[int, float], trial_s: float) -> bool:
        """Whether a cycle that spoilt an earlier move spoils one with these changes."""
        for number, known in enumerate(self.spoilers):
            longer = sum([s for own, s in changes_s.items() if own in known.members])
            if known.around_s + longer > known.cycle.lags * trial_s * (1 + ROUNDING):
                self.spoilers.insert(0, self.spoilers.pop(number))
                return True
        return False

    def _settle(self) -> None:
        """Find the step after a move."""
        self.spoilers = [_Spoiler.of(known.cycle, self.durations) for known in self.spoilers]
        periods = [(k.around_s / k.cycle.lags, k.cycle.operations) for k in self.spoilers]
        start = max(periods, default=(0.0, ()))
        period, _, self.critical = settled(self.waits, self.durations, *start)
        self.step_s = period * self.graph.cycles

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
                blocks = -(-round(value) // self.least)
                parts[variable.layer][variable.stage, variable.path] = blocks
        return tuple(
            laid_out(self.scenario.cached_tokens(layer), self.least, mix)
            for layer, mix in enumerate(parts)
        )
