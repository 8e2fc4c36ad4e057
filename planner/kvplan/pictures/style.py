"""One style for every picture: colours that colour-blind eyes tell apart, readable in print.

Colours are those of Okabe and Ito (Color Universal Design, 2008); hatches tell areas apart where
there is no colour. Matplotlib is loaded when a picture is drawn, never before.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
DARK, GREY, LIGHT = "#444444", "#8C8C8C", "#D9D9D9"
SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Colours of lines, in turn."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Markers of lines, in turn, so that print without colour tells them apart."""

PATHS = {
    "resident": (GREEN, ""),
    "fetch": (BLUE, "///"),
    "recompute": (VERMILION, "\\\\\\"),
    "recompute_resident": (ORANGE, "xx"),
    "attend_host": (PURPLE, ".."),
    "fetch_int8": (SKY, "++"),
    "fetch_int4": ("#A6DBF7", "oo"),
    "fetch_disk": (DARK, "||"),
    "attend_tier": (YELLOW, "**"),
    "fetch_tier": (BLACK, "O"),
    "stream_weights": (GREY, "--"),
}
"""Path to its colour and hatch."""

FORMATS = (".png", ".svg", ".pdf")

_RC = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": DARK,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "hatch.linewidth": 0.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "kvplan",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}


def path_style(path: str) -> tuple[str, str]:
    """Colour and hatch of a path; one that is not known yet gets grey and its own hatch.

    >>> path_style("fetch")
    ('#0072B2', '///')
    """
    return PATHS.get(path, (GREY, "*"))


def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (7.2, 4.2), **grid: Any
) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row.

    Args:
        rows: rows of axes.
        columns: columns of axes.
        size: width and height, inches.
        grid: passed on to ``Figure.subplots``.

    Raises:
        InputError: matplotlib is not installed.
    """
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained", dpi=150)
        axes = figure.subplots(rows, columns, squeeze=False, **grid)
        return figure, list(axes.flat)


def styled() -> Any:
    """The style, for as long as a ``with`` lasts.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise InputError(
            "matplotlib", None, "an installed matplotlib: pip install 'kvplan[plot]'"
        ) from None
    return matplotlib.rc_context(_RC)  # type: ignore[arg-type]


def titled(figure: Figure, answer: str, about: str) -> None:
    """Put the answer above a figure and what it is about below it."""
    import textwrap

    inches = figure.get_figwidth()
    figure.suptitle(
        textwrap.fill(answer, int(inches * 10.5)), x=0.01, ha="left", fontsize=11, fontweight="bold"
    )
    figure.supxlabel(
        textwrap.fill(about, int(inches * 17.5)), x=0.01, ha="left", fontsize=7, color=DARK
    )


def legend_above(ax: Axes, handles: Sequence[Any], rows: int = 1) -> None:
    """A legend on the line of an axes' title, at its right end."""
    if handles:
        ax.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderpad=0.1,
            ncols=-(-len(handles) // rows),
            columnspacing=1.0,
            handlelength=1.4,
            fontsize=7.5,
        )


def key(paths: Iterable[str]) -> list[Patch]:
    """Legend entries of paths."""
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=path_style(p)[0], hatch=path_style(p)[1], edgecolor="white", label=p)
        for p in paths
    ]


def unit_of(seconds: Sequence[float]) -> tuple[float, str]:
    """Factor and unit in which times of this size are readable.

    >>> unit_of([0.002, 0.3])
    (1000.0, 'ms')
    """
    most = max(seconds, default=0.0)
    if most >= 3:
        return 1.0, "s"
    return (1e3, "ms") if most >= 1e-3 else (1e6, "µs")


def plain(number: float) -> str:
    """A number with three digits that count, never with an exponent.

    >>> plain(1134.2), plain(0.01234), plain(57.12), plain(4.0)
    ('1134', '0.0123', '57.1', '4')
    """
    if number == 0 or abs(number) >= 100:
        return f"{number:.0f}"
    text = f"{number:.3g}"
    return f"{number:.6f}".rstrip("0") if "e" in text else text


def log_axis(axis: Any) -> None:
    """Make an axis logarithmic, with ticks in plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axis.axis_name == "x":
        axis.axes.set_xscale("log")
    else:
        axis.axes.set_yscale("log")
    low, high = sorted(axis.get_view_interval())
    steps = (1.0, 2.0, 5.0) if high < 300 * low else (1.0,)
    axis.set_major_locator(LogLocator(10, steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def check_picture(path: str, field: str = "-o") -> None:
    """Refuse a file whose name does not say which kind of picture to write.

    >>> check_picture("plan.svg")
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(field, path, f"a file that ends in {', '.join(FORMATS)}")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure whole or not at all; the same figure gives the same bytes.

    Args:
        figure: the picture.
        path: a file that ends in .png, .svg or .pdf.

    Raises:
        InputError: another ending, or the file cannot be written.
    """
    target = Path(path)
    check_picture(str(path))
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream, styled():
                _write(figure, stream, target.suffix[1:].lower())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        accepted = f"a file that can be written ({error.strerror})"
        raise InputError("output", str(path), accepted) from None


def svg(figure: Figure) -> bytes:
    """A figure as the bytes of an SVG document."""
    import io

    stream = io.BytesIO()
    with styled():
        _write(figure, stream, "svg")
    return stream.getvalue()


def _write(figure: Figure, stream: Any, kind: str) -> None:
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
    figure.savefig(stream, format=kind, metadata=dates[kind])
