"""FORMULATION.md says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvplan import cost, program
from kvplan.candidates import full_structure
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.step import build_step
from kvplan.workload import Budgets, Workload

PAGE = Path(__file__).parents[1] / "planner" / "FORMULATION.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the formulation is not in a wheel")


def table(heading: str) -> list[list[str]]:
    """Cells of the first table under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def stated() -> program.Program:
    """A program in which every kind of row and column appears."""
    scenario = Scenario(
        model=load_model("opt-125m"),
        hardware=load_hardware("h200"),
        workload=Workload(batch=2, context=512),
        budgets=Budgets(disk_bytes=10**12),
        options=Options(allow={"int8": 0.5}),
    )
    schedule = Schedule(stages=4, stream_weights=True)
    graph = build_step(
        scenario.model,
        scenario.hardware,
        scenario.workload,
        schedule,
        full_structure(scenario, schedule, range(12)),
    )
    return program.state(graph, scenario.capacity, quality=scenario.quality, block=64)


def test_every_column_is_in_the_table() -> None:
    names = {re.split(r"\[", column)[0] for column in stated().columns}
    assert names == {row[1].strip("`") for row in table("Columns")}


def test_every_row_is_in_the_table_and_has_its_function() -> None:
    names = {row.name.split("[")[0] for row in stated().rows}
    listed = {row[0].strip("`") for row in table("Rows")}
    assert names == listed
    for name in listed:
        function = getattr(program, f"define_{name}")
        assert function.__doc__


def test_every_cost_function_exists() -> None:
    for row in table("Costs"):
        for name in re.findall(r"`(\w+)`", row[1]):
            assert callable(getattr(cost, name)), name
