"""Dynamo KVBM: its environment, and the engine that reads it, as a script."""

from __future__ import annotations

import math
from shlex import quote
from typing import Any

from kvplan.errors import InputError
from kvplan.export import vllm
from kvplan.export.command_line import options_of, read_script, script
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, size_pool
from kvplan.export.prefix_cache import disk_path, lost, pool_meaning
from kvplan.units import GB, format_bytes

ENGINE_BLOCK = vllm.GPU_BLOCK
"""Tokens per block: those of the engine. Source: vLLM's default."""

_LEADER = "lib/bindings/kvbm/src/block_manager/distributed/leader.rs"
_TOTAL = "GB (x 1e9), all ranks together"

KEYS = {
    "DYN_KVBM_CPU_CACHE_GB": Key(kind=str, unit=_TOTAL, source=_LEADER),
    "DYN_KVBM_DISK_CACHE_GB": Key(kind=str, unit=_TOTAL, source=_LEADER),
    "DYN_KVBM_DISK_CACHE_DIR": Key(kind=str, unit="folder",
                                   source="kvbm 1.6.1 wheel, environment names"),
    "--model": Key(kind=str, unit="name or folder", source="components/src/dynamo/vllm"),
    "--tensor-parallel-size": vllm.KEYS["tensor-parallel-size"],
    "--max-model-len": vllm.KEYS["max-model-len"],
    "--max-num-seqs": vllm.KEYS["max-num-seqs"],
    "--block-size": vllm.KEYS["block-size"],
    "--kv-cache-dtype": vllm.KEYS["kv-cache-dtype"],
    "--kv-transfer-config": Key(kind=str, unit="connector",
                                source="kvbm 1.6.1, kvbm/vllm_integration/connector"),
}  # fmt: skip

PROGRAM = "python -m dynamo.vllm"

CONNECTOR = (
    '{"kv_connector": "DynamoConnector", "kv_role": "kv_both", '
    '"kv_connector_module_path": "kvbm.vllm_integration.connector"}'
)


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a script that sets the environment and starts a worker.

    Raises:
        InputError: a format vLLM has not, or a pool that holds no more than HBM does.
        InfeasibleError: HBM or host memory are too small.
    """
    dtype = vllm.cache_dtype(demand)
    refuse_one_pool(demand, deployment)
    pool = size_pool(demand, deployment, ENGINE_BLOCK)
    unexpressed = lost(demand, deployment, "Dynamo")
    _check_larger_than_hbm(demand, deployment, pool)
    environment = _environment(demand, deployment, pool)
    options: dict[str, Any] = {
        "--model": demand.model.name,
        "--tensor-parallel-size": deployment.ranks,
        "--max-model-len": demand.tokens,
        "--max-num-seqs": demand.batch,
        "--block-size": ENGINE_BLOCK,
        "--kv-cache-dtype": dtype,
        "--kv-transfer-config": CONNECTOR,
    }
    unexpressed.append(
        Unexpressed("tokens per chunk", str(demand.block),
                    f"KVBM moves the engine's blocks of {ENGINE_BLOCK} tokens")
    )  # fmt: skip
    if "DYN_KVBM_DISK_CACHE_GB" in environment:
        unexpressed.append(
            Unexpressed("writes to disk", format_bytes(demand.place_bytes["disk"]),
                        "KVBM writes blocks to disk only once they were used twice, unless "
                        "DYN_KVBM_DISABLE_DISK_OFFLOAD_FILTER is true")
        )  # fmt: skip
    return Export(
        command=f"sh {quote(file)}",
        text=script(PROGRAM, options, environment, f"Dynamo KVBM {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, deployment, pool, environment, options),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=tuple(check_host(demand, deployment, pool.rank_bytes)),
    )


def _check_larger_than_hbm(demand: CacheDemand, deployment: Deployment, pool: Pool) -> None:
    """KVBM writes every block through, and its guide calls a smaller host tier useless.

    Source: Dynamo, docs/components/kvbm/kvbm-guide.md, note on capacities.
    """
    held = min(
        demand.hbm_kv_bytes(deployment.ranks),
        demand.all_bytes * demand.engine_token_bytes(deployment.ranks) / demand.token_bytes,
    )
    if pool.total_bytes < held - pool.chunk_bytes:
        raise InputError(
            "--pool", deployment.pool,
            f"at least {format_bytes(held).replace(' ', '')}, or all: KVBM writes every block "
            f"through to its pool, so that {format_bytes(pool.total_bytes)} would only hold "
            "copies of what is in HBM, and churn",
        )  # fmt: skip


def gigabytes(size: float) -> str:
    """Decimal GB that read back as at least so many bytes; no exponent, nothing lost.

    >>> gigabytes(10_000_000_000), gigabytes(147_456)
    ('10.000000001', '0.000147457')
    """
    return f"{(math.ceil(size) + 1) / GB:.9f}".rstrip("0")


def _environment(demand: CacheDemand, deployment: Deployment, pool: Pool) -> dict[str, str]:
    environment = {"DYN_KVBM_CPU_CACHE_GB": gigabytes(pool.total_bytes)}
    folder = disk_path(demand, deployment)
    if folder:
        copies = demand.engine_token_bytes(deployment.ranks) / demand.token_bytes
        environment["DYN_KVBM_DISK_CACHE_GB"] = gigabytes(copies * demand.place_bytes["disk"])
        environment["DYN_KVBM_DISK_CACHE_DIR"] = folder
    return environment


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool, environment: dict[str, str],
    options: dict[str, Any],
) -> tuple[Mapped, ...]:  # fmt: skip
    meanings = {
        "DYN_KVBM_CPU_CACHE_GB": f"{_TOTAL}; {pool_meaning(demand, deployment, pool)}; a number "
        "that does not parse would be 0"
    }
    rows = {**environment, **options}
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in rows.items())


def parse(text: str) -> dict[str, Any]:
    """Options and environment of a script."""
    environment, words = read_script(text)
    return options_of(words[len(PROGRAM.split()) :]) | environment


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity as KVBM counts it: ``GB * 1e9 / bytes per block``, cut to whole blocks.

    Source: lib/llm/src/block_manager/distributed/leader.rs, KvbmLeaderNumBlocksConfig.
    """
    environment, _ = read_script(text)
    block = ENGINE_BLOCK * demand.engine_token_bytes(deployment.ranks)
    disk = environment.get("DYN_KVBM_DISK_CACHE_GB")
    return ReadBack(
        host_bytes=int(float(environment["DYN_KVBM_CPU_CACHE_GB"]) * 1e9 / block) * block,
        block_bytes=block,
        disk_bytes=None if disk is None else int(float(disk) * 1e9 / block) * block,
    )


EXPORTER = Exporter(
    name="dynamo",
    aliases=("kvbm", "dynamo-kvbm"),
    title="Dynamo KVBM beside vLLM",
    version="1.6.1",
    file="dynamo.sh",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
