"""LMCache: a YAML file for the connector in the engine, and flags for its own server."""

from __future__ import annotations

from shlex import quote
from typing import Any

from kvplan.export import flat_yaml, vllm
from kvplan.export.command_line import join
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, power_of_two, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, round_up, size_pool
from kvplan.export.prefix_cache import disk_path, inclusive, lost, pool_meaning
from kvplan.units import GIB, format_bytes

ENGINE_BLOCK = 16
"""Tokens per block of the engine that a chunk is a multiple of. Source: vLLM's default."""

WATERMARK = 0.8
"""Share of the server's pool at which it begins to evict.

Source: lmcache/v1/distributed/config.py, EvictionConfig.trigger_watermark.
"""

_CONFIG = "lmcache/v1/config.py, _CONFIG_DEFINITIONS"
_RANK = "GiB (x 2^30), each rank"

KEYS = {
    "chunk_size": Key(kind=int, unit="tokens per chunk", source=_CONFIG, least=1),
    "local_cpu": Key(kind=bool, unit="on or off", source=_CONFIG),
    "max_local_cpu_size": Key(
        kind=float, unit=_RANK, least=0,
        source="lmcache/v1/cache_engine.py, int(max_local_cpu_size * 1024**3)",
    ),
    "cache_policy": Key(kind=str, unit="policy", source=_CONFIG, words=("LRU",)),
    "save_decode_cache": Key(kind=bool, unit="true: generated tokens are kept as well",
                             source=_CONFIG),
    "local_disk": Key(kind=str, unit="folder", source=_CONFIG),
    "max_local_disk_size": Key(kind=float, unit=_RANK, source=_CONFIG, least=0),
}  # fmt: skip

SERVER_KEYS = {
    "--l1-size-gb": Key(
        kind=float, unit="GiB (x 2^30), one server for all ranks", least=0,
        source="lmcache/v1/distributed/config.py, add_storage_manager_args",
    ),
    "--eviction-policy": Key(kind=str, unit="policy", words=("LRU", "ARC", "IsolatedLRU", "noop"),
                             source="lmcache/v1/distributed/config.py"),
    "--chunk-size": Key(kind=int, unit="tokens per chunk", least=1,
                        source="lmcache/v1/multiprocess/config.py, add_mp_server_args"),
}  # fmt: skip


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a file for ``LMCACHE_CONFIG_FILE``.

    Raises:
        InputError: a format that vLLM has not, or a pool below one chunk.
        InfeasibleError: HBM or host memory are too small.
    """
    dtype = vllm.cache_dtype(demand)
    refuse_one_pool(demand, deployment)
    chunk = round_up(demand.block, ENGINE_BLOCK)
    pool = size_pool(demand, deployment, chunk)
    warnings = check_host(demand, deployment, pool.rank_bytes)
    values = _values(demand, deployment, pool)
    serve = _serve(demand, deployment, "LMCacheConnectorV1")
    unexpressed = lost(demand, deployment, "the engine beside LMCache")
    unexpressed.append(
        Unexpressed(
            "format of the cache", demand.kv_dtype,
            f"the engine sets it: --kv-cache-dtype {dtype}",
        )
    )  # fmt: skip
    return Export(
        command=f"LMCACHE_CONFIG_FILE={quote(file)} {serve}",
        text=flat_yaml.write(values, f"LMCache {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, deployment, pool, values),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=(
            *warnings,
            *_warnings(demand, pool),
            *inclusive(demand, deployment, pool, "LMCache"),
        ),
        others=(
            ("one server for all ranks", server_command(pool)),
            ("and the engine beside it", _serve(demand, deployment, "LMCacheMPConnector")),
        ),
    )  # fmt: skip


def _values(demand: CacheDemand, deployment: Deployment, pool: Pool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "chunk_size": pool.chunk_tokens,
        "local_cpu": True,
        "max_local_cpu_size": pool.rank_bytes / GIB,
        "cache_policy": "LRU",
        "save_decode_cache": True,
    }
    folder = disk_path(demand, deployment)
    if folder:
        copies = demand.rank_token_bytes(deployment.ranks) / demand.token_bytes
        size = copies * demand.place_bytes["disk"] / GIB
        values |= {"local_disk": folder, "max_local_disk_size": size}
    return values


def server_command(pool: Pool) -> str:
    """The command of LMCache's own server."""
    return join("lmcache server", {
        "--l1-size-gb": pool.total_bytes / GIB,
        "--eviction-policy": "LRU",
        "--chunk-size": pool.chunk_tokens,
    })  # fmt: skip


def _serve(demand: CacheDemand, deployment: Deployment, connector: str) -> str:
    program = f"vllm serve {quote(demand.model.name)}"
    return vllm.serve(demand, deployment, program, kv_connector=connector)


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool, values: dict[str, Any]
) -> tuple[Mapped, ...]:
    total = f"{pool.ranks} x {format_bytes(pool.rank_bytes)}"
    meanings = {
        "chunk_size": f"tokens per chunk; the plan's blocks have {demand.block}",
        "max_local_cpu_size": f"{_RANK}; {total} = {pool_meaning(demand, deployment, pool)}",
        "max_local_disk_size": f"{_RANK}; the plan keeps "
        f"{format_bytes(demand.place_bytes['disk'])} on disk",
    }
    rows = [Mapped(name, v, meanings.get(name, KEYS[name].unit)) for name, v in values.items()]
    size = pool.total_bytes / GIB
    server = f"{SERVER_KEYS['--l1-size-gb'].unit}, instead of the file"
    return (*rows, Mapped("--l1-size-gb", size, server))


def _warnings(demand: CacheDemand, pool: Pool) -> list[str]:
    latent = [
        "of a latent cache only the first rank stores; the pools of the others, as large, hold "
        "nothing: first_rank_max_local_cpu_size in extra_config sets them apart"
    ] * (demand.latent and pool.ranks > 1)
    warnings = [
        "max_local_cpu_size is per rank and --l1-size-gb for all ranks; --kv-offloading-size of "
        "vLLM does nothing beside LMCache",
        f"the server evicts from {100 * WATERMARK:.0f} % of its pool on, so it holds "
        f"{format_bytes(WATERMARK * pool.total_bytes)} for long",
    ]
    warnings += latent
    pinned = power_of_two(pool.rank_bytes)
    if pinned > pool.rank_bytes:
        warnings.append(
            f"where LMCache runs without its CUDA extension, {format_bytes(pool.rank_bytes)} per "
            f"rank pin {format_bytes(pinned)}: PyTorch rounds up to powers of two"
        )
    return warnings


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity as LMCache counts it: ``int(size * 1024**3)`` bytes on each rank.

    Source: lmcache/v1/cache_engine.py, _Create_memory_allocator.
    """
    values = flat_yaml.read(text)
    ranks = deployment.ranks
    block = values["chunk_size"] * demand.engine_token_bytes(ranks)
    disk = values.get("max_local_disk_size")
    return ReadBack(
        host_bytes=ranks * int(values["max_local_cpu_size"] * 1024**3),
        block_bytes=block,
        disk_bytes=None if disk is None else ranks * int(disk * 1024**3),
    )


EXPORTER = Exporter(
    name="lmcache",
    aliases=("lm-cache",),
    title="LMCache beside vLLM",
    version="0.5.6",
    file="lmcache.yaml",
    keys=KEYS,
    export=export,
    parse=flat_yaml.read,
    read_back=read_back,
)
