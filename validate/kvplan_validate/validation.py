"""Run a grid of cases and show predicted beside measured."""

from __future__ import annotations

import datetime
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import kvplan
from kvplan.errors import ResourceError
from kvplan.evaluate import Evaluation
from kvplan.hardware import HardwareProfile
from kvplan.scenario import Scenario
from kvplan_validate.cases import Case
from kvplan_validate.decode_run import decode
from kvplan_validate.faults import described, fault, recover
from kvplan_validate.harness import Bench, run, traced
from kvplan_validate.metrics import Metrics
from kvplan_validate.results import Result, ResultFile, case_fields, case_key, judge

Show = Callable[[str], None]


def provenance(hardware: HardwareProfile) -> dict[str, Any]:
    """Machine, versions and profile of a run."""
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none (CPU)"
    return {
        "card": card,
        "driver": _asked("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "link": _asked(
            "nvidia-smi",
            "--query-gpu=pcie.link.gen.max,pcie.link.width.max",
            "--format=csv,noheader",
        ),
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kvplan": kvplan.__version__,
        "commit": _asked("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "profile": hardware.name,
        "profile_digest": hardware.digest,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _asked(*command: str) -> str | None:
    """First line that a command prints, or None."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def ordered(cases: Sequence[Case]) -> list[Case]:
    """Cases of one model together, so that its weights are drawn once."""
    models = list(dict.fromkeys(case.model for case in cases))
    return sorted(cases, key=lambda case: models.index(case.model))


def validate(
    cases: Sequence[Case],
    hardware: HardwareProfile,
    results: ResultFile,
    *,
    pool_bytes: int,
    show: Show,
    budget_s: float | None = None,
    device: str | None = None,
    disk_folder: Path | None = None,
    steps: int = 0,
    metrics: Metrics | None = None,
) -> ResultFile:
    """Run every case that has no result yet; one that fails keeps its reason.

    Args:
        cases: what to run.
        hardware: profile to predict with.
        results: where results go.
        pool_bytes: host memory to register.
        show: takes one line per case.
        budget_s: stop starting cases after this long.
        device: ``cuda`` or ``cpu``; None takes the GPU where there is one.
        disk_folder: where tokens on disk lie; None takes the system's folder.
        steps: per case; 0 leaves the choice to `run`.
        metrics: told while cases run.

    Raises:
        ResourceError: the GPU no longer answers, so that no further case could run.
        InputError: results cannot be written.
    """
    done = results.done()
    todo = [case for case in ordered(cases) if case_key(case_fields(case)) not in done]
    bench = opened(pool_bytes, show, device, disk_folder)
    begun = time.monotonic()
    try:
        for number, case in enumerate(todo):
            spent = time.monotonic() - begun
            if budget_s is not None and spent > budget_s:
                show(f"{len(todo) - number} cases left when {budget_s:.0f} s were over")
                break
            left = spent / number * (len(todo) - number) if number else 0.0
            result = run_case(bench, case, hardware, steps, metrics)
            results.add(result)
            show(f"[{number + 1}/{len(todo)}, {left:.0f} s left] {line(result)}")
            if result.measured_s is None and (broken := recover()) is not None:
                raise ResourceError(
                    "gpu", f"since {line(result)}, every call fails ({broken})", results.kept()
                )
    finally:
        bench.close()
    return results


def opened(pool_bytes: int, show: Show, device: str | None, disk_folder: Path | None) -> Bench:
    """A bench; None leaves its own choice of device and folder."""
    bench = Bench(pool_bytes, show)
    if device is not None:
        bench.device = torch.device(device)
    if disk_folder is not None:
        bench.disk_folder = disk_folder
    return bench


def run_case(
    bench: Bench,
    case: Case,
    hardware: HardwareProfile,
    steps: int = 0,
    metrics: Metrics | None = None,
) -> Result:
    """Plan, predict and time one case; a case that cannot run keeps its reason."""
    try:
        result = _measured(bench, case, hardware, steps, metrics)
    except Exception as error:
        result = Result(case_fields(case), case.strategy, reason=described(error))
    if metrics is not None:
        metrics.ended(measured=result.measured_s is not None)
    if result.measured_s is None:
        recover()  # out here the exception, whose frames hold tensors, is gone
    return result


def _measured(
    bench: Bench, case: Case, hardware: HardwareProfile, steps: int, metrics: Metrics | None
) -> Result:
    scenario = case.scenario(hardware)
    evaluation = case.plan(scenario)
    if metrics is not None:
        metrics.begin(described_case(scenario, evaluation, case.strategy), evaluation)
    timing = run(bench, scenario, evaluation, steps=steps, metrics=metrics)
    return judge(case_fields(case), case.strategy, scenario, evaluation, timing)


def described_case(scenario: Scenario, evaluation: Evaluation, strategy: str) -> dict[str, object]:
    """What runs, as labels of metrics."""
    return {
        "model": scenario.model.name,
        "batch": scenario.workload.batch,
        "context": scenario.workload.context,
        "mode": evaluation.schedule.mode,
        "strategy": strategy,
    }


def run_plan(
    scenario: Scenario,
    evaluation: Evaluation,
    results: ResultFile,
    *,
    plan: str,
    strategy: str,
    pool_bytes: int,
    device: str,
    show: Show,
    disk_folder: Path | None = None,
    steps: int = 0,
    metrics: Metrics | None = None,
    timelines: bool = False,
) -> str:
    """Run one plan and keep its result.

    Args:
        scenario: the question the plan answers.
        evaluation: the plan.
        results: where its result goes.
        plan: what to call it.
        strategy: how it was made.
        pool_bytes: host memory to register.
        device: ``cuda`` or ``cpu``.
        show: takes sentences about what is not as asked for.
        disk_folder: where tokens on disk lie; None takes the system's folder.
        steps: how many; 0 leaves the choice to `run`.
        metrics: told while the plan runs.
        timelines: whether a step is traced too.

    Returns:
        Predicted and measured timelines as a Chrome trace, or nothing.

    Raises:
        ResourceError: the machine cannot run it.
    """
    bench = opened(pool_bytes, show, device, disk_folder)
    try:
        if metrics is not None:
            metrics.begin(described_case(scenario, evaluation, strategy), evaluation)
        timing = run(bench, scenario, evaluation, steps=steps, metrics=metrics)
        results.add(judge({"plan": plan}, strategy, scenario, evaluation, timing))
        if metrics is not None:
            metrics.ended(measured=True)
        return traced(bench, scenario, evaluation) if timelines else ""
    except Exception as error:
        if (found := fault(error)) is None:
            raise
        raise found from error
    finally:
        bench.close()


def run_decode(
    scenario: Scenario,
    evaluation: Evaluation,
    steps: int,
    *,
    device: str,
    disk_folder: Path | None,
    show: Show,
) -> dict[str, Any]:
    """Decode tokens over a tiered pool, as `decode_run.decode`.

    Raises:
        KvplanError: the plan's paths cannot be pooled, or the machine cannot run it.
    """
    folder = disk_folder or Path(tempfile.gettempdir())
    try:
        return decode(scenario, evaluation, steps, device=device, disk_folder=folder, notice=show)
    except Exception as error:
        if (found := fault(error)) is None:
            raise
        raise found from error


def line(result: Result) -> str:
    """One case in one line."""
    case = result.case
    what = f"{case['model']} b{case.get('batch', 32)} s{case.get('context', 4096)}"
    if result.measured_s is None or result.predicted_s is None or result.error is None:
        return f"{what} {result.strategy}: not run: {result.reason}"
    shares = ", ".join(
        f"{path} {share:.0%}" for path, share in result.decision.get("shares", {}).items()
    )
    return (
        f"{what} {case.get('mode', 'graph')} {result.strategy} ({shares}; "
        f"S{result.decision['stages']} Q{result.decision['queue_depth']}): predicted "
        f"{result.predicted_s * 1e3:.2f} ms, measured {result.measured_s * 1e3:.2f} ms, "
        f"{result.error:+.1%}"
    )
