"""Pictures of plans, sweeps and validation results: one style, units on every axis.

Each kind is a function that returns a matplotlib ``Figure`` and, under the same name with
``_data``, one that returns the numbers behind it. They read the step graph and its simulation;
none describes the step again. ``kvplan plot KIND`` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvplan.pictures.gains import values, values_data
from kvplan.pictures.heat import (
    machine,
    machine_data,
    pipeline,
    pipeline_data,
    what_if,
    workload,
    workload_data,
)
from kvplan.pictures.lanes import timeline, timeline_data
from kvplan.pictures.measured import accuracy, accuracy_data
from kvplan.pictures.pareto import front, front_data
from kvplan.pictures.ratio import recompute, recompute_data
from kvplan.pictures.roof import roofline, roofline_data
from kvplan.pictures.rows import sweep, sweep_data
from kvplan.pictures.shares import paths, paths_data
from kvplan.pictures.style import save
from kvplan.pictures.tiers import memory, memory_data

__all__ = [
    "KINDS",
    "Kind",
    "accuracy",
    "front",
    "machine",
    "memory",
    "paths",
    "pipeline",
    "recompute",
    "roofline",
    "save",
    "sweep",
    "timeline",
    "values",
    "what_if",
    "workload",
]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of picture.

    Args:
        shows: what it shows, in a few words.
        reads: ``plan``, ``results`` or ``rows``: which file it is drawn from.
        draw: document to figure.
        data: document to the numbers behind the figure.
    """

    shows: str
    reads: str
    draw: Callable[..., Any]
    data: Callable[..., dict[str, Any]]


KINDS = {
    "timeline": Kind(
        "one step: a lane per resource, staging buffers", "plan", timeline, timeline_data
    ),
    "paths": Kind("path mix and recompute ratio per layer", "plan", paths, paths_data),
    "recompute": Kind(
        "step over recompute ratio; optimum, KVPR, rule of thumb", "plan", recompute, recompute_data
    ),
    "pipeline": Kind("step over stages and queue depth", "plan", pipeline, pipeline_data),
    "workload": Kind("throughput over context and batch", "plan", workload, workload_data),
    "machine": Kind("step over link and FLOP/s", "plan", machine, machine_data),
    "roofline": Kind("roofline of the step", "plan", roofline, roofline_data),
    "memory": Kind("memory per tier while the cache fills", "plan", memory, memory_data),
    "front": Kind("latency, throughput and HBM: the front", "plan", front, front_data),
    "values": Kind("what one more GiB, GB/s, 10 % FLOP/s would save", "plan", values, values_data),
    "sweep": Kind("rows of a sweep: lines of one column over another", "rows", sweep, sweep_data),
    "accuracy": Kind("predicted against measured steps", "results", accuracy, accuracy_data),
}
"""Name to kind, in the order of the help."""
