"""The plan without offload, where everything fits in HBM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvplan.allocation import rounded
from kvplan.evaluate import Evaluation, evaluate
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph


def everything_resident(scenario: Scenario) -> Evaluation | None:
    """All K and V in HBM, or None where that does not fit or is not allowed."""
    if any(
        paths and "resident" not in (p.name for p in paths) for paths in scenario.paths.values()
    ):
        return None
    layers = range(len(scenario.model.layers))
    if kept_bytes(scenario) > scenario.capacity["hbm"]:
        return None
    allocation = rounded(
        tokens=[scenario.cached_tokens(i) for i in layers],
        targets=[{"resident": 1.0} for _ in layers],
        classes=scenario.classes,
        axis="token",
        stages=1,
        block=scenario.workload.block,
    )
    schedule = Schedule(
        stages=1, queue_depth=1, boundary=scenario.options.boundary, mode=scenario.options.mode
    )
    evaluation = evaluate(scenario, schedule, allocation)
    return None if evaluation.overflow(scenario.capacity) else evaluation


def kept_bytes(scenario: Scenario, layers: Sequence[int] | None = None) -> float:
    """Bytes of all K and V of some layers (None: all) in HBM."""
    load, path, specs = scenario.workload, REGISTRY["resident"], scenario.model.layers
    counts = Counter(specs if layers is None else [specs[layer] for layer in layers])
    return (
        sum(
            path.stored(layer, load.kv_dtype).get("hbm", 0.0)
            * layer.cached_tokens(load.tokens)
            * count
            for layer, count in counts.items()
            if scenario.paths[layer]
        )
        * load.batch
    )


def capacity_for(scenario: Scenario, graph: StepGraph, layers: Sequence[int]) -> dict[str, float]:
    """Bytes each tier may hold where repeats of some layers stand for the model: of what they cache
    beyond it, the same share is resident.

    Args:
        scenario: the question.
        graph: the step graph of these layers.
        layers: the layers.
    """
    capacity, kept = scenario.capacity, kept_bytes(scenario)
    beyond = kept_bytes(scenario, layers) * len(scenario.classes) / len(layers) - kept
    free = capacity["hbm"] - graph.constant_bytes.get("hbm", 0.0)
    share = min(max(free / kept, 0.0), 1.0) if kept else 0.0
    return {**capacity, "hbm": capacity["hbm"] + beyond * share}
