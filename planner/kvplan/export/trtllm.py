"""TensorRT-LLM: the ``kv_cache_config`` of the LLM API, as a file for ``trtllm-serve``."""

from __future__ import annotations

import math
from shlex import quote
from typing import Any

from kvplan.export import flat_yaml
from kvplan.export.command_line import join
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, power_of_two, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, asked_bytes, size_pool
from kvplan.export.prefix_cache import disk_path, inclusive, lost, pool_meaning
from kvplan.units import GIB, format_bytes

DTYPES = {"fp16": "auto", "bf16": "auto", "fp8": "fp8"}
"""Format of the plan to ``dtype``; auto is the model's own, two bytes here."""

SLOW_START_BYTES = 100 * GIB
"""Host pools above this took minutes to start. Source: NVIDIA/TensorRT-LLM#15430."""

_SOURCE = "nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html"
_RANK = "bytes, each rank"

KEYS = {
    "kv_cache_config": Key(kind=dict, unit="KvCacheConfig", source=_SOURCE),
    "enable_block_reuse": Key(kind=bool, unit="on: needed for offload", source=_SOURCE,
                              words=(True,)),
    "host_cache_size": Key(kind=int, unit=_RANK, source=_SOURCE, least=0),
    "tokens_per_block": Key(kind=int, unit="tokens per block, a power of two", source=_SOURCE,
                            words=tuple(2**n for n in range(3, 21))),
    "dtype": Key(kind=str, unit="format", source=_SOURCE, words=("auto", "fp8")),
    "disk_cache_size": Key(kind=int, unit=_RANK, source=_SOURCE, least=0),
    "disk_cache_path": Key(kind=str, unit="folder that exists", source=_SOURCE),
    "use_kv_cache_manager_v2": Key(kind=bool, unit="the manager with a disk tier",
                                   source=_SOURCE, words=(True,)),
}  # fmt: skip


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a file for ``--extra_llm_api_options``.

    Raises:
        InputError: a format TensorRT-LLM has not, or a pool below one block.
        InfeasibleError: HBM or host memory are too small.
    """
    demand.dtype_as(DTYPES, "TensorRT-LLM")
    block = max(8, power_of_two(demand.block))
    pool, warnings = None, []
    if asked_bytes(demand, deployment) or isinstance(deployment.pool, int):
        refuse_one_pool(demand, deployment)
        pool = size_pool(demand, deployment, block)
        warnings = _check(demand, deployment, pool)
    values = _values(demand, deployment, pool, block)
    unexpressed = lost(demand, deployment, "TensorRT-LLM")
    unexpressed.append(
        Unexpressed(
            "HBM budget", format_bytes(demand.plan.prediction.capacity_bytes["hbm"]),
            "free_gpu_memory_fraction is a share of what the weights leave, not of the card",
        )
    )  # fmt: skip
    return Export(
        command=join(f"trtllm-serve {quote(demand.model.name)}", {
            "--tp_size": deployment.ranks, "--max_batch_size": demand.batch,
            "--max_seq_len": demand.tokens, "--extra_llm_api_options": file,
        }),
        text=flat_yaml.write({"kv_cache_config": values},
                             f"TensorRT-LLM {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, deployment, pool, values),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=tuple(warnings),
    )  # fmt: skip


def _check(demand: CacheDemand, deployment: Deployment, pool: Pool) -> list[str]:
    warnings = check_host(demand, deployment, pool.rank_bytes)
    warnings += inclusive(demand, deployment, pool, "TensorRT-LLM")
    if pool.rank_bytes > SLOW_START_BYTES:
        warnings.append(
            f"pinning {format_bytes(pool.rank_bytes)} per rank may take minutes at the start"
        )
    return warnings


def _values(
    demand: CacheDemand, deployment: Deployment, pool: Pool | None, block: int
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "enable_block_reuse": True,
        "host_cache_size": pool.rank_bytes if pool else 0,
        "tokens_per_block": block,
        "dtype": demand.dtype_as(DTYPES, "TensorRT-LLM"),
    }
    folder = disk_path(demand, deployment)
    if folder:
        copies = demand.rank_token_bytes(deployment.ranks) / demand.token_bytes
        size = math.ceil(copies * demand.place_bytes["disk"])
        values |= {"disk_cache_size": size, "disk_cache_path": folder}
        values |= {"use_kv_cache_manager_v2": True}
    return values


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool | None, values: dict[str, Any]
) -> tuple[Mapped, ...]:
    host = "the plan offloads nothing; unset, each rank would take as much as its HBM pool"
    if pool:
        host = f"{pool.taken} {pool_meaning(demand, deployment, pool)}"
    meanings = {
        "host_cache_size": f"{_RANK}; {host}",
        "tokens_per_block": f"{KEYS['tokens_per_block'].unit}; the plan's blocks have "
        f"{demand.block}",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in values.items())


def parse(text: str) -> dict[str, Any]:
    """Keys and values of a file, those of the cache beside them."""
    values = flat_yaml.read(text)
    config: dict[str, Any] = values["kv_cache_config"]
    return values | config


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity in whole blocks of each rank."""
    values = parse(text)
    each = demand.rank_token_bytes(deployment.ranks) * values["tokens_per_block"]
    blocks = int((values["host_cache_size"] + 1e-6) // each)
    disk = values.get("disk_cache_size")
    return ReadBack(
        host_bytes=deployment.ranks * blocks * each,
        block_bytes=deployment.ranks * each,
        disk_bytes=None if disk is None else deployment.ranks * disk,
    )


EXPORTER = Exporter(
    name="trtllm",
    aliases=("tensorrt-llm", "trt-llm", "tensorrt"),
    title="TensorRT-LLM",
    version="1.3.0rc27",
    file="trtllm.yaml",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
