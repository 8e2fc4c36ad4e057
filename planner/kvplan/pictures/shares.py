"""What happens to each layer's tokens: the path mix, and the recompute ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import kvpr, wording
from kvplan.kvpr_baseline import kvpr_layer
from kvplan.plan import Plan
from kvplan.planning import scenario_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def paths_data(plan: Plan) -> dict[str, Any]:
    """Share of every path and recompute ratio, layer by layer, and KVPR's ratio for all."""
    layers = []
    for layer in plan.decision.layers:
        total = sum(layer.tokens.values()) or 1
        shares = {path: tokens / total for path, tokens in layer.tokens.items()}
        layers.append(
            {
                "layer": layer.layer,
                "tokens": total,
                "shares": shares,
                "recompute_ratio": layer.recompute_ratio,
            }
        )
    asked = kvpr_layer(scenario_of(plan))
    return {
        "layers": layers,
        "kvpr_ratio": kvpr.pipelined_split(asked) / asked.tokens,
        "about": f"{wording.workload(plan)}; {wording.machine(plan)}",
        "answer": wording.strategy(plan),
    }


def paths(plan: Plan) -> Figure:
    """Draw the path mix of every layer over its recompute ratio.

    Args:
        plan: the plan.

    Returns:
        Shares of a layer's tokens per path, stacked; under it the recompute ratio of each layer.
    """
    data = paths_data(plan)
    layers = data["layers"]
    numbers = [layer["layer"] for layer in layers]
    names = [p for p in style.PATHS if any(p in layer["shares"] for layer in layers)]
    names += sorted({p for layer in layers for p in layer["shares"]} - set(names))
    figure, (mix, ratio) = style.canvas(2, size=(8.0, 4.8), sharex=True, height_ratios=(3, 1.2))
    with style.styled():
        below = [0.0] * len(layers)
        for name in names:
            colour, hatch = style.path_style(name)
            heights = [100 * layer["shares"].get(name, 0.0) for layer in layers]
            mix.bar(
                numbers,
                heights,
                0.86,
                below,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.4,
            )
            below = [b + h for b, h in zip(below, heights, strict=True)]
        mix.set_ylabel("share of the layer's\ntokens (%)")
        mix.set_ylim(0, 100)
        mix.set_title("path of each token")
        style.legend_above(mix, style.key(names))
        ratio.bar(
            numbers, [layer["recompute_ratio"] for layer in layers], 0.86, color=style.VERMILION
        )
        ratio.axhline(data["kvpr_ratio"], color=style.BLACK, linestyle="--", linewidth=1.0)
        ratio.set_title(
            f"recompute ratio; dashed: KVPR, pipelined, {data['kvpr_ratio']:.2f} in every layer"
        )
        ratio.set_ylim(0, 1)
        ratio.set_ylabel("recomputed tokens\n/ context")
        ratio.set_xlabel("layer")
        ratio.set_xlim(-0.6, max(numbers) + 0.6)
        style.titled(figure, data["answer"], data["about"])
    return figure
