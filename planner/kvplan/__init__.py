"""kvplan: a planner and simulator for KV-cache offload schedules.

What a program needs is here by name and loaded when first used; `import kvplan` loads nothing.
``kvplan.pictures`` draws, ``kvplan.estimate``, ``kvplan.sweep``, ``kvplan.analyze``,
``kvplan.trace`` and ``kvplan.report`` hold a function of the same word or ``rows``.

>>> import kvplan
>>> kvplan.__version__.count(".")
2
>>> plan = kvplan.make_plan(kvplan.Scenario(
...     model=kvplan.load_model("opt-125m"), hardware=kvplan.load_hardware("l4"),
...     workload=kvplan.Workload(batch=8, context=1024)))
>>> plan.decision.strategy
'no_offload'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kvplan.baselines import ladder
    from kvplan.errors import InfeasibleError, InputError, KvplanError
    from kvplan.hardware import override
    from kvplan.hardware_library import hardware_names, load_hardware
    from kvplan.model_library import load_model, model_names
    from kvplan.objective import Objective
    from kvplan.plan_file import read_plan, write_plan
    from kvplan.planning import make_plan, replay
    from kvplan.profiler_trace import read_profile
    from kvplan.scenario import Options, Scenario
    from kvplan.sweep_file import read_rows
    from kvplan.validation_file import read_results
    from kvplan.workload import Budgets, Workload

_PLACES = {
    "Budgets": "workload",
    "InfeasibleError": "errors",
    "InputError": "errors",
    "KvplanError": "errors",
    "Objective": "objective",
    "Options": "scenario",
    "Scenario": "scenario",
    "Workload": "workload",
    "hardware_names": "hardware_library",
    "ladder": "baselines",
    "load_hardware": "hardware_library",
    "load_model": "model_library",
    "make_plan": "planning",
    "model_names": "model_library",
    "override": "hardware",
    "read_plan": "plan_file",
    "read_profile": "profiler_trace",
    "read_results": "validation_file",
    "read_rows": "sweep_file",
    "replay": "planning",
    "write_plan": "plan_file",
}
"""Public name to the module that holds it."""

__all__ = [
    "Budgets",
    "InfeasibleError",
    "InputError",
    "KvplanError",
    "Objective",
    "Options",
    "Scenario",
    "Workload",
    "hardware_names",
    "ladder",
    "load_hardware",
    "load_model",
    "make_plan",
    "model_names",
    "override",
    "read_plan",
    "read_profile",
    "read_results",
    "read_rows",
    "replay",
    "write_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'kvplan' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"kvplan.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
