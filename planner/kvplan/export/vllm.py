"""vLLM: the native offloading connector, as a file for ``vllm serve --config``."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

from kvplan.errors import InfeasibleError, InputError
from kvplan.export import flat_yaml
from kvplan.export.command_line import join
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, round_up, size_pool
from kvplan.export.prefix_cache import disk_path, inclusive, lost, pool_meaning
from kvplan.units import format_bytes

PAGE = 4096
"""Bytes that a chunk is rounded up to.

Source: vllm/v1/kv_offload/cpu/shared_offload_region.py, BLOCK_SIZE_ALIGNMENT (the host's page).
"""

GPU_BLOCK = 16
"""Tokens per block in HBM. Source: vllm/config/cache.py, DEFAULT_BLOCK_SIZE."""

DTYPES = {"fp16": "auto", "bf16": "auto", "fp8": "fp8"}
"""Format of the plan to ``kv-cache-dtype``; auto is the model's own, two bytes here."""

_ARGS, _OFFLOAD = "vllm/engine/arg_utils.py", "vllm/v1/kv_offload/cpu/spec.py"
_CHUNKS = "vllm/distributed/kv_transfer/kv_connector/v1/offloading/config.py"

KEYS = {
    "model": Key(kind=str, unit="name or folder", source=_ARGS),
    "tensor-parallel-size": Key(kind=int, unit="ranks", source=_ARGS, least=1),
    "max-model-len": Key(kind=int, unit="tokens per sequence", source=_ARGS, least=1),
    "max-num-seqs": Key(kind=int, unit="sequences", source=_ARGS, least=1),
    "block-size": Key(kind=int, unit="tokens per block in HBM", source=_ARGS, least=1),
    "kv-cache-dtype": Key(kind=str, unit="format", source="vllm/config/cache.py",
                          words=("auto", "fp8")),
    "gpu-memory-utilization": Key(kind=float, unit="share of the card, per rank", source=_ARGS,
                                  least=0, most=1),
    "enable-prefix-caching": Key(kind=bool, unit="on or off", source=_ARGS, words=(True,)),
    "kv-transfer-config": Key(kind=dict, unit="connector",
                              source="vllm/config/kv_transfer.py, KVTransferConfig"),
}  # fmt: skip

TRANSFER_KEYS = {
    "kv_connector": Key(kind=str, unit="registered name", words=("OffloadingConnector",),
                        source="vllm/distributed/kv_transfer/kv_connector/factory.py"),
    "kv_role": Key(kind=str, unit="role", source="vllm/config/kv_transfer.py, KVRole",
                   words=("kv_both",)),
    "kv_connector_extra_config": Key(kind=dict, unit="connector's own",
                                     source="vllm/config/kv_transfer.py"),
}  # fmt: skip

EXTRA_KEYS = {
    "cpu_bytes_to_use": Key(kind=int, unit="bytes, all ranks of one engine together",
                            source=_OFFLOAD, least=1),
    "block_size": Key(kind=int, unit="tokens per chunk, a multiple of block-size",
                      source=_CHUNKS, least=1),
    "blocks_per_chunk": Key(kind=int, unit="blocks per chunk", source=_CHUNKS, least=1),
    "eviction_policy": Key(kind=str, unit="policy", source=_OFFLOAD, words=("lru",)),
    "offload_prompt_only": Key(kind=bool, unit="false: generated tokens are kept as well",
                               source="vllm/v1/kv_offload/base.py", words=(False,)),
    "spec_name": Key(kind=str, unit="class", source="vllm/v1/kv_offload/factory.py",
                     words=("TieringOffloadingSpec",)),
    "secondary_tiers": Key(kind=list, unit="tiers below host memory",
                           source="vllm/v1/kv_offload/tiering/spec.py"),
}  # fmt: skip


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a file for ``vllm serve --config``.

    Raises:
        InputError: a format vLLM has not, a file name it does not read, a pool below one chunk.
        InfeasibleError: HBM, host memory or ``/dev/shm`` are too small.
    """
    if not file.endswith((".yaml", ".yml")):
        raise InputError("-o", file, "a name that ends in .yaml; vLLM reads no other")
    cache_dtype(demand)
    refuse_one_pool(demand, deployment)
    chunk = round_up(demand.block, GPU_BLOCK)
    pool = size_pool(demand, deployment, chunk, PAGE, token_bytes(demand, deployment))
    warnings = _check_shm(deployment, pool)
    warnings += check_host(demand, deployment, pool.rank_bytes)
    folder = disk_path(demand, deployment)
    values = _values(demand, deployment, pool, folder)
    unexpressed = lost(demand, deployment, "vLLM")
    if folder:
        unexpressed.append(_unlimited_disk(demand))
    if "gpu-memory-utilization" not in values:
        unexpressed.append(_own_hbm(demand))
    return Export(
        command=f"vllm serve --config {quote(file)}",
        text=flat_yaml.write(values, f"vLLM {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, deployment, pool, values),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=(*warnings, *inclusive(demand, deployment, pool, "vLLM")),
    )


def token_bytes(demand: CacheDemand, deployment: Deployment) -> float:
    """Bytes of a token in the pool: ranks that keep the same latent store it once.

    Source: vllm/v1/kv_offload/cpu/spec.py, replicated_layout.
    """
    return demand.token_bytes if demand.latent else demand.engine_token_bytes(deployment.ranks)


def cache_dtype(demand: CacheDemand) -> str:
    """vLLM's word for the format of the cache.

    Raises:
        InputError: it has none.
    """
    return demand.dtype_as(DTYPES, "vLLM")


def serve(demand: CacheDemand, deployment: Deployment, program: str, **transfer: str) -> str:
    """The command of an engine with another connector.

    Args:
        demand: the plan's cache.
        deployment: ranks.
        program: what comes before the options.
        transfer: fields of ``--kv-transfer-config``.
    """
    return join(program, {
        "--tensor-parallel-size": deployment.ranks,
        "--max-model-len": demand.tokens,
        "--max-num-seqs": demand.batch,
        "--kv-cache-dtype": cache_dtype(demand),
        "--kv-transfer-config": json.dumps(transfer | {"kv_role": "kv_both"}),
    })  # fmt: skip


def _values(
    demand: CacheDemand, deployment: Deployment, pool: Pool, folder: str | None
) -> dict[str, Any]:
    budgets = demand.plan.inputs.budgets
    extra: dict[str, Any] = {"cpu_bytes_to_use": pool.total_bytes}
    if demand.model.uniform:
        extra["block_size"] = pool.chunk_tokens
    else:  # several groups of layers: vLLM takes blocks there, not tokens
        extra["blocks_per_chunk"] = pool.chunk_tokens // GPU_BLOCK
    extra |= {"eviction_policy": "lru", "offload_prompt_only": False}
    if folder:
        tier = {"type": "fs", "root_dir": folder}
        extra |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [tier]}
    values: dict[str, Any] = {
        "model": demand.model.name,
        "tensor-parallel-size": deployment.ranks,
        "max-model-len": demand.tokens,
        "max-num-seqs": demand.batch,
        "block-size": GPU_BLOCK,
        "kv-cache-dtype": cache_dtype(demand),
    }
    if budgets.hbm_bytes is None and not budgets.reserve_bytes:
        values["gpu-memory-utilization"] = float(budgets.utilisation)
    return values | {
        "enable-prefix-caching": True,
        "kv-transfer-config": {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        },
    }


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool, values: dict[str, Any]
) -> tuple[Mapped, ...]:
    extra = values["kv-transfer-config"]["kv_connector_extra_config"]
    meanings = {
        "cpu_bytes_to_use": f"bytes, all ranks of one engine together: {pool.taken} "
        f"{pool_meaning(demand, deployment, pool)}",
        "block_size": f"tokens per chunk; the plan's blocks have {demand.block}",
        "blocks_per_chunk": f"blocks of {GPU_BLOCK} tokens; the plan's blocks have {demand.block}",
        "offload_prompt_only": "generated tokens are kept as well, as in the plan; the default "
        "keeps prompts only",
    }
    rows = [
        Mapped(name, value, meanings.get(name, EXTRA_KEYS[name].unit))
        for name, value in extra.items()
    ]
    dtype = "the model's own format, two bytes as in the plan"
    rows += [
        Mapped(name, value, dtype if value == "auto" else KEYS[name].unit)
        for name, value in values.items()
        if name not in ("kv-transfer-config", "enable-prefix-caching", "model")
    ]
    return tuple(rows)


def _check_shm(deployment: Deployment, pool: Pool) -> list[str]:
    needed = pool.total_bytes * deployment.replicas
    size = format_bytes(needed)
    if deployment.shm_bytes is None:
        return [
            f"vLLM keeps the pool as a file in /dev/shm, which must have {size} free: check with "
            "--shm SIZE; in a container start it with --shm-size"
        ]
    if deployment.shm_bytes < needed:
        raise InfeasibleError(
            "/dev/shm",
            f"vLLM keeps the pool as a file there: {size} of {format_bytes(deployment.shm_bytes)}",
            f"a container with --shm-size above {size}, or a smaller --pool",
        )
    return []


def _unlimited_disk(demand: CacheDemand) -> Unexpressed:
    return Unexpressed(
        "disk capacity", format_bytes(demand.place_bytes["disk"]),
        "the fs tier grows until the disk is full; delete files under its folder yourself",
    )  # fmt: skip


def _own_hbm(demand: CacheDemand) -> Unexpressed:
    return Unexpressed(
        "HBM budget", format_bytes(demand.plan.prediction.capacity_bytes["hbm"]),
        "vLLM takes a share of the card, and the plan was given a size: set "
        "gpu-memory-utilization",
    )  # fmt: skip


def parse(text: str) -> dict[str, Any]:
    """Keys and values of a file, those of the connector beside them."""
    values = flat_yaml.read(text)
    transfer: dict[str, Any] = values.get("kv-transfer-config", {})
    extra: dict[str, Any] = transfer.get("kv_connector_extra_config", {})
    return values | transfer | extra


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity as vLLM counts it: whole chunks, each rounded up to a page.

    Source: vllm/v1/kv_offload/cpu/spec.py, CPUOffloadingSpec.__init__.
    """
    extra = flat_yaml.read(text)["kv-transfer-config"]["kv_connector_extra_config"]
    tokens = extra.get("block_size") or extra["blocks_per_chunk"] * GPU_BLOCK
    chunk = token_bytes(demand, deployment) * tokens
    aligned = -(-int(chunk) // PAGE) * PAGE
    return ReadBack(host_bytes=extra["cpu_bytes_to_use"] // aligned * aligned, block_bytes=aligned)


EXPORTER = Exporter(
    name="vllm",
    title="vLLM, native offloading connector",
    version="0.33.0",
    file="vllm.yaml",
    keys=KEYS | TRANSFER_KEYS | EXTRA_KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
