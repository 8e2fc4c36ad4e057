"""SGLang HiCache: a script that launches the server."""

from __future__ import annotations

import math
from shlex import quote
from typing import Any

from kvplan.errors import InputError
from kvplan.export.command_line import options_of, read_script, script
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, asked_bytes, size_pool
from kvplan.export.prefix_cache import disk_path, inclusive, lost, pool_meaning
from kvplan.units import GB, GIB, format_bytes

RESERVE_BYTES = 10 * GIB
"""Host memory that SGLang keeps back.

Source: sglang/srt/mem_cache/pool_host/base.py, HICACHE_HOST_MEMORY_RESERVE_BYTES.
"""

DTYPES = {"fp16": "auto", "bf16": "auto", "fp8": "fp8_e4m3"}
"""Format of the plan to ``--kv-cache-dtype``; auto is the model's own, two bytes here."""

_MEMORY, _FILE = "sglang/srt/arg_groups/fields/memory.py", "sglang/srt/environ.py"
_SERVER = "sglang/srt/server_args.py"

KEYS = {
    "--model-path": Key(kind=str, unit="name or folder", source=_SERVER),
    "--tp-size": Key(kind=int, unit="ranks", source=_SERVER, least=1),
    "--context-length": Key(kind=int, unit="tokens per sequence", source=_SERVER, least=1),
    "--max-running-requests": Key(kind=int, unit="sequences", source=_SERVER, least=1),
    "--page-size": Key(kind=int, unit="tokens per page", source=_MEMORY, least=1),
    "--kv-cache-dtype": Key(kind=str, unit="format", source=_SERVER, words=("auto", "fp8_e4m3")),
    "--enable-hierarchical-cache": Key(kind=type(None), unit="on", source=_MEMORY),
    "--hicache-size": Key(
        kind=int, unit="GB (x 1e9), whole, each rank", least=1,
        source="sglang/srt/mem_cache/pool_host/base.py, int(host_size * 1e9 // size_per_token)",
    ),
    "--hicache-write-policy": Key(kind=str, unit="policy", source=_MEMORY,
                                  words=("write_back", "write_through")),
    "--hicache-mem-layout": Key(kind=str, unit="layout", source=_MEMORY, words=("page_first",)),
    "--hicache-io-backend": Key(kind=str, unit="how pages are copied", source=_MEMORY,
                                words=("kernel",)),
    "--hicache-storage-backend": Key(kind=str, unit="tier below", source=_MEMORY, words=("file",)),
    "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": Key(kind=str, unit="folder", source=_FILE),
    "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": Key(
        kind=str, unit="bytes, each rank",
        source="sglang/srt/mem_cache/storage/file/lru_file_evictor.py",
    ),
}  # fmt: skip


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a script that launches the server.

    Raises:
        InputError: a format SGLang has not, a pool below one GB per rank or one page.
        InfeasibleError: HBM or host memory are too small.
    """
    demand.dtype_as(DTYPES, "SGLang")
    refuse_one_pool(demand, deployment)
    gigabytes = _gigabytes(demand, deployment)
    pool = _pool(demand, deployment, gigabytes, demand.block)
    warnings = check_host(demand, deployment, pool.rank_bytes, RESERVE_BYTES)
    options, environment = _options(demand, deployment, pool, gigabytes)
    unexpressed = lost(demand, deployment, "SGLang")
    unexpressed.append(
        Unexpressed(
            "HBM budget", format_bytes(demand.plan.prediction.capacity_bytes["hbm"]),
            "SGLang sizes its own pool: --mem-fraction-static is weights and K and V alone",
        )
    )  # fmt: skip
    return Export(
        command=f"sh {quote(file)}",
        text=script(PROGRAM, options, environment, f"SGLang {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, deployment, pool, options | environment),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=(*warnings, *inclusive(demand, deployment, pool, "SGLang")),
    )


PROGRAM = "python -m sglang.launch_server"


def _gigabytes(demand: CacheDemand, deployment: Deployment) -> int:
    """Whole GB of each rank: up to hold the plan, down to keep within a given size."""
    size_pool(demand, deployment, demand.block)  # refuses what is empty or below a page
    each = asked_bytes(demand, deployment) / deployment.ranks / GB
    if isinstance(deployment.pool, int):
        if each < 1:
            raise InputError(
                "--pool", deployment.pool,
                "1GB/rank or more: SGLang counts whole GB and takes 0 as twice its HBM pool",
            )  # fmt: skip
        return int(each)
    return math.ceil(each - 1e-9)


def _pool(demand: CacheDemand, deployment: Deployment, gigabytes: int, page: int) -> Pool:
    """The pool as SGLang builds it: whole tokens, cut to pages, and one page more."""
    tokens = int(gigabytes * 1e9 // demand.rank_token_bytes(deployment.ranks))
    return Pool(
        asked_bytes=asked_bytes(demand, deployment),
        chunk_tokens=page,
        chunk_bytes=math.ceil(page * demand.engine_token_bytes(deployment.ranks)),
        chunks=tokens // page + 1,
        ranks=deployment.ranks,
    )


def _options(
    demand: CacheDemand, deployment: Deployment, pool: Pool, gigabytes: int
) -> tuple[dict[str, Any], dict[str, str]]:
    small = pool.total_bytes <= demand.hbm_kv_bytes(deployment.ranks)
    options: dict[str, Any] = {
        "--model-path": demand.model.name,
        "--tp-size": deployment.ranks,
        "--context-length": demand.tokens,
        "--max-running-requests": demand.batch,
        "--page-size": demand.block,
        "--kv-cache-dtype": demand.dtype_as(DTYPES, "SGLang"),
        "--enable-hierarchical-cache": None,
        "--hicache-size": gigabytes,
        "--hicache-write-policy": "write_back" if small else "write_through",
        "--hicache-mem-layout": "page_first",
        "--hicache-io-backend": "kernel",
    }
    folder = disk_path(demand, deployment)
    if not folder:
        return options, {}
    copies = demand.rank_token_bytes(deployment.ranks) / demand.token_bytes
    size = math.ceil(copies * demand.place_bytes["disk"])
    return options | {"--hicache-storage-backend": "file"}, {
        "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder,
        "SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE": str(size),
    }


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool, values: dict[str, Any]
) -> tuple[Mapped, ...]:
    meanings = {
        "--hicache-size": f"{KEYS['--hicache-size'].unit}: {pool.taken} "
        f"{pool_meaning(demand, deployment, pool)}; whole GB and one page more",
        "--page-size": f"tokens per page; the plan's blocks have {demand.block}",
        "--hicache-write-policy": "write_back where the pool is smaller than HBM's: "
        "write_through would lose prefixes seen once (sgl-project/sglang#39444)",
        "--hicache-mem-layout": "page_first goes with kernel; SGLang rewrites other pairs",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in values.items())


def parse(text: str) -> dict[str, Any]:
    """Options and environment of a script."""
    environment, words = read_script(text)
    return options_of(words[len(PROGRAM.split()) :]) | environment


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity as SGLang counts it.

    Source: sglang/srt/mem_cache/pool_host/base.py, HostKVCache.__init__.
    """
    values = parse(text)
    pool = _pool(demand, deployment, values["--hicache-size"], values["--page-size"])
    disk = values.get("SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE")
    return ReadBack(
        host_bytes=pool.total_bytes,
        block_bytes=pool.ranks * GB + pool.chunk_bytes,
        disk_bytes=None if disk is None else pool.ranks * int(disk),
    )


EXPORTER = Exporter(
    name="sglang",
    aliases=("hicache", "sgl"),
    title="SGLang HiCache",
    version="0.5.23",
    file="sglang.sh",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
