"""KVPR's split, in both of its readings, as plans."""

from __future__ import annotations

from collections.abc import Callable

from kvplan import cost, kvpr
from kvplan.dtypes import element_bytes
from kvplan.evaluate import Evaluation
from kvplan.forced import forced, forced_schedule
from kvplan.layer import LayerSpec
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule

NOTHING_CACHED = "no layer caches tokens that could be split"


def _caches(scenario: Scenario) -> Callable[[LayerSpec], bool]:
    tokens = scenario.workload.tokens
    return lambda layer: layer.cached_tokens(tokens) > 0


def kvpr_layer(scenario: Scenario) -> kvpr.Layer:
    """The first layer that caches tokens as KVPR's cost model sees it, at the machine's link and
    matrix rates.
    """
    workload, hardware = scenario.workload, scenario.hardware
    spec = next(filter(_caches(scenario), scenario.model.layers))
    return kvpr.Layer(
        batch=workload.batch,
        hidden=spec.activation_elements,
        kv_elements=spec.kv_elements,
        element_bytes=element_bytes(workload.kv_dtype),
        tokens=workload.tokens,
        prompt=workload.context,
        link_bytes_per_s=hardware.h2d.copy.rate(),
        flop_per_s=cost.flop_per_s(hardware, scenario.model.weight_dtype),
    )


def kvpr_serial(scenario: Scenario) -> Evaluation | str:
    """KVPR's split, activations first and no prefetch over layers, one value for all layers."""
    if not any(map(_caches(scenario), scenario.model.layers)):
        return NOTHING_CACHED
    split = kvpr.serial_split(kvpr_layer(scenario))
    schedule = forced_schedule(scenario, stages=1, queue_depth=1, prefetch=False)
    return _split(scenario, split, schedule)


def kvpr_pipelined(scenario: Scenario) -> Evaluation | str:
    """KVPR's split with the next layer prefetched."""
    if not any(map(_caches(scenario), scenario.model.layers)):
        return NOTHING_CACHED
    split = kvpr.pipelined_split(kvpr_layer(scenario))
    return _split(scenario, split, forced_schedule(scenario, stages=1, queue_depth=2))


def _split(scenario: Scenario, split: int, schedule: Schedule) -> Evaluation | str:
    shares = {"recompute": float(split), "fetch": float(scenario.workload.tokens - split)}
    return forced(scenario, schedule, shares, block=1)
