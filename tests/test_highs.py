"""HiGHS as it is called here, beside scipy's way of calling it (`test_program_pulp` has CBC's)."""

from __future__ import annotations

import os
from unittest.mock import patch

import highspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from strategies import examples

from kvplan import highs
from kvplan.errors import KvplanError
from kvplan.hardware_library import load_hardware
from kvplan.highs import Limits, Optimum, Rows, Standing, Way, minimise, minimise_whole
from kvplan.model_library import load_model
from kvplan.scenario import Scenario
from kvplan.solve import find
from kvplan.units import GIB
from kvplan.workload import Budgets, Workload

AGREE = 1e-6

Drawn = tuple[dict[int, float], Rows, list[tuple[float, float | None]]]


@st.composite
def programs(draw: st.DrawFn) -> Drawn:
    """Costs of zero or more and columns from zero on, so that an optimum exists where anything is
    feasible; a few rows of each sense.
    """
    count = draw(st.integers(1, 6))
    entry = st.integers(-5, 5).map(float)
    cost = dict(enumerate(draw(st.lists(st.integers(0, 5).map(float), min_size=count,
                                        max_size=count))))  # fmt: skip
    rows = Rows()
    for _ in range(draw(st.integers(0, 6))):
        terms = draw(st.dictionaries(st.integers(0, count - 1), entry, max_size=count))
        rows.add(terms, float(draw(st.integers(-20, 20))), draw(st.booleans()))
    most = st.one_of(st.none(), st.integers(0, 9).map(float))
    return cost, rows, [(0.0, draw(most)) for _ in range(count)]


def dense(rows: Rows, columns: int) -> np.ndarray:
    matrix = np.zeros((len(rows.most), columns))
    for number in range(len(rows.most)):
        for column, value in rows.entries(number):
            matrix[number, column] = value
    return matrix


def by_scipy(cost: dict[int, float], rows: Rows, limits: Limits) -> float | None:
    matrix, bounds = dense(rows, len(limits)), np.array(rows.most)
    equal = np.isfinite(rows.least)
    result = linprog(
        [cost[c] for c in range(len(limits))], A_ub=matrix[~equal], b_ub=bounds[~equal],
        A_eq=matrix[equal], b_eq=bounds[equal], bounds=limits, method="highs",
    )  # fmt: skip
    return None if result.status == 2 else float(result.fun)


def value_of(cost: dict[int, float], found: list[float]) -> float:
    return sum(weight * found[column] for column, weight in cost.items())


def check(rows: Rows, limits: Limits, found: Optimum | None, cost: dict[int, float]) -> None:
    """The optimum obeys every row, and its duals explain its cost."""
    if found is None:
        return
    values = np.array(found.values)
    sums = dense(rows, len(limits)) @ values
    assert np.all(sums <= np.array(rows.most) + AGREE)
    assert np.all(sums >= np.array(rows.least) - AGREE)
    duals = np.array(found.duals)
    reduced = np.array([cost[c] for c in range(len(limits))]) - duals @ dense(rows, len(limits))
    at_most = np.array([np.inf if most is None else most for _, most in limits])
    held = sum(r * m for r, m in zip(reduced, at_most, strict=True) if r < -AGREE)
    assert value_of(cost, found.values) == pytest.approx(duals @ np.array(rows.most) + held,
                                                         abs=AGREE)  # fmt: skip
    inequality = ~np.isfinite(rows.least)
    assert np.all(duals[inequality] <= AGREE)


@examples(300)
@given(programs())
def test_agrees_with_scipy(drawn: Drawn) -> None:
    cost, rows, limits = drawn
    found, other = minimise(cost, rows, limits), by_scipy(cost, rows, limits)
    assert (found is None) == (other is None)
    check(rows, limits, found, cost)
    if found is not None:
        assert value_of(cost, found.values) == pytest.approx(other, rel=AGREE, abs=AGREE)


