"""The step as a timeline: a lane per resource, and who holds which staging buffer when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import wording
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.pictures.lane_spans import Span, measured_spans, spans_of, window
from kvplan.plan import Plan
from kvplan.planning import replay
from kvplan.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ORDER = ("gpu", "h2d", "d2h", "host", "disk", "tier", "cpu")
"""Lanes from top to bottom."""

PLAIN = {
    "attend": style.DARK,
    "attend_resident": style.PATHS["resident"][0],
    "project": style.LIGHT,
    "finish": style.LIGHT,
    "head": style.GREY,
    "launch": style.LIGHT,
    "write_back": style.GREY,
    "load_weights": style.GREY,
}
"""Colours of what no single path owns."""


def timeline_data(plan: Plan, measured: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Spans of one predicted step, and of a measured one where a trace is given."""
    from dataclasses import asdict

    _, evaluation = replay(plan)
    found = {
        "step_s": evaluation.step_s,
        "bottleneck": evaluation.simulation.bottleneck,
        "predicted": [asdict(s) for s in spans_of(evaluation, 0.0, evaluation.step_s)],
    }
    if measured is not None:
        found["measured"] = [asdict(s) for s in _required(measured, evaluation)]
    return found


def _required(measured: Mapping[str, Any], evaluation: Evaluation) -> list[Span]:
    resources = {o.operation: o.resource for o in evaluation.graph.operations if o.resource}
    real = measured_spans(measured, resources)
    if not real:
        raise InputError(
            "--measured",
            "a trace without a measured step",
            "a trace that `kvplan validate PLAN --trace FILE` wrote",
        )
    return real


def timeline(plan: Plan, measured: Mapping[str, Any] | None = None) -> Figure:
    """Draw a plan's step: predicted, and measured under it where a trace is given.

    Args:
        plan: the plan.
        measured: a trace that ``kvplan validate PLAN --trace FILE`` wrote, as a document.

    Returns:
        The whole step above, a few layers in its middle below, staging buffers included.

    Raises:
        InputError: the plan contradicts itself, or the trace holds no measured step.
    """
    _, evaluation = replay(plan)
    step_s = evaluation.step_s
    spans = spans_of(evaluation, 0.0, step_s)
    real = [] if measured is None else _required(measured, evaluation)
    zoom = window(spans)
    layers = f"{_layers_in(spans, zoom)} (labels: layer.stage)"
    whole = (0.0, max([step_s, *(s.end_s for s in real)]))
    panels = [("predicted, whole step", _resources(spans), whole, False)]
    if real:
        panels.append(("measured, whole step", real, whole, False))
    panels.append((f"predicted, {layers}", spans, zoom, True))
    if real:
        panels.append((f"measured, {layers}", real, window(real), True))
    return _draw(plan, evaluation, panels)


def _resources(spans: Sequence[Span]) -> list[Span]:
    return [s for s in spans if not s.lane.startswith("buffer")]


def _layers_in(spans: Sequence[Span], zoom: tuple[float, float]) -> str:
    inside = sorted(
        {s.layer for s in spans if s.operation == "project" and zoom[0] <= s.begin_s < zoom[1]}
    )
    if not inside:
        return "whole step"
    return f"layer {inside[0]}" if len(inside) == 1 else f"layers {inside[0]}–{inside[-1]}"


def _draw(
    plan: Plan,
    evaluation: Evaluation,
    panels: Sequence[tuple[str, list[Span], tuple[float, float], bool]],
) -> Figure:
    heights = [0.36 * len(_lanes(p[1])) + 0.75 for p in panels]
    figure, axes = style.canvas(len(panels), size=(9.0, sum(heights) + 1.1), height_ratios=heights)
    factor, unit = style.unit_of([evaluation.step_s])
    with style.styled():
        for ax, (title, spans, (begin_s, end_s), named) in zip(axes, panels, strict=True):
            _panel(ax, spans, begin_s, end_s, factor, named)
            ax.set_title(title)
            ax.set_xlabel(f"time since the step started ({unit})")
        handles = _legend(p for panel in panels for p in panel[1])
        style.legend_above(axes[0], handles)
        predicted = evaluation.simulation
        style.titled(
            figure,
            f"One decode step: {format_seconds(evaluation.step_s)}, limited by "
            f"{predicted.bottleneck}",
            f"{wording.workload(plan)}; {wording.machine(plan)}; {wording.pipeline(plan)}",
        )
    return figure


def _lanes(spans: Sequence[Span]) -> list[str]:
    def rank(lane: str) -> tuple[int, str]:
        return (ORDER.index(lane) if lane in ORDER else len(ORDER), lane)

    return sorted({s.lane for s in spans}, key=rank)


def _panel(
    ax: Axes, spans: Sequence[Span], begin_s: float, end_s: float, factor: float, named: bool
) -> None:
    """One set of lanes between two times."""
    lanes = _lanes(spans)
    groups: dict[tuple[int, str, str], list[tuple[float, float]]] = {}
    for span in spans:
        left_s, right_s = max(span.begin_s, begin_s), min(span.end_s, end_s)
        if right_s <= left_s:
            continue
        colour, hatch = _look(span)
        bar = (left_s * factor, (right_s - left_s) * factor)
        groups.setdefault((lanes.index(span.lane), colour, hatch), []).append(bar)
        wide = (right_s - left_s) / (end_s - begin_s)
        if named and wide > 0.012:
            ax.text(
                bar[0] + bar[1] / 2,
                lanes.index(span.lane),
                _label(span, wide),
                ha="center",
                va="center",
                fontsize=6,
                color=_ink(colour),
                clip_on=True,
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6} if hatch else None,
            )
    for (row, colour, hatch), bars in groups.items():
        ax.broken_barh(
            bars,
            (row - 0.4, 0.8),
            facecolors=colour,
            linewidth=0.5,
            edgecolor="white" if hatch and named else colour,
            hatch=hatch if named else None,
        )
    ax.set_xlim(begin_s * factor, end_s * factor)
    ax.set_ylim(len(lanes) - 0.4, -0.6)
    ax.set_yticks(range(len(lanes)), lanes)
    ax.tick_params(axis="y", length=0)


def _look(span: Span) -> tuple[str, str]:
    if span.lane.startswith("buffer"):
        shades = ("#C9C9C9", "#E4E4E4")
        return shades[((span.stage or 0) + span.layer) % 2], ""
    if span.operation in PLAIN:
        return PLAIN[span.operation], ""
    return style.path_style(span.path) if span.path else (style.GREY, "")


def _label(span: Span, wide: float) -> str:
    place = f"{span.layer}" if span.stage is None else f"{span.layer}.{span.stage}"
    if span.operation in ("project", "finish", "head") and wide < 0.05:
        return span.operation[0].upper()
    if span.operation == "hold" or wide < 0.06:
        return place
    return f"{span.operation} {place}"


def _ink(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 130 else "white"


def _legend(spans: Any) -> list[Any]:
    from matplotlib.patches import Patch

    seen = {
        s.operation if s.operation in PLAIN else s.path
        for s in spans
        if not s.lane.startswith("buffer")
    }
    handles = style.key([p for p in style.PATHS if p in seen])
    groups: dict[str, list[str]] = {}
    for name, colour in PLAIN.items():
        if name in seen:
            groups.setdefault(colour, []).append(name)
    return handles + [
        Patch(facecolor=colour, label=", ".join(names)) for colour, names in groups.items()
    ]
