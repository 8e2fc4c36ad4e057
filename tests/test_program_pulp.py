"""PuLP states the same program: same optimum, same names, and files that parse again."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pulp
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    evaluations,
    examples,
    full_graph,
    graphs,
    ideal,
    layer,
    model,
    scenarios,
    schedules,
    tight,
)

from kvplan import program
from kvplan.evaluate import Evaluation
from kvplan.program import Program
from kvplan.program_pulp import cbc, plain_names, solve_pulp, to_pulp, unit_s, write_lp, write_mps
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.workload import Workload

AGREE = 1e-6


def agree(statement: Program, fixed: tuple[float, ...] | None = None) -> None:
    highs, other = program.solve(statement, fixed), solve_pulp(statement, fixed=fixed)
    assert (highs is None) == (other is None)
    if highs is not None and other is not None:
        assert other == pytest.approx(highs.step_s, rel=AGREE)


@examples(40)
@given(st.data())
def test_solvers_agree_on_optima(data: st.DataObject) -> None:
    scenario = data.draw(scenarios(2))
    graph = full_graph(scenario, data.draw(schedules(len(scenario.model.layers))))
    assume(len(graph.operations) < 300)
    capacity = tight(graph, data.draw(st.sampled_from((0.0, 0.3, 0.9))))
    relaxed, block = data.draw(st.booleans()), scenario.workload.block
    quality = {"fetch_int8": 0.3, "fetch_int4": 0.2}
    agree(program.state(graph, capacity, quality=quality, relaxed=relaxed, block=block))


@examples(40)
@given(evaluations(2))
def test_solvers_agree_on_fixed_allocations(judged: tuple[Scenario, Evaluation]) -> None:
    _, plan = judged
    assume(len(plan.graph.operations) < 300)
    agree(program.state(plan.graph, {}, block=10**9), plan.values)


@examples(40)
@given(graphs())
def test_solvers_agree_on_any_graph(drawn: tuple[StepGraph, list[float]]) -> None:
    graph, values = drawn
    agree(program.state(graph, {}), tuple(values))


def everything() -> Program:
    """Curves of several pieces, streamed weights, disk, host attention, micro-batches."""
    scenario = Scenario(
        model=model([layer(rope=True), layer(window=300, rope=True), layer(kv_heads=2)]),
        hardware=ideal(link=1e9, flop=2e12, hbm=1e11, host=5e8, disk=1e9, copy_s=1e-6),
        workload=Workload(batch=4, context=1000, micro_batches=2),
    )  # fmt: skip
    graph = full_graph(scenario, Schedule(stages=4, queue_depth=2, stream_weights=True))
    assert {p.path for p in graph.variables} >= {"fetch_disk", "attend_host", "stream_weights"}
    assert any(len(o.curve.pieces) > 1 for o in graph.operations)
    return program.state(graph, tight(graph, 0.2), quality={"fetch_int8": 0.1, "fetch_int4": 0.0},
                         block=64)  # fmt: skip


def test_infeasible_is_none() -> None:
    statement = everything()
    statement.rows.append(program.Row("capacity[none]", {statement.period: 1.0}, 0.0))
    assert program.solve(statement) is None
    assert solve_pulp(statement) is None


def test_every_column_and_row_is_there_by_name() -> None:
    statement = everything()
    problem = to_pulp(statement)
    rows = [row.name for row in problem.constraints()]
    assert rows == plain_names(row.name for row in statement.rows)
    names = set(plain_names(statement.columns))
    assert len(names) == len(statement.columns)
    assert {variable.name for variable in problem.variables()} <= names
    assert {"T", "n_0_0_fetch", "n_2_None_attend_host", "n_1_None_stream_weights"} <= names
    assert {"tokens_0", "_even_stages_0_1_above", "capacity_hbm", "buffer_0_1",
            "quality_fetch_int8", "duration_7_0"} <= {*rows}  # fmt: skip


@given(st.lists(st.text("n[],eE_0 →"), max_size=8))
def test_plain_names_are_legal_and_differ(names: list[str]) -> None:
    plain = plain_names(names)
    assert plain == plain_names(names)
    assert all(re.fullmatch(r"[A-DF-Za-df-z_]\w*", name, re.ASCII) for name in plain)
    assert len(set(plain)) == len(plain)


def test_mps_file_parses_and_has_the_same_optimum(tmp_path: Path) -> None:
    statement = everything()
    write_mps(statement, tmp_path / "step.mps")
    _, problem = pulp.LpProblem.fromMPS(str(tmp_path / "step.mps"))
    problem.solve(cbc())
    expected = program.solve(statement)
    assert expected is not None
    assert pulp.value(problem.objective) * unit_s(statement) == pytest.approx(
        expected.step_s, rel=AGREE
    )


def test_lp_file_parses_and_has_the_same_optimum(tmp_path: Path) -> None:
    """CBC itself reads the file, and writes what it found as text."""
    statement = everything()
    lp, found = tmp_path / "step.lp", tmp_path / "found.txt"
    write_lp(statement, lp)
    command = [cbc().path, lp, "solve", "solution", found]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    status = found.read_text().splitlines()[0]
    assert status.startswith("Optimal - objective value ")
    expected = program.solve(statement)
    assert expected is not None
    seconds = float(status.split()[-1]) * unit_s(statement)
    assert seconds == pytest.approx(expected.step_s, rel=AGREE)


def test_files_are_the_same_every_time(tmp_path: Path) -> None:
    for write, name in ((write_lp, "step.lp"), (write_mps, "step.mps")):
        write(everything(), tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write(everything(), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
