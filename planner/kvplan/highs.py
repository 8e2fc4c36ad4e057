"""HiGHS: one call for linear programs, one for those with whole numbers."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from highspy import Highs

FEASIBILITY_TOLERANCE = 1e-10

LARGE_ROWS = 500
"""Rows above which a program is presolved and solved by the primal simplex, which take longer than
they save on small ones.
"""

Way = Mapping[str, str | int | float]
"""Options of HiGHS."""

_PERTURBATION = "dual_simplex_cost_perturbation_multiplier"
_DUAL: Way = {"solver": "simplex", "simplex_strategy": 1, _PERTURBATION: 1.0}
_PRIMAL: Way = {"solver": "simplex", "simplex_strategy": 4, _PERTURBATION: 1.0}
_INTERIOR: Way = {"solver": "ipm", "presolve": "on", "simplex_strategy": 1, _PERTURBATION: 1.0}
SMALL_WAYS: tuple[Way, ...] = (
    {"presolve": "off", **_DUAL},
    {"presolve": "on", **_PRIMAL},
    _INTERIOR,
)
LARGE_WAYS: tuple[Way, ...] = (
    {"presolve": "on", **_PRIMAL},
    {"presolve": "off", **_DUAL},
    _INTERIOR,
)
"""The order of trying: one program in some ten thousand, badly scaled, ends without an answer at
this tolerance one way and is solved another way.
"""

_AGAIN: tuple[Way, ...] = ({"presolve": "off", **_DUAL, _PERTURBATION: 0.0}, *LARGE_WAYS)
"""With other bounds an optimum stays dual feasible, with other numbers it nearly does: from there
other costs would only lead astray.
"""

WITHOUT = ("mip_heuristic_run_feasibility_jump", "mip_detect_symmetry", "mip_allow_restart")
"""What HiGHS does at the root that takes a third of the time here and betters nothing."""

HEURISTICS = (
    "mip_heuristic_run_rins", "mip_heuristic_run_rens", "mip_heuristic_run_root_reduced_cost",
    "mip_heuristic_run_zi_round", "mip_heuristic_run_shifting",
)  # fmt: skip
"""What looks for solutions, where only a bound is wanted."""

Limits = Sequence[tuple[float, float | None]]
"""Least and most of each column; None for no limit."""

_kept = threading.local()
"""The solver of each thread: making one takes longer than most programs here."""


@dataclass(slots=True)
class Rows:
    """Rows of a linear program, sparse, in the order in which they are added.

    Args:
        starts: where the entries of each row begin, and where those of the last one end.
        columns: column of each entry.
        values: what it is multiplied by.
        least: least value of each row.
        most: most value of each row.
    """

    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], most: float, equal: bool = False) -> None:
        """Add ``sum(value * column) <= most`` (or ``==``)."""
        self.columns += terms.keys()
        self.values += terms.values()
        self.starts.append(len(self.columns))
        self.least.append(most if equal else -np.inf)
        self.most.append(most)

    def add_scaled(
        self, terms: Mapping[int, float], most: float, scale: Sequence[float], equal: bool = False
    ) -> float:
        """Add a row with its columns in units of their scale, divided by its largest entry.

        Returns:
            What it was divided by.

        >>> rows = Rows()
        >>> rows.add_scaled({0: 2.0, 1: 1.0}, 12.0, [1.0, 4.0]), rows.values, rows.most
        (4.0, [0.5, 1.0], [3.0])
        """
        entries = {column: value * scale[column] for column, value in terms.items() if value}
        largest = max(map(abs, entries.values()), default=1.0)
        self.add({c: value / largest for c, value in entries.items()}, most / largest, equal)
        return largest

    @staticmethod
    def scaled(
        terms: Sequence[Mapping[int, float]],
        most: Sequence[float],
        equal: Sequence[bool],
        scale: Sequence[float],
    ) -> tuple[Rows, list[float]]:
        """What `add_scaled` makes of many rows, and what each was divided by.

        >>> rows, divided = Rows.scaled([{0: 2.0, 1: 1.0}], [12.0], [False], [1.0, 4.0])
        >>> divided, rows.values, rows.most
        ([4.0], [0.5, 1.0], [3.0])
        """
        counts = [len(own) for own in terms]
        columns = np.fromiter(chain.from_iterable(terms), np.int64, sum(counts))
        found = chain.from_iterable([own.values() for own in terms])
        values = np.fromiter(found, np.float64, len(columns)) * np.asarray(scale)[columns]
        owner = np.repeat(np.arange(len(terms)), counts)
        largest = np.zeros(len(terms))
        np.maximum.at(largest, owner, np.abs(values))
        largest[largest == 0] = 1.0
        kept = values != 0
        owner, columns, values = owner[kept], columns[kept], (values / largest[owner])[kept]
        ends = np.cumsum(np.bincount(owner, minlength=len(terms)))
        bounds = np.asarray(most) / largest
        least = np.where(equal, bounds, -np.inf)
        rows = Rows(
            [0, *ends.tolist()], columns.tolist(), values.tolist(), least.tolist(), bounds.tolist()
        )
        return rows, largest.tolist()

    def entries(self, number: int) -> Iterator[tuple[int, float]]:
        """Columns of a row and what they are multiplied by."""
        begin, end = self.starts[number : number + 2]
        return zip(self.columns[begin:end], self.values[begin:end], strict=True)


@dataclass(frozen=True, slots=True)
class Optimum:
    """What a linear program has at its least.

    Args:
        values: value of each column.
        duals: for each row, by how much the least cost rises per unit of the row's bound.
    """

    values: list[float]
    duals: list[float]


def version() -> str:
    """Version of HiGHS."""
    return str(_solver().version())


def minimise(
    cost: Mapping[int, float], rows: Rows, limits: Limits, most: float = float("inf")
) -> Optimum | None:
    """Minimise the cost of the columns.

    Args:
        cost: weight of each column that has one.
        rows: what the columns must obey.
        limits: least and most of each column.
        most: a cost that an optimum must be below to be of use; the solver stops when it is not.

    Returns:
        The optimum; None where nothing is feasible, or nothing of use.

    Raises:
        KvplanError: the solver gave up.

    >>> rows = Rows()
    >>> rows.add({0: -1.0, 1: -2.0}, -6.0)
    >>> minimise({0: 1.0, 1: 1.0}, rows, [(0.0, None), (0.0, 2.0)])
    Optimum(values=[2.0, 2.0], duals=[-1.0])
    """
    solver = _solver()
    _pass(solver, cost, rows, limits)
    solver.setOptionValue("objective_bound", most)
    return _optimum(solver, _ways(rows))


class Standing:
    """A linear program that is solved again with other bounds of its rows and columns, each time
    from the optimum before.

    >>> rows = Rows()
    >>> rows.add({0: -1.0, 1: -2.0}, -6.0)
    >>> program = Standing({0: 1.0, 1: 1.0}, rows, [(0.0, None), (0.0, 2.0)])
    >>> program.minimise().values, program.minimise({0: -5.0}).values
    ([2.0, 2.0], [1.0, 2.0])
    >>> program.hold(1, 0.0, 1.0)
    >>> program.minimise().values
    [3.0, 1.0]
    """

    def __init__(self, cost: Mapping[int, float], rows: Rows, limits: Limits) -> None:
        """Give the program to a solver of its own."""
        self._solver, self._least = _exact(), list(rows.least)
        self._ways = _ways(rows)
        _pass(self._solver, cost, rows, limits)

    def minimise(
        self, most: Mapping[int, float] | None = None, below: float = float("inf")
    ) -> Optimum | None:
        """The optimum, or None where nothing is feasible, or nothing of use.

        Args:
            most: rows and their new bounds, which stay; an equation keeps its sense.
            below: a cost that an optimum must be below to be of use.

        Raises:
            KvplanError: the solver gave up.
        """
        for row, bound in (most or {}).items():
            least = bound if self._least[row] > -np.inf else -np.inf
            self._solver.changeRowBounds(row, least, bound)
        self._solver.setOptionValue("objective_bound", below)
        found = _optimum(self._solver, self._ways)
        self._ways = _AGAIN
        return found

    def hold(self, column: int, least: float, most: float) -> None:
        """Keep a column between two values from now on."""
        self._solver.changeColBounds(column, least, most)

    def add(self, rows: Rows) -> None:
        """Add rows behind the others."""
        self._least += rows.least
        self._solver.addRows(
            len(rows.most),
            np.array(rows.least),
            np.array(rows.most),
            len(rows.values),
            np.array(rows.starts[:-1], dtype=np.int32),
            np.array(rows.columns, dtype=np.int32),
            np.array(rows.values),
        )


class Related:
    """Linear programs one after the other, most of the same rows and columns with other numbers in
    them: such a one is solved from the optimum of the one before.

    >>> rows, other = Rows(), Rows()
    >>> rows.add({0: -1.0, 1: -2.0}, -6.0)
    >>> other.add({0: -1.0, 1: -4.0}, -8.0)
    >>> programs = Related()
    >>> programs.minimise({0: 1.0, 1: 1.0}, rows, [(0.0, None), (0.0, 2.0)]).values
    [2.0, 2.0]
    >>> programs.minimise({0: 1.0, 1: 1.0}, other, [(0.0, None), (0.0, 1.0)]).values
    [4.0, 1.0]
    """

    def __init__(self) -> None:
        """Nothing is solved yet."""
        self._solver = _exact()

    def minimise(
        self, cost: Mapping[int, float], rows: Rows, limits: Limits, most: float = float("inf")
    ) -> Optimum | None:
        """As the function of that name."""
        sizes = self._solver.getNumRow(), self._solver.getNumCol()
        before = self._solver.getBasis()
        _pass(self._solver, cost, rows, limits)
        if before.valid and sizes == (len(rows.most), len(limits)):
            self._solver.setBasis(before)
        self._solver.setOptionValue("objective_bound", most)
        return _optimum(self._solver, _AGAIN)


def _ways(rows: Rows) -> Sequence[Way]:
    return LARGE_WAYS if len(rows.most) > LARGE_ROWS else SMALL_WAYS


def _optimum(solver: Highs, ways: Sequence[Way]) -> Optimum | None:
    """Run the solver, one way after the other until it has an answer."""
    import highspy

    for way in ways:
        for option, value in way.items():
            solver.setOptionValue(option, value)
        solver.run()
        status = solver.getModelStatus()
        if status in (
            highspy.HighsModelStatus.kInfeasible,
            highspy.HighsModelStatus.kUnboundedOrInfeasible,
            highspy.HighsModelStatus.kObjectiveBound,
        ):
            return None
        if status == highspy.HighsModelStatus.kOptimal:
            solution = solver.getSolution()
            return Optimum(list(solution.col_value), list(solution.row_dual))
        solver.clearSolver()
    raise KvplanError(f"the solver stopped: {solver.modelStatusToString(status)}")


def minimise_whole(
    cost: Mapping[int, float],
    rows: Rows,
    limits: Limits,
    whole: Sequence[bool],
    nodes: int,
    gap: float,
) -> list[float] | None:
    """The same with columns that must be whole numbers, until a number of nodes is searched.

    Args:
        cost: weight of each column that has one.
        rows: what the columns must obey.
        limits: least and most of each column.
        whole: which columns must be whole.
        nodes: nodes of the branch and bound, at most.
        gap: relative distance from the optimum that is good enough.

    Returns:
        Values of the columns, the best found; None where none was.
    """
    solver = _made()
    for option in WITHOUT:
        solver.setOptionValue(option, False)
    solver.setOptionValue("mip_max_nodes", nodes)
    solver.setOptionValue("mip_rel_gap", gap)
    with _silent():
        _pass(solver, cost, rows, limits, whole)
        solver.run()
    solution = solver.getSolution()
    return list(solution.col_value) if solution.value_valid else None


def least_whole(
    cost: Mapping[int, float], rows: Rows, limits: Limits, whole: Sequence[bool], nodes: int
) -> float:
    """A cost that no feasible choice is below, where some columns must be whole numbers; infinite
    where nothing is feasible. Arguments as those of `minimise_whole`.

    >>> rows = Rows()
    >>> rows.add({0: -2.0, 1: -1.0}, -3.0)
    >>> least_whole({0: 1.0, 1: 0.8}, rows, [(0.0, None), (0.0, 0.5)], [True, False], 10)
    2.0
    """
    import highspy

    solver = _made()
    for option in (*WITHOUT, *HEURISTICS):
        solver.setOptionValue(option, False)
    solver.setOptionValue("mip_heuristic_effort", 0.0)
    solver.setOptionValue("mip_max_nodes", nodes)
    with _silent():
        _pass(solver, cost, rows, limits, whole)
        solver.run()
    if solver.getModelStatus() in (
        highspy.HighsModelStatus.kInfeasible,
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
    ):
        return float("inf")
    return float(solver.getInfo().mip_dual_bound)


def _solver() -> Highs:
    """This thread's solver of linear programs."""
    if not hasattr(_kept, "solver"):
        _kept.solver = _exact()
    found: Highs = _kept.solver
    return found


