"""``kvplan validate``: run plans here, predicted beside measured."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from kvplan.cli.output import Json, check_writable, console, print_json, say
from kvplan.errors import InfeasibleError, InputError

VALIDATE_EPILOG = """
Examples:

\b
  kvplan validate plan.json
  kvplan validate --grid grid.toml --gpu ./my.toml -o results.json
  kvplan validate plan.json --trace trace.json
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
    gpu: Annotated[
        str | None,
        typer.Option(help="Hardware profile to predict with, by name or file. "
                     "[default: the plan's own; needed with --grid]",
                     rich_help_panel="What to run"),
    ] = None,
    pool: Annotated[
        str,
        typer.Option(help="Host memory to register for cached tokens.",
                     rich_help_panel="What to run"),
    ] = "16GiB",
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds after which no further case starts.",
                     rich_help_panel="What to run"),
    ] = None,
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
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a plan, or a grid of cases, on this machine and show predicted beside measured.

    Weights and cached tokens are random: outputs mean nothing, sizes and times are real.
    """
    if (plan is None) == (grid is None):
        raise InputError("PLAN or --grid", plan, "one of them")
    if trace is not None and plan is None:
        raise InputError("--trace", trace, "a plan, not a grid")
    check_writable(output, "--output")
    check_writable(trace, "--trace")
    _need_gpu()
    if plan is not None:
        document = _run_plan(plan, gpu, pool, trace)
    else:
        assert grid is not None
        document = _run_grid(grid, gpu, pool, budget, output, quiet=as_json)
    if as_json:
        print_json(document)
    else:
        show_summary(document)


def _need_gpu() -> None:
    try:
        import torch
    except ImportError:
        raise InputError("torch", None, "an installed torch: pip install 'kvplan[validate]'") \
            from None  # fmt: skip
    if not torch.cuda.is_available():
        raise InfeasibleError(
            "gpu", "torch sees no CUDA device here", "run it on the machine with the GPU"
        )


def _run_grid(
    grid: str, gpu: str | None, pool: str, budget: float | None, output: str | None, *, quiet: bool
) -> dict[str, Any]:
    import json

    from kvplan.hardware_library import load_hardware
    from kvplan.units import parse_bytes
    from kvplan_validate.cases import read_grid
    from kvplan_validate.results import ResultFile
    from kvplan_validate.validation import provenance
    from kvplan_validate.validation import validate as run_all

    if gpu is None:
        raise InputError("--gpu", gpu, "the profile to predict with; `kvplan profile` writes one")
    cases, hardware = read_grid(grid), load_hardware(gpu)
    results = ResultFile(output, provenance(hardware))

    def show(text: str) -> None:
        print(text, file=sys.stderr if quiet else sys.stdout, flush=True)

    run_all(
        cases, hardware, results, pool_bytes=parse_bytes(pool, "--pool"), show=show,
        budget_s=budget,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(results.text())
    return found


def _run_plan(plan: str, gpu: str | None, pool: str, trace: str | None) -> dict[str, Any]:
    from kvplan.hardware_library import load_hardware
    from kvplan.plan_file import decode, read_plan, write_text
    from kvplan.planning import replay
    from kvplan.units import parse_bytes
    from kvplan_validate.harness import Bench, run, traced
    from kvplan_validate.validation import provenance

    document = decode(sys.stdin.buffer.read(), "-") if plan == "-" else read_plan(plan)
    scenario, evaluation = replay(document, load_hardware(gpu) if gpu else None)
    bench = Bench(parse_bytes(pool, "--pool"))
    try:
        timing = run(bench, scenario, evaluation)
        if trace is not None:
            write_text(trace, traced(bench, scenario, evaluation))
    finally:
        bench.close()
    if trace is not None:
        say("note", f"timelines written to {trace}")
    error = evaluation.step_s / timing.median_s - 1.0
    result = {
        "case": {"plan": plan}, "strategy": document.decision.strategy,
        "predicted_s": evaluation.step_s, "measured_s": timing.median_s,
        "samples_s": timing.samples_s, "error": error,
        "busy_s": dict(evaluation.simulation.busy_s),
    }  # fmt: skip
    return {"provenance": provenance(scenario.hardware), "results": [result]}


def show_summary(document: dict[str, Any]) -> None:
    """Print what was found."""
    out = console()
    for result in document["results"]:
        if "plan" in result["case"]:
            out.print(
                f"predicted {result['predicted_s'] * 1e3:.2f} ms, measured "
                f"{result['measured_s'] * 1e3:.2f} ms, {result['error']:+.1%}"
            )
    summary = document.get("summary")
    if summary and summary["cases"]:
        out.print(
            f"{summary['cases']} cases: error of the prediction {summary['median_error']:.1%} in "
            f"the median, {summary['p95_error']:.1%} at the 95th percentile, "
            f"{summary['worst_error']:.1%} at worst"
        )
