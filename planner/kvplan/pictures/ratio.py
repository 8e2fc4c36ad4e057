"""Step latency against recompute ratio: the optimum, and where rules of thumb would land."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import candidates, kvpr, wording
from kvplan.baselines import RULE_OF_THUMB_RATIO
from kvplan.kvpr_baseline import kvpr_layer
from kvplan.paths import REGISTRY, Path
from kvplan.plan import Plan
from kvplan.planning import scenario_of, schedule_of
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import simulate
from kvplan.step import Structure, build_step
from kvplan.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = 33
"""Ratios at which a curve is played."""


def step_at(scenario: Scenario, schedule: Schedule, shares: Mapping[str, float]) -> float:
    """Seconds of a step in which every layer and stage has the same shares of tokens per path.

    Shares stay fractional, and memory is not checked. One unit is played where layers are alike.

    Args:
        scenario: model, machine, workload.
        schedule: how the step is pipelined; its axis must be ``token``.
        shares: path to share of a layer's tokens.
    """
    unit = candidates.unit_layers(scenario.model, schedule)
    layers = range(len(scenario.model.layers)) if unit is None else unit
    used = [REGISTRY[name] for name, share in shares.items() if share > 0]
    staged = [p for p in used if p.attends == "stage"]
    outside = [p for p in used if p.attends != "stage"]
    places: dict[tuple[int, int | None], list[Path]] = {}
    for layer in layers:
        places[layer, None] = outside
        places.update({(layer, s): staged for s in range(schedule.stages) if staged})
    structure: Structure = places
    graph = build_step(
        scenario.model, scenario.hardware, scenario.workload, schedule, structure, unit
    )
    values = [
        shares[v.path]
        * scenario.cached_tokens(v.layer)
        / (1 if v.stage is None else schedule.stages)
        for v in graph.variables
    ]
    return simulate(graph, values).step_s


def recompute_data(plan: Plan) -> dict[str, Any]:
    """Two curves of step over recompute ratio, and marked choices.

    ``host``: every token's state is in host memory, the rest is fetched. ``filled``: the share
    that the plan keeps in HBM stays there, and only the others are recomputed or fetched.
    """
    scenario = scenario_of(plan)
    schedule = dataclasses.replace(
        schedule_of(plan),
        axis="token",
        stream_weights=False,
        stages=max(plan.decision.stages, 4),
        queue_depth=max(plan.decision.queue_depth, 2),
    )
    kept = _kept(plan)
    curves: dict[str, list[tuple[float, float]]] = {}
    for name, resident in (("host", 0.0), ("filled", kept)):
        room = 1.0 - resident
        if room < 0.01 or (name == "filled" and resident < 0.01):
            continue
        curves[name] = []
        for index in range(POINTS):
            ratio = room * index / (POINTS - 1)
            shares = {"resident": resident, "recompute": ratio, "fetch": room - ratio}
            shares = {path: share for path, share in shares.items() if share > 1e-9}
            curves[name].append((ratio, step_at(scenario, schedule, shares)))
    return {
        "curves": curves,
        "kept": kept,
        "marks": _marks(plan, scenario, curves),
        "act_over_kv": min(layer.act_over_kv() for layer in scenario.model.layers),
        "about": f"{wording.workload(plan)}; {wording.machine(plan)}; curves: "
        f"{schedule.stages} stages, queue depth {schedule.queue_depth}",
    }


def _kept(plan: Plan) -> float:
    """Share of all tokens that the plan keeps in HBM as K and V."""
    counts = [layer.tokens for layer in plan.decision.layers]
    total = sum(sum(tokens.values()) for tokens in counts)
    return sum(tokens.get("resident", 0) for tokens in counts) / total if total else 0.0


def _marks(
    plan: Plan, scenario: Scenario, curves: Mapping[str, list[tuple[float, float]]]
) -> list[dict[str, Any]]:
    """Choices to mark: the curve's optimum, KVPR's in both readings, the rule, the plan."""
    marks: list[dict[str, Any]] = []

    def mark(name: str, ratio: float, step_s: float | None) -> None:
        if step_s is not None:
            marks.append({"name": name, "ratio": ratio, "step_s": step_s})

    for name, title in (("host", "optimum, all in host memory"), ("filled", "optimum, HBM filled")):
        if name in curves:
            mark(title, *min(curves[name], key=lambda point: point[1]))
    asked = kvpr_layer(scenario)
    steps = {name: result.step_s for name, result in plan.baselines.items()}
    mark("KVPR, serial", kvpr.serial_split(asked) / asked.tokens, steps.get("kvpr_serial"))
    mark("KVPR, pipelined", kvpr.pipelined_split(asked) / asked.tokens, steps.get("kvpr_pipelined"))
    mark("rule of thumb", RULE_OF_THUMB_RATIO, steps.get("rule_of_thumb"))
    layers = plan.decision.layers
    mean = sum(layer.recompute_ratio for layer in layers) / len(layers)
    mark("the plan", mean, plan.prediction.step_s)
    return marks


def recompute(plan: Plan) -> Figure:
    """Draw the step over the recompute ratio.

    Args:
        plan: the plan; its machine, workload and share kept in HBM are used.

    Returns:
        Curves for all tokens in host memory and for HBM filled as in the plan; the optimum, KVPR's
        choice in both readings, the rule of thumb and the plan are marked at their own steps.
    """
    data = recompute_data(plan)
    figure, (ax,) = style.canvas(size=(7.2, 4.6))
    steps = [s for curve in data["curves"].values() for _, s in curve]
    steps += [mark["step_s"] for mark in data["marks"]]
    factor, unit = style.unit_of(steps)
    titles = {
        "host": "all tokens from host memory",
        "filled": f"{data['kept']:.0%} kept in HBM, the rest from host memory",
    }
    with style.styled():
        for (name, curve), colour in zip(
            data["curves"].items(), (style.BLUE, style.GREEN), strict=False
        ):
            ax.plot(
                [r for r, _ in curve],
                [s * factor for _, s in curve],
                color=colour,
                label=titles[name],
                linestyle="-" if name == "host" else "--",
            )
        looks = {
            "optimum, all in host memory": ("*", style.BLUE, 12),
            "optimum, HBM filled": ("*", style.GREEN, 12),
            "KVPR, serial": ("v", style.VERMILION, 8),
            "KVPR, pipelined": ("^", style.VERMILION, 8),
            "rule of thumb": ("s", style.PURPLE, 7),
            "the plan": ("D", style.BLACK, 7),
        }
        for mark in data["marks"]:
            marker, colour, size = looks[mark["name"]]
            ax.plot(
                mark["ratio"],
                mark["step_s"] * factor,
                marker,
                color=colour,
                markersize=size,
                markeredgecolor="white",
                zorder=5,
                label=f"{mark['name']}: {mark['ratio']:.2f}, {format_seconds(mark['step_s'])}",
            )
        ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(0, 1.08 * max(steps) * factor)
        ax.set_xlabel("recompute ratio (recomputed tokens / context)")
        ax.set_ylabel(f"step latency ({unit})")
        ax.grid(axis="y")
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        style.titled(figure, _answer(data), data["about"])
    return figure


def _answer(data: Mapping[str, Any]) -> str:
    if data["act_over_kv"] >= 1:
        return (
            f"Activations are {data['act_over_kv']:.1f}x the KV they rebuild: recompute from "
            "host memory never pays"
        )
    marks = {mark["name"]: mark for mark in data["marks"]}
    best = marks.get("optimum, all in host memory")
    if best is None:
        return "Everything stays in HBM: there is nothing to recompute"
    return f"With all tokens in host memory, recompute {best['ratio']:.0%} of them"
