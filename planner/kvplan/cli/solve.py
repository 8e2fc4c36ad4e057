"""``kvplan solve``: the best plan for a model on a machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.declarations import PlanOutput
from kvplan.cli.options import Request, asks
from kvplan.cli.output import Json, check_writable, say
from kvplan.cli.question import scenario_of
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.plan import Plan
    from kvplan.planning import Answer
    from kvplan.scenario import Scenario

EPILOG = """
Examples:

\b
  kvplan solve --model llama-7b --gpu a100
  kvplan solve --model llama-3.1-8b --gpu h100 --batch 64 --context 32k --allow int8:0.5
  kvplan solve --model llama-7b --gpu a100 --objective throughput --slo 100ms
  kvplan solve --model llama-7b --gpu a100 --context 1k --gen 1k --segments auto
  kvplan solve --model opt-30b --gpu a100 --hbm 30GiB --h2d 20GB/s -o plan.json --json
"""

Statement = Annotated[
    str | None,
    typer.Option(
        "--program", metavar="FILE", rich_help_panel="Output",
        help="Write the linear program of the chosen schedule, .lp or .mps, for another solver.",
    ),
]  # fmt: skip


def write_program(scenario: Scenario, plan: Plan, path: str) -> None:
    """Write the program of the plan's schedule with every path that it could use.

    Raises:
        InputError: the file ends in neither .lp nor .mps, or cannot be written.
    """
    from pathlib import Path

    from kvplan import program, program_pulp
    from kvplan.candidates import unit_graph
    from kvplan.planning import schedule_of

    write = {".lp": program_pulp.write_lp, ".mps": program_pulp.write_mps}[Path(path).suffix]
    statement = program.state(
        unit_graph(scenario, schedule_of(plan)), scenario.capacity, quality=scenario.quality,
        block=scenario.workload.block,
    )  # fmt: skip
    write(statement, path)


def check_program(path: str | None) -> None:
    """Refuse a file for the program that could not be written."""
    check_writable(path, "--program")
    if path is not None and not path.endswith((".lp", ".mps")):
        raise InputError("--program", path, "a file that ends in .lp or .mps")


def planned(request: Request, output: str | None) -> Answer:
    """Solve a request, write the plan where it is wanted, and pass on the warnings."""
    from kvplan.plan_file import write_plan

    check_writable(output, "-o")
    scenario, warnings = scenario_of(request)
    from kvplan.planning import answer

    found = answer(scenario)
    if output is not None and output != "-":
        write_plan(output, found.plan)
    for warning in warnings:
        say("warning", warning)
    return found


def show(plan: Plan) -> None:
    """Print a plan document."""
    from kvplan.plan_file import encode

    sys.stdout.write(encode(plan))


@asks
def solve(
    request: Request, output: PlanOutput = None, program: Statement = None, as_json: Json = False
) -> None:
    """Find the fastest plan for a model on a machine, and what limits it.

    The plan says which tokens stay in HBM, are fetched, recomputed from activations or attended
    where they lie, in how many stages and with how many buffers in flight. With --objective
    throughput it also chooses the batch and its micro-batches, within --max-step-latency if given.
    """
    check_program(program)
    found = planned(request, output)
    scenario, plan = found.scenario, found.plan
    if program is not None:
        write_program(scenario, plan, program)
    if as_json or output == "-":
        show(plan)
        return
    from kvplan.cli.display import show_plan
    from kvplan.cli.output import console

    show_plan(console(), plan, output)
