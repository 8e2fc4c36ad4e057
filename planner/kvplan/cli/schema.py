"""``kvplan schema``: the JSON Schema of the documents that kvplan writes."""

from __future__ import annotations

from typing import Annotated

import typer

from kvplan.cli.output import Json, print_json
from kvplan.errors import InputError

EPILOG = """
Examples:

\b
  kvplan schema > plan.schema.json
  kvplan schema restore > restore.schema.json
"""


def schema(
    kind: Annotated[str, typer.Argument(metavar="plan|restore", help="Which document.")] = "plan",
    as_json: Json = False,
) -> None:
    """Print the JSON Schema of plan or restore files; it is JSON with and without --json."""
    if kind == "plan":
        from kvplan.plan_file import schema as made
    elif kind == "restore":
        from kvplan.restore_plan import schema as made
    else:
        raise InputError("schema", kind, "plan or restore")
    print_json(made())
