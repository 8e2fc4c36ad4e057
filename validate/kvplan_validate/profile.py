"""Measuring this machine: every measurement in turn, within a time budget.

``run_profile`` gives raw results as a JSON document; `to_toml` makes a hardware profile of them,
`residuals` says how well its curves fit.
"""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.errors import InputError
from kvplan_validate.hardware_document import residuals, to_toml
from kvplan_validate.measure import REGISTRY, Clock, Machine, Measurement
from kvplan_validate.measure.base import NO_TIME, reason

RAW_VERSION = 1
BUDGET_S = 110.0

LEAST_SHARE = 1 / 36
"""Part of the budget that a short measurement may take; most end earlier."""

Progress = Callable[["Step"], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What runs next.

    Args:
        key: the measurement's.
        number: its place, from 1.
        of: how many there are.
        left_s: about how many seconds all that is left takes.
    """

    key: str
    number: int
    of: int
    left_s: float


def selected(
    select: Iterable[str] | None, registry: Sequence[Measurement] = REGISTRY
) -> list[Measurement]:
    """The measurements that some words name: keys (``copies.duplex``) or modules (``copies``).

    Args:
        select: the words; None or nothing names all.
        registry: what there is.

    Raises:
        InputError: a word that names none.

    >>> [m.key for m in selected(["memory", "launch.fork"])]
    ['memory.hbm', 'launch.fork']
    """
    words = [word.strip() for word in select or () if word.strip()]
    known = {m.key for m in registry} | {m.key.partition(".")[0] for m in registry}
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            modules = ", ".join(sorted(key for key in known if "." not in key))
            raise InputError("--only", word, f"did you mean {near[0]}?" if near else modules)
    return [m for m in registry if not words or m.key in words or m.key.partition(".")[0] in words]


def run_profile(
    select: Iterable[str] | None = None,
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
    *,
    scratch: str | None = None,
    registry: Sequence[Measurement] = REGISTRY,
    earlier: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Measure this machine.

    Args:
        select: as in `selected`.
        budget_s: seconds for everything; measurements without time left are skipped.
        progress: called before each measurement.
        scratch: folder on the disk to measure; None takes the system's temporary folder.
        registry: the measurements there are.
        earlier: raw results of a run that was interrupted; what it measured is taken over.
        keep: takes the raw results so far after every measurement.

    Returns:
        The raw results: ``machine`` says where they come from, ``measurements`` holds by key
        what was measured, or why not. A measurement that fails does not stop the others.

    Raises:
        InputError: a word of ``select`` names nothing, or ``earlier`` is of another machine.
    """
    begin = time.monotonic()
    chosen = selected(select, registry)
    machine = Machine.here(scratch)
    facts = machine.facts() | {"scratch_free_bytes": _free_bytes(machine)}
    kept = _taken_over(earlier, facts)
    machine.warm_up()
    raw: dict[str, Any] = {
        "kvplan_profile": RAW_VERSION,
        "machine": facts,
        "budget_s": budget_s,
        "took_s": 0.0,
        "measurements": {m.key: kept[m.key] for m in chosen if m.key in kept},
    }
    todo = [measurement for measurement in chosen if measurement.key not in kept]
    end_s, least_s = begin + budget_s, budget_s * LEAST_SHARE
    for key, entry in _in_turn(todo, machine, end_s, least_s, progress):
        raw["measurements"][key] = entry
        raw["took_s"] = round(time.monotonic() - begin, 3)
        if keep is not None:
            keep(raw)
    for measurement in todo:
        entry = raw["measurements"][measurement.key]
        left_s = end_s - time.monotonic()
        if measurement.visits == 2 and entry["state"] == "measured" and left_s > 0:
            machine.clock = Clock(time.monotonic() + left_s)
            entry["points"] = faster(entry["points"], _result(measurement, machine, None)["points"])
            raw["took_s"] = round(time.monotonic() - begin, 3)
            if keep is not None:
                keep(raw)
    return raw


def faster(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each setting's faster visit, with the medians of both in ``visits``.

    Others on the machine only ever make a copy slower, and for longer than its repeats take.

    >>> slow, fast = ({"at": {"bytes": 1}, "median": median} for median in (2.0, 1.5))
    >>> faster([slow], [fast])
    [{'at': {'bytes': 1}, 'median': 1.5, 'visits': [2.0, 1.5]}]
    """
    again = {tuple(p["at"].items()): p for p in second if "median" in p}
    found = []
    for point in first:
        other = again.get(tuple(point["at"].items()))
        if other is None:
            found.append(point)
        elif "median" not in point:
            found.append(other)
        else:
            better = min(point, other, key=lambda p: p["median"])
            found.append(better | {"visits": [point["median"], other["median"]]})
    return found


def _taken_over(earlier: Mapping[str, Any] | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What an interrupted run on this machine measured."""
    if earlier is None:
        return {}
    for name in ("card", "cpu", "dram_bytes", "torch"):
        if earlier["machine"].get(name) != facts.get(name):
            wanted = f"results of this machine, whose {name} is {facts.get(name)!r}"
            raise InputError(f"--resume: {name}", earlier["machine"].get(name), wanted)
    entries = earlier["measurements"].items()
    return {key: entry for key, entry in entries if entry["state"] == "measured"}


def _in_turn(
    chosen: Sequence[Measurement],
    machine: Machine,
    end_s: float,
    least_s: float,
    progress: Progress | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Entries by key; the time that one measurement does not use goes to those after it."""
    refused = {m.key: machine_refuses(m, machine) for m in chosen}
    waiting = [m for m in chosen if refused[m.key] is None]
    runs = len(waiting)
    for measurement in chosen:
        left_s = end_s - time.monotonic()
        why = refused[measurement.key] or (NO_TIME if left_s <= 0 else None)
        if why is None:
            weights = sum(m.seconds for m in waiting)
            if progress is not None:
                number, about_s = runs - len(waiting) + 1, min(left_s, weights)
                progress(Step(key=measurement.key, number=number, of=runs, left_s=about_s))
            share_s = max(left_s * measurement.seconds / weights, min(left_s, least_s))
            machine.clock = Clock(time.monotonic() + share_s)
            waiting.remove(measurement)
        yield measurement.key, _result(measurement, machine, why)


def machine_refuses(measurement: Measurement, machine: Machine) -> str | None:
    """Why a measurement cannot run; a check that fails is a reason too."""
    try:
        return measurement.can_run(machine)
    except Exception as error:
        return reason(error)


def _free_bytes(machine: Machine) -> int:
    try:
        return shutil.disk_usage(machine.scratch).free
    except OSError:
        return 0


def _result(measurement: Measurement, machine: Machine, why: str | None) -> dict[str, Any]:
    """One measurement's entry: measured; or skipped because of ``why``; or failed, and why."""
    entry: dict[str, Any] = {"sentence": measurement.sentence, "unit": measurement.unit}
    if why is not None:
        return entry | {"state": "skipped", "reason": why, "points": []}
    start = time.monotonic()
    points: list[dict[str, Any]] = []
    try:
        points = measurement.run(machine).document()
        sampled = [point for point in points if "median" in point]
        why = None if sampled else points[0]["error"] if points else "nothing to measure here"
    except Exception as error:
        why = reason(error)
    machine.recover()
    state = "measured" if why is None else "failed"
    took_s = round(time.monotonic() - start, 3)
    return entry | {"state": state, "reason": why, "took_s": took_s, "points": points}


__all__ = ["Step", "residuals", "run_profile", "selected", "to_toml"]
