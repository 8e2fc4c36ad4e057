"""Programs in which equal layers follow each other evenly.

In a step of many equal layers most of them wait for nothing but each other. There a program can be
restricted: layers that are alike have the same tokens, and every operation of one starts as long
after that of the one before it as in all others. Left over are the layers beside the head, one run
of the others, and the time from one run to the next. The optimum is one that the whole program
reaches, and a few millionths above its own as a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan.program import Program, Row
from kvplan.sample import ENDS, period_of


def alike_of(kinds: Sequence[int]) -> tuple[int, ...]:
    """For each layer the one it is like: those beside the head like none but themselves, the others
    like one of the first run of kinds that repeats.

    >>> alike_of((0, 0, 1, 2, 1, 2, 1, 0, 0))
    (0, 1, 2, 3, 2, 3, 2, 7, 8)
    """
    count = len(kinds)
    run = period_of(kinds[ENDS : count - ENDS]) if count > 2 * ENDS else count
    inner = range(ENDS, count - ENDS)
    return tuple(ENDS + (layer - ENDS) % run if layer in inner else layer for layer in range(count))


class Evenly:
    """What the columns and rows of a program become.

    Args:
        program: the restricted one; its graph is the whole one.
        rows: for each row of the whole program the one it became.
        variables: for each variable of the graph its column.
        operations: for each operation the one it is like.
    """

    def __init__(self, stated: Program, alike: Sequence[int]) -> None:
        """Restrict a program.

        Args:
            stated: the program of a whole step on the token axis; layers that are alike have the
                same paths in their stages.
            alike: what `alike_of` returned.
        """
        graph = stated.graph
        runs = [(layer - own) // _run(alike) for layer, own in enumerate(alike)]
        self.operations = _like(alike, [o.layer for o in graph.operations])
        into = list(range(len(stated.columns)))
        into[: stated.start] = _like(alike, [v.layer for v in graph.variables])
        self._later: dict[int, tuple[int, int]] = {}
        for index, like in enumerate(self.operations):
            if index == like:
                continue
            column, operation = stated.start + index, graph.operations[index]
            into[column] = stated.start + like
            self._later[column] = operation.micro_batch, runs[operation.layer]
            durations = (stated.durations[i][0] for i in (index, like))
            for own, other in zip(*durations, strict=True):
                if own > stated.period:
                    into[own] = other
        kept = sorted(set(into))
        number = {column: place for place, column in enumerate(kept)}
        self._into = [number[column] for column in into]
        self.variables = self._into[: stated.start]
        self.program = replace(
            stated,
            columns=[stated.columns[column] for column in kept],
            upper=[stated.upper[column] for column in kept],
            scale=[stated.scale[column] for column in kept],
            rows=[],
            period=self._into[stated.period],
        )
        passes = 1 + max((each for each, _ in self._later.values()), default=-1)
        scale = stated.scale[stated.period]
        self._run_s = [self.program.column(f"run[{each}]", None, scale) for each in range(passes)]
        self.rows = self._restrict(stated.rows)

    def _restrict(self, rows: Sequence[Row]) -> list[int]:
        """State rows over the columns that are left, each one once."""
        known: dict[object, int] = {}
        numbers = []
        for row in rows:
            other = self.row(row)
            key = identity(other)
            if key not in known:
                known[key] = len(self.program.rows)
                self.program.rows.append(other)
            numbers.append(known[key])
        return numbers

    def row(self, row: Row) -> Row:
        """A row over the columns that are left."""
        terms: dict[int, float] = {}
        for column, value in row.terms.items():
            into = self._into[column]
            terms[into] = terms.get(into, 0.0) + value
            if column in self._later:
                each, runs = self._later[column]
                run_s = self._run_s[each]
                terms[run_s] = terms.get(run_s, 0.0) + value * runs
        return replace(row, terms={column: value for column, value in terms.items() if value})


def identity(row: Row) -> object:
    """What rows that say the same have in common."""
    kind, _, _ = row.name.partition("[")
    return kind, frozenset(row.terms.items()), row.bound


def _run(alike: Sequence[int]) -> int:
    """Layers of a run; 1 where none is like another one."""
    return next((layer - own for layer, own in enumerate(alike) if own != layer), 1)


def _like(alike: Sequence[int], layers: Sequence[int]) -> list[int]:
    """For each thing of a layer, in order, the one of the layer it is like.

    Args:
        alike: for each layer the one it is like.
        layers: the layer of each thing; as many of each two that are alike.

    >>> _like((0, 1, 1), (0, 1, 1, 2, 2))
    [0, 1, 2, 1, 2]
    """
    members: dict[int, list[int]] = {}
    found = []
    for index, layer in enumerate(layers):
        own = members.setdefault(layer, [])
        own.append(index)
        found.append(members[alike[layer]][len(own) - 1])
    return found
