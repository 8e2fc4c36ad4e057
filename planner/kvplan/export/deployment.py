"""Where an export will run: ranks, host memory, folders; and whether a pool fits there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.errors import InfeasibleError, InputError
from kvplan.export.demand import CacheDemand
from kvplan.units import GB, GIB, MIB, format_bytes

COMFORT_BYTES = 16 * GIB
"""Host memory left beside the pools below which a start is likely to be tight.

Assumed: loading weights, the page cache and the processes of the ranks take this much. The
refusals of runtimes are looser: SGLang keeps 10 GiB back, older vLLM warned above 40 % of a host.
"""

ONE_POOL = ("GB10", "DGX Spark", "Jetson", "Orin", "Thor", "Apple", "Ryzen AI Max", "Strix Halo")
"""Words in the title of machines whose CPU and GPU share one memory.

Source: vllm-project/vllm#57555 and hao-ai-lab/FastVideo#1710 (GB10); vendors' product pages.
"""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What the plan does not say about the place it is deployed to.

    Args:
        ranks: tensor-parallel ranks that share the plan's K and V, all on this host.
        replicas: engines on this host, each with a pool of its own.
        pool: ``plan`` (what the plan keeps outside HBM), ``all`` (K and V of the whole batch), or
            bytes of one engine, all its ranks together.
        host_bytes: host memory that is free; None takes the plan's budget.
        limit_bytes: memory limit of the container; None for none.
        used_bytes: what already counts against that limit.
        reserve_bytes: host memory left for everything else; None takes the runtime's own reserve.
        shm_bytes: size of ``/dev/shm``; None where not known.
        disk_path: folder for the disk tier.
        one_pool: CPU and GPU share one memory.
    """

    ranks: int = 1
    replicas: int = 1
    pool: str | int = "plan"
    host_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int = 0
    reserve_bytes: int | None = None
    shm_bytes: int | None = None
    disk_path: str | None = None
    one_pool: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name, option in (("ranks", "--tp"), ("replicas", "--replicas")):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1024:
                raise InputError(option, value, "a whole number from 1 to 1024")
        if isinstance(self.pool, str) and self.pool not in ("plan", "all"):
            raise InputError("--pool", self.pool, "plan, all or a size such as 40GiB")
        if isinstance(self.pool, int) and self.pool < 0:
            raise InputError("--pool", self.pool, "a size that is not negative")
        if self.used_bytes and self.limit_bytes is None:
            raise InputError("--container-used", self.used_bytes, "--container beside it")
        if self.limit_bytes is not None and self.used_bytes > self.limit_bytes:
            raise InputError(
                "--container-used", self.used_bytes, f"at most --container, {self.limit_bytes}"
            )


def host_budget(
    free_bytes: float | None,
    limit_bytes: float | None = None,
    used_bytes: float = 0,
    reserve_bytes: float = 0,
    ranks: int = 1,
) -> float:
    """Bytes of host memory that each rank may take for its pool.

    ``(min(free, limit - used) - reserve) / ranks``, before any rank allocates.

    Args:
        free_bytes: free on the machine (``MemAvailable``); None where not known.
        limit_bytes: memory limit of the container; None for none.
        used_bytes: what already counts against that limit.
        reserve_bytes: left for everything else.
        ranks: ranks on the host.

    >>> host_budget(44_870_000_000, reserve_bytes=10_000_000_000)
    34870000000.0
    >>> host_budget(2000, limit_bytes=400, used_bytes=300, reserve_bytes=20, ranks=4)
    20.0
    """
    known = [] if free_bytes is None else [free_bytes]
    if limit_bytes is not None:
        known.append(limit_bytes - used_bytes)
    if not known:
        return math.inf
    return max(min(known) - reserve_bytes, 0.0) / ranks


def both(size: float) -> str:
    """A size in binary and in decimal units, since people type either.

    >>> both(200e9)
    '186.3 GiB (200.0 GB)'
    """
    return f"{format_bytes(size)} ({size / GB:.1f} GB)"


