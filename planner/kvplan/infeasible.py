"""Why nothing fits, and the smallest change that makes a plan possible.

A change is only advised after a plan was found with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from kvplan import fluid
from kvplan.candidates import bounded_candidates, flow_graph, schedules
from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError
from kvplan.fitting import fitted, simplest
from kvplan.hardware import ONE_POOL
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.units import GIB, KIB, MIB, format_bytes
from kvplan.workload import Workload

SLACK = (1.0, 1.02, 1.1, 1.3, 2.0, 4.0)
"""Factors on the shortfall that are tried in turn: rounding to blocks needs a little more."""

BLOCKS = (0.125, 0.25, 0.5, 1, 2, 4, 8, 16)
"""The same in blocks of one layer, where only whole blocks do not fit."""

LEAST_BLOCK = 16
"""Tokens: the tile of a matrix product."""

FLAGS = {"hbm": "--hbm", "dram": "--dram", "pinned": "--pinned", "disk": "--disk"}


def explain_infeasible(scenario: Scenario) -> InfeasibleError:
    """Which budget binds, and the smallest change that makes a plan possible."""
    short = least_shortfall(scenario)
    tier = max(sorted(short), key=lambda t: short[t])
    elsewhere = tier == "tier" or (tier == "hbm" and may_stream(scenario))
    changes = [
        change
        for change in (
            larger_budget(scenario, tier, short),
            larger_budget(scenario, "dram", {"dram": sum(short.values())}) if elsewhere else None,
            smaller_reserve(scenario, tier, short),
            smaller_batch(scenario),
            streamed_weights(scenario),
            smaller_block(scenario, tier, short),
        )
        if change
    ]
    change = " or ".join(changes) or "take a machine with more memory or a smaller model"
    reason = heavy_weights(scenario) or in_words(scenario, tier, short)
    if scenario.hardware.unified:
        reason += f" ({ONE_POOL})"
    return InfeasibleError(tier, reason, change)


def shortage(scenario: Scenario) -> InfeasibleError:
    """Which budget binds and by how much; no change is searched for, so it is quick."""
    short = least_shortfall(scenario)
    tier = max(sorted(short), key=lambda t: short[t])
    reason = heavy_weights(scenario) or in_words(scenario, tier, short)
    return InfeasibleError(tier, reason, "`kvplan solve` says what would make it fit")


def in_words(scenario: Scenario, tier: str, short: dict[str, float]) -> str:
    """What is missing of a budget; or that only whole blocks of tokens do not fit it."""
    have = format_bytes(scenario.capacity[tier])
    if only_blocks(short):
        block = scenario.workload.block
        return f"a budget of {have} holds a plan in shares of tokens, none in blocks of {block}"
    return f"{format_bytes(short[tier])} short of a budget of {have}"


def only_blocks(short: dict[str, float]) -> bool:
    """Whether a plan that may divide blocks fits all budgets."""
    return max(short.values()) <= 1.0


def may_stream(scenario: Scenario) -> bool:
    """Whether weights may leave HBM."""
    return scenario.options.weights != "resident" and not scenario.hardware.unified


def heavy_weights(scenario: Scenario) -> str | None:
    """That the weights alone are more than all tiers that may hold them; None if they are not."""
    model = scenario.model
    size = model.params * element_bytes(model.weight_dtype)
    tiers = ("hbm", "dram") if may_stream(scenario) else ("hbm",)
    room = sum(scenario.capacity[tier] for tier in tiers)
    if size <= room:
        return None
    where = " and ".join(tiers) + (" together" if len(tiers) > 1 else "")
    return f"weights of {format_bytes(size)} exceed the {format_bytes(room)} of {where}"


def least_shortfall(scenario: Scenario) -> dict[str, float]:
    """Bytes missing per tier for the schedule that misses least."""
    stream = may_stream(scenario)
    least: dict[str, float] | None = None
    for schedule in schedules(scenario, stream, min(scenario.options.queue_depths)):
        flow = flow_graph(scenario, schedule)
        found = fluid.shortfall(flow, scenario.classes, scenario.capacity, scenario.quality)
        missing = found.shortfall_bytes
        if least is None or sum(missing.values()) < sum(least.values()):
            least = missing
    assert least is not None, "a search has at least one schedule"
    if max(least.values()) < 1.0:  # fits on average; whole blocks do not
        return {**least, "hbm": 1.0}
    return least


def larger_budget(scenario: Scenario, tier: str, short: dict[str, float]) -> str | None:
    """The smallest larger budget of a tier with which a plan was found, in words."""
    if tier == "tier":
        return larger_tier(scenario, short)
    for wanted in budgets_to_try(scenario, tier, short):
        budgets = scenario.budgets
        if tier == "hbm":
            card = scenario.hardware.gpu.memory_bytes
            needed = wanted + budgets.reserve_bytes
            if needed > card:
                return None
            share = max(budgets.utilisation, math.ceil(needed / card * 100) / 100)
            changed = dataclasses.replace(budgets, hbm_bytes=needed, utilisation=min(share, 1.0))
            words = f"give --hbm at least {compact(needed)}"
            if share > budgets.utilisation:
                words += f" and --utilisation {min(share, 1.0):g}"
        else:
            changed = dataclasses.replace(budgets, **{f"{tier}_bytes": wanted})
            words = f"give {FLAGS[tier]} at least {compact(wanted)}"
            if tier == "pinned" and wanted > scenario.capacity["dram"]:
                return None
        if plan_exists(dataclasses.replace(scenario, budgets=changed)):
            return words
    return None


def larger_tier(scenario: Scenario, short: dict[str, float]) -> str | None:
    """The smallest larger tier with which a plan was found, in words: what a machine has beside
    host memory is its profile's to say.
    """
    hardware = scenario.hardware
    assert hardware.tier is not None, "only what a machine has can be short"
    for wanted in budgets_to_try(scenario, "tier", short):
        tier = dataclasses.replace(hardware.tier, capacity_bytes=wanted)
        larger = dataclasses.replace(hardware, tier=tier)
        if plan_exists(dataclasses.replace(scenario, hardware=larger)):
            return f"take a profile whose tier.capacity is at least {compact(wanted)}"
    return None


def smaller_reserve(scenario: Scenario, tier: str, short: dict[str, float]) -> str | None:
    """The largest smaller reserve with which a plan was found, in words."""
    budgets = scenario.budgets
    if tier != "hbm" or not budgets.reserve_bytes:
        return None
    whole = dataclasses.replace(scenario, budgets=dataclasses.replace(budgets, reserve_bytes=0))
    for need in budgets_to_try(scenario, tier, short):
        left = int(whole.capacity["hbm"] - need) // MIB * MIB
        if left < 0:
            return None
        changed = dataclasses.replace(budgets, reserve_bytes=left)
        if plan_exists(dataclasses.replace(scenario, budgets=changed)):
            return f"lower --reserve to {left // MIB}MiB"
    return None


def budgets_to_try(scenario: Scenario, tier: str, short: dict[str, float]) -> Iterator[int]:
    """Whole sizes above what is missing, each easy to type."""
    missing = [short[tier] * factor for factor in SLACK]
    if only_blocks(short):
        load, e = scenario.workload, element_bytes(scenario.workload.kv_dtype)
        block = load.block * load.batch * max(layer.kv_bytes(e) for layer in scenario.model.layers)
        missing = [block * factor for factor in BLOCKS]
    for more in missing:
        need = scenario.capacity[tier] + max(more, 1.0)
        unit = GIB // 10 if need >= GIB else MIB if need >= MIB else KIB
        yield math.ceil(need / unit) * unit


def compact(size: int) -> str:
    """A size that can be typed and is no smaller.

    >>> compact(1536), compact(3 * 2**20), compact(int(12.34 * 2**30))
    ('2KiB', '3MiB', '12.4GiB')
    """
    if size >= GIB:
        return f"{math.ceil(size / GIB * 10) / 10:g}GiB"
    return f"{math.ceil(size / MIB)}MiB" if size >= MIB else f"{math.ceil(size / KIB)}KiB"


def smaller_batch(scenario: Scenario) -> str | None:
    """The largest smaller batch for which a plan was found, in words."""
    low, high = 0, scenario.workload.batch
    while high - low > 1:
        middle = (low + high) // 2
        if plan_exists(with_batch(scenario, middle)):
            low = middle
        else:
            high = middle
    return f"lower --batch to {low}" if low else None


def with_batch(scenario: Scenario, batch: int) -> Scenario:
    """The scenario with another batch, in one micro-batch."""
    workload: Workload = dataclasses.replace(scenario.workload, batch=batch, micro_batches=1)
    return dataclasses.replace(scenario, workload=workload)


def streamed_weights(scenario: Scenario) -> str | None:
    """Whether letting weights be streamed is enough, in words."""
    if scenario.options.weights != "resident" or scenario.hardware.unified:
        return None
    options = dataclasses.replace(scenario.options, weights="auto")
    fits = plan_exists(dataclasses.replace(scenario, options=options))
    return "let weights be streamed (--weights auto)" if fits else None


def smaller_block(scenario: Scenario, tier: str, short: dict[str, float]) -> str | None:
    """The largest smaller block with which a plan was found, where blocks are what does not fit."""
    block = scenario.workload.block
    if not only_blocks(short):
        return None
    for wanted in (block // 2, block // 4):
        if wanted < LEAST_BLOCK:
            return None
        workload = dataclasses.replace(scenario.workload, block=wanted)
        if plan_exists(dataclasses.replace(scenario, workload=workload)):
            return f"lower --block to {wanted}"
    return None


def plan_exists(scenario: Scenario) -> bool:
    """Whether a plan that fits is found for a scenario."""
    if everything_resident(scenario) is not None:
        return True
    candidates = sorted(bounded_candidates(scenario), key=lambda c: c.bound_s)
    return any(fitted(scenario, c) or simplest(scenario, c) for c in candidates[:3])
