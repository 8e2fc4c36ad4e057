"""Mooncake store: the JSON file of its clients, one per rank, and the engine that uses it."""

from __future__ import annotations

import json
from shlex import quote
from typing import Any

from kvplan.export import vllm
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import Pool, size_pool
from kvplan.export.prefix_cache import inclusive, lost, pool_meaning
from kvplan.units import GIB, format_bytes

ENGINE_BLOCK = vllm.GPU_BLOCK
"""Tokens per block: those of the engine. Source: vLLM's default."""

BUFFER_BYTES = GIB
"""Staging buffer of each client. Source: mooncake/mooncake_config.py, DEFAULT_LOCAL_BUFFER_SIZE."""

_CONFIG = "mooncake/mooncake_config.py, MooncakeConfig"

KEYS = {
    "local_hostname": Key(kind=str, unit="host name", source=_CONFIG),
    "metadata_server": Key(kind=str, unit="address", source=_CONFIG),
    "master_server_address": Key(kind=str, unit="address", source=_CONFIG),
    "protocol": Key(kind=str, unit="transport", source=_CONFIG, words=("tcp",)),
    "device_name": Key(kind=str, unit="network device", source=_CONFIG),
    "global_segment_size": Key(kind=int, unit="bytes, each rank", source=_CONFIG, least=1),
    "local_buffer_size": Key(kind=int, unit="bytes, each rank, beside the segment",
                             source=_CONFIG, least=1),
}  # fmt: skip


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a file for ``MOONCAKE_CONFIG_PATH``.

    Raises:
        InputError: a format vLLM has not, or a pool below one block.
        InfeasibleError: HBM or host memory are too small.
    """
    program = f"vllm serve {quote(demand.model.name)}"
    command = vllm.serve(demand, deployment, program, kv_connector="MooncakeStoreConnector")
    refuse_one_pool(demand, deployment)
    pool = size_pool(demand, deployment, ENGINE_BLOCK)
    warnings = check_host(demand, deployment, pool.rank_bytes + BUFFER_BYTES)
    values = _values(pool)
    unexpressed = lost(demand, deployment, "vLLM beside Mooncake")
    unexpressed.append(
        Unexpressed("tokens per chunk", str(demand.block),
                    f"the store keeps the engine's blocks of {ENGINE_BLOCK} tokens")
    )  # fmt: skip
    if demand.place_bytes["disk"]:
        unexpressed.append(
            Unexpressed("disk tier", format_bytes(demand.place_bytes["disk"]),
                        "in the engine's clients there is none: a mooncake_client of its own "
                        "(standalone-store) would own the disk")
        )  # fmt: skip
    return Export(
        command=f"MOONCAKE_CONFIG_PATH={quote(file)} {command}",
        text=json.dumps(values, indent=1) + "\n",
        mapped=_mapped(demand, deployment, pool, values),
        unexpressed=tuple(unexpressed),
        pool=pool,
        warnings=(
            *warnings,
            "start `mooncake_master` first; addresses and protocol in the file are those of one "
            "host over tcp: set yours, rdma with its device_name",
            *inclusive(demand, deployment, pool, "Mooncake"),
        ),
    )


def _values(pool: Pool) -> dict[str, Any]:
    return {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "localhost:50051",
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": pool.rank_bytes,
        "local_buffer_size": BUFFER_BYTES,
    }


def _mapped(
    demand: CacheDemand, deployment: Deployment, pool: Pool, values: dict[str, Any]
) -> tuple[Mapped, ...]:
    meanings = {
        "global_segment_size": f"bytes, each rank; {pool.taken} "
        f"{pool_meaning(demand, deployment, pool)}; written as a number, since Mooncake reads "
        "10GB as 10 GiB",
        "local_buffer_size": "bytes, each rank, beside the segment; vLLM's own default is 4 GiB",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in values.items())


def parse(text: str) -> dict[str, Any]:
    """Keys and values of a file."""
    values: dict[str, Any] = json.loads(text)
    return values


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Capacity as the store counts it: the segments of all ranks."""
    ranks = deployment.ranks
    return ReadBack(
        host_bytes=ranks * parse(text)["global_segment_size"],
        block_bytes=ENGINE_BLOCK * demand.engine_token_bytes(ranks),
    )


EXPORTER = Exporter(
    name="mooncake",
    aliases=("mooncake-store",),
    title="Mooncake store beside vLLM",
    version="0.3.13.post1",
    file="mooncake.json",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
