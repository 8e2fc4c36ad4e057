"""The roofline of the decode step: HBM and the link as roofs, operations as points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import cost, flop, wording
from kvplan.dtypes import element_bytes
from kvplan.evaluate import Evaluation
from kvplan.plan import Plan
from kvplan.planning import replay
from kvplan.scenario import Scenario
from kvplan.units import format_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = {
    "new token": ("project", "finish", "head"),
    "attention, KV in HBM": ("attend_resident",),
    "attention, staged KV": ("attend",),
    "rebuild of K and V": ("rebuild",),
}
"""Points, and the operations of the step each one sums up."""

LOOKS = {
    "new token": (style.DARK, "s"),
    "attention, KV in HBM": (style.PATHS["resident"][0], "o"),
    "attention, staged KV": (style.PURPLE, "^"),
    "rebuild of K and V": (style.VERMILION, "D"),
}


def roofline_data(plan: Plan) -> dict[str, Any]:
    """Roofs, and FLOP, bytes and seconds of the parts of the plan's step."""
    scenario, evaluation = replay(plan)
    seconds: dict[str, float] = {}
    simulation, cycles = evaluation.simulation, evaluation.graph.cycles
    for operation, duration_s in zip(
        evaluation.graph.operations, simulation.duration_s, strict=True
    ):
        name = operation.operation
        seconds[name] = seconds.get(name, 0.0) + duration_s * cycles
    work, moved = _work(scenario, evaluation)
    points = []
    for name, operations in GROUPS.items():
        spent_s = sum(seconds.get(o, 0.0) for o in operations)
        if work.get(name, 0.0) > 0 and spent_s > 0:
            points.append(
                {
                    "name": name,
                    "flop": work[name],
                    "bytes": moved[name],
                    "seconds": spent_s,
                    "roof": "hbm",
                }
            )
    over_link = evaluation.graph.link_bytes(evaluation.values).get("h2d", 0.0)
    if over_link > 0:
        points.append(
            {
                "name": "whole step, bytes over the link",
                "flop": sum(work.values()),
                "bytes": over_link,
                "seconds": evaluation.step_s,
                "roof": "h2d",
            }
        )
    hardware = scenario.hardware
    return {
        "flop_per_s": cost.flop_per_s(hardware, scenario.model.weight_dtype),
        "hbm_bytes_per_s": hardware.gpu.hbm_bytes_per_s,
        "h2d_bytes_per_s": hardware.h2d.copy.rate(),
        "points": points,
        "bottleneck": simulation.bottleneck,
        "about": f"{wording.workload(plan)}; {wording.machine(plan)}",
    }


def _work(scenario: Scenario, evaluation: Evaluation) -> tuple[dict[str, float], dict[str, float]]:
    """FLOP and HBM bytes of every group in one step."""
    model, load = scenario.model, scenario.workload
    weight, kept = element_bytes(model.weight_dtype), element_bytes(load.kv_dtype)
    work = dict.fromkeys(GROUPS, 0.0)
    moved = dict.fromkeys(GROUPS, 0.0)
    work["new token"] = load.batch * (flop.head(model) + sum(map(flop.new_token, model.layers)))
    layer_weights = sum(cost.weight_bytes(model, layer) for layer in model.layers)
    moved["new token"] = load.micro_batches * (layer_weights + weight * model.head_params)
    names = {operation: group for group, members in GROUPS.items() for operation in members}
    graph, values = evaluation.graph, evaluation.values
    for operation in graph.operations:
        group = names.get(operation.operation)
        if group is None or group == "new token":
            continue
        layer = model.layers[operation.layer]
        tokens = sum(values[v] for v in operation.variables) * load.micro_batch * graph.cycles
        if operation.operation == "rebuild":
            work[group] += tokens * flop.rebuild(layer)
            moved[group] += tokens * (layer.hidden * weight + layer.kv_bytes(kept))
        else:
            work[group] += tokens * flop.attend(layer)
            moved[group] += tokens * layer.kv_bytes(kept)
    return work, moved


def roofline(plan: Plan) -> Figure:
    """Draw the roofline of a plan's step.

    Args:
        plan: the plan.

    Returns:
        Roofs of HBM, of the link and of the matrix units; parts of the step by the HBM bytes they
        move, and the whole step by the bytes that cross the link.
    """
    data = roofline_data(plan)
    figure, (ax,) = style.canvas(size=(7.6, 4.6))
    peak = data["flop_per_s"]
    roofs = {
        "hbm": ("HBM", data["hbm_bytes_per_s"], style.GREEN, "-"),
        "h2d": ("link to the GPU", data["h2d_bytes_per_s"], style.BLUE, "--"),
    }
    intensities = [p["flop"] / p["bytes"] for p in data["points"]]
    low = min(0.1, *(i / 3 for i in intensities))
    high = 10 * max(peak / data["h2d_bytes_per_s"], *intensities)
    with style.styled():
        for title, rate, colour, line in roofs.values():
            ridge = peak / rate
            ax.plot(
                [low, ridge, high],
                [low * rate / 1e12, peak / 1e12, peak / 1e12],
                line,
                color=colour,
                label=f"{title}: {format_rate(rate)}",
            )
        ax.plot([], [], " ", label=f"matrix units: {style.plain(peak / 1e12)} TFLOP/s")
        for point in data["points"]:
            colour, marker = LOOKS.get(point["name"], (style.BLUE, "*"))
            reached = point["flop"] / point["seconds"] / 1e12
            ax.plot(
                point["flop"] / point["bytes"],
                reached,
                marker,
                color=colour,
                markersize=13 if marker == "*" else 8,
                markeredgecolor="white",
                linestyle="none",
                label=f"{point['name']}: {style.plain(point['seconds'] * 1e3)} ms",
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlim(low, high)
        ax.set_xlabel("arithmetic intensity (FLOP per byte moved)")
        ax.set_ylabel("rate (TFLOP/s)")
        ax.grid(which="major")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        style.titled(
            figure, f"Roofline of one decode step, limited by {data['bottleneck']}", data["about"]
        )
    return figure
