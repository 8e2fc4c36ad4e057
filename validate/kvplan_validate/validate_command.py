"""``kvplan validate``: run plans here, predicted beside measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.output import Json, check_writable, console, print_json, say
from kvplan.errors import InputError, KvplanError, ResourceError

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.evaluate import Evaluation
    from kvplan.scenario import Scenario

MOST_STEPS = 1_000_000

VALIDATE_EPILOG = """
Examples:

\b
  kvplan validate plan.json
  kvplan validate --grid grid.toml --gpu ./my.toml -o results.json
  kvplan validate plan.json --trace trace.json
  kvplan validate plan.json --steps 1000 --live --prometheus /var/lib/node_exporter/kvplan.prom
  kvplan validate --trials --gpu ./my.toml -o trials.json
  kvplan validate --again results.json --gpu ./newer.toml -o again.json
"""


def validate(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan file; - reads stdin.")
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(help="TOML or JSON list of cases; keys are solve's long options.",
                     rich_help_panel="What to run"),
    ] = None,
    trials: Annotated[
        bool,
        typer.Option("--trials", help="Check statements of public reports about links, pinned "
                     "memory and steps on this machine, about three minutes.",
                     rich_help_panel="What to run"),
    ] = False,
    again: Annotated[
        str | None,
        typer.Option("--again", help="Results of a grid to predict again with --gpu, a newer "
                     "profile or kvplan; runs nothing.", rich_help_panel="What to run"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="Hardware profile to predict with, by name or file. "
                     "[default: the plan's own; needed with --grid]",
                     rich_help_panel="What to run"),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(help="Most host memory to register for cached tokens.",
                     rich_help_panel="What to run"),
    ] = "16GiB",
    disk_folder: Annotated[
        str | None,
        typer.Option("--disk-folder", help="Folder on the disk for tokens that a plan keeps there; "
                     "the file is gone at the end. [default: the system's]",
                     rich_help_panel="What to run"),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which no further case starts.",
                     rich_help_panel="What to run"),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(help="Steps per case. [default: as many as take half a second, 3 to 30]",
                     show_default=False, rich_help_panel="What to run"),
    ] = 0,
    decode: Annotated[
        int,
        typer.Option(help="Also decode so many tokens with a plan, its blocks in a tiered pool, "
                     "and show what each tier serves.", show_default=False,
                     rich_help_panel="What to run"),
    ] = 0,
    device: Annotated[
        str,
        typer.Option(help="cuda, or cpu: the same code without streams, to try a plan's logic; "
                     "predictions are of the profile's GPU all the same.",
                     rich_help_panel="What to run"),
    ] = "cuda",
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Results to write; an earlier file is resumed.",
                     rich_help_panel="Output"),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(help="Predicted and measured timelines of a plan, for Perfetto.",
                     rich_help_panel="Output"),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="A table that follows the run: latencies, busy resources, "
                     "tiers.", rich_help_panel="Metrics"),
    ] = False,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", help="Metrics as Prometheus text, for node_exporter's "
                     "textfile collector (.prom).", rich_help_panel="Metrics"),
    ] = None,
    prometheus_port: Annotated[
        int | None,
        typer.Option("--prometheus-port", help="Serve metrics on this port of localhost while "
                     "the command runs.", rich_help_panel="Metrics"),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a plan, or a grid of cases, on this machine and show predicted beside measured.

    Weights and cached tokens are random: outputs mean nothing, sizes and times are real.
    """
    if (plan is not None) + (grid is not None) + trials + (again is not None) != 1:
        raise InputError("PLAN, --grid, --trials or --again", plan, "one of them")
    if trace is not None and plan is None:
        raise InputError("--trace", trace, "a plan, not a grid")
    check_writable(output, "--output")
    check_writable(trace, "--trace")
    check_writable(prometheus, "--prometheus")
    if not 0 <= steps <= MOST_STEPS:
        raise InputError("--steps", steps, f"0 to {MOST_STEPS}")
    if not 0 <= decode <= MOST_STEPS:
        raise InputError("--decode", decode, f"0 to {MOST_STEPS}")
    if decode and plan is None:
        raise InputError("--decode", decode, "a plan, not a grid")
    if prometheus_port is not None and not 0 < prometheus_port < 65536:
        raise InputError("--prometheus-port", prometheus_port, "1 to 65535")
    if disk_folder is not None and not Path(disk_folder).is_dir():
        raise InputError("--disk-folder", disk_folder, "a folder that exists")
    if again is not None:
        _predict_again(again, gpu, output, as_json=as_json)
        return
    _check_device(device)
    if trials:
        _run_trials(gpu, pool, device, output, as_json=as_json)
        return
    from kvplan.units import parse_bytes
    from kvplan_validate.watch import watching

    how: dict[str, Any] = {
        "pool_bytes": parse_bytes(pool, "--pool"), "device": device, "steps": steps,
        "disk_folder": Path(disk_folder) if disk_folder is not None else None,
    }  # fmt: skip
    table = (error_console() if as_json else console()) if live else None
    with watching(live=table, file=prometheus, port=prometheus_port) as metrics:
        how["metrics"] = metrics
        if plan is not None:
            document = _run_plan(plan, gpu, output, trace, decode, how)
        else:
            assert grid is not None
            document = _run_grid(grid, gpu, budget, output, how, quiet=as_json)
    if as_json:
        print_json(document)
    else:
        show_summary(document)
    _refuse_failures(document)


