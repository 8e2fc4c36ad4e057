"""Earlier measurements predicted again: the same steps, another profile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.hardware_library import load_hardware

pytest.importorskip("torch", reason="the command that it belongs to needs torch")

from plugin_cli import run

from kvplan_validate.cases import Case
from kvplan_validate.results import ResultFile, Timing, case_fields, judge

H200 = load_hardware("h200")
FORCED = Case(model="opt-125m", batch=4, context=1024, force={"fetch": 1.0})
CASES = (
    FORCED,
    Case(model="opt-125m", batch=4, context=1024, baseline="overlapped_fetch"),
    Case(model="opt-125m", batch=4, context=1024, hbm="1GiB"),
)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Results of one profile; the measured step of each is twice the predicted one."""
    file = tmp_path / "results.json"
    results = ResultFile(file, {"card": "H200", "profile": "h200", "profile_digest": "old"})
    for case in CASES:
        scenario = case.scenario(H200)
        evaluation = case.plan(scenario)
        timing = Timing([2 * evaluation.step_s], {"h2d": 1.0})
        results.add(judge(case_fields(case), case.strategy, scenario, evaluation, timing))
    return file


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_same_profile_predicts_the_same(earlier: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    result = run("validate", "--again", str(earlier), "--gpu", "h200", "-o", str(out))
    assert result.code == 0, result.err
    assert document(out)["results"] == document(earlier)["results"]
    provenance = document(out)["provenance"]
    assert provenance["card"] == "H200"
    assert provenance["profile_digest"] == H200.digest
    assert provenance["predicted_first_with"]["profile_digest"] == "old"


def test_another_machine_is_judged_by_the_same_samples(earlier: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    result = run("validate", "--again", str(earlier), "--gpu", "l4", "-o", str(out))
    assert result.code == 0, result.err
    before, after = (document(path)["results"][0] for path in (earlier, out))
    assert after["samples_s"] == before["samples_s"]
    assert after["predicted_s"] > before["predicted_s"]
    assert after["error"] == pytest.approx(after["predicted_s"] / after["measured_s"] - 1)


def test_a_step_whose_plan_is_another_now_is_left_out(earlier: Path, tmp_path: Path) -> None:
    changed = document(earlier)
    changed["results"][0]["decision"]["stages"] = 7
    earlier.write_text(json.dumps(changed))
    out = tmp_path / "again.json"
    result = run("validate", "--again", str(earlier), "--gpu", "h200", "-o", str(out))
    assert result.code == 0, result.err
    assert len(document(out)["results"]) == len(CASES) - 1
    assert "its plan is another now" in result.err
    assert '"force": {"fetch": 1.0}' in result.err


def test_a_plans_own_results_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    scenario = FORCED.scenario(H200)
    own = judge({"plan": "p.json"}, "kvplan", scenario, FORCED.plan(scenario), Timing([1.0]))
    ResultFile(file, {"profile": "h200", "profile_digest": "x"}).add(replace(own))
    result = run("validate", "--again", str(file), "--gpu", "h200", "-o", str(tmp_path / "o.json"))
    assert result.code == 2
    assert "results[0].case" in result.err
    assert not (tmp_path / "o.json").exists()
    assert run("validate", "--again", str(file)).code == 2