@examples(100)
@given(programs())
def test_whole_numbers_agree_with_scipy(drawn: Drawn) -> None:
    cost, rows, limits = drawn
    whole = [True] * len(limits)
    found = minimise_whole(cost, rows, limits, whole, 1000, 0.0)
    most = np.array([np.inf if high is None else high for _, high in limits])
    matrix = dense(rows, len(limits))
    constraints = [LinearConstraint(matrix, rows.least, rows.most)] if len(rows.most) else []
    other = milp(
        [cost[c] for c in range(len(limits))], integrality=np.ones(len(limits)),
        bounds=Bounds(np.zeros(len(limits)), most), constraints=constraints,
    )  # fmt: skip
    assert (found is None) == (other.x is None)
    if found is not None:
        assert value_of(cost, found) == pytest.approx(other.fun, rel=AGREE, abs=AGREE)
        assert found == pytest.approx(np.round(found), abs=AGREE)


@examples(50)
@given(programs(), programs())
def test_what_was_solved_before_leaves_no_trace(drawn: Drawn, before: Drawn) -> None:
    """Equal programs have equal optima to the last bit, whatever the solver did before."""
    first = minimise(*drawn)
    minimise(*before)
    assert minimise(*drawn) == first


@examples(150)
@given(programs(), st.data())
def test_other_bounds_solved_from_the_optimum_before_agree_with_scipy(
    drawn: Drawn, data: st.DataObject
) -> None:
    cost, rows, limits = drawn
    standing = Standing(cost, rows, limits)
    standing.minimise()
    for _ in range(3):
        numbers = st.integers(0, max(len(rows.most) - 1, 0))
        changed = data.draw(st.dictionaries(numbers, st.integers(-20, 20).map(float)))
        changed = changed if rows.most else {}
        found = standing.minimise(changed)
        for row, bound in changed.items():
            rows.most[row] = bound
            rows.least[row] = bound if np.isfinite(rows.least[row]) else -np.inf
        other = by_scipy(cost, rows, limits)
        assert (found is None) == (other is None)
        check(rows, limits, found, cost)
        if found is not None:
            assert value_of(cost, found.values) == pytest.approx(other, rel=AGREE, abs=AGREE)


def test_what_the_solver_prints_stays_off_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def chatty(solver: highspy.Highs) -> object:
        os.write(1, b"a line of the solver's own")
        return real(solver)

    real, rows = highspy.Highs.run, Rows()
    rows.add({0: -1.0}, -0.5)
    with patch.object(highspy.Highs, "run", chatty):
        found = minimise_whole({0: 1.0}, rows, [(0.0, None)], [True], 10, 0.0)
    print("data")
    assert found == pytest.approx([1.0])
    assert capfd.readouterr().out == "data\n"


WAYS = {f"{way['solver']}-{number}": way for number, way in enumerate(highs.LARGE_WAYS)}


@pytest.mark.parametrize("way", WAYS)
@given(program=programs())
@examples(50)
def test_every_way_finds_the_optimum(way: str, program: Drawn) -> None:
    wanted = by_scipy(*program)
    with patch.object(highs, "SMALL_WAYS", (WAYS[way],)):
        found = minimise(*program)
    if wanted is None or found is None:
        assert wanted is None
        assert found is None
        return
    cost = program[0]
    assert sum(c * found.values[i] for i, c in cost.items()) == pytest.approx(wanted, abs=AGREE)


def test_where_one_way_stops_the_next_one_goes_on() -> None:
    rows = Rows()
    rows.add({0: -1.0, 1: -2.0}, -6.0)
    rows.add({0: -2.0, 1: -1.0}, -6.0)
    program = ({0: 1.0, 1: 1.0}, rows, [(0.0, None), (0.0, None)])
    usual = highs.SMALL_WAYS[0]
    stopped: Way = {**usual, "simplex_iteration_limit": 0}
    free: Way = {**usual, "simplex_iteration_limit": 2**31 - 1}
    try:
        with patch.object(highs, "SMALL_WAYS", (stopped,)), pytest.raises(KvplanError):
            minimise(*program)
        with patch.object(highs, "SMALL_WAYS", (stopped, free)):
            found = minimise(*program)
    finally:
        with patch.object(highs, "SMALL_WAYS", (free,)):
            assert minimise(*program) is not None
    assert found is not None
    assert found.values == pytest.approx([2.0, 2.0])


def test_a_program_that_the_usual_way_leaves_without_an_answer() -> None:
    asked = Scenario(
        model=load_model("codellama-13b"), hardware=load_hardware("a10g"),
        workload=Workload(batch=128, context=8192), budgets=Budgets(dram_bytes=1024 * GIB),
    )  # fmt: skip
    found = find(asked)
    assert found is not None
    assert found.gap < 0.01
