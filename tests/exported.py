"""Plans for tests of exports, small and fast, one for every kind of decision."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvplan.export.demand import CacheDemand, demand_of
from kvplan.hardware import override
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.plan import Plan
from kvplan.plan_file import encode
from kvplan.planning import make_plan
from kvplan.scenario import GOOD_GAP, Options, Scenario
from kvplan.workload import Budgets, Workload

GIB = 2**30

SCENARIOS: dict[str, dict[str, Any]] = {
    "fetch": {"paths": ("resident", "fetch")},
    "recompute": {"paths": ("resident", "fetch", "recompute"), "good_gap": 0.05},
    "packed": {"paths": ("resident", "fetch", "fetch_int8"), "allow": {"int8": 0.5}},
    "host": {"paths": ("resident", "attend_host")},
    "disk": {"paths": ("resident", "fetch", "fetch_disk"), "dram": 1 * GIB, "disk": 64 * GIB},
    "grouped": {"model": "llama-3.2-1b", "context": 16384, "batch": 32, "hbm": 12,
                "paths": ("resident", "fetch")},
    "latent": {"model": "deepseek-v2-lite", "gpu": "h200", "context": 16384, "hbm": 44,
               "paths": ("resident", "fetch")},
    "resident": {"batch": 4, "hbm": 12, "paths": ("resident",)},
}  # fmt: skip
"""Name to what differs from opt-125m on an L4 with 64 sequences of 1920 + 128 tokens."""


@cache
def plan(kind: str = "fetch") -> Plan:
    """The plan of a scenario."""
    given = SCENARIOS[kind]
    changed: dict[str, Any] = {"host_attention_bytes_per_s": 50e9}
    return make_plan(
        Scenario(
            model=load_model(given.get("model", "opt-125m")),
            hardware=override(load_hardware(given.get("gpu", "l4")), **changed),
            overrides=changed,
            workload=Workload(
                batch=given.get("batch", 64), context=given.get("context", 1920), gen=128
            ),
            budgets=Budgets(
                hbm_bytes=given.get("hbm", 3) * GIB,
                dram_bytes=given.get("dram", 64 * GIB),
                disk_bytes=given.get("disk", 0),
            ),
            options=Options(
                paths=given["paths"], allow=given.get("allow", {}), axes=("token",), stages=(4,),
                queue_depths=(2,), refine_blocks=False, good_gap=given.get("good_gap", GOOD_GAP),
            ),
        ),
        time="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


@cache
def demand(kind: str = "fetch") -> CacheDemand:
    """The cache demand of a scenario's plan."""
    return demand_of(plan(kind))


def text(kind: str = "fetch") -> bytes:
    """The plan document of a scenario."""
    return encode(plan(kind)).encode()
