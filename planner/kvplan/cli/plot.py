"""``kvplan plot``: a picture of a plan, a sweep or validation results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.declarations import output_option
from kvplan.cli.output import Json, check_writable, print_json, say
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.pictures import Kind

EPILOG = """
Kinds:

\b
  timeline   one step: a lane per resource, who holds which staging buffer
  paths      path mix and recompute ratio per layer
  recompute  step over recompute ratio: optimum, KVPR's choice, rule of thumb
  pipeline   step over stages and queue depth
  workload   throughput over context and batch
  machine    step over link and FLOP/s
  roofline   roofline of the step
  memory     memory per tier while the cache fills
  front      latency, throughput and HBM: the front
  values     what one more GiB, GB/s or 10 % FLOP/s would save
  sweep      rows of `kvplan sweep -o`: --y over --x, a line for what else varies
  accuracy   predicted against measured steps, of `kvplan validate -o` results

Examples:

\b
  kvplan plot timeline plan.json -o step.svg
  kvplan plot timeline plan.json --measured trace.json -o step.png
  kvplan plot accuracy results.json -o accuracy.pdf
  kvplan plot sweep rows.csv --x context --y step_s -o context.svg
  kvplan plot machine plan.json --json
"""

Named = Annotated[str, typer.Argument(metavar="KIND", help="What to show; see below.")]
File = Annotated[
    str, typer.Argument(metavar="FILE", help="A plan, or what KIND reads; - is stdin.")
]
Output = Annotated[str | None, output_option("Picture to write: .png, .svg or .pdf.")]
Measured = Annotated[
    str | None,
    typer.Option(
        "--measured",
        metavar="TRACE",
        help="timeline: the trace of `kvplan validate PLAN --trace`, drawn below.",
    ),
]
AxisX = Annotated[
    str | None,
    typer.Option("--x", metavar="COLUMN", help="sweep: horizontal axis. [default: what varies]"),
]
AxisY = Annotated[
    str | None,
    typer.Option(
        "--y", metavar="COLUMN", help="sweep: vertical axis. [default: tokens_per_s or step_s]"
    ),
]


def plot(
    kind: Named,
    file: File,
    output: Output = None,
    measured: Measured = None,
    x: AxisX = None,
    y: AxisY = None,
    as_json: Json = False,
) -> None:
    """Draw a plan's step, its alternatives, or how predictions compare with measurements."""
    from kvplan.names import resolve
    from kvplan.pictures import KINDS
    from kvplan.pictures.style import check_picture, save

    kind = resolve(kind, dict.fromkeys(KINDS, ()), "KIND")
    if output is None and not as_json:
        raise InputError("-o", None, "a file for the picture, or --json for its numbers")
    check_writable(output, "-o")
    if output is not None:
        check_picture(output)
    owners = {"--measured": (measured, "timeline"), "--x": (x, "sweep"), "--y": (y, "sweep")}
    for option, (value, owner) in owners.items():
        if value is not None and kind != owner:
            raise InputError(option, value, f"a picture of kind {owner}")
    chosen = KINDS[kind]
    document = read(chosen, file)
    more: dict[str, Any] = {"x": x, "y": y} if kind == "sweep" else {}
    if measured is not None:
        more["measured"] = read_trace(measured)
    if output is not None:
        save(chosen.draw(document, **more), output)
        say("note", f"wrote {output}")
    if as_json:
        print_json({"kind": kind, **chosen.data(document, **more)})


def read(kind: Kind, file: str) -> Any:
    """The document a kind is drawn from."""
    if kind.reads == "plan":
        from kvplan.cli.simulate import read_plan_or_stdin

        return read_plan_or_stdin(file)
    if kind.reads == "rows":
        from kvplan.sweep_file import decode_rows, read_rows

        return decode_rows(sys.stdin.read(), "stdin") if file == "-" else read_rows(file)
    from kvplan.validation_file import decode_results, read_results

    return decode_results(sys.stdin.buffer.read(), "stdin") if file == "-" else read_results(file)


def read_trace(file: str) -> dict[str, Any]:
    """A trace as a document.

    Raises:
        InputError: no such file, or no trace.
    """
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        document = json.loads(raw)
    except OSError as error:
        raise InputError("--measured", file, f"a trace ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError("--measured", file, f"a trace in JSON ({error})") from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError("--measured", file, "a trace with traceEvents")
    return document
