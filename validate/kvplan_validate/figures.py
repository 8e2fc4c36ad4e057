"""Raw results of the profiler, read by key and setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Figures:
    """Raw results.

    Args:
        raw: what ``run_profile`` gave.
        file: what to call it in sources and errors.
    """

    raw: Mapping[str, Any]
    file: str

    def __post_init__(self) -> None:
        """Check that these are raw results."""
        if self.raw.get("kvplan_profile") != 1 or not isinstance(
            self.raw.get("measurements"), dict
        ):
            raise InputError(self.file, self.raw.get("kvplan_profile"), "raw results, version 1")

    @property
    def machine(self) -> Mapping[str, Any]:
        """Where the figures come from."""
        found = self.raw.get("machine")
        return found if isinstance(found, dict) else {}

    def points(self, key: str, **at: object) -> list[dict[str, Any]]:
        """Points of a measurement that have a median and these values in their setting."""
        entry = self.raw["measurements"].get(key) or {}
        return [
            point
            for point in entry.get("points", [])
            if point.get("median", 0) > 0
            and all(point["at"].get(name) == value for name, value in at.items())
        ]

    def median(self, key: str, **at: object) -> float | None:
        """The median of the first such point."""
        points = self.points(key, **at)
        return float(points[0]["median"]) if points else None

    def best(self, key: str, **at: object) -> dict[str, Any] | None:
        """The such point with the largest volume per second."""
        points = [point for point in self.points(key, **at) if "volume_per_s" in point]
        return max(points, key=lambda point: float(point["volume_per_s"]), default=None)


def spread_note(points: list[dict[str, Any]]) -> str:
    """How far samples lie apart, for a note.

    >>> spread_note([{"spread": 0.012, "samples": [1, 2]}])
    'quartiles within 1.2 % of the median, 2 samples'
    """
    worst = max(point["spread"] for point in points)
    count = min(len(point["samples"]) for point in points)
    note = f"quartiles within {100 * worst:.1f} % of the median, {count} samples"
    apart = visits_apart(points)
    return note if apart is None else f"{note}; faster of two visits, up to {apart:.1%} apart"


def visits_apart(points: Iterable[Mapping[str, Any]]) -> float | None:
    """How far two visits to one setting lie apart at most, as a share of the faster one.

    >>> visits_apart([{"visits": [2.0, 1.6]}, {"visits": [1.0, 1.0]}]), visits_apart([{}])
    (0.25, None)
    """
    pairs = [point["visits"] for point in points if "visits" in point]
    return max((max(pair) / min(pair) - 1.0 for pair in pairs if min(pair) > 0), default=None)
