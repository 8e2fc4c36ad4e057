"""Run trials in turn; each is kept as soon as it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvplan.plan_file import write_text
from kvplan_validate.faults import described, recover
from kvplan_validate.trials.base import Place, Trial

VERSION = "1.0"

MARKS = {"holds": "holds here", "differs": "differs here", "skipped": "skipped", "failed": "failed"}
"""Verdict to words."""


def run_trials(
    trials: Sequence[Trial],
    place: Place,
    provenance: dict[str, Any],
    *,
    output: str | Path | None,
    show: Callable[[str], None],
) -> dict[str, Any]:
    """Check every statement that can be checked here.

    Args:
        trials: which.
        place: where.
        provenance: machine, versions, profile.
        output: file that is written after every trial; None: none.
        show: takes one line per trial.

    Returns:
        The document: by name, what was claimed, by whom, what this machine does, the verdict
        (``holds``, ``differs``, ``skipped`` or ``failed``) and all figures.
    """
    document: dict[str, Any] = {
        "kvplan_trials": VERSION, "provenance": provenance, "trials": {}
    }  # fmt: skip
    for trial in trials:
        begin = time.monotonic()
        entry: dict[str, Any] = {"title": trial.title, "source": trial.source, "claim": trial.claim}
        entry |= _judged(trial, place)
        entry["took_s"] = round(time.monotonic() - begin, 3)
        document["trials"][trial.name] = entry
        if output is not None:
            write_text(output, json.dumps(document, indent=1) + "\n")
        show(f"{trial.name}: {MARKS[entry['verdict']]}: {entry['here']}")
    return document


def _judged(trial: Trial, place: Place) -> dict[str, Any]:
    try:
        why = trial.can_run(place)
        if why is not None:
            return {"verdict": "skipped", "here": why, "figures": {}}
        found = trial.run(place)
        verdict = "holds" if found.holds else "differs"
        entry = {"verdict": verdict, "here": found.here, "figures": dict(found.figures)}
    except Exception as error:
        entry = {"verdict": "failed", "here": described(error), "figures": {}}
    recover()
    return entry


def table(document: dict[str, Any]) -> str:
    """A trials document as Markdown."""
    rows = ["| statement | as published | here | verdict |", "| --- | --- | --- | --- |"]
    for entry in document["trials"].values():
        cells = (f"{entry['title']} ({entry['source']})", entry["claim"], entry["here"])
        shown = [cell.replace("|", "/") for cell in cells]
        rows.append(f"| {' | '.join(shown)} | {MARKS[entry['verdict']]} |")
    return "\n".join(rows)
