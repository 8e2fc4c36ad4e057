"""``kvplan segments``: the segments of a generation, and each as a plan of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli.declarations import PlanOutput
from kvplan.cli.output import Json, check_writable, print_json
from kvplan.cli.simulate import PlanFile, read_plan_or_stdin
from kvplan.cli.solve import show
from kvplan.cli.values import whole_number
from kvplan.errors import InputError

EPILOG = """
Examples:

\b
  kvplan solve --model llama-7b --gpu a100 --context 1k --gen 1k --segments 4 -o plan.json
  kvplan segments plan.json
  kvplan segments plan.json --take 2 -o second.json && kvplan simulate second.json
"""

Take = Annotated[
    str | None,
    typer.Option("--take", metavar="N", help="Take one segment, from 1, as a plan of its own."),
]


def segments(
    file: PlanFile, take: Take = None, output: PlanOutput = None, as_json: Json = False
) -> None:
    """Show the segments of a plan made with --segments, or take one as a plan of its own."""
    check_writable(output, "-o")
    if output is not None and take is None:
        raise InputError("-o", output, "a file for one segment: say which with --take")
    plan = read_plan_or_stdin(file)
    if take is not None:
        from kvplan.plan_file import write_plan
        from kvplan.planning import segment_plan

        one = segment_plan(plan, whole_number(take, "--take", 64))
        if output is not None and output != "-":
            write_plan(output, one)
            if not as_json:
                return
        show(one)
        return
    if plan.generation is None:
        raise InputError(file, "a plan without segments", "one made with --gen and --segments")
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(plan.generation))
        return
    from kvplan.cli.display import show_segments
    from kvplan.cli.output import console

    show_segments(console(), plan, plan.generation)
