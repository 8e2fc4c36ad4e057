"""What one more of each resource would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import wording
from kvplan.plan import Plan
from kvplan.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def values_data(plan: Plan) -> dict[str, Any]:
    """Seconds per step that a little more of each resource would save, largest first."""
    predicted = plan.prediction
    ranked = sorted(predicted.values, key=lambda v: v.saved_s)
    return {
        "values": [
            {
                "what": v.what,
                "saved_s": v.saved_s,
                "share": v.saved_s / predicted.step_s if predicted.step_s else 0.0,
            }
            for v in reversed(ranked)
        ],
        "step_s": predicted.step_s,
        "about": f"{wording.workload(plan)}; {wording.machine(plan)}; memory: duals of the "
        "program, the most a little more can bring; rates: the bound solved again",
    }


def values(plan: Plan) -> Figure:
    """Draw what one more GiB, GB/s or 10 % FLOP/s would save per step.

    Args:
        plan: the plan, solved: its prediction holds the values.

    Returns:
        A bar for each resource, in time and in per cent of the step.
    """
    data = values_data(plan)
    found = data["values"][::-1]
    figure, (ax,) = style.canvas(size=(7.4, 0.42 * max(len(found), 1) + 1.5))
    factor, unit = style.unit_of([v["saved_s"] for v in found])
    with style.styled():
        saved = [v["saved_s"] * factor for v in found]
        bars = ax.barh([v["what"] for v in found], saved, 0.7, color=style.BLUE)
        ax.bar_label(bars, [_label(v) for v in found], padding=4, fontsize=8)
        ax.set_xlim(0, 1.3 * max([*saved, 1e-9]))
        ax.set_xlabel(f"saved per step ({unit})")
        ax.tick_params(axis="y", length=0)
        best = data["values"][0] if found and data["values"][0]["saved_s"] > 0 else None
        answer = (
            "A little more of nothing would help"
            if best is None
            else (
                f"{best['what']} would save {format_seconds(best['saved_s'])} of "
                f"{format_seconds(data['step_s'])} per step"
            )
        )
        style.titled(figure, answer, data["about"])
    return figure


def _label(value: dict[str, Any]) -> str:
    if value["saved_s"] <= 0:
        return "nothing"
    return f"{format_seconds(value['saved_s'])} ({wording.percent(value['share'])} of the step)"
