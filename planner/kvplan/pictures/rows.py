"""Rows of a sweep as lines or as a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

INPUTS = (
    "batch",
    "context",
    "gen",
    "hbm_bytes",
    "dram_bytes",
    "h2d_bytes_per_s",
    "flop_per_s",
    "hbm_bandwidth_bytes_per_s",
    "host_attention_bytes_per_s",
    "stages",
    "queue_depth",
    "block",
    "micro_batches",
    "utilisation",
    "pinned_bytes",
    "disk_bytes",
    "reserve_bytes",
)
"""Columns that may be the horizontal axis, in the order of preference."""

UNITS = {
    "_bytes_per_s": ("GB/s", 1e-9),
    "_flop_per_s": ("TFLOP/s", 1e-12),
    "_bytes": ("GiB", 2.0**-30),
    "tokens_per_s": ("tokens/s", 1.0),
    "flop_per_s": ("TFLOP/s", 1e-12),
    "_s": ("ms", 1e3),
}
"""Ending of a column to its unit and factor on an axis."""

WORDS = {
    "batch": "batch (sequences)",
    "context": "context (tokens per sequence)",
    "gen": "generated (tokens)",
    "step_s": "step latency (ms)",
    "stages": "stages",
    "queue_depth": "queue depth (staging buffers)",
    "tokens_per_s": "throughput (tokens/s)",
    "gap": "proven gap (share)",
    "recompute_ratio": "recompute ratio (recomputed / context)",
}


def measure(column: str) -> tuple[str, float]:
    """Label and factor of a column on an axis.

    >>> measure("h2d_bytes_per_s"), measure("batch")
    (('h2d (GB/s)', 1e-09), ('batch (sequences)', 1.0))
    """
    for ending, (unit, factor) in UNITS.items():
        if column.endswith(ending):
            name = column.removesuffix(ending).removesuffix("_") or column.rpartition("_per")[0]
            return WORDS.get(column, f"{name.replace('_', ' ')} ({unit})"), factor
    return WORDS.get(column, column.replace("_", " ")), 1.0


def sweep_data(rows: Rows, x: str | None = None, y: str | None = None) -> dict[str, Any]:
    """Lines of one column over another, one line for each combination of what else varies.

    Args:
        rows: as `kvplan.sweep_file.read_rows` gives them.
        x: column of the horizontal axis; None takes the number that varies most.
        y: column of the vertical axis; None takes ``tokens_per_s`` where batches differ, else
            ``step_s``.

    Raises:
        InputError: no row that fits, or a column that is not there or not a number.
    """
    fits = [row for row in rows if row["status"] == "ok"]
    if not fits:
        raise InputError("rows", f"{len(rows)} rows", "at least one scenario that fits")
    inputs = [c for c in fits[0] if c not in _results(fits[0])]
    varied = [c for c in inputs if len({row[c] for row in fits}) > 1]
    across = x or max(
        (c for c in INPUTS if c in varied and _numbers(fits, c)),
        key=lambda c: len({row[c] for row in fits}),
        default=None,
    )
    if across is None:
        across = varied[0] if varied else "batch"
    up = y or ("tokens_per_s" if "batch" in varied else "step_s")
    for option, column in (("--x", across), ("--y", up)):
        if column not in fits[0]:
            raise InputError(option, column, "a column of the rows")
    if not _numbers(fits, up):
        raise InputError("--y", up, "a column of numbers, such as step_s")
    others = [c for c in [*varied, "level"] if c != across and len({row[c] for row in fits}) > 1]
    lines: dict[str, list[tuple[Any, float]]] = {}
    for row in fits:
        name = ", ".join(_named(c, row[c]) for c in others)
        lines.setdefault(name, []).append((row[across], row[up]))
    return {
        "x": across,
        "y": up,
        "lines": lines,
        "infeasible": len(rows) - len(fits),
        "levels": sorted({row["level"] for row in fits}),
    }


def _results(row: Mapping[str, Any]) -> list[str]:
    names = list(row)
    return names[names.index("level") :]


def _numbers(rows: Rows, column: str) -> bool:
    return all(isinstance(row[column], (int, float)) for row in rows)


def _named(column: str, value: Any) -> str:
    if column in ("model", "gpu"):
        return str(value)
    if isinstance(value, (int, float)):
        label, factor = measure(column)
        unit = label.rpartition("(")[2].rstrip(")") if "(" in label else ""
        word = column.partition("_")[0]
        shown = style.plain(value * factor)
        return f"{word} {shown}" + (f" {unit}" if unit in ("GiB", "GB/s", "TFLOP/s") else "")
    return f"{column.replace('_', ' ')} {'none' if value is None else value}"


TICKS = 9
"""Values of the horizontal axis that are all written at it."""

LEGEND = 14
"""Lines that get a name; more would be unreadable."""


def sweep(rows: Rows, x: str | None = None, y: str | None = None) -> Figure:
    """Draw rows of a sweep.

    Args:
        rows: as `kvplan.sweep_file.read_rows` gives them.
        x: column of the horizontal axis; None takes the number that varies most.
        y: column of the vertical axis; None takes ``tokens_per_s`` where batches differ, else
            ``step_s``.

    Returns:
        Lines; what does not fit is left out and counted.
    """
    data = sweep_data(rows, x, y)
    (across, x_factor), (up, y_factor) = measure(data["x"]), measure(data["y"])
    figure, (ax,) = style.canvas(size=(7.6, 4.4))
    with style.styled():
        numeric = all(isinstance(a, (int, float)) for p in data["lines"].values() for a, _ in p)
        names = list(dict.fromkeys(a for p in data["lines"].values() for a, _ in p))
        for number, (name, points) in enumerate(data["lines"].items()):
            colour, marker = style.SERIES[number % 7], style.MARKERS[number % 7]
            ordered = sorted(points, key=lambda p: p[0]) if numeric else points
            ax.plot(
                [a * x_factor if numeric else names.index(a) for a, _ in ordered],
                [b * y_factor for _, b in ordered],
                marker=marker,
                color=colour,
                linestyle=("-", "--", ":", "-.")[number // 7 % 4] if numeric else "none",
                label=name if number < LEGEND else None,
            )
        ax.set_xlabel(across)
        ax.set_ylabel(up)
        ax.grid(axis="y")
        values = [b * y_factor for p in data["lines"].values() for _, b in p]
        if not numeric:
            ax.set_xticks(range(len(names)), [str(n) for n in names], rotation=20, ha="right")
        elif min(names) > 0 and max(names) >= 8 * min(names):
            style.log_axis(ax.xaxis)
        if numeric and len(names) <= TICKS:
            ticks = sorted(a * x_factor for a in names)
            ax.set_xticks(ticks, [style.plain(t) for t in ticks], minor=False)
            ax.set_xticks([], minor=True)
        if min(values) > 0 and max(values) >= 20 * min(values):
            style.log_axis(ax.yaxis)
        else:
            ax.set_ylim(bottom=0)
        if len(data["lines"]) > 1:
            ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        style.titled(figure, f"{_words(up)} over {_words(across)}".capitalize(), _about(data))
    return figure


def _words(label: str) -> str:
    words = label.partition(" (")[0]
    return (
        words[0].upper() + words[1:] if label[0].islower() and words.startswith("step") else words
    )


def _about(data: Mapping[str, Any]) -> str:
    count = sum(len(points) for points in data["lines"].values())
    parts = [f"{count} scenarios", f"{data['infeasible']} more do not fit"]
    parts = parts if data["infeasible"] else parts[:1]
    if "estimate" in data["levels"]:
        parts.append("estimates: one schedule each, tokens not rounded to blocks")
    if len(data["lines"]) > LEGEND:
        parts.append(f"the first {LEGEND} of {len(data['lines'])} lines are named")
    return "; ".join(parts)
