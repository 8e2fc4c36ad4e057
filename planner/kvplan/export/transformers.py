"""Hugging Face transformers: the stock cache that comes nearest, as a generation config."""

from __future__ import annotations

import json
from typing import Any

from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError, InputError
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, power_of_two, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import size_pool
from kvplan.export.prefix_cache import (
    host_attention_lost,
    percent,
    precision_lost,
    recompute_lost,
    schedule,
    weights_lost,
)
from kvplan.units import GIB, format_bytes

_CONFIG = "transformers/generation/configuration_utils.py, GenerationConfig"

KEYS = {
    "cache_implementation": Key(kind=str, unit="which cache", source=_CONFIG,
                                words=("dynamic", "offloaded")),
    "use_cache": Key(kind=bool, unit="on", source=_CONFIG, words=(True,)),
    "max_new_tokens": Key(kind=int, unit="tokens per sequence", source=_CONFIG, least=1),
}  # fmt: skip


SMALLER = "a smaller batch or fewer tokens"
"""What to change where the cache does not fit."""


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a generation config.

    Raises:
        InputError: several ranks, or a cache format that is not the model's.
        InfeasibleError: HBM or host memory are too small for whole layers.
    """
    _check(demand, deployment)
    away = demand.away_share > 0
    warnings = _check_offload(demand, deployment) if away else []
    values: dict[str, Any] = {
        "cache_implementation": "offloaded" if away else "dynamic",
        "use_cache": True,
    }
    if demand.plan.inputs.workload.gen:
        values["max_new_tokens"] = demand.plan.inputs.workload.gen
    load = f"GenerationConfig.from_pretrained({_folder(file)!r}, {_name(file)!r})"
    return Export(
        command=f"model.generate(**inputs, generation_config={load})",
        text=json.dumps(values, indent=1) + "\n",
        mapped=_mapped(demand, values),
        unexpressed=tuple(_unexpressed(demand)) if away else (_schedule(demand),),
        warnings=tuple(warnings),
        others=_others(demand, deployment) if away else (),
    )


def _folder(file: str) -> str:
    return file.rpartition("/")[0] or "."


def _name(file: str) -> str:
    return file.rpartition("/")[2]


def _check(demand: CacheDemand, deployment: Deployment) -> None:
    if deployment.ranks > 1:
        raise InputError("--tp", deployment.ranks, "1: offloaded caches work on one device only")
    weights = demand.model.weight_dtype
    if element_bytes(demand.kv_dtype) != element_bytes(weights):
        raise InputError(
            "inputs.workload.kv_dtype", demand.kv_dtype,
            f"{weights} or as wide: these caches keep the model's own format, and the plan's "
            "bytes would not be those",
        )  # fmt: skip


def pinned_bytes(demand: CacheDemand) -> float:
    """Host memory of the whole cache, one pinned block per layer for K and one for V.

    Each is rounded up to a power of two: the copies out go through PyTorch's pinned allocator.
    """
    element, batch = element_bytes(demand.kv_dtype), demand.batch
    return float(
        sum(
            2
            * power_of_two(layer.kv_bytes(element) * layer.cached_tokens(demand.tokens) * batch / 2)
            for layer in demand.model.layers
        )
    )


def _check_offload(demand: CacheDemand, deployment: Deployment) -> list[str]:
    refuse_one_pool(demand, deployment)
    left = demand.hbm_kv_bytes(1)
    element = element_bytes(demand.kv_dtype)
    layer = max(
        layer.kv_bytes(element) * layer.cached_tokens(demand.tokens)
        for layer in demand.model.layers
    )
    if 3 * layer * demand.batch > left:
        raise InfeasibleError(
            "hbm",
            "two layers of the cache and a copy of one lie in HBM at a time: "
            f"{format_bytes(3 * layer * demand.batch)} of the {format_bytes(left)} that the "
            "weights leave",
            SMALLER,
        )
    pinned = pinned_bytes(demand)
    warnings = check_host(demand, deployment, pinned, change=SMALLER)
    if pinned > 1.01 * demand.all_bytes:
        warnings.append(
            f"K and V of {format_bytes(demand.all_bytes)} pin {format_bytes(pinned)}: PyTorch "
            "rounds pinned blocks up to powers of two, here each layer's K and V"
        )
    warnings.append("before transformers 5.20 the copies out could race with the computation")
    return warnings


def _mapped(demand: CacheDemand, values: dict[str, Any]) -> tuple[Mapped, ...]:
    moved = demand.plan.prediction.moved_bytes.get("h2d", 0.0)
    meanings = {
        "offloaded": "whole layers in host memory, one layer ahead; each step all K and V cross "
        f"the link, {format_bytes(demand.all_bytes)} in and as much out (the plan: "
        f"{format_bytes(moved)} in)",
        "dynamic": "everything in HBM, as in the plan",
    }
    return tuple(Mapped(n, v, meanings.get(str(v), KEYS[n].unit)) for n, v in values.items())


def _schedule(demand: CacheDemand) -> Unexpressed:
    return Unexpressed(
        "decode schedule", schedule(demand),
        "one layer is fetched ahead, on one side stream, whole; there are no stages",
    )  # fmt: skip


def _unexpressed(demand: CacheDemand) -> list[Unexpressed]:
    kept = percent(1 - demand.away_share)
    found = [
        _schedule(demand),
        Unexpressed("resident tokens per layer", f"{kept} of K and V in HBM",
                    "every layer is copied out whole after each step"),
    ]  # fmt: skip
    found += recompute_lost(demand, "these tokens are fetched as K and V")
    found += precision_lost(
        demand, 'the cache is not packed; cache_implementation "quantized" is, but stays in HBM'
    )
    found += host_attention_lost(demand, "the GPU attends all tokens")
    found += weights_lost(demand, "device_map of accelerate offloads weights, not this file")
    if demand.place_bytes["disk"]:
        found.append(
            Unexpressed("disk tier", format_bytes(demand.place_bytes["disk"]),
                        "these tokens stay in host memory")
        )  # fmt: skip
    return found


def _others(demand: CacheDemand, deployment: Deployment) -> tuple[tuple[str, str], ...]:
    """Continuous batching, whose swap space takes whole requests."""
    if not demand.place_bytes["host"]:
        return ()
    pool = size_pool(demand, deployment, demand.block)
    config = (
        f"ContinuousBatchingConfig(page_size={pool.chunk_tokens}, "
        f"cpu_offload_space={pool.total_bytes / GIB!r})"
    )
    return (("continuous batching, space to swap whole requests in GiB", config),)


def parse(text: str) -> dict[str, Any]:
    """Keys and values of a file."""
    values: dict[str, Any] = json.loads(text)
    return values


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """All of K and V in HBM or, offloaded, all in host memory; there is nothing between."""
    if parse(text)["cache_implementation"] == "dynamic":
        return ReadBack(host_bytes=0.0, block_bytes=1, hbm_bytes=demand.all_bytes)
    return ReadBack(host_bytes=demand.all_bytes, block_bytes=demand.all_bytes)


EXPORTER = Exporter(
    name="transformers",
    aliases=("hf", "huggingface", "hf-transformers"),
    title="Hugging Face transformers, stock caches",
    version="5.24.0",
    file="generation_config.json",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
