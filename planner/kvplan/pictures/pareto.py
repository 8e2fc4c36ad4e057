"""The front between latency, throughput and HBM."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import wording
from kvplan.errors import InfeasibleError
from kvplan.estimate import try_estimate
from kvplan.plan import Plan
from kvplan.planning import scenario_of
from kvplan.units import GIB, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUDGETS = (1.0, 0.75, 0.5)
"""Shares of the plan's HBM budget to estimate with."""

LARGEST = 512
"""Largest batch tried."""


def front_data(plan: Plan) -> dict[str, Any]:
    """Estimated step and throughput of batches 1, 2, 4 … for a few HBM budgets.

    ``on_front`` marks points that no other point beats in step, throughput and HBM at once.
    """
    scenario = scenario_of(plan)
    load, full = scenario.workload, scenario.capacity["hbm"]
    batches = [2**k for k in range(LARGEST.bit_length())]
    points: list[dict[str, Any]] = []
    for share in BUDGETS:
        budgets = dataclasses.replace(
            scenario.budgets, hbm_bytes=round(full * share), reserve_bytes=0, utilisation=1.0
        )
        for batch in batches:
            workload = dataclasses.replace(load, batch=batch, micro_batches=1)
            found = try_estimate(dataclasses.replace(scenario, workload=workload, budgets=budgets))
            if found is None:
                break
            points.append(
                {
                    "batch": batch,
                    "budget_bytes": full * share,
                    "step_s": found.step_s,
                    "tokens_per_s": workload.tokens_per_s(found.step_s),
                    "hbm_bytes": found.memory_bytes["hbm"],
                    "resident": found.shares.get("resident", 0.0),
                }
            )
    for point in points:
        point["on_front"] = not any(_beats(other, point) for other in points)
    return {
        "points": points,
        "plan": {
            "step_s": plan.prediction.step_s,
            "tokens_per_s": plan.prediction.tokens_per_s,
            "batch": load.batch,
        },
        "about": f"{wording.workload(plan)}, batch varied; {wording.machine(plan)}; estimates: "
        "one schedule per point, tokens not rounded to blocks",
    }


def _beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether one point is no worse in all three and better in one."""
    pairs = [
        (one["step_s"], other["step_s"]),
        (-one["tokens_per_s"], -other["tokens_per_s"]),
        (one["hbm_bytes"], other["hbm_bytes"]),
    ]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def front(plan: Plan) -> Figure:
    """Draw throughput over step latency for batches and HBM budgets.

    Args:
        plan: the plan; its model, machine and context are kept.

    Returns:
        One line per HBM budget, labelled with batches; filled points are on the front.
    """
    data = front_data(plan)
    if not data["points"]:
        raise InfeasibleError("hbm", "not even one sequence fits", "a larger --hbm or --dram")
    figure, (ax,) = style.canvas(size=(7.4, 4.6))
    factor, unit = style.unit_of([p["step_s"] for p in data["points"]])
    with style.styled():
        sizes = sorted({p["budget_bytes"] for p in data["points"]}, reverse=True)
        for size, colour, marker in zip(sizes, style.SERIES, style.MARKERS, strict=False):
            points = [p for p in data["points"] if p["budget_bytes"] == size]
            _line(ax, points, factor, colour, marker, f"{size / GIB:.1f} GiB of HBM")
        own = data["plan"]
        ax.plot(
            own["step_s"] * factor,
            own["tokens_per_s"],
            "*",
            color=style.BLACK,
            markersize=13,
            markeredgecolor="white",
            zorder=6,
            label=f"the plan (batch {own['batch']})",
        )
        style.log_axis(ax.xaxis)
        style.log_axis(ax.yaxis)
        ax.set_xlabel(f"step latency ({unit})")
        ax.set_ylabel("throughput (tokens/s)")
        ax.grid(which="major")
        ax.legend(title="filled: on the front", title_fontsize=8, loc="best")
        best = max(data["points"], key=lambda p: p["tokens_per_s"])
        style.titled(
            figure,
            f"Most tokens per second at batch {best['batch']}: "
            f"{style.plain(best['tokens_per_s'])}, {format_seconds(best['step_s'])} a step",
            data["about"],
        )
    return figure


def _line(
    ax: Any, points: Sequence[dict[str, Any]], factor: float, colour: str, marker: str, name: str
) -> None:
    x = [p["step_s"] * factor for p in points]
    y = [p["tokens_per_s"] for p in points]
    ax.plot(x, y, color=colour, linewidth=1.0, marker=marker, markerfacecolor="white", label=name)
    best = [(a, b) for a, b, p in zip(x, y, points, strict=True) if p["on_front"]]
    ax.plot([a for a, _ in best], [b for _, b in best], marker, color=colour, zorder=5)
    for a, b, p in zip(x, y, points, strict=True):
        ax.annotate(
            str(p["batch"]),
            (a, b),
            xytext=(4, -8),
            textcoords="offset points",
            fontsize=6,
            color=colour,
        )
