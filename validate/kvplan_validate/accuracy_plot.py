"""Predicted against measured steps as a picture.

``python -m kvplan_validate.accuracy_plot RESULTS... -o accuracy.svg``; needs matplotlib. The same
results give the same bytes.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvplan.plan_file import write_text
from kvplan.validation_file import group_of

BANDS = (0.02, 0.06, 0.12)
"""Relative errors drawn as bands: the aims for the median, the 95th percentile and the worst."""

STYLES = {
    "limited by the link": ("#0072B2", "o"),
    "limited by the GPU, or short": ("#D55E00", "s"),
    "everything resident": ("#009E73", "^"),
    "attention on the host beside the link": ("#CC79A7", "D"),
    "launched eagerly": ("#E69F00", "v"),
}
"""Colours of Okabe and Ito, told apart by shape too.

Source: Okabe and Ito, Color Universal Design (2008), the palette for all kinds of colour vision.
"""


def points(documents: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(measured, predicted) milliseconds per class of steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    for document in documents:
        for result in document["results"]:
            if result["error"] is not None:
                pair = (result["measured_s"] * 1e3, result["predicted_s"] * 1e3)
                found.setdefault(group_of(result), []).append(pair)
    return found


def svg(documents: Sequence[Mapping[str, Any]]) -> str:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = points(documents)
    everything = [value for pairs in groups.values() for pair in pairs for value in pair]
    low, high = min(everything) / 1.3, max(everything) * 1.3
    with matplotlib.rc_context({"svg.hashsalt": "kvplan", "svg.fonttype": "none", "font.size": 9}):
        figure, (axes, errors) = pyplot.subplots(
            2, figsize=(6.4, 6.4), layout="constrained", sharex=True, height_ratios=(3, 1.2)
        )
        for band, shade in zip(reversed(BANDS), ("#eeeeee", "#dddddd", "#bbbbbb"), strict=True):
            lower, upper = ([low * (1 + s * band), high * (1 + s * band)] for s in (-1, 1))
            axes.fill_between(
                [low, high], lower, upper, color=shade, linewidth=0, label=f"±{band:.0%}"
            )
            errors.axhspan(-100 * band, 100 * band, color=shade, linewidth=0)
        axes.plot([low, high], [low, high], color="black", linewidth=0.6)
        errors.axhline(0, color="black", linewidth=0.6)
        for name in sorted(groups, key=lambda n: -len(groups[n])):
            colour, marker = STYLES.get(name, ("black", "x"))
            measured, predicted = zip(*groups[name], strict=True)
            off = [100 * (p / m - 1) for m, p in groups[name]]
            style = {"color": colour, "markersize": 3.5, "alpha": 0.7, "markeredgewidth": 0}
            title = f"{name} ({len(measured)})"
            axes.plot(measured, predicted, marker, label=title, **style)[0].set_gid(_gid(name))
            errors.plot(measured, off, marker, **style)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
        axes.set(ylabel="predicted step, ms")
        errors.set(xlabel="measured step, ms", ylabel="error, %")
        axes.legend(frameon=False, loc="upper left", fontsize=8)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _gid(name: str) -> str:
    return "steps-" + name.replace(",", "").replace(" ", "-")


def drawn_points(picture: str) -> dict[str, int]:
    """How many steps of each class a picture shows."""
    parts = picture.split('<g id="')
    found = {part.split('"')[0]: part.split("</g>\n  ")[0].count("<use ") for part in parts}
    return {name: found.get(_gid(name), 0) for name in STYLES}


def main() -> None:
    """Draw the results that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--output", required=True)
    asked = parser.parse_args()
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in asked.results]
    write_text(asked.output, svg(documents))


if __name__ == "__main__":
    main()