def power_of_two(size: float) -> int:
    """Bytes that a pinned allocation of PyTorch's caching allocator takes.

    Source: pytorch/pytorch#150517; LMCache/LMCache#1147 (4.1 GiB took 8), measured up to 2.13.

    >>> power_of_two(5 * 2**30) == 8 * 2**30, power_of_two(4096)
    (True, 4096)
    """
    return 1 << max(math.ceil(size) - 1, 0).bit_length()


def refuse_one_pool(demand: CacheDemand, deployment: Deployment) -> None:
    """Refuse a host tier where CPU and GPU share one memory.

    Raises:
        InfeasibleError: the machine has one pool.
    """
    title = f"{demand.plan.inputs.hardware.name} {demand.plan.inputs.hardware.title}"
    found = next((word for word in ONE_POOL if word.casefold() in title.casefold()), None)
    if deployment.one_pool or found:
        machine = found or "this machine"
        raise InfeasibleError(
            "dram",
            f"{machine} has one memory for CPU and GPU: a host tier holds 0 B more, takes what it "
            "stores from the GPU, and there is no link to plan for",
            "leave KV offload off, and solve with --paths resident",
        )


def check_host(
    demand: CacheDemand, deployment: Deployment, rank_bytes: float, reserve_bytes: int = 0,
    change: str | None = None,
) -> list[str]:  # fmt: skip
    """Check that the pools of all ranks and replicas fit the host together.

    Args:
        demand: the plan's cache.
        deployment: the host.
        rank_bytes: what each rank allocates in host memory.
        reserve_bytes: what this runtime keeps back itself.
        change: what would make it fit; None for a smaller pool.

    Returns:
        Warnings.

    Raises:
        InfeasibleError: they do not fit; the message names the reserve and what would fit.
    """
    processes = deployment.ranks * deployment.replicas
    given = deployment.host_bytes is not None or deployment.limit_bytes is not None
    own = deployment.reserve_bytes
    reserve = own if own is not None else reserve_bytes if given else 0
    free = deployment.host_bytes if given else demand.host_capacity_bytes
    budget = host_budget(free, deployment.limit_bytes, deployment.used_bytes, reserve, processes)
    total = rank_bytes * processes
    if rank_bytes > budget:
        raise InfeasibleError(
            "host memory",
            f"{_pools(deployment, rank_bytes)}; {_host(demand, deployment, reserve, given)} leaves "
            f"{both(budget * processes)}",
            (change or f"--pool {_typed(budget * deployment.ranks)} or less")
            + ("" if given else ", or --host SIZE if this host has more than the plan's budget"),
        )
    left = budget * processes - total
    if given and left + reserve < COMFORT_BYTES:
        return [
            f"{_pools(deployment, rank_bytes)}: only {both(left + reserve)} of host memory are "
            "left for loading weights, the page cache and the processes"
        ]
    return []


def _typed(size: float) -> str:
    """A size as an option takes it, never more than it is."""
    return f"{int(size / MIB)}MiB"


def _pools(deployment: Deployment, rank_bytes: float) -> str:
    processes = deployment.ranks * deployment.replicas
    total = both(rank_bytes * processes)
    if processes == 1:
        return f"the pool takes {total}"
    replicas = f" in {deployment.replicas} engines" if deployment.replicas > 1 else ""
    return f"{processes} ranks{replicas} x {both(rank_bytes)} take {total}"


def _host(demand: CacheDemand, deployment: Deployment, reserve: int, given: bool) -> str:
    parts = []
    if deployment.host_bytes is not None:
        parts.append(f"{both(deployment.host_bytes)} free")
    if deployment.limit_bytes is not None:
        parts.append(
            f"a container limit of {format_bytes(deployment.limit_bytes)} with "
            f"{format_bytes(deployment.used_bytes)} used"
        )
    if not given:
        parts.append(f"the plan's host budget of {format_bytes(demand.host_capacity_bytes)}")
    kept = f", less a reserve of {both(reserve)}," if reserve else ""
    return " and ".join(parts) + kept
