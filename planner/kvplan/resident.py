"""The plan without offload, where everything fits in HBM."""

from __future__ import annotations

from kvplan.allocation import rounded
from kvplan.evaluate import Evaluation, evaluate
from kvplan.paths import REGISTRY
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule


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


def kept_bytes(scenario: Scenario) -> float:
    """Bytes of all K and V in HBM."""
    load, path = scenario.workload, REGISTRY["resident"]
    return (
        sum(
            path.stored(layer, load.kv_dtype).get("hbm", 0.0)
            * layer.cached_tokens(load.tokens)
            * count
            for layer, count, _ in scenario.model.layer_classes
            if scenario.paths[layer]
        )
        * load.batch
    )
