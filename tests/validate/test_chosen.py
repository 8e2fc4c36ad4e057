"""Chosen plans beside measured baselines: who is compared with whom, and what is said."""

from __future__ import annotations

from typing import Any

from kvplan_validate.chosen import compared, table


def result(strategy: str, measured_s: float | None, **case: Any) -> dict[str, Any]:
    if strategy not in ("solve", "forced"):
        case["baseline"] = strategy
    fields = {"model": "opt-125m", **case}
    return {"case": fields, "strategy": strategy, "measured_s": measured_s}


RESULTS = [
    result("overlapped_fetch", 0.030, batch=8),
    result("staged_pipeline", 0.020, batch=8),
    result("kvpr_serial", None, batch=8),
    result("solve", 0.010, batch=8),
    result("solve", 0.0205, batch=8, paths=["fetch"]),
    result("solve", 0.021, batch=8, paths=["resident"]),
    result("forced", 0.001, batch=8, force={"resident": 1.0}),
    result("solve", 0.010, batch=16),
]


def test_each_chosen_plan_meets_the_best_baseline_of_its_point() -> None:
    rows = compared(RESULTS)
    assert [row["best_baseline"] for row in rows] == ["staged_pipeline"] * 3
    assert [round(row["speed_up"], 3) for row in rows] == [2.0, 0.976, 0.952]
    assert [row["holds"] for row in rows] == [True, True, False]
    assert rows[0]["baselines_s"] == {"overlapped_fetch": 0.030, "staged_pipeline": 0.020}


def test_the_table_shows_all_of_them() -> None:
    lines = table({"results": RESULTS}).splitlines()
    assert lines[0] == "| milliseconds per step | overlapped fetch | staged pipeline | kvplan |  |"
    assert lines[2].endswith("| 30.0 | 20.0 | 10.0 | 2.00x as fast as staged pipeline |")
    assert lines[3].endswith("| 20.5 | 2.5 % slower than staged pipeline |")
