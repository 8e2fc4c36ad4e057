"""One program for all layouts of a schedule, solved from one to the next.

The graph has every path in every stage. What a layout does not have takes no time, nothing waits
for it, and it only passes on its place in the queue of its resource, so that the optimum is that of
the layout's own graph. From one layout to the next some bounds of rows and columns change, after
which the simplex takes a few steps. Of a whole step only layers beside the head and one run of the
others are in the program (`kvplan.evenly`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from kvplan import program
from kvplan.candidates import build_unit
from kvplan.errors import KvplanError
from kvplan.evenly import Evenly, alike_of, identity
from kvplan.highs import Rows, Standing
from kvplan.layout import Layer, Layout, structure, with_every_path
from kvplan.paths import REGISTRY
from kvplan.resident import capacity_for
from kvplan.ring import waits
from kvplan.sample import Sample
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule

Flags = NDArray[np.bool_]
Edge = tuple[int, int, int]
"""(operation, operation it waits for, lag in steps)."""


class LayoutProgram:
    """The program of some layers with every path in every stage, of which a layout has some."""

    def __init__(self, scenario: Scenario, schedule: Schedule, sample: Sample) -> None:
        """State it; nothing is solved yet.

        Args:
            scenario: the question.
            schedule: of the layouts, on the token axis.
            sample: layers of the program, and the kinds of all layers that layouts have.
        """
        every = with_every_path(scenario, schedule, scenario.classes)
        held = structure(scenario, every, sample.layers)
        whole = len(sample.layers) == len(scenario.classes)
        self.graph = build_unit(scenario, schedule, held, None if whole else sample.layers)
        alike = alike_of(sample.kinds) if whole else tuple(range(len(scenario.classes)))
        self._state(scenario, sample.layers, alike)
        self._layers = [layer for layer in sample.layers if alike[layer] == layer]
        self._read()
        self._own: dict[tuple[int, Layer], list[int]] = {}
        self._idle: dict[bytes, Flags] = {}

    def _state(self, scenario: Scenario, layers: Sequence[int], alike: Sequence[int]) -> None:
        """Give the program to a solver."""
        capacity = capacity_for(scenario, self.graph, layers)
        block, quality = scenario.workload.block, scenario.quality
        self._stated = program.state(self.graph, capacity, quality=quality, block=block)
        self._evenly = Evenly(self._stated, alike)
        stated = self._evenly.program
        rows, _ = program.scaled_rows(stated)
        limits = program.scaled_limits(stated)
        self.operations = len(set(self._evenly.operations))
        self._period = stated.period
        self._period_s = stated.scale[stated.period] * self.graph.cycles
        self._solver = Standing({stated.period: 1.0}, rows, limits)
        self._most = self._now = np.array(rows.most)
        self._ceiling = np.array([np.inf if m is None else m for _, m in limits])
        self._ceiling_now = self._ceiling

    def _read(self) -> None:
        """What changes from one layout to the next: columns of variables, operations, and the rows
        of edges between resources; which of these stand for a buffer that is reused.
        """
        graph = self.graph
        always, self._at = list[int](), dict[tuple[int, int | None, str], int]()
        for index, v in enumerate(graph.variables):
            if v.path not in REGISTRY or REGISTRY[v.path].attends == "resident":
                always.append(index)
            else:
                self._at[v.layer, v.stage, v.path] = index
        self._columns = np.array(self._evenly.variables, np.int64)
        self._always = np.array(always, np.int64)
        deciding = [(i, o.variables) for i, o in enumerate(graph.operations) if o.variables]
        self._deciding = np.array([i for i, _ in deciding], np.int64)
        decided = chain.from_iterable(own for _, own in deciding)
        self._decided = self._columns[np.array(list(decided), np.int64)]
        self._begins = np.cumsum([0, *(len(own) for _, own in deciding[:-1])])
        self._rings = [b for b in graph.buffers if b.enters]
        ring = {edge for b in self._rings for edge in waits(b.enters, b.leaves, b.count)}
        self._edge_rows: dict[Edge, int] = {}
        edges, durations = dict[int, Edge](), dict[int, int]()
        for row, number in zip(self._stated.rows, self._evenly.rows, strict=True):
            kind, _, rest = row.name[:-1].partition("[")
            if kind == "precedence":
                before, index, lag = map(int, rest.split(","))
                edges.setdefault(number, (index, before, lag))
                if (index, before, lag) in ring:
                    self._edge_rows[index, before, lag] = number
            elif kind == "duration":
                durations.setdefault(number, int(rest.split(",")[0]))
        self._durations = np.array(list(durations), np.int64)
        self._timed = np.array(list(durations.values()), np.int64)
        self._edges, self._before, self._index = (np.empty(0, np.int64) for _ in range(3))
        self._across = np.empty(0, np.bool_)
        self._note(edges)

    def _note(self, edges: Mapping[int, Edge]) -> None:
        """Remember which rows are those of edges."""
        index, before = ([edge[place] for edge in edges.values()] for place in (0, 1))
        across = [self._is_across(*pair) for pair in zip(before, index, strict=True)]
        self._edges = np.concatenate((self._edges, np.array(list(edges), np.int64)))
        self._index = np.concatenate((self._index, np.array(index, np.int64)))
        self._before = np.concatenate((self._before, np.array(before, np.int64)))
        self._across = np.concatenate((self._across, np.array(across, np.bool_)))

    def _is_across(self, before: int, index: int) -> bool:
        """Whether no queue orders two operations."""
        first, second = (self.graph.operations[i].resource for i in (before, index))
        return first is None or first != second

    def step_s(self, layout: Layout, most_s: float = float("inf")) -> float:
        """Seconds of a step at the optimum of a layout's program; infinite where nothing fits, the
        solver gives up, or it is not shorter than ``most_s``.
        """
        most, ceiling = self._bounds(layout)
        rows = np.flatnonzero(most != self._now)
        changed = dict(zip(rows.tolist(), most[rows].tolist(), strict=True))
        for column in np.flatnonzero(ceiling != self._ceiling_now).tolist():
            self._solver.hold(column, 0.0, float(ceiling[column]))
        self._now, self._ceiling_now = most, ceiling
        try:
            found = self._solver.minimise(changed, most_s / self._period_s)
        except KvplanError:
            return float("inf")
        if found is None:
            return float("inf")
        step_s = found.values[self._period] * self._period_s
        return step_s if step_s < most_s else float("inf")

    def _bounds(self, layout: Layout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Most of each row and of each column, as the solver has them."""
        has = np.ones(len(self._ceiling), np.bool_)
        has[self._columns] = False
        has[self._columns[self._always]] = True
        for layer in self._layers:
            has[self._has(layer, layout.layers[layout.kinds[layer]])] = True
        absent = np.zeros(len(self.graph.operations), np.bool_)
        if len(self._deciding):
            absent[self._deciding] = ~np.logical_or.reduceat(has[self._decided], self._begins)
        idle = self._idle_rows(absent)
        most = self._most.copy()
        without = absent[self._before]
        most[self._edges[without]] = 0.0
        most[self._edges[self._across & (without | absent[self._index])]] = np.inf
        most[self._durations[absent[self._timed]]] = 0.0
        most[idle] = np.inf
        return most, np.where(has, self._ceiling, 0.0)

    def _has(self, layer: int, own: Layer) -> list[int]:
        """Columns of a layer that are in a layout."""
        if (layer, own) not in self._own:
            places = [(None, own.away), *enumerate(own.stages)]
            self._own[layer, own] = [
                int(self._columns[self._at[layer, stage, name]])
                for stage, names in places
                for name in names
                if (layer, stage, name) in self._at
            ]
        return self._own[layer, own]

    def _idle_rows(self, absent: Flags) -> Flags:
        """Rows of waits for free buffers that do not hold where some operations are absent.

        Buffers are reused in turn by those that are there: rows of waits that are new are added.
        """
        turns = [[any(not absent[i] for i in e) for e in b.enters] for b in self._rings]
        key = bytes(flag for own in turns for flag in own)
        if key not in self._idle or len(self._idle[key]) < len(self._most):
            wanted = list[Edge]()
            for b, own in zip(self._rings, turns, strict=True):
                enters = [e for e, flag in zip(b.enters, own, strict=True) if flag]
                leaves = [e for e, flag in zip(b.leaves, own, strict=True) if flag]
                wanted += waits(enters, leaves, b.count)
            self._add([e for e in wanted if e not in self._edge_rows and self._is_across(*e[:2])])
            idle = np.zeros(len(self._most), np.bool_)
            idle[list(self._edge_rows.values())] = True
            idle[[self._edge_rows[e] for e in wanted if e in self._edge_rows]] = False
            self._idle[key] = idle
        return self._idle[key]

    def _add(self, edges: Sequence[Edge]) -> None:
        """Add rows of edges, each one once."""
        rows, stated, known = Rows(), self._stated, dict[object, int]()
        for edge in edges:
            index, before, _ = edge
            delay_s = self.graph.delay_s(before, index)
            row = program.precedence(stated, stated.durations[before], edge, delay_s)
            row = self._evenly.row(row)
            key = identity(row)
            if key not in known:
                known[key] = len(self._most) + len(rows.most)
                rows.add_scaled(row.terms, row.bound, self._evenly.program.scale)
            self._edge_rows[edge] = known[key]
        if edges:
            self._solver.add(rows)
            self._most = np.concatenate((self._most, rows.most))
            self._now = np.concatenate((self._now, rows.most))
            self._note({self._edge_rows[edge]: edge for edge in edges})
