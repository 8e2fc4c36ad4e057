"""Predicted against measured steps of a validation run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan.errors import InputError
from kvplan.validation_file import group_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def accuracy_data(results: Mapping[str, Any]) -> dict[str, Any]:
    """Predicted and measured seconds of every case that ran, by what limits it.

    Args:
        results: a document as `read_results` gives it.
    """
    groups: dict[str, list[dict[str, float]]] = {}
    for result in results["results"]:
        if result.get("measured_s") and result.get("predicted_s"):
            groups.setdefault(group_of(result), []).append(
                {
                    "predicted_s": result["predicted_s"],
                    "measured_s": result["measured_s"],
                    "error": result["predicted_s"] / result["measured_s"] - 1.0,
                }
            )
    run = results["provenance"]
    parts = [
        run.get("card"),
        f"profile {run.get('profile')}",
        f"torch {run.get('torch')}",
        str(run.get("date", ""))[:10],
    ]
    return {"groups": groups, "about": "; ".join(str(p) for p in parts if p)}


def accuracy(results: Mapping[str, Any]) -> Figure:
    """Draw predicted against measured steps, and the error of each kind of case.

    Args:
        results: a document as `read_results` gives it.

    Returns:
        Left: predicted over measured, both axes logarithmic. Right: relative error of every case.

    Raises:
        InputError: no case has both figures.
    """
    data = accuracy_data(results)
    groups = dict(sorted(data["groups"].items(), key=lambda item: -len(item[1])))
    if not groups:
        raise InputError("results", "no case that ran", "results with measured steps")
    errors = [abs(p["error"]) for points in groups.values() for p in points]
    figure, (left, right) = style.canvas(1, 2, size=(9.4, 4.3), width_ratios=(1.0, 1.25))
    steps = [
        s for points in groups.values() for p in points for s in (p["predicted_s"], p["measured_s"])
    ]
    ends = (1e3 * min(steps) / 1.3, 1e3 * max(steps) * 1.3)
    with style.styled():
        left.plot(ends, ends, color=style.GREY, linewidth=1.0)
        left.fill_between(
            ends,
            [0.9 * e for e in ends],
            [1.1 * e for e in ends],
            color=style.LIGHT,
            linewidth=0,
            label="within 10 %",
        )
        for row, (name, points) in enumerate(groups.items()):
            colour, marker = style.SERIES[row % 7], style.MARKERS[row % 7]
            left.plot(
                [1e3 * p["measured_s"] for p in points],
                [1e3 * p["predicted_s"] for p in points],
                marker,
                color=colour,
                markersize=4.5,
                markerfacecolor="none",
                gid=f"steps {name}".replace(",", "").replace(" ", "-"),
            )
            spread = [(k % 7 - 3) * 0.075 for k in range(len(points))]
            right.plot(
                [100 * p["error"] for p in points],
                [row + s for s in spread],
                marker,
                color=colour,
                markersize=4.5,
                markerfacecolor="none",
            )
            middle = 100 * statistics.median(p["error"] for p in points)
            right.plot([middle, middle], [row - 0.36, row + 0.36], color=style.BLACK)
        left.set_xlim(*ends)
        left.set_ylim(*ends)
        style.log_axis(left.xaxis)
        style.log_axis(left.yaxis)
        left.set_xlabel("measured step (ms)")
        left.set_ylabel("predicted step (ms)")
        left.legend(loc="upper left")
        right.axvline(0, color=style.GREY, linewidth=1.0)
        right.set_yticks(range(len(groups)), [f"{n}\n({len(p)} cases)" for n, p in groups.items()])
        right.invert_yaxis()
        right.grid(axis="x")
        right.tick_params(axis="y", length=0)
        right.set_xlabel("predicted / measured - 1 (%); bar: median")
        style.titled(
            figure,
            f"{len(errors)} measured steps: median error "
            f"{100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %",
            data["about"],
        )
    return figure
