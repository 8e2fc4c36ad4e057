"""Numbers of a hardware file with where they come from: measured here, a datasheet, or a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvplan_validate.figures import Figures, spread_note

STAND_IN = "a stand-in of a small PCIe 4.0 x16 card, not this machine: it was not measured"
"""Rule of every number of a GPU that is not there."""

NOISE_S = 1e-9
"""A difference of two times that is smaller says nothing."""


def measured(figures: Figures, value: float, unit: str, key: str, note: str = "") -> dict[str, Any]:
    """A number that was measured; ``key`` says where in the raw results."""
    number = {"value": short(value), "unit": unit, "kind": "measured"}
    number["source"] = f"{figures.file}, {key}"
    return number | _optional(figures, note)


def assumed(value: float, unit: str, rule: str) -> dict[str, Any]:
    """A number that follows from a rule."""
    return {"value": short(value), "unit": unit, "kind": "assumed", "source": rule}


def best_rate(figures: Figures, key: str, unit: str, **at: object) -> dict[str, Any] | None:
    """The best rate of a measurement, in ``GB/s``, ``TFLOP/s`` or ``TOP/s``; None if missing."""
    point = figures.best(key, **at)
    if point is None:
        return None
    scale = 1e9 if unit == "GB/s" else 1e12
    named = [f"{name} {value}" for name, value in point["at"].items()]
    note = f"{', '.join(named)}; {spread_note([point])}"
    return measured(figures, point["volume_per_s"] / scale, unit, key, note)


def median_time(figures: Figures, key: str, **at: object) -> dict[str, Any] | None:
    """A measured median as a number in microseconds; None if missing or lost in the noise."""
    points = figures.points(key, **at)
    if not points or points[0]["median"] < NOISE_S:
        return None
    where = "".join(f", {name} {value}" for name, value in at.items())
    seconds = float(points[0]["median"])
    return measured(figures, seconds * 1e6, "us", key + where, spread_note(points[:1]))


def curve(
    figures: Figures, key: str, volume: str, points: Sequence[dict[str, Any]], note: str = ""
) -> dict[str, Any] | None:
    """A curve of measured points over ``volume``; None with fewer than two.

    Points of one volume become their median.
    """
    by_volume: dict[int, list[float]] = {}
    for point in points:
        size = int(point["at"][volume] if volume in point["at"] else point[volume])
        by_volume.setdefault(size, []).append(float(point["median"]))
    if len(by_volume) < 2:
        return None
    pairs = [[size, short(_middle(times))] for size, times in sorted(by_volume.items())]
    said = "; ".join(filter(None, [note, spread_note(list(points))]))
    table = {"points": pairs, "kind": "measured", "source": f"{figures.file}, {key}"}
    return table | _optional(figures, said)


def _middle(times: list[float]) -> float:
    times = sorted(times)
    half = len(times) // 2
    return times[half] if len(times) % 2 else (times[half - 1] + times[half]) / 2


def _optional(figures: Figures, note: str) -> dict[str, str]:
    date = figures.machine.get("date")
    return {key: text for key, text in (("note", note), ("date", date)) if text}


def short(value: float) -> float:
    """A number with six significant digits.

    >>> short(1.23456789e-05), short(512)
    (1.23457e-05, 512)
    """
    return value if isinstance(value, int) else float(f"{value:.6g}")
