"""Validation results: one JSON file per run, written after every case, resumable."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kvplan.allocation import tokens_by_path
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.plan_file import write_text
from kvplan.scenario import Scenario
from kvplan_validate.cases import Case
from kvplan_validate.chosen import compared

VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class Result:
    """One case: what was predicted and what was measured; or why there is nothing to show.

    Args:
        case: the case's keys.
        strategy: what ran: ``forced``, a baseline's name, or ``solve``.
        predicted_s: simulated step, seconds.
        measured_s: median measured step, seconds.
        samples_s: measured steps, seconds.
        error: predicted over measured, less one.
        floor_s: bytes over the link's rate for large copies, seconds.
        busy_s: predicted seconds per resource.
        measured_busy_s: measured seconds per resource, of one step launched eagerly.
        decision: axis, stages, queue depth and share of tokens per path.
        reason: why the case did not run.
    """

    case: dict[str, Any]
    strategy: str
    predicted_s: float | None = None
    measured_s: float | None = None
    samples_s: list[float] = field(default_factory=list)
    error: float | None = None
    floor_s: float | None = None
    busy_s: dict[str, float] = field(default_factory=dict)
    measured_busy_s: dict[str, float] = field(default_factory=dict)
    decision: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Measured steps of one case, seconds.

    Args:
        samples_s: steps.
        busy_s: seconds each resource works in one step launched eagerly; empty where that step
            found no room.
    """

    samples_s: list[float]
    busy_s: dict[str, float] = field(default_factory=dict)

    @property
    def median_s(self) -> float:
        """Median step."""
        return statistics.median(self.samples_s)


def judge(
    case: dict[str, Any], strategy: str, scenario: Scenario, evaluation: Evaluation, timing: Timing
) -> Result:
    """What was measured of a plan beside what is predicted of it."""
    moved = evaluation.graph.link_bytes(evaluation.values).get("h2d", 0.0)
    return Result(
        case=case,
        strategy=strategy,
        predicted_s=evaluation.step_s,
        measured_s=timing.median_s,
        samples_s=timing.samples_s,
        error=evaluation.step_s / timing.median_s - 1.0,
        floor_s=moved / scenario.hardware.h2d.copy.rate(),
        busy_s=dict(evaluation.simulation.busy_s),
        measured_busy_s=timing.busy_s,
        decision=decision(evaluation),
    )


def decision(evaluation: Evaluation) -> dict[str, Any]:
    """Schedule and share of tokens per path."""
    total: dict[str, int] = {}
    for segments in evaluation.allocation:
        for path, tokens in tokens_by_path(segments).items():
            total[path] = total.get(path, 0) + tokens
    everything = sum(total.values())
    schedule = evaluation.schedule
    return {
        "axis": schedule.axis,
        "stages": schedule.stages,
        "queue_depth": schedule.queue_depth,
        "boundary": schedule.boundary,
        "shares": {path: tokens / everything for path, tokens in sorted(total.items())},
    }


def case_key(case: dict[str, Any]) -> str:
    """What tells cases apart."""
    return json.dumps(case, sort_keys=True)


def case_fields(case: Case) -> dict[str, Any]:
    """The keys of a case that were given."""
    defaults = Case(model=case.model)
    fields = msgspec.structs.asdict(case)
    return {
        name: value
        for name, value in fields.items()
        if name == "model" or value != getattr(defaults, name)
    }


class ResultFile:
    """Results on disk; every added case is saved at once.

    Args:
        path: where; None keeps them in memory.
        provenance: machine, versions, profile; a file of another profile is refused.
        resume: whether to read what an earlier run left there.
    """

    def __init__(
        self, path: str | Path | None, provenance: dict[str, Any], *, resume: bool = True
    ) -> None:
        """Read what an earlier run left."""
        self.path, self.provenance = (Path(path) if path else None), provenance
        self.results: list[dict[str, Any]] = []
        if resume and self.path is not None and self.path.exists():
            self._resume(self.path)

    def _resume(self, path: Path) -> None:
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            results, kept = earlier["results"], earlier["provenance"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError("-o", str(path), f"a results file or a new one ({error})") from None
        if kept.get("profile_digest") != self.provenance.get("profile_digest"):
            raise InputError(
                "-o", str(path), "a new file: this one was made with another hardware profile"
            )
        self.results = [r for r in results if r.get("measured_s") is not None]

    def done(self) -> set[str]:
        """Keys of the cases that have a measurement."""
        return {case_key(result["case"]) for result in self.results}

    def add(self, *some: Result) -> None:
        """Keep results and save the file."""
        before = f"it keeps the {len(self.results)} results before this one"
        self.results += map(asdict, some)
        if self.path is None:
            return
        try:
            write_text(self.path, self.text())
        except InputError as error:
            raise InputError("--output", str(self.path), f"{error.accepted}; {before}") from None

    def kept(self) -> str:
        """What is kept of an interrupted run, in one sentence."""
        count = sum(result.get("measured_s") is not None for result in self.results)
        if self.path is None:
            return f"{count} cases had been measured; -o FILE would have kept them"
        if not self.results:
            return "nothing had been measured"
        return f"{self.path} keeps {count} measured cases; the same command goes on from there"

    def text(self) -> str:
        """The whole document."""
        document = {
            "kvplan_validation": VERSION,
            "provenance": self.provenance,
            "summary": summary(self.results),
            "chosen": compared(self.results),
            "results": self.results,
        }
        return json.dumps(document, indent=1) + "\n"


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Median, 95th percentile and worst absolute error over measured cases."""
    errors = sorted(abs(r["error"]) for r in results if r.get("error") is not None)
    if not errors:
        return {"cases": 0}
    return {
        "cases": len(errors),
        "median_error": statistics.median(errors),
        "p95_error": errors[min(int(0.95 * len(errors)), len(errors) - 1)],
        "worst_error": errors[-1],
    }
