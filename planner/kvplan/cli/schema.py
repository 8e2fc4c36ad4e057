"""``kvplan schema``: the JSON Schema of plan files."""

from __future__ import annotations

from kvplan.cli.output import Json, print_json

EPILOG = """
Examples:

\b
  kvplan schema > plan.schema.json
  kvplan schema | python -m json.tool
"""


def schema(as_json: Json = False) -> None:
    """Print the JSON Schema of plan files; it is JSON with and without --json."""
    from kvplan import plan_file

    print_json(plan_file.schema())
