"""The accuracy table of a validation run, as Markdown: ``python -m kvplan_validate.accuracy FILE``.

The README's table is this module's output; a test compares them.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from kvplan.validation_file import group_of

HEAD = "| steps | cases | median error | 95th percentile | worst |\n| --- | --- | --- | --- | --- |"


def row(name: str, errors: list[float]) -> str:
    """One line of the table."""
    ordered = sorted(abs(e) for e in errors)
    p95 = ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]
    return (
        f"| {name} | {len(ordered)} | {statistics.median(ordered):.1%} | {p95:.1%} "
        f"| {ordered[-1]:.1%} |"
    )


def table(document: dict[str, Any]) -> str:
    """The table of a results document."""
    groups: dict[str, list[float]] = {}
    for result in document["results"]:
        if result["error"] is not None:
            groups.setdefault(group_of(result), []).append(result["error"])
    rows = [row(name, groups[name]) for name in sorted(groups, key=lambda n: -len(groups[n]))]
    everything = [error for errors in groups.values() for error in errors]
    return "\n".join([HEAD, *rows, row("**all**", everything)])


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
