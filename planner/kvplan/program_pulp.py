"""The same linear program stated in PuLP, for any solver PuLP knows, and as ``.lp`` or ``.mps``.

Columns are in units of their scale, as `kvplan.program.solve` uses them: tokens as shares of the
most a stage can hold, times in units of `unit_s`. The objective is T in that unit, so a solver's
tolerances mean the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvplan.errors import KvplanError
from kvplan.program import Program, scaled_rows

if TYPE_CHECKING:
    import pulp


def unit_s(program: Program) -> float:
    """Seconds of one decode step per unit of the PuLP problem's objective."""
    return program.scale[program.period] * program.graph.cycles


def to_pulp(program: Program, fixed: Sequence[float] | None = None) -> pulp.LpProblem:
    """State a program in PuLP.

    Args:
        program: what `kvplan.program.state` returned.
        fixed: values to hold every variable of the graph at; None leaves them free.

    Returns:
        A minimisation whose variables and constraints, in the program's order, are named after
        its columns and rows (see `plain_names`).
    """
    import pulp

    limits = [
        (0.0, u if u is None else u / s) for u, s in zip(program.upper, program.scale, strict=True)
    ]
    if fixed is not None:
        count = len(program.graph.variables)
        held = zip(fixed, program.scale[:count], strict=True)
        limits[:count] = [(v / s, v / s) for v, s in held]
    problem = pulp.LpProblem(f"kvplan_unit_{unit_s(program):.12g}_s", pulp.LpMinimize)
    add = getattr(problem, "add_variable", pulp.LpVariable)  # PuLP before 3.3 has only the latter
    columns = [
        add(name, low, high)
        for name, (low, high) in zip(plain_names(program.columns), limits, strict=True)
    ]
    problem += columns[program.period]
    names = plain_names(row.name for row in program.rows)
    rows, _ = scaled_rows(program)
    for number, (name, row) in enumerate(zip(names, program.rows, strict=True)):
        bound = rows.most[number]
        total = pulp.LpAffineExpression([(columns[c], v) for c, v in rows.entries(number)])
        problem += (total == bound if row.equal else total <= bound), name
    return problem


def plain_names(names: Iterable[str]) -> list[str]:
    """Names that ``.lp`` and ``.mps`` files accept: letters, digits and ``_``, none twice.

    A leading ``e`` would read as an exponent in ``.lp`` files and gets a ``_`` in front; what
    occurs again is numbered.

    >>> plain_names(["n[0,None,fetch]", "even_stages[0,1,above]", "T", "T"])
    ['n_0_None_fetch', '_even_stages_0_1_above', 'T', 'T__2']
    """
    seen: dict[str, int] = {}
    plain = []
    for name in names:
        word = re.sub(r"\W+", "_", name, flags=re.ASCII).rstrip("_")
        if not word or word[0] in "eE0123456789":
            word = f"_{word}"
        seen[word] = seen.get(word, 0) + 1
        plain.append(word if seen[word] == 1 else f"{word}__{seen[word]}")
    return plain


def cbc() -> pulp.LpSolver:
    """CBC, found on the path or brought by PuLP, with tolerances as tight as HiGHS has here.

    Its own tolerances of 1e-7 would be felt where one operation is much shorter than a step.
    """
    import pulp

    settings = {"msg": False, "options": ["primalTolerance 1e-10", "dualTolerance 1e-10"]}
    solver = pulp.COIN_CMD(**settings)
    if not solver.available():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 brings no solver
            solver = pulp.PULP_CBC_CMD(**settings)
    return solver


def solve_pulp(
    program: Program, solver: pulp.LpSolver | None = None, fixed: Sequence[float] | None = None
) -> float | None:
    """Solve with a solver of PuLP's.

    Args:
        program: what `kvplan.program.state` returned.
        solver: any that PuLP offers; None takes `cbc`.
        fixed: values to hold every variable of the graph at; None leaves them free.

    Returns:
        Seconds of one decode step, or None where no allocation is feasible.

    Raises:
        KvplanError: the solver found neither an optimum nor a proof that there is none.
    """
    import pulp

    problem = to_pulp(program, fixed)
    status = problem.solve(solver or cbc())
    if status == pulp.LpStatusInfeasible:
        return None
    if status != pulp.LpStatusOptimal:
        raise KvplanError(f"the solver stopped: {pulp.LpStatus[status]}")
    return float(pulp.value(problem.objective)) * unit_s(program)


def write_lp(program: Program, path: str | os.PathLike[str]) -> None:
    """Write the program as a ``.lp`` file; its first line tells the objective's unit."""
    to_pulp(program).writeLP(os.fspath(path), max_length=255)


def write_mps(program: Program, path: str | os.PathLike[str]) -> None:
    """Write the program as a ``.mps`` file; its name tells the objective's unit."""
    to_pulp(program).writeMPS(os.fspath(path))
