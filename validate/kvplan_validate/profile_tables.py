"""Raw results and fits as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvplan.units import format_bytes, format_rate, format_seconds
from kvplan_validate.figures import visits_apart

if TYPE_CHECKING:
    from rich.console import Console

DISTURBED = 0.1
"""Two visits that differ by more were disturbed."""

_VOLUMES = ("bytes", "tokens", "row_bytes")
"""Settings that a series runs over; the others tell series apart."""


def show_measurements(console: Console, raw: Mapping[str, Any]) -> None:
    """Print one row per series: first and last median, best rate, largest spread; or why not."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("measurement", no_wrap=True)
    table.add_column("at", overflow="fold")
    for title in ("median", "best rate", "spread"):
        table.add_column(title, justify="right", no_wrap=True)
    for key, entry in raw["measurements"].items():
        if entry["state"] != "measured":
            table.add_row(key, Text(f"{entry['state']}: {entry['reason']}", style="dim"))
            continue
        for where, points in series(entry["points"]).items():
            table.add_row(key, *row(where, points, entry["unit"]))
            key = ""
    console.print(table)
    for key, entry in raw["measurements"].items():
        apart = visits_apart(entry["points"])
        if apart is not None and apart > DISTURBED:
            console.print(
                f"\n{key}: two visits differ by up to {apart:.0%}; the faster one counts, but "
                "others use this machine: measure again when it is quiet"
            )


def series(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Points by everything of their setting but the volume, in order of appearance.

    >>> list(series([{"at": {"direction": "h2d", "bytes": 1}}, {"at": {"direction": "h2d"}}]))
    ['direction h2d']
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        at = {name: value for name, value in point["at"].items() if name not in _VOLUMES}
        where = ", ".join(f"{name} {value}" for name, value in at.items())
        found.setdefault(where, []).append(point)
    return found


def row(where: str, points: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    """Cells of one series: where, medians, best rate, spread."""
    sampled = [point for point in points if "median" in point]
    errors = [point["error"] for point in points if "median" not in point]
    missing = f"{len(errors)} of {len(points)} missing ({errors[0]})" if errors else ""
    if not sampled:
        return ["; ".join(filter(None, [where, missing])), "", "", ""]
    ends = [sampled[0], sampled[-1]] if len(sampled) > 1 else sampled
    medians = " … ".join(_median(point) for point in ends)
    volumes = " … ".join(filter(None, map(_volume, ends)))
    place = "; ".join(filter(None, [", ".join(filter(None, [where, volumes])), missing]))
    rates = [point["volume_per_s"] for point in sampled if "volume_per_s" in point]
    best = _rate(max(rates), unit) if rates and unit else ""
    return [place, medians, best, f"{100 * max(point['spread'] for point in sampled):.1f} %"]


def _median(point: Mapping[str, Any]) -> str:
    middle = float(point["median"])
    return format_seconds(middle) if point["unit"] == "s" else format_bytes(middle)


def _volume(point: Mapping[str, Any]) -> str:
    at = point["at"]
    if "bytes" in at:
        return format_bytes(at["bytes"])
    return f"{at['tokens']} tokens" if "tokens" in at else ""


def _rate(rate: float, unit: str) -> str:
    return format_rate(rate) if unit == "B" else f"{rate / 1e12:.1f} T{unit}/s"


def show_residuals(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how far each fitted curve lies below its points."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("curve", no_wrap=True)
    table.add_column("of", overflow="fold")
    for title in ("points", "pieces", "residual"):
        table.add_column(title, justify="right", no_wrap=True)
    for cells in residual_cells(rows):
        table.add_row(*cells)
    console.print(table)


def residual_cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Cells of the residuals' table.

    >>> row = {"curve": "h2d.copy", "of": "", "points": 9, "pieces": 3, "residual": 0.021}
    >>> next(residual_cells([row]))
    ('h2d.copy', '', '9', '3', '2.1 %')
    """
    for row in rows:
        counts = (str(row["points"]), str(row["pieces"]))
        yield (row["curve"], row["of"], *counts, f"{100 * row['residual']:.1f} %")