def error_console() -> Console:
    """The console of stderr, for talk beside a JSON document."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def _check_device(device: str) -> None:
    """The device is there; torch is loaded only when it is known which."""
    if device not in ("cuda", "cpu"):
        raise InputError("--device", device, "cuda or cpu")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        import torch
    except ImportError:
        raise InputError("torch", None, "an installed torch: pip install 'kvplan[validate]'") \
            from None  # fmt: skip
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError(
            "gpu", "torch sees no CUDA device", "--device cpu tries a plan's logic without one"
        )


def _refuse_failures(document: dict[str, Any]) -> None:
    """End with an error where a case met a fault of kvplan, or where no case could run."""
    from kvplan_validate.faults import INTERNAL

    reasons = [result["reason"] for result in document["results"] if result.get("reason")]
    faults = [reason for reason in reasons if reason.startswith(INTERNAL)]
    if faults:
        raise KvplanError(f"{len(faults)} of {len(document['results'])} cases: {faults[0]}")
    if reasons and len(reasons) == len(document["results"]):
        raise ResourceError("every case", f"{len(reasons)} failed", f"the first: {reasons[0]}")


def _run_grid(
    grid: str,
    gpu: str | None,
    budget: float | None,
    output: str | None,
    how: dict[str, Any],
    *,
    quiet: bool,
) -> dict[str, Any]:
    import json

    from kvplan.hardware_library import load_hardware
    from kvplan_validate.cases import read_grid
    from kvplan_validate.interrupt import unwinding
    from kvplan_validate.results import ResultFile
    from kvplan_validate.validation import provenance
    from kvplan_validate.validation import validate as run_all

    cases, hardware = read_grid(grid), load_hardware(_profile(gpu))
    results = ResultFile(output, provenance(hardware))

    def show(text: str) -> None:
        print(text, file=sys.stderr if quiet else sys.stdout, flush=True)

    with unwinding(results.kept):
        run_all(cases, hardware, results, show=show, budget_s=budget, **how)
    found: dict[str, Any] = json.loads(results.text())
    return found


def _predict_again(again: str, gpu: str | None, output: str | None, *, as_json: bool) -> None:
    import json

    from kvplan.hardware_library import load_hardware
    from kvplan.validation_file import read_results
    from kvplan_validate.again import new_provenance, predict_again
    from kvplan_validate.results import ResultFile

    hardware = load_hardware(_profile(gpu))
    earlier = read_results(again)
    results = ResultFile(output, new_provenance(earlier, hardware), resume=False)
    for case in predict_again(earlier, hardware, results):
        say("note", f"left out, its plan is another now: {json.dumps(case)}")
    document = json.loads(results.text())
    if as_json:
        print_json(document)
    else:
        show_summary(document)


def _profile(gpu: str | None) -> str:
    if gpu is None:
        raise InputError("--gpu", gpu, "the profile to predict with; `kvplan profile` writes one")
    return gpu


def _run_trials(
    gpu: str | None, pool: str, device: str, output: str | None, *, as_json: bool
) -> None:
    import torch

    from kvplan.hardware_library import load_hardware
    from kvplan.units import parse_bytes
    from kvplan_validate.harness import Bench
    from kvplan_validate.interrupt import unwinding
    from kvplan_validate.measure import Machine
    from kvplan_validate.trials import REGISTRY, Place, run_trials
    from kvplan_validate.validation import provenance

    hardware = load_hardware(_profile(gpu))

    def show(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    bench = Bench(parse_bytes(pool, "--pool"), show, torch.device(device))
    machine = Machine.here()
    kept = f"{output} keeps the trials before this one" if output else "-o FILE keeps trials"
    with unwinding(lambda: kept):
        try:
            machine.warm_up()
            place = Place(machine=machine, bench=bench, hardware=hardware)
            document = run_trials(REGISTRY, place, provenance(hardware), output=output, show=show)
        finally:
            bench.close()
    if as_json:
        print_json(document)


def _run_plan(
    plan: str,
    gpu: str | None,
    output: str | None,
    trace: str | None,
    tokens: int,
    how: dict[str, Any],
) -> dict[str, Any]:
    import json

    from kvplan.hardware_library import load_hardware
    from kvplan.plan_file import decode, read_plan, write_text
    from kvplan.planning import replay
    from kvplan_validate.interrupt import unwinding
    from kvplan_validate.results import ResultFile
    from kvplan_validate.validation import provenance, run_decode, run_plan

    document = decode(sys.stdin.buffer.read(), "-") if plan == "-" else read_plan(plan)
    scenario, evaluation = replay(document, load_hardware(gpu) if gpu else None)
    results = ResultFile(output, provenance(scenario.hardware), resume=False)
    with unwinding(results.kept):
        timelines = run_plan(
            scenario, evaluation, results, plan=plan, strategy=document.decision.strategy,
            show=lambda text: say("note", text), timelines=trace is not None, **how,
        )  # fmt: skip
    if trace is not None:
        write_text(trace, timelines)
        say("note", f"timelines written to {trace}")
    found: dict[str, Any] = json.loads(results.text())
    if tokens:
        with unwinding(results.kept):
            found["decoded"] = run_decode(
                scenario, evaluation, tokens, device=how["device"],
                disk_folder=how["disk_folder"], show=lambda text: say("note", text),
            )  # fmt: skip
    found["advice"] = _advice(scenario, evaluation, found["results"][0])
    return found


def _advice(
    scenario: Scenario, evaluation: Evaluation, result: dict[str, Any]
) -> list[dict[str, Any]]:
    """What would help, where a link is busy for most of the measured step."""
    from dataclasses import asdict

    from kvplan_validate.advice import BUSY, advice

    busy = result["measured_busy_s"] or result["busy_s"]
    if busy.get("h2d", 0.0) <= BUSY * result["measured_s"]:
        return []
    return [asdict(one) | {"sentence": one.sentence()} for one in advice(scenario, evaluation)]


def show_summary(document: dict[str, Any]) -> None:
    """Print what was found."""
    out = console()
    for result in document["results"]:
        if "plan" in result["case"]:
            out.print(
                f"predicted {result['predicted_s'] * 1e3:.2f} ms, measured "
                f"{result['measured_s'] * 1e3:.2f} ms, {result['error']:+.1%}"
            )
            _show_busy(result)
    if "decoded" in document:
        from kvplan_validate.decode_run import sentence

        out.print(sentence(document["decoded"]))
    for one in document.get("advice", []):
        out.print(f"the link is the limit; {one['sentence']}")
    for row in document.get("chosen", []):
        from kvplan_validate.chosen import label, verdict

        steps = f"{row['chosen_s'] * 1e3:.2f} ms"
        out.print(f"{label(row['case'])}: chosen plan {steps}, {verdict(row)}")
    summary = document.get("summary")
    if summary and summary["cases"]:
        out.print(
            f"{summary['cases']} cases: error of the prediction {summary['median_error']:.1%} in "
            f"the median, {summary['p95_error']:.1%} at the 95th percentile, "
            f"{summary['worst_error']:.1%} at worst"
        )


def _show_busy(result: dict[str, Any]) -> None:
    """How long each resource works in the step, measured beside predicted."""
    parts = [
        f"{name} {min(100 * seconds / result['measured_s'], 100):.0f} % "
        f"({100 * result['busy_s'].get(name, 0.0) / result['predicted_s']:.0f} % predicted)"
        for name, seconds in result["measured_busy_s"].items()
    ]
    if parts:
        console().print("busy: " + ", ".join(parts))
