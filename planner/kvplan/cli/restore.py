"""``kvplan restore``: load a known prefix, recompute it, rebuild it, or split it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.cli.declarations import PlanOutput
from kvplan.cli.options import asks_for
from kvplan.cli.output import Json, check_writable, say
from kvplan.cli.restore_options import SPELLED, RestoreRequest
from kvplan.cli.restore_question import question_of
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.restored import Restored

EPILOG = """
Examples:

\b
  kvplan restore --model llama-3.1-8b --gpu a100 --prefix 32k
  kvplan restore --model llama-7b --gpu a100 --prefix 16k --from disk --gpu-busy 0.5
  kvplan restore --model llama-3.1-70b --gpu h100 --tp 4 --prefix 128k --granularity split-block
  kvplan restore --model qwen3-14b --gpu h100 --prefix 8k --suffix 512 --prefixes 200 --json
"""


Trace = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", rich_help_panel="Output",
        help="Write the chosen way as a trace for Perfetto or chrome://tracing.",
    ),
]  # fmt: skip


@asks_for(RestoreRequest, SPELLED)
def restore(
    request: RestoreRequest, output: PlanOutput = None, trace: Trace = None, as_json: Json = False
) -> None:
    """Find the fastest way to bring a known prefix back, and where ways break even.

    K and V of the prefix wait in host memory or on disk: load them, recompute them from tokens,
    rebuild them from stored activations, or recompute the front while the tail comes back.
    """
    check_writable(output, "-o")
    check_writable(trace, "--trace")
    if trace == "-":
        raise InputError("--trace", trace, "a file")
    asked = question_of(request)
    from kvplan.plan_file import write_text
    from kvplan.restore import answer
    from kvplan.restore_document import document
    from kvplan.restore_plan import encode

    found = answer(asked.restoration, asked.ways)
    plan = document(
        asked.restoration, found, prefixes=asked.prefixes, overrides=asked.overrides,
        hardware_file=asked.hardware_file,
    )  # fmt: skip
    if output is not None and output != "-":
        write_text(output, encode(plan))
    if trace is not None:
        write_text(trace, _drawn(found.ways[found.chosen]))
    for warning in asked.warnings:
        say("warning", warning)
    if as_json or output == "-":
        sys.stdout.write(encode(plan))
        return
    from kvplan.cli.output import console
    from kvplan.cli.restore_display import show_restore

    show_restore(console(), plan, output)


def _drawn(restored: Restored) -> str:
    from kvplan.trace import trace

    drawn = trace(restored.graph, restored.values, restored.simulation, steps=1)
    return json.dumps(drawn, separators=(",", ":")) + "\n"
