"""Rows of a sweep for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvplan import wording
from kvplan.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


def show_rows(console: Console, rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> None:
    """Print rows of a sweep: what varies, and the answer.

    Args:
        console: where to.
        rows: the rows.
        varied: columns that tell them apart.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in varied:
        table.add_column(column_title(name), overflow="fold")
    for title in ("step", "tokens/s", "gap", "limit"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("paths", overflow="fold")
    for row in rows:
        asked = [Text(column_value(name, row[name])) for name in varied]
        if row["status"] != "ok":
            short = str(row["reason"]).partition(";")[0]
            table.add_row(*asked, "", "", "", "", Text(short, style="dim"))
            continue
        gap = "" if row["gap"] is None else f"{100 * row['gap']:.1f} %"
        shares = {name.removeprefix("share_"): row[name] for name in row
                  if name.startswith("share_") and row[name]}  # fmt: skip
        table.add_row(*asked, format_seconds(row["step_s"]), f"{row['tokens_per_s']:.4g}", gap,
                      row["bottleneck"], Text(wording.mix(shares)))  # fmt: skip
    console.print(table)
    if any(row["level"] == "estimate" for row in rows):
        console.print(Text("\nestimates: one schedule each, tokens not rounded to blocks; "
                           "`kvplan solve` makes plans", style="dim"))  # fmt: skip


def column_title(name: str) -> str:
    """Heading of a column of a sweep.

    >>> column_title("hbm_bytes"), column_title("queue_depth")
    ('hbm', 'queue depth')
    """
    for ending in ("_bytes_per_s", "_bytes", "_per_s"):
        name = name.removesuffix(ending)
    return name.replace("_", " ")


def column_value(name: str, value: Any) -> str:
    """A cell of a sweep in readable units.

    >>> column_value("hbm_bytes", 2**30), column_value("batch", 4), column_value("allow", None)
    ('1.0 GiB', '4', 'none')
    """
    if value is None:
        return "none"
    if name.endswith("_bytes_per_s"):
        return format_rate(value)
    if name.endswith("flop_per_s"):
        return f"{value / 1e12:.4g} TFLOP/s"
    return format_bytes(value) if name.endswith("_bytes") else str(value)
