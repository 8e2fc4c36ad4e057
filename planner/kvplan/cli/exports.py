"""Exports for people: what to type, what was mapped, what could not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kvplan import wording
from kvplan.units import format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.export.exporter import Export, Exporter
    from kvplan.plan import Plan


def show_export(console: Console, exporter: Exporter, made: Export, path: str | None) -> None:
    """Print an export.

    Args:
        console: where to.
        exporter: the runtime.
        made: the export.
        path: the file it was written to, if any.
    """
    _line(console, made.command, style="bold green")
    for what, command in made.others:
        _line(console, f"# or, {what}:", style="dim")
        _line(console, command)
    if path is None:
        console.print(Text(f"\n{exporter.file} (-o writes it):", style="bold"))
        for line in made.text.splitlines():
            _line(console, line)
    else:
        console.print(Text(f"\nWritten to {path}, notes to {path}.notes.txt"))
    console.print(Text(f"\nmapped to {exporter.title}, version {exporter.version}", style="bold"))
    rows = [(m.option, _value(m.value), m.meaning) for m in made.mapped]
    console.print(_table(rows))
    console.print(Text("\nnot expressed", style="bold"))
    console.print(_table([(u.what, u.plan, u.why) for u in made.unexpressed]))


def _line(console: Console, text: str, style: str = "") -> None:
    """A line that may be copied: never broken."""
    console.print(Text(text, style=style, no_wrap=True, overflow="ignore"), soft_wrap=True)


def _table(rows: list[tuple[str, str, str]]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="fold", max_width=27)
    table.add_column(overflow="fold", max_width=30)
    table.add_column(overflow="fold", ratio=1)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def notes(plan: Plan, exporter: Exporter, made: Export) -> str:
    """The text beside the file."""
    lines = [
        f"kvplan export to {exporter.title}, version {exporter.version}",
        f"plan: {wording.workload(plan)} on {wording.machine(plan)}",
        f"predicted for the plan itself: {format_seconds(plan.prediction.step_s)} per step",
        "", "Use:", f"  {made.command}",
        *(f"  # or, {what}:\n  {command}" for what, command in made.others),
        "", "Mapped:",
        *(f"  {m.option} = {_value(m.value)}: {m.meaning}" for m in made.mapped),
        "", "Not expressed:",
        *(f"  {u.what} ({u.plan}): {u.why}" for u in made.unexpressed),
        *(["", "Mind:"] if made.warnings else []),
        *(f"  {warning}" for warning in made.warnings),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
