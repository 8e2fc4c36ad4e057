"""``kvplan simulate``: run a plan through the simulator again, here or on another machine."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from kvplan.cli.declarations import gpu_option
from kvplan.cli.output import Json, check_writable, print_json, say
from kvplan.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from kvplan.evaluate import Evaluation
    from kvplan.plan import Plan
    from kvplan.scenario import Scenario

EPILOG = """
Examples:

\b
  kvplan simulate plan.json
  kvplan simulate plan.json --gpu h100-pcie --trace trace.json
  kvplan solve --model llama-7b --gpu a100 --json | kvplan simulate - --json
"""

SAME = 1e-9
"""Largest relative distance of two step latencies that are the same."""


PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - is stdin.")]

Gpu = Annotated[str | None, gpu_option(help="Another machine. [default: the plan's own]")]

Trace = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", rich_help_panel="Output",
        help="Write three steps as a trace for Perfetto or chrome://tracing.",
    ),
]  # fmt: skip


OfSegment = Annotated[
    str | None,
    typer.Option("--segment", metavar="N", help="A segment of its generation, from 1. "
                 "[default: its last step]"),
]  # fmt: skip


def simulate(
    file: PlanFile, gpu: Gpu = None, trace: Trace = None, segment: OfSegment = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Run a plan through the simulator: step latency, busy time, memory."""
    check_writable(trace, "--trace")
    if trace == "-" and as_json:
        raise InputError("--trace", trace, "a file, as --json takes stdout")
    plan = read_plan_or_stdin(file)
    if segment is not None:
        from kvplan.cli.values import whole_number
        from kvplan.planning import segment_plan

        plan = segment_plan(plan, whole_number(segment, "--segment", 64))
    from kvplan.hardware_library import load_hardware
    from kvplan.planning import replay

    scenario, evaluation = replay(plan, None if gpu is None else load_hardware(gpu))
    _refuse_overflow(scenario, evaluation)
    document = _document(plan, scenario, evaluation)
    if trace is not None:
        _write_trace(trace, evaluation)
    apart = document["difference"]
    if gpu is None and (apart is None or abs(apart) > SAME):
        say("warning", "the plan's own prediction differs from its replay: it was edited, or made "
            "by another version of kvplan")  # fmt: skip
    if as_json:
        print_json(document)
        return
    if trace == "-":
        return
    from kvplan.cli.display import show_replay
    from kvplan.cli.output import console

    show_replay(console(), plan, scenario, evaluation, apart)


def read_plan_or_stdin(file: str) -> Plan:
    """The plan of a file, or of stdin for -."""
    from kvplan.plan_file import decode, read_plan

    return decode(sys.stdin.buffer.read(), "stdin") if file == "-" else read_plan(file)


def _refuse_overflow(scenario: Scenario, evaluation: Evaluation) -> None:
    over = evaluation.overflow(scenario.capacity)
    if over is None:
        return
    from kvplan.evaluate import refuse_overflow

    tier, _ = over
    raise InfeasibleError(
        tier, f"the plan {refuse_overflow(evaluation, scenario.capacity)} on "
        f"{scenario.hardware.name}", "`kvplan solve` finds a plan for that machine",
    )  # fmt: skip


def difference(plan: Plan, evaluation: Evaluation) -> float | None:
    """How much longer the replay takes than the plan says, relative; None where it says nothing."""
    own_s = plan.prediction.step_s
    ratio = evaluation.step_s / own_s if own_s else math.inf
    return ratio - 1.0 if math.isfinite(ratio) else None


def _document(plan: Plan, scenario: Scenario, evaluation: Evaluation) -> dict[str, Any]:
    """What ``--json`` prints; ``prediction`` has the keys of a plan's, bound and duals aside."""
    from kvplan.document import predict

    replayed = msgspec.to_builtins(predict(scenario, evaluation))
    for key in ("bound_s", "gap", "values"):
        replayed.pop(key, None)
    machine = scenario.hardware
    return {
        "hardware": {"name": machine.name, "title": machine.title, "kind": machine.kind,
                     "digest": machine.digest},
        "prediction": replayed,
        "planned_step_s": plan.prediction.step_s,
        "difference": difference(plan, evaluation),
    }  # fmt: skip


def _write_trace(path: str, evaluation: Evaluation) -> None:
    from kvplan.plan_file import write_text
    from kvplan.trace import trace

    document = trace(evaluation.graph, evaluation.values, evaluation.simulation)
    text = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)
