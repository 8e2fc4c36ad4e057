"""The simulator: run a step graph with numbers and find the period at which it repeats.

Every operation starts as soon as everything it waits for has ended. In steady state a step takes
T seconds, T being the largest ratio of time to steps around any cycle of waiting. The simulator
plays the graph at a trial period; when an operation turns out to wait for itself, the cycle it is
in names a longer period, and play starts again. Periods only grow, each is the ratio of a real
cycle, so the last one is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.errors import KvplanError
from kvplan.step import StepGraph

RELATIVE_TOLERANCE = 1e-13
"""Start times that move by less than this share of the period have stopped moving."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What running the graph shows.

    Args:
        step_s: seconds of one decode step.
        start_s: start of every operation, in the order of the graph, in its own cycle.
        duration_s: seconds of every operation.
        busy_s: seconds each resource works in one step.
        critical: indices of the operations on the cycle that sets the period.
        bottleneck: resource with most time on that cycle, or ``latency``.
    """

    step_s: float
    start_s: tuple[float, ...]
    duration_s: tuple[float, ...]
    busy_s: dict[str, float]
    critical: tuple[int, ...]
    bottleneck: str


def simulate(graph: StepGraph, values: Sequence[float]) -> Simulation:
    """Run a step graph.

    Args:
        graph: the step.
        values: value of every variable of the graph: tokens per sequence, or a share.

    Returns:
        Exact steady-state period and start times.
    """
    durations = graph.durations(values)
    busy: dict[str, float] = {}
    for operation, seconds in zip(graph.operations, durations, strict=True):
        if operation.resource is not None:
            busy[operation.resource] = busy.get(operation.resource, 0.0) + seconds
    busiest = max(sorted(busy), key=lambda name: busy[name])
    serving = [i for i, o in enumerate(graph.operations) if o.resource == busiest]
    period, start, critical = settled(Waits.of(graph), durations, busy[busiest], serving)
    return Simulation(
        step_s=period * graph.cycles,
        start_s=tuple(start),
        duration_s=tuple(durations),
        busy_s={name: seconds * graph.cycles for name, seconds in sorted(busy.items())},
        critical=tuple(critical),
        bottleneck=_bottleneck(graph, durations, critical),
    )


@dataclass(frozen=True, slots=True)
class Waits:
    """What every operation of a graph waits for.

    Args:
        within: for each operation, those before it in the list that it waits for in its own step,
            and seconds along the way.
        across: (operation, one that it waits for, lag in steps, seconds along the way) of the rest.
    """

    within: list[list[tuple[int, float]]]
    across: list[tuple[int, int, int, float]]

    @staticmethod
    def of(graph: StepGraph) -> Waits:
        """Those of a step graph."""
        waits = Waits([], [])
        for index, operation in enumerate(graph.operations):
            if graph.edge_s:
                delays = [graph.delay_s(before, index) for before, _ in operation.after]
                waits.add(operation.after, delays)
            else:
                waits.add(operation.after)
        return waits

    def add(self, after: Sequence[tuple[int, int]], delays: Sequence[float] | None = None) -> None:
        """The next operation: (what it waits for, lag), and seconds along the way (None: none)."""
        index, own = len(self.within), []
        for position, (before, lag) in enumerate(after):
            delay = delays[position] if delays is not None else 0.0
            if lag == 0 and before < index:
                own.append((before, delay))
            else:
                self.across.append((index, before, lag, delay))
        self.within.append(own)


def _bottleneck(graph: StepGraph, durations: Sequence[float], critical: Sequence[int]) -> str:
    share: dict[str, float] = {}
    for index in critical:
        name = graph.operations[index].resource or "latency"
        share[name] = share.get(name, 0.0) + durations[index]
    return max(sorted(share), key=lambda name: share[name], default="latency")


def steady_state(
    after: Sequence[Sequence[tuple[int, int]]],
    durations: Sequence[float],
    period: float = 0.0,
    critical: Sequence[int] = (),
    delays: Sequence[Sequence[float]] | None = None,
) -> tuple[float, list[float], list[int]]:
    """Smallest period of a cyclic graph, earliest start times at it, and a critical cycle.

    Args:
        after: for each operation, (operation it waits for, lag in steps); edges of lag 0 point
            backwards in the list.
        durations: seconds of each operation.
        period: a period known to be no longer than the answer.
        critical: the operations that show it.
        delays: seconds that pass along each edge of ``after``; None: none.

    >>> steady_state([[(1, 1)], [(0, 0)]], [2.0, 3.0])
    (5.0, [0.0, 2.0], [0, 1])
    >>> steady_state([[(1, 1)], [(0, 0)]], [2.0, 3.0], delays=[[0.5], [1.0]])
    (6.5, [0.0, 3.0], [0, 1])
    """
    waits = Waits([], [])
    for index, own in enumerate(after):
        waits.add(own, None if delays is None else delays[index])
    return settled(waits, durations, period, critical)


def settled(
    waits: Waits, durations: Sequence[float], period: float = 0.0, critical: Sequence[int] = ()
) -> tuple[float, list[float], list[int]]:
    """The same of waits that were sorted out before."""
    found = list(critical)
    limit = 10 * len(durations) + 100
    for _ in range(limit):
        start, cycle = _play(waits, durations, period)
        if cycle is None:
            return period, start, found
        # The second term: a cycle that is longer by rounding alone must still end the round.
        period, found = max(_closed(waits, cycle).period(durations), period * (1 + 1e-15)), cycle
    raise KvplanError(f"the simulator found no steady state in {limit} rounds")


@dataclass(frozen=True, slots=True)
class Cycle:
    """Operations that wait for each other around steps.

    Args:
        operations: their indices, in order of time.
        lags: steps that pass around it.
        wait_s: seconds that pass between its operations.
    """

    operations: tuple[int, ...]
    lags: int
    wait_s: float

    def period(self, durations: Sequence[float]) -> float:
        """Seconds per step around it.

        >>> Cycle((0, 1), 2, 1.0).period([2.0, 3.0])
        3.0
        """
        return (sum([durations[index] for index in self.operations]) + self.wait_s) / self.lags


def blocking(waits: Waits, durations: Sequence[float], period: float) -> Cycle | None:
    """A cycle that takes longer than a period; None if a graph can repeat with it.

    >>> blocking(Waits([[], [(0, 0.0)]], [(0, 1, 1, 0.0)]), [2.0, 3.0], 4.9)
    Cycle(operations=(0, 1), lags=1, wait_s=0.0)
    """
    found = _play(waits, durations, period)[1]
    return None if found is None else _closed(waits, found)


def _play(
    waits: Waits, durations: Sequence[float], period: float
) -> tuple[list[float], list[int] | None]:
    """Start times at a trial period, or a cycle of operations that wait for each other.

    In turn: everything in list order as far as its own step goes, then what waits across steps.
    """
    count = len(durations)
    start = [0.0] * count
    end = list(durations)
    cause = [-1] * count
    tolerance = RELATIVE_TOLERANCE * (period + max(durations, default=0.0))
    across = [(index, before, lag * period - delay) for index, before, lag, delay in waits.across]
    first = 0
    for _ in range(count + 2):
        for index in range(first, count):
            at = latest = start[index]
            for before, delay in waits.within[index]:
                ready = end[before] + delay
                if ready > latest + tolerance:
                    latest = ready
                    cause[index] = before
            if latest > at:
                start[index] = latest
                end[index] = latest + durations[index]
        moved = -1
        first = count
        for index, before, shift in across:
            ready = end[before] - shift
            if ready > start[index] + tolerance:
                start[index] = ready
                end[index] = ready + durations[index]
                cause[index] = before
                moved = index
                first = min(first, index + 1)
        if moved < 0:
            return start, None
        cycle = _cycle(cause, moved)
        if cycle is not None:
            return start, cycle
    raise KvplanError("the simulator did not settle")


def _cycle(cause: Sequence[int], index: int) -> list[int] | None:
    """The cycle reached by following causes from an operation, in order of time, if any; it begins
    with its first operation of the list.
    """
    seen: dict[int, int] = {}
    path: list[int] = []
    while index >= 0:
        if index in seen:
            cycle = path[seen[index] :][::-1]
            first = cycle.index(min(cycle))
            return cycle[first:] + cycle[:first]
        seen[index] = len(path)
        path.append(index)
        index = cause[index]
    return None


def _closed(waits: Waits, cycle: Sequence[int]) -> Cycle:
    """A cycle of operations with the shortest waits between them."""
    lags, total = 0, 0.0
    members = set(cycle)
    across: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for index, before, lag, delay in waits.across:
        if index in members:
            across.setdefault((index, before), []).append((lag, -delay))
    for position, index in enumerate(cycle):
        before = cycle[position - 1]
        ways = [(0, -delay) for b, delay in waits.within[index] if b == before]
        lag, delay = min(ways + across.get((index, before), []))
        lags += lag
        total -= delay
    if lags == 0:
        raise KvplanError("operations wait for each other within one step")
    return Cycle(tuple(cycle), lags, total)
