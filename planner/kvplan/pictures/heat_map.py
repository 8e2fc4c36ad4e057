"""A heat map: a number by colour in every cell, a text on it, what does not fit crossed out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan.errors import InfeasibleError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = dict[str, Any] | None
"""``step_s`` and what else is written into it; None where nothing fits."""


def heat_map(
    data: dict[str, Any],
    value: str,
    text: Callable[[dict[str, Any]], str],
    answer: str,
    labels: tuple[str, str],
    meaning: str,
    *,
    fewer_is_better: bool,
    scales: tuple[float, float] = (1, 1),
) -> Figure:
    """A heat map with a text in each cell; dark is fast, what does not fit is crossed out.

    Args:
        data: ``columns``, ``rows``, ``cells`` by row, the ``chosen`` row and column or None, and
            a line ``about`` it.
        value: key of a cell that gives its colour.
        text: a cell to what is written on it.
        answer: the title.
        labels: of the columns' axis and the rows'.
        meaning: of the colours.
        fewer_is_better: whether small values are the fast ones.
        scales: factors from columns and rows to the numbers on their axes.

    Raises:
        InfeasibleError: no cell fits.
    """
    from matplotlib.colors import LogNorm

    cells: list[list[Cell]] = data["cells"]
    known = [c[value] for row in cells for c in row if c is not None]
    if not known:
        raise InfeasibleError("hbm", "nothing on the map fits", "a larger --hbm or --dram")
    factor, unit = style.unit_of(known) if value == "step_s" else (1.0, "")
    size = (2.2 + 0.98 * len(data["columns"]), 1.9 + 0.52 * len(data["rows"]))
    figure, (ax,) = style.canvas(size=size)
    table = [[float("nan") if c is None else c[value] * factor for c in row] for row in cells]
    low, high = min(known) * factor, max(known) * factor
    if high < 1.02 * low:
        low, high = low * 0.9, high * 1.1
    colours = "cividis" if fewer_is_better else "cividis_r"
    with style.styled():
        image = ax.imshow(
            table, cmap=colours, norm=LogNorm(low, high), aspect="auto", origin="lower"
        )
        for y, row in enumerate(cells):
            for x, cell in enumerate(row):
                if cell is None:
                    _cross(ax, x, y)
                else:
                    _write(ax, x, y, text(cell), image.cmap(image.norm(cell[value] * factor)))
        if data["chosen"] is not None:
            _frame(ax, data)
        _numbers(ax.xaxis, data["columns"], scales[0])
        _numbers(ax.yaxis, data["rows"], scales[1])
        ax.set_xlabel(labels[0])
        ax.set_ylabel(labels[1])
        bar = figure.colorbar(image, ax=ax, pad=0.01)
        bar.set_label(f"{meaning} ({unit})" if unit else meaning)
        _plain_ticks(bar, low, high)
        blank = any(c is None for row in cells for c in row)
        style.titled(figure, answer, data["about"] + ("; crossed: does not fit" if blank else ""))
    return figure


def _cross(ax: Any, x: int, y: int) -> None:
    """A cell in which nothing fits."""
    from matplotlib.patches import Rectangle

    ax.add_patch(
        Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor="white", edgecolor=style.LIGHT, hatch="xx")
    )


def _write(ax: Any, x: int, y: int, text: str, colour: Any) -> None:
    """The text of a cell, legible on its colour (red, green, blue, opacity)."""
    bright = 0.3 * colour[0] + 0.6 * colour[1] + 0.1 * colour[2] > 0.5
    ink = "black" if bright else "white"
    ax.text(x, y, text, ha="center", va="center", fontsize=7, color=ink)


def _frame(ax: Any, data: dict[str, Any]) -> None:
    """A frame around the chosen cell."""
    from matplotlib.patches import Rectangle

    y, x = data["rows"].index(data["chosen"][0]), data["columns"].index(data["chosen"][1])
    ax.add_patch(
        Rectangle(
            (x - 0.48, y - 0.46), 0.96, 0.92, fill=False, linewidth=2.2, edgecolor=style.VERMILION
        )
    )


def _numbers(axis: Any, numbers: Sequence[float], scale: float) -> None:
    axis.set_ticks(range(len(numbers)), [_tick(n * scale) for n in numbers])


def _plain_ticks(bar: Any, low: float, high: float) -> None:
    """Ticks of a colour bar in plain numbers."""
    ticks = _nice(low, high)
    bar.set_ticks(ticks, labels=[f"{t:g}" for t in ticks])
    bar.minorticks_off()


def _nice(low: float, high: float) -> Sequence[float]:
    """A few round numbers between two numbers.

    >>> _nice(80, 1000)
    [100.0, 200.0, 500.0, 1000.0]
    """
    import math

    found = [
        lead * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for lead in (1, 2, 5)
        if low <= lead * 10.0**power <= high
    ]
    if len(found) >= 2:
        return found if len(found) <= 8 else found[::2]
    return [float(f"{low + (high - low) * k / 4:.3g}") for k in range(5)]


def _tick(number: float) -> str:
    """A number on an axis.

    >>> _tick(4096), _tick(131072), _tick(187.2), _tick(6)
    ('4k', '128k', '187', '6')
    """
    if number >= 1024 and number % 1024 == 0:
        return f"{number / 1024:.0f}k"
    return style.plain(number)