def _exact() -> Highs:
    """A solver of linear programs, with tight tolerances."""
    solver = _made()
    solver.setOptionValue("primal_feasibility_tolerance", FEASIBILITY_TOLERANCE)
    solver.setOptionValue("dual_feasibility_tolerance", FEASIBILITY_TOLERANCE)
    return solver


def _made() -> Highs:
    """A solver that says nothing and gives the same answer every time."""
    from highspy import Highs

    with _silent():  # making one prints its name
        solver = Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("parallel", "off")
    return solver


def _pass(
    solver: Highs,
    cost: Mapping[int, float],
    rows: Rows,
    limits: Limits,
    whole: Sequence[bool] | None = None,
) -> None:
    """Give a program to the solver, which forgets the one before."""
    from highspy import MatrixFormat, ObjSense

    weights = np.zeros(len(limits))
    for column, weight in cost.items():
        weights[column] = weight
    solver.passModel(
        len(limits),
        len(rows.most),
        len(rows.values),
        int(MatrixFormat.kRowwise),
        int(ObjSense.kMinimize),
        0.0,
        weights,
        np.array([least for least, _ in limits]),
        np.array([np.inf if most is None else most for _, most in limits]),
        np.array(rows.least),
        np.array(rows.most),
        np.array(rows.starts, dtype=np.int32),
        np.array(rows.columns, dtype=np.int32),
        np.array(rows.values),
        np.array([False] * len(limits) if whole is None else whole, dtype=np.int32),
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the process's standard output clean: HiGHS prints a line of its own there whenever it
    repairs a solution, whatever its options, and stdout is for data.
    """
    try:
        sys.stdout.flush()
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):
        yield  # no standard output to keep clean
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        _flush_c()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _flush_c() -> None:
    """Write out what C code has printed and the C library still holds."""
    try:
        ctypes.CDLL(None).fflush(None)
    except (OSError, TypeError, AttributeError):  # where the C library has no such name
        return
