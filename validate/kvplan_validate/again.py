"""Earlier measurements beside new predictions: another profile, or a newer planner.

Nothing is run. A step counts only where its plan is still the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

import kvplan
from kvplan.errors import InputError, KvplanError
from kvplan.hardware import HardwareProfile
from kvplan_validate.cases import Case
from kvplan_validate.results import Result, ResultFile, Timing, judge


def predict_again(
    earlier: Mapping[str, Any], hardware: HardwareProfile, results: ResultFile
) -> list[dict[str, Any]]:
    """Predict every measured case of a grid once more.

    Args:
        earlier: a results document.
        hardware: profile to predict with.
        results: where results go.

    Returns:
        Cases whose plan would be another now, or is none; they have to run again.

    Raises:
        InputError: not the results of a grid.
    """
    other, found = [], []
    for number, result in enumerate(earlier["results"]):
        if result.get("measured_s") is None:
            continue
        if "plan" in result["case"]:
            accepted = "a case of a grid: a plan's own file is `kvplan simulate`'s"
            raise InputError(f"results[{number}].case", result["case"]["plan"], accepted)
        judged = _judged(result, hardware)
        if judged is None:
            other.append(result["case"])
        else:
            found.append(judged)
    results.add(*found)
    return other


def _judged(result: Mapping[str, Any], hardware: HardwareProfile) -> Result | None:
    """The result with a new prediction; None where the plan would be another now."""
    case = msgspec.convert(result["case"], Case)
    try:
        scenario = case.scenario(hardware)
        evaluation = case.plan(scenario)
    except KvplanError:
        return None
    timing = Timing(result["samples_s"], result.get("measured_busy_s", {}))
    judged = judge(result["case"], result["strategy"], scenario, evaluation, timing)
    return judged if judged.decision == result["decision"] else None


def new_provenance(earlier: Mapping[str, Any], hardware: HardwareProfile) -> dict[str, Any]:
    """Where the measurements come from, and what predicts them now."""
    before = {"profile": earlier["provenance"]["profile"],
              "profile_digest": earlier["provenance"]["profile_digest"]}  # fmt: skip
    return {
        **earlier["provenance"],
        "profile": hardware.name,
        "profile_digest": hardware.digest,
        "predicted_by": f"kvplan {kvplan.__version__}, after the measurements",
        "predicted_first_with": before,
    }
