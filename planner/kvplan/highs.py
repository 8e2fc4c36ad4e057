"""HiGHS through scipy: one call for linear programs, one for those with whole numbers."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from kvplan.errors import KvplanError

FEASIBILITY_TOLERANCE = 1e-10

_INFEASIBLE = 2


def minimise(
    cost: Any, matrix: Any, bounds: Any, equal_matrix: Any, equal_bounds: Any,
    limits: Sequence[tuple[float, float | None]],
) -> Any | None:  # fmt: skip
    """Minimise ``cost @ x`` with ``matrix @ x <= bounds`` and ``equal_matrix @ x == equal_bounds``.

    Args:
        cost: weight of each column.
        matrix: rows of the inequalities, dense or sparse.
        bounds: their right-hand sides.
        equal_matrix: rows of the equations, or None.
        equal_bounds: their right-hand sides, or None.
        limits: least and most of each column; None for no limit.

    Returns:
        scipy's result with ``x`` and ``ineqlin.marginals``; None where nothing is feasible.

    Raises:
        KvplanError: the solver gave up.
    """
    result = linprog(
        cost,
        A_ub=matrix,
        b_ub=bounds,
        A_eq=equal_matrix,
        b_eq=equal_bounds,
        bounds=limits,
        method="highs",
        options={
            "primal_feasibility_tolerance": FEASIBILITY_TOLERANCE,
            "dual_feasibility_tolerance": FEASIBILITY_TOLERANCE,
        },
    )
    if result.status == _INFEASIBLE:
        return None
    if result.status != 0:
        raise KvplanError(f"the solver stopped: {result.message}")
    return result


def minimise_whole(
    cost: Any, matrix: Any, bounds: Any, equal_matrix: Any, equal_bounds: Any,
    limits: Sequence[tuple[float, float | None]], whole: Sequence[bool], nodes: int, gap: float,
) -> Any | None:  # fmt: skip
    """The same with columns that must be whole numbers, until a number of nodes is searched.

    Args:
        cost: weight of each column.
        matrix: rows of the inequalities, sparse.
        bounds: their right-hand sides.
        equal_matrix: rows of the equations, or None.
        equal_bounds: their right-hand sides, or None.
        limits: least and most of each column; None for no limit.
        whole: which columns must be whole.
        nodes: nodes of the branch and bound, at most.
        gap: relative distance from the optimum that is good enough.

    Returns:
        Values of the columns, the best found; None where none was.
    """
    rows = [LinearConstraint(matrix, -np.inf, bounds)]
    if equal_matrix is not None:
        rows.append(LinearConstraint(equal_matrix, equal_bounds, equal_bounds))
    least = np.array([low for low, _ in limits])
    most = np.array([np.inf if high is None else high for _, high in limits])
    with _silent():
        result = milp(
            cost,
            integrality=np.array(whole, dtype=float),
            bounds=Bounds(least, most),
            constraints=rows,
            options={"node_limit": nodes, "mip_rel_gap": gap},
        )
    return result.x


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
