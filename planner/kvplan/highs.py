"""HiGHS through scipy: one call for every program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scipy.optimize import linprog

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
