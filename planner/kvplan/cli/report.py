"""``kvplan report``: one HTML file on a plan."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli.declarations import output_option
from kvplan.cli.output import Json, check_writable, print_json, say
from kvplan.errors import InputError

EPILOG = """
Examples:

\b
  kvplan report plan.json -o report.html
  kvplan report plan.json --measured trace.json --results results.json -o report.html
"""

File = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - is stdin.")]
Output = Annotated[str | None, output_option("HTML file to write; it needs nothing else.")]
Measured = Annotated[
    str | None,
    typer.Option(
        "--measured",
        metavar="TRACE",
        help="Trace of `kvplan validate PLAN --trace`, drawn under the predicted step.",
    ),
]
Results = Annotated[
    str | None,
    typer.Option(
        "--results",
        metavar="FILE",
        help="Results of `kvplan validate -o`: a picture of how far predictions were off.",
    ),
]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--pictures",
        metavar="KINDS",
        help="Only these, such as timeline,values. [default: all of a plan]",
    ),
]


def report(
    plan: File,
    output: Output = None,
    measured: Measured = None,
    results: Results = None,
    kinds: Kinds = None,
    as_json: Json = False,
) -> None:
    """Write a report on a plan: the answer, tables and pictures in one HTML file."""
    if output is None and not as_json:
        raise InputError("-o", None, "a file for the report, or --json for its numbers")
    if output is not None and not output.endswith((".html", ".htm")):
        raise InputError("-o", output, "a file that ends in .html")
    check_writable(output, "-o")
    from kvplan.cli.plot import read_trace
    from kvplan.cli.simulate import read_plan_or_stdin
    from kvplan.cli.values import words
    from kvplan.names import resolve
    from kvplan.report import PICTURES
    from kvplan.validation_file import read_results

    chosen = list(PICTURES)
    if kinds is not None:
        known = dict.fromkeys(PICTURES, ())
        chosen = [resolve(word, known, "--pictures") for word in words(kinds, "--pictures")]

    document = read_plan_or_stdin(plan)
    trace = None if measured is None else read_trace(measured)
    found = None if results is None else read_results(results)
    if output is not None:
        from kvplan.plan_file import write_text
        from kvplan.report import report as written

        write_text(output, written(document, trace, found, chosen))
        say("note", f"wrote {output}")
    if as_json:
        from kvplan import wording
        from kvplan.pictures import KINDS

        more = {} if trace is None else {"measured": trace}
        numbers = {
            kind: KINDS[kind].data(document, **(more if kind == "timeline" else {}))
            for kind in chosen
        }
        if found is not None:
            numbers["accuracy"] = KINDS["accuracy"].data(found)
        print_json({"answer": wording.strategy(document), "pictures": numbers})
