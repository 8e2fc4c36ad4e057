"""The runtimes that plans are exported to."""

from __future__ import annotations

from dataclasses import replace

from kvplan.export import (
    dynamo,
    flexgen,
    kvpr,
    llamacpp,
    lmcache,
    mooncake,
    sglang,
    transformers,
    trtllm,
    vllm,
)
from kvplan.export.demand import CacheDemand, demand_of
from kvplan.export.deployment import Deployment
from kvplan.export.exporter import Export, Exporter, Unexpressed
from kvplan.names import resolve
from kvplan.plan import Plan

REGISTRY: dict[str, Exporter] = {
    module.EXPORTER.name: module.EXPORTER
    for module in (
        vllm, lmcache, sglang, trtllm, dynamo, mooncake, transformers, flexgen, kvpr, llamacpp,
    )
}  # fmt: skip


def find(name: str) -> Exporter:
    """The exporter of a runtime, its name spelled forgivingly.

    Raises:
        InputError: no such runtime.

    >>> find("vLLM").name, find("lm-cache").name, find("llama.cpp").name
    ('vllm', 'lmcache', 'llamacpp')
    """
    names = {known: exporter.aliases for known, exporter in REGISTRY.items()}
    return REGISTRY[resolve(name, names, "--to")]


def export_plan(
    plan: Plan, to: str, deployment: Deployment | None = None, file: str | None = None
) -> Export:
    """Write a plan for a runtime.

    Args:
        plan: the document.
        to: name of the runtime.
        deployment: where it will run; None for one rank within the plan's own budgets.
        file: path that the text will have; None takes the runtime's usual name.

    Raises:
        InputError: no such runtime, or a plan that it would run as something else.
        InfeasibleError: the place is too small.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> from kvplan.planning import make_plan
    >>> from kvplan.scenario import Options, Scenario
    >>> from kvplan.workload import Budgets, Workload
    >>> made = export_plan(make_plan(Scenario(
    ...     model=load_model("opt-125m"), hardware=load_hardware("l4"),
    ...     workload=Workload(batch=64, context=2048), budgets=Budgets(hbm_bytes=3 * 2**30),
    ...     options=Options(paths=("resident", "fetch"), stages=(4,)))), "vllm")
    >>> made.command, made.pool.total_bytes == made.pool.chunks * 64 * 36_864
    ('vllm serve --config vllm.yaml', True)
    """
    exporter, demand = find(to), demand_of(plan)
    made = exporter.export(demand, deployment or Deployment(), file or exporter.file)
    return replace(made, unexpressed=(*made.unexpressed, *_segments(demand)))


def _segments(demand: CacheDemand) -> list[Unexpressed]:
    """Decisions that change while tokens are generated; the export has the last one."""
    generation = demand.plan.generation
    if generation is None or len(generation.segments) < 2:
        return []
    return [
        Unexpressed("segments of the generation", str(len(generation.segments)),
                    "one configuration holds from start to end: that of the last and largest")
    ]  # fmt: skip
