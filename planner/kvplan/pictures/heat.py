"""Heat maps of estimated steps: stages x queue depth, context x batch, link x FLOP/s."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kvplan.pictures.style as style
from kvplan import wording
from kvplan.cost import flop_per_s
from kvplan.curve import Curve
from kvplan.errors import InputError
from kvplan.estimate import try_estimate
from kvplan.hardware import HardwareProfile, override
from kvplan.pictures.heat_map import Cell, heat_map
from kvplan.plan import Plan
from kvplan.planning import scenario_of, schedule_of
from kvplan.scenario import Scenario
from kvplan.units import format_seconds
from kvplan.workload import MAX_BATCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = (1, 2, 4, 6, 8, 12)
QUEUE_DEPTHS = (1, 2, 3, 4, 6)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def what_if(hardware: HardwareProfile, *, link: float = 1.0, flop: float = 1.0) -> HardwareProfile:
    """A machine whose link to the GPU and matrix rate are some times as fast, slot or not.

    Args:
        hardware: the machine.
        link: factor on the rate of copies to the GPU, and on the slot's raw rate if above 1.
        flop: factor on the achieved matrix rate.

    >>> from kvplan.hardware_library import load_hardware
    >>> card = load_hardware("a100")
    >>> round(what_if(card, link=4.0).h2d.copy.rate() / card.h2d.copy.rate(), 9)
    4.0
    """
    if link != 1.0:
        old = hardware.h2d
        h2d = dataclasses.replace(
            old,
            raw_bytes_per_s=old.raw_bytes_per_s * max(link, 1.0),
            copy=Curve(old.copy.scaled(1 / link).pieces),
            duplex_bytes_per_s=old.duplex_bytes_per_s and old.duplex_bytes_per_s * link,
            pageable_bytes_per_s=old.pageable_bytes_per_s and old.pageable_bytes_per_s * link,
        )
        hardware = hardware.with_link(h2d=h2d)
    if flop != 1.0:
        hardware = override(hardware, flop_per_s=flop * flop_per_s(hardware, "fp16"))
    return hardware


def _cell(scenario: Callable[[], Scenario], **fixed: Any) -> Cell:
    try:
        asked = scenario()
        found = try_estimate(asked, **fixed)
    except InputError:
        return None
    if found is None:
        return None
    return {
        "step_s": found.step_s,
        "tokens_per_s": asked.workload.tokens_per_s(found.step_s),
        "recompute_ratio": found.recompute_ratio,
    }


def pipeline_data(plan: Plan) -> dict[str, Any]:
    """Estimated step for every stage count and queue depth, on the plan's axis."""
    scenario, chosen = scenario_of(plan), schedule_of(plan)
    stages = sorted({*STAGES, chosen.stages})
    depths = sorted({*QUEUE_DEPTHS, chosen.queue_depth})
    if chosen.axis == "layer":
        stages = [s for s in stages if s <= len(scenario.model.layers)]
    cells = [
        [
            _cell(
                lambda: scenario, schedule=dataclasses.replace(chosen, stages=s, queue_depth=depth)
            )
            for s in stages
        ]
        for depth in depths
    ]
    return {
        "columns": stages,
        "rows": depths,
        "cells": cells,
        "chosen": [chosen.queue_depth, chosen.stages],
        "about": _about(plan),
    }


def workload_data(plan: Plan) -> dict[str, Any]:
    """Estimated tokens per second for contexts and batches around the plan's."""
    scenario = scenario_of(plan)
    load = scenario.workload
    contexts = _around(load.context, 1, 1 << 30)
    batches = [b for b in _around(load.batch, 1, MAX_BATCH) if b % load.micro_batches == 0]

    def changed(batch: int, context: int) -> Scenario:
        workload = dataclasses.replace(load, batch=batch, context=context)
        return dataclasses.replace(scenario, workload=workload)

    cells = [
        [_cell(lambda b=batch, c=context: changed(b, c)) for context in contexts]  # type: ignore[misc]
        for batch in batches
    ]
    return {
        "columns": contexts,
        "rows": batches,
        "cells": cells,
        "chosen": [load.batch, load.context],
        "about": _about(plan),
    }


def _around(value: int, least: int, most: int) -> list[int]:
    """A value with two halves below and three doublings above."""
    return sorted({min(max(round(value * 2.0**k), least), most) for k in range(-2, 4)})


def machine_data(plan: Plan) -> dict[str, Any]:
    """Estimated step for machines with another link and another matrix rate."""
    scenario = scenario_of(plan)
    own = scenario.hardware

    def changed(link: float, flop: float) -> Scenario:
        return dataclasses.replace(scenario, hardware=what_if(own, link=link, flop=flop))

    cells = [
        [_cell(lambda f=flop, n=link: changed(n, f)) for link in FACTORS]  # type: ignore[misc]
        for flop in FACTORS
    ]
    return {
        "columns": [f * own.h2d.copy.rate() for f in FACTORS],
        "rows": [f * flop_per_s(own, scenario.model.weight_dtype) for f in FACTORS],
        "cells": cells,
        "chosen": None,
        "about": _about(plan),
    }


def _about(plan: Plan) -> str:
    return (
        f"{wording.workload(plan)}; {wording.machine(plan)}; estimates: one schedule per cell, "
        "tokens not rounded to blocks"
    )


def pipeline(plan: Plan) -> Figure:
    """Draw the step over stages and queue depth.

    Args:
        plan: the plan; its axis is kept.

    Returns:
        A heat map of estimated steps; the plan's own stages and depth are framed.
    """
    data = pipeline_data(plan)
    best = min(
        (c["step_s"], s, d)
        for d, row in zip(data["rows"], data["cells"], strict=True)
        for s, c in zip(data["columns"], row, strict=True)
        if c is not None
    )
    return heat_map(
        data,
        "step_s",
        lambda c: format_seconds(c["step_s"]),
        f"Stages and queue depth: {best[1]} stages, {best[2]} buffers, {format_seconds(best[0])} "
        "at best",
        ("stages", "queue depth (staging buffers)"),
        "step latency",
        fewer_is_better=True,
    )


def workload(plan: Plan) -> Figure:
    """Draw throughput over context and batch.

    Args:
        plan: the plan; contexts and batches around its own are estimated.

    Returns:
        A heat map of estimated tokens per second; the plan's own workload is framed.
    """
    data = workload_data(plan)
    return heat_map(
        data,
        "tokens_per_s",
        lambda c: f"{style.plain(c['tokens_per_s'])}/s\n{format_seconds(c['step_s'])}",
        "Tokens per second, and the step, over context and batch",
        ("context (tokens per sequence)", "batch (sequences)"),
        "throughput (tokens/s)",
        fewer_is_better=False,
    )


def machine(plan: Plan) -> Figure:
    """Draw the step over the rates of link and matrix units.

    Args:
        plan: the plan; machines from a quarter to four times its rates are estimated.

    Returns:
        A heat map of estimated steps with the recompute ratio in each cell; the middle is the
        plan's machine.
    """
    data = machine_data(plan)
    data["chosen"] = [data["rows"][2], data["columns"][2]]
    return heat_map(
        data,
        "step_s",
        lambda c: f"{format_seconds(c['step_s'])}\nrecompute {c['recompute_ratio']:.0%}",
        "Which hardware would change the answer: step and recompute ratio",
        ("link to the GPU (GB/s)", "matrix rate (TFLOP/s)"),
        "step latency",
        fewer_is_better=True,
        scales=(1e-9, 1e-12),
    )
