"""Layers of a plan that decide alike, and how they are written."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.plan import LayerDecision
from kvplan.wording import percent

LISTED_GROUPS = 12
"""Groups of layers that decide alike, written out; beyond, all are described together."""

LISTED_RUNS = 6
"""Runs of layers written out; beyond, only their number is."""


def layer_groups(layers: Sequence[LayerDecision], block: int) -> list[list[LayerDecision]]:
    """Layers whose counts differ by at most a block on every path, in order of their first."""
    groups: list[tuple[dict[str, tuple[int, int]], list[LayerDecision]]] = []
    for layer in layers:
        counts = layer.tokens
        for spread, members in groups:
            merged = {
                path: (min(low, counts.get(path, 0)), max(high, counts.get(path, 0)))
                for path, (low, high) in (dict.fromkeys(counts, (0, 0)) | spread).items()
            }
            same_total = sum(counts.values()) == sum(members[0].tokens.values())
            if same_total and all(high - low <= block for low, high in merged.values()):
                spread.update(merged)
                members.append(layer)
                break
        else:
            groups.append(({path: (n, n) for path, n in counts.items()}, [layer]))
    return [members for _, members in groups]


def layer_names(members: Sequence[LayerDecision]) -> str:
    """Which layers a group is."""
    runs: list[list[int]] = []
    for layer in members:
        if runs and layer.layer == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], layer.layer]
        else:
            runs.append([layer.layer])
    if len(runs) > LISTED_RUNS:
        return f"{len(members)} layers from {runs[0][0]} to {runs[-1][-1]}"
    named = ", ".join("–".join(str(end) for end in run) for run in runs)
    return f"layer {named}" if len(members) == 1 else f"layers {named}"


def group_mix(members: Sequence[LayerDecision]) -> str:
    """Paths of a group of layers, in shares and tokens."""
    names = dict.fromkeys(path for layer in members for path in layer.tokens)
    parts = []
    total = sum(sum(layer.tokens.values()) for layer in members) / len(members)
    ranked = sorted(names, key=lambda n: -sum(layer.tokens.get(n, 0) for layer in members))
    for name in ranked:
        counts = [layer.tokens.get(name, 0) for layer in members]
        share = sum(counts) / len(counts) / total
        tokens = f"{counts[0]}" if min(counts) == max(counts) else f"{min(counts)}–{max(counts)}"
        parts.append(f"{name} {percent(share)} ({tokens} tokens)")
    return ", ".join(parts) or "no KV"
