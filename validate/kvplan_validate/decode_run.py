"""Decode many tokens of a plan over a tiered pool and say what each tier served."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan.allocation import tokens_by_path
from kvplan.errors import InfeasibleError
from kvplan.evaluate import Evaluation
from kvplan.forced import forced
from kvplan.scenario import Scenario
from kvplan_validate.decoding import Decoding, Planner, block_bytes, placement
from kvplan_validate.harness import DTYPES, SMALL_POOL, Bench
from kvplan_validate.metrics import QUANTILES, quantile
from kvplan_validate.pool import PinnedPool
from kvplan_validate.store import Source
from kvplan_validate.tiers import TIERS, TieredPool
from kvplan_validate.token_file import aligned

SPARE_BLOCKS = 2
"""Host buffers that blocks on the move wait in."""


def same_shares(evaluation: Evaluation) -> Planner:
    """Plans for other contexts with the paths' shares and the pipeline of a plan."""
    total: dict[str, float] = {}
    for segments in evaluation.allocation:
        for path, tokens in tokens_by_path(segments).items():
            total[path] = total.get(path, 0) + tokens
    schedule = dataclasses.replace(evaluation.schedule, mode="eager", boundary="overlap")

    def plan(scenario: Scenario) -> Evaluation:
        found = forced(scenario, schedule, total)
        if isinstance(found, str):
            raise InfeasibleError("memory", found, "decode fewer tokens, or raise a budget")
        return found

    return plan


def at_whole_blocks(scenario: Scenario) -> Scenario:
    """The scenario with its context cut to whole blocks, at least one."""
    workload = scenario.workload
    tokens = max(workload.tokens // workload.block, 1) * workload.block
    return dataclasses.replace(
        scenario, workload=dataclasses.replace(workload, context=tokens, gen=0)
    )


def capacities(scenario: Scenario, plan: Planner, steps: int) -> dict[str, int]:
    """Blocks each tier must hold at the longest of the contexts, and one more of each in HBM."""
    workload, most = scenario.workload, dict.fromkeys(TIERS, 0)
    for grown in range(steps // workload.block + 1):
        longer = dataclasses.replace(workload, context=workload.context + grown * workload.block)
        at = dataclasses.replace(scenario, workload=longer)
        wanted = list(placement(at, plan(at)).values())
        most = {tier: max(most[tier], wanted.count(tier)) for tier in TIERS}
    most["hbm"] += len(scenario.model.layers) * workload.micro_batches
    return most


def decode(
    scenario: Scenario,
    evaluation: Evaluation,
    steps: int,
    *,
    device: str,
    disk_folder: Path,
    notice: Callable[[str], None],
) -> dict[str, Any]:
    """Decode tokens after random ones.

    Args:
        scenario: the question a plan answers.
        evaluation: the plan; paths that keep K and V in the cache's own format only.
        steps: tokens to decode.
        device: ``cuda`` or ``cpu``.
        disk_folder: where tokens on disk lie.
        notice: takes sentences about what is not as asked for.

    Returns:
        ``steps``, ``context`` at the end, ``latency_s`` (quantile to seconds of a step as its
        caller sees it), ``hit_rate`` and ``read_bytes`` per tier, ``promotions``, ``demotions``,
        ``moved_bytes`` by way.

    Raises:
        InputError: a path that keeps no K and V.
        InfeasibleError: a longer context does not fit the plan's budgets.
        ResourceError: the machine cannot hold it.
    """
    scenario, plan = at_whole_blocks(scenario), same_shares(evaluation)
    held = capacities(scenario, plan, steps)
    dtype = DTYPES[scenario.workload.kv_dtype]
    size = block_bytes(scenario, torch.empty(0, dtype=dtype).element_size())
    bench = Bench(0, notice, torch.device(device))
    pinned = (held["dram"] + SPARE_BLOCKS) * aligned(size)
    host = own = blocks = decoding = None
    try:
        host, own = PinnedPool(pinned), PinnedPool(SMALL_POOL)
        blocks = TieredPool(
            size, held, device=bench.device, host=host, folder=disk_folder, notice=notice
        )
        kv_dtype, tokens = scenario.workload.kv_dtype, scenario.workload.tokens + steps + 1
        decoder = bench.decoder(scenario.model, kv_dtype, tokens)
        decoding = Decoding(scenario, plan, decoder, blocks, own)
        decoding.fill(random_tokens(scenario, bench.device, dtype))
        samples = [_step_s(decoding) for _ in range(steps)]
        return _report(decoding, blocks, samples)
    finally:
        for held_thing in (decoding, blocks, own, host, bench):
            if held_thing is not None:
                held_thing.close()


def random_tokens(scenario: Scenario, device: torch.device, dtype: torch.dtype) -> Source:
    """The same random K and V for every block: right for time, meaningless as text."""
    spec, workload = scenario.model.layers[0], scenario.workload
    shape = (workload.block, workload.micro_batch, 2, spec.kv_heads, spec.head_dim_k)
    kept = torch.empty(shape, device=device, dtype=dtype).normal_()

    def source(layer: int, micro_batch: int, begin: int, count: int) -> tuple[Tensor, Tensor]:
        return kept, kept[:count]

    return source


def _step_s(decoding: Decoding) -> float:
    begin = time.perf_counter()
    decoding.step()
    if decoding.runtime is not None:
        decoding.runtime.synchronise()
    return time.perf_counter() - begin


def _report(decoding: Decoding, blocks: TieredPool, samples: list[float]) -> dict[str, Any]:
    traffic = blocks.traffic
    return {
        "steps": len(samples),
        "context": decoding.scenario.workload.context,
        "latency_s": {str(share): quantile(samples, share) for share in QUANTILES},
        "hit_rate": traffic.hit_rate(),
        "read_bytes": dict(traffic.read_bytes),
        "promotions": traffic.promotions,
        "demotions": traffic.demotions,
        "moved_bytes": {f"{a} to {b}": n for (a, b), n in sorted(traffic.moved_bytes.items())},
    }


def sentence(decoded: Mapping[str, Any]) -> str:
    """What was decoded, for people."""
    tiers = ", ".join(f"{tier} {100 * share:.1f} %" for tier, share in decoded["hit_rate"].items())
    latency = ", ".join(
        f"p{100 * float(share):.0f} {seconds * 1e3:.2f} ms"
        for share, seconds in decoded["latency_s"].items()
    )
    return (
        f"decoded {decoded['steps']} tokens to a context of {decoded['context']}: {latency}; "
        f"blocks read from {tiers}; {decoded['promotions']} promoted, "
        f"{decoded['demotions']} demoted"
    )
