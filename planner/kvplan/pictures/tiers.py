"""Memory per tier and the step while a generation goes on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import wording
from kvplan.allocation import Allocation, Segment
from kvplan.evaluate import Evaluation, evaluate
from kvplan.plan import Plan
from kvplan.planning import allocation_of, scenario_of, schedule_of
from kvplan.scenario import Scenario
from kvplan.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 9
"""Lengths at which the plan is judged."""

TIERS = ("hbm", "dram", "disk")

WORDS = {"hbm": "HBM", "dram": "host memory (DRAM)", "disk": "disk"}


def cut(allocation: Allocation, scenario: Scenario) -> Allocation:
    """The part of an allocation that is filled when the cache holds the scenario's tokens."""
    layers = []
    for index, segments in enumerate(allocation):
        end = scenario.cached_tokens(index)
        layers.append(
            tuple(
                Segment(s.begin, min(s.end, end), s.path, s.stage)
                for s in segments
                if s.begin < end
            )
        )
    return tuple(layers)


def memory_data(plan: Plan) -> dict[str, Any]:
    """Bytes per tier and part, and the step, while the cache fills up.

    A plan with tokens to generate is followed from its context to the last token; one without,
    from the first block to its context.
    """
    scenario, allocation = scenario_of(plan), allocation_of(plan)
    load = scenario.workload
    first = load.context if load.gen else min(load.block, load.context)
    lengths = sorted(
        {first + round((load.tokens - first) * k / (POINTS - 1)) for k in range(POINTS)}
    )
    points = []
    for tokens in lengths:
        workload = dataclasses.replace(load, context=tokens, gen=0)
        at = dataclasses.replace(scenario, workload=workload)
        shares = [layer.streamed_weights for layer in plan.decision.layers]
        found = evaluate(at, schedule_of(plan), cut(allocation, at), shares)
        points.append({"tokens": tokens, "step_s": found.step_s, "bytes": _parts(found)})
    return {
        "points": points,
        "capacity_bytes": dict(scenario.capacity),
        "generates": bool(load.gen),
        "about": f"{wording.workload(plan)}; {wording.machine(plan)}; the plan's token ranges, "
        "filled from the first token on",
    }


def _parts(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Tier to part to bytes: weights and workspace, each path, staging buffers."""
    graph, values = evaluation.graph, evaluation.values
    parts: dict[str, dict[str, float]] = {}
    for tier in TIERS:
        held = {"weights, workspace": graph.constant_bytes.get(tier, 0.0)}
        for variable, value in zip(graph.variables, values, strict=True):
            size = variable.stored.get(tier, 0.0) * value
            name = variable.path
            if name == "stream_weights" and size < 0:
                name = "weights, workspace"
            held[name] = held.get(name, 0.0) + size
        held["buffers"] = evaluation.memory_bytes.get(tier, 0.0) - sum(held.values())
        parts[tier] = {name: size for name, size in held.items() if size > 0.5}
    return parts


def memory(plan: Plan) -> Figure:
    """Draw memory per tier, and the step, over the tokens in the cache.

    Args:
        plan: the plan.

    Returns:
        One panel per tier in use, stacked by what it holds, with its budget; the step below.
    """
    data = memory_data(plan)
    points = data["points"]
    used = [t for t in TIERS if any(p["bytes"][t] for p in points)]
    figure, axes = style.canvas(
        len(used) + 1,
        size=(7.4, 1.7 * len(used) + 2.2),
        sharex=True,
        height_ratios=[1.5] * len(used) + [1.0],
    )
    tokens = [p["tokens"] for p in points]
    factor, unit = style.unit_of([p["step_s"] for p in points])
    with style.styled():
        for ax, tier in zip(axes, used, strict=False):
            _tier(
                ax,
                tier,
                tokens,
                [p["bytes"][tier] for p in points],
                data["capacity_bytes"].get(tier, 0.0),
            )
        axes[-1].plot(
            tokens,
            [p["step_s"] * factor for p in points],
            color=style.BLACK,
            marker="o",
            markersize=3,
        )
        axes[-1].set_ylim(bottom=0)
        axes[-1].grid(axis="y")
        axes[-1].set_ylabel(f"step ({unit})")
        axes[-1].set_xlabel("tokens in the cache, per sequence")
        axes[-1].set_xlim(tokens[0], tokens[-1] if tokens[-1] > tokens[0] else tokens[0] + 1)
        style.titled(figure, _answer(data, used[0] if used else "hbm"), data["about"])
    return figure


def _answer(data: dict[str, Any], tier: str) -> str:
    last = data["points"][-1]
    full = sum(last["bytes"][tier].values()) / GIB
    when = "at the last token" if data["generates"] else "at the full context"
    return (
        f"{WORDS[tier]} holds {full:.1f} of {data['capacity_bytes'].get(tier, 0) / GIB:.1f} "
        f"GiB {when}"
    )


def _tier(
    ax: Axes, tier: str, tokens: list[int], held: list[dict[str, float]], capacity: float
) -> None:
    names = list(dict.fromkeys(name for parts in held for name in parts))
    order = ["weights, workspace", "buffers", *style.PATHS]
    names.sort(key=lambda n: order.index(n) if n in order else len(order))
    plain = {"weights, workspace": (style.LIGHT, ""), "buffers": (style.YELLOW, "")}
    below = [0.0] * len(tokens)
    from matplotlib.patches import Patch

    handles = []
    for name in names:
        colour, hatch = plain.get(name) or style.path_style(name)
        top = [b + parts.get(name, 0.0) / GIB for b, parts in zip(below, held, strict=True)]
        ax.fill_between(
            tokens, below, top, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.4
        )
        handles.append(Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=name))
        below = top
    most = max(below)
    if 0 < capacity / GIB < 3 * most:
        ax.axhline(capacity / GIB, color=style.BLACK, linestyle="--", linewidth=1.0)
        most = max(most, capacity / GIB)
        note = f"dashed: budget {style.plain(capacity / GIB)} GiB"
    else:
        note = f"budget {style.plain(capacity / GIB)} GiB"
    ax.set_ylim(0, 1.06 * most)
    ax.set_title(f"{WORDS[tier]}; {note}", fontsize=9)
    ax.set_ylabel("memory (GiB)")
    style.legend_above(ax, handles)
