"""``kvplan sweep``: a grid of scenarios, one row each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.declarations import output_option
from kvplan.cli.options import Request, as_typed, asks
from kvplan.cli.output import Json, check_writable, print_json, say
from kvplan.cli.values import whole_number
from kvplan.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


EPILOG = """
Every option of `kvplan solve` takes a list or a range:

\b
  --batch 1,2,4..64          4..64 doubles: 4, 8, 16, 32, 64
  --context 4k..16k:4k       in steps: 4k, 8k, 12k, 16k
  --h2d 10GB/s..40GB/s       the same unit at both ends
  --stages 4..8              every whole number, one scenario each
  --allow 'none;int8'        values that hold commas: between semicolons

A sweep that was interrupted goes on where it stopped: give it the same -o.

Examples:

\b
  kvplan sweep --model llama-7b,llama-3.1-8b --gpu a100,h100 --context 4k..32k -o rows.csv
  kvplan sweep --model llama-7b --gpu a100 --batch 1..256 --fast --plot throughput.svg
  kvplan sweep --model opt-30b --gpu h100 --hbm 40GiB..72GiB:8GiB --json
"""

Output = Annotated[
    str | None,
    output_option(
        "Rows to write, .csv or .parquet; rows that are there are not solved again. "
        "- is CSV on stdout. [default: a table]"
    ),
]
Plot = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        rich_help_panel="Output",
        help="Draw the rows: .png, .svg or .pdf.",
    ),
]
Fast = Annotated[
    bool,
    typer.Option(
        "--fast",
        rich_help_panel="Sweep",
        help="Estimates: one schedule, tokens not rounded to blocks. Rows say so.",
    ),
]
Jobs = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        rich_help_panel="Sweep",
        help="Processes. [default: one per core]",
    ),
]


@asks
def sweep(
    request: Request,
    fast: Fast = False,
    jobs: Jobs = None,
    output: Output = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Solve a grid of scenarios: any option may be a list or a range.

    Scenarios that do not fit are rows with a reason.
    """
    from kvplan.cli.grid import cells, column, requests, varied

    _check(output, plot)
    processes = None if jobs is None else whole_number(jobs, "--jobs", 4096)
    if fast and "throughput" in request.objective:
        raise InputError("--fast", True, "no --objective throughput: estimates choose no batch")
    asked = requests(request)
    _check_values(request)
    level = "estimate" if fast else "plan"
    found, kept = _rows([cells(r) for r in asked], asked, level, processes, output)
    _report(found, kept, output)
    if plot is not None:
        from kvplan.pictures.rows import sweep as draw
        from kvplan.pictures.style import save

        save(draw(found), plot)
        say("note", f"wrote {plot}")
    if as_json:
        print_json({"rows": found})
    elif output == "-":
        from kvplan.sweep_file import line

        sys.stdout.write(line(found[0]) + "".join(line(row.values()) for row in found))
    elif output is None:
        from kvplan.cli.output import console
        from kvplan.cli.sweep_display import show_rows

        show_rows(console(), found, [column(name) for name in varied(request)])


def _check(output: str | None, plot: str | None) -> None:
    from kvplan.pictures.style import check_picture
    from kvplan.sweep_file import check_rows

    check_writable(output, "-o")
    check_writable(plot, "--plot")
    if output is not None and output != "-":
        check_rows(output)
    if plot is not None:
        check_picture(plot, "--plot")


def _check_values(request: Request) -> None:
    """Refuse a value that no combination would accept, before any work."""
    from kvplan.cli.grid import one_of_each
    from kvplan.cli.question import scenario_of

    said: list[str] = []
    for number, one in enumerate(one_of_each(request)):
        try:
            _, warnings = scenario_of(one)
        except InputError as error:
            # Only what this very value causes: it may be fine beside others.
            option, typed = as_typed(error).field.split(" ")[0], str(error.value)
            value = getattr(one, option.removeprefix("--").replace("-", "_"), None)
            if number == 0 or value == typed or typed in str(value):
                raise
            continue
        said += [w for w in warnings if w not in said]
    for warning in said:
        say("warning", warning)


def _rows(
    keyed: Sequence[dict[str, Any]],
    asked: Sequence[Request],
    level: str,
    jobs: int | None,
    output: str | None,
) -> tuple[list[dict[str, Any]], int]:
    """Rows of every request in order, and how many were there already."""
    from kvplan.sweep import columns, parallel
    from kvplan.sweep_file import SweepFile

    names = [*keyed[0], *columns()]
    keys = [*keyed[0], "level"]
    file = SweepFile(output, names, keys) if output not in (None, "-") else None
    order = {_key({**cells, "level": level}, keys): n for n, cells in enumerate(keyed)}
    there = {file.key(row): row for row in file.rows} if file else {}
    found = [there.get(_key({**cells, "level": level}, keys)) for cells in keyed]
    todo = [n for n, row in enumerate(found) if row is None]
    done = False
    try:
        with _progress(len(todo)) as advance:
            for at, result in parallel(_solve, [(asked[n], level) for n in todo], jobs):
                row = {**keyed[todo[at]], **result}
                found[todo[at]] = row
                if file:
                    file.add(row)
                advance()
        done = True
    finally:
        if file:
            file.close(order if done else None)
    return [row for row in found if row is not None], len(asked) - len(todo)


def _key(row: dict[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    from kvplan.sweep_file import text_of

    return tuple(text_of(row[name]) for name in keys)


def _solve(asked: tuple[Request, str]) -> dict[str, Any]:
    """One row, in a process of the pool."""
    from kvplan.cli.question import scenario_of
    from kvplan.sweep import columns, row

    request, level = asked
    try:
        scenario, _ = scenario_of(request)
    except InputError as error:
        refused = {"level": level, "status": "refused", "reason": str(as_typed(error))}
        return dict.fromkeys(columns()) | refused
    return row(scenario, level)


@contextmanager
def _progress(count: int) -> Iterator[Callable[[], None]]:
    """A bar with rate and time left on stderr, where somebody looks at it."""
    if not sys.stderr.isatty() or not count:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    class Rate(TextColumn):
        """Scenarios per second."""

        def render(self, task: Any) -> Any:
            from rich.text import Text

            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.0f}/s")

    bar = Progress(
        TextColumn("scenarios"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(""),
        Left(),
        TextColumn("left"),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("scenarios", total=count)
        yield lambda: bar.advance(task)


def _report(found: Sequence[dict[str, Any]], kept: int, output: str | None) -> None:
    """One line on what was done."""
    fits = sum(row["status"] == "ok" for row in found)
    refused = sum(row["status"] == "refused" for row in found)
    parts = [f"{len(found)} scenarios", f"{fits} fit", f"{len(found) - fits - refused} do not"]
    parts += [f"{refused} not accepted"] if refused else []
    parts += [f"{kept} were there already"] if kept else []
    where = f", in {output}" if output not in (None, "-") else ""
    say("note", ", ".join(parts) + where)
