"""``kvplan host``: how large a host cache may be, and whether one that is asked for fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from kvplan.cli.declarations import MOST_RANKS, gpu_option, panel_option
from kvplan.cli.options import as_option
from kvplan.cli.output import Json, print_json, say
from kvplan.cli.values import size, whole_number
from kvplan.errors import InfeasibleError, InputError
from kvplan.units import format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from kvplan.host_cache import HostCache
    from kvplan.host_memory import HostMemory

EPILOG = """
Examples:

\b
  kvplan host
  kvplan host --cache 100GB --per-rank --ranks 4
  kvplan host --cache 40GB --available 44.87GB --reserve 10GB
  kvplan host --cache 5GiB --wsl --gpu rtx-4090

Without figures it reads those of this machine: /proc/meminfo and the memory cgroup, 1 and 2.
"""

_CACHE, _HOST = "Cache", "Host"


# fmt: off
def host(
    cache: Annotated[str | None, panel_option(
        _CACHE, "--cache", metavar="SIZE", help="Host cache wanted, of all ranks together, such as "
        "100GiB. [default: only the budget is shown]")] = None,
    per_rank: Annotated[bool, panel_option(
        _CACHE, "--per-rank", help="--cache is of each rank, as LMCache, SGLang and TensorRT-LLM "
        "take it.")] = False,
    ranks: Annotated[str, panel_option(
        _CACHE, "--ranks", metavar="N",
        help="Processes on this host that allocate their own.")] = "1",
    allocator: Annotated[str, panel_option(
        _CACHE, "--allocator", metavar="caching|exact", help="Pinned by a framework, which rounds "
        "up to a power of two; or mapped and registered, exactly.")] = "caching",
    buffers: Annotated[str, panel_option(
        _CACHE, "--buffers", metavar="N",
        help="Buffers of one rank, each pinned by itself.")] = "1",
    available: Annotated[str | None, panel_option(
        _HOST, "--available", metavar="SIZE", help="Memory the host has free (MemAvailable). "
        "[default: of this machine]")] = None,
    cgroup_limit: Annotated[str | None, panel_option(
        _HOST, "--cgroup-limit", metavar="SIZE", help="Limit of the container.")] = None,
    cgroup_usage: Annotated[str, panel_option(
        _HOST, "--cgroup-usage", metavar="SIZE", help="What the container uses already.")] = "0",
    reserve: Annotated[str, panel_option(
        _HOST, "--reserve", metavar="SIZE", help="Kept free for everything else.")] = "10GB",
    growth: Annotated[str, panel_option(
        _HOST, "--growth", metavar="SIZE", help="What the processes take more under load.")] = "0",
    pinned_limit: Annotated[str | None, panel_option(
        _HOST, "--pinned-limit", metavar="SIZE",
        help="Most that can be pinned, as measured.")] = None,
    wsl: Annotated[bool, panel_option(
        _HOST, "--wsl",
        help="A Windows host, or Linux under it. [default: as this machine]")] = False,
    gpu: Annotated[str | None, gpu_option(
        _HOST, "Show the rate of its link from this memory.")] = None,
    as_json: Json = False,
) -> None:
    """Say how much host memory a cache may take, and whether a wanted one fits and what it costs.

    Budget = min(cgroup limit - usage, free memory) - reserve, divided by the ranks of the host
    before any of them allocates.
    """
    with as_option():
        total = size(cache, "--cache")
        count = whole_number(ranks, "--ranks", MOST_RANKS)
        if total is not None and not per_rank:
            total = -(-total // count)
        from kvplan.host_cache import HostCache
        from kvplan.pinning import WAYS

        if allocator not in WAYS:
            raise InputError("--allocator", allocator, " or ".join(WAYS))
        wanted = HostCache(
            memory=_memory(available, cgroup_limit, cgroup_usage, wsl), size_bytes=total,
            ranks=count, reserve_bytes=parse_bytes(reserve, "--reserve"),
            growth_bytes=parse_bytes(growth, "--growth"), allocator=allocator,  # type: ignore[arg-type]
            pin_limit_bytes=size(pinned_limit, "--pinned-limit"),
            buffers=whole_number(buffers, "--buffers", 1 << 20),
        )
        document = describe(wanted, gpu)
    if as_json:
        print_json(document)
    if wanted.problems:
        raise refusal(wanted)
    for warning in wanted.warnings:
        say("warning", warning)
    for note in wanted.notes:
        say("note", note)
    if not as_json:
        from kvplan.cli.fit_tables import show_host

        show_host(wanted, document)
# fmt: on


def _memory(available: str | None, limit: str | None, usage: str, wsl: bool) -> HostMemory:
    """The host that is described, or this machine."""
    from kvplan.host_memory import HostMemory, read_host_memory

    if available is None and limit is None:
        here = read_host_memory()
        if not wsl or here.virtual:
            return here
        return HostMemory(available_bytes=here.available_bytes, limit_bytes=here.limit_bytes,
                          usage_bytes=here.usage_bytes, virtual=True)  # fmt: skip
    return HostMemory(
        available_bytes=size(available, "--available"), limit_bytes=size(limit, "--cgroup-limit"),
        usage_bytes=parse_bytes(usage, "--cgroup-usage"), virtual=wsl,
    )  # fmt: skip


def describe(wanted: HostCache, gpu: str | None = None) -> dict[str, Any]:
    """The answer as one document; sizes in bytes, times in seconds."""
    asked = wanted.size_bytes is not None
    risky = "warn" if wanted.warnings else "accept"
    verdict = "reject" if wanted.problems else risky
    return {
        "verdict": verdict if asked or wanted.problems else None,
        "reasons": [*wanted.problems, *wanted.warnings, *wanted.notes],
        "free_bytes": wanted.memory.free_bytes,
        "reserve_bytes": wanted.reserve_bytes,
        "growth_bytes": wanted.growth_bytes,
        "budget_bytes": wanted.budget_bytes,
        "ranks": wanted.ranks,
        "rank_budget_bytes": wanted.rank_budget_bytes,
        "rank_best_bytes": wanted.best_bytes,
        "requested_bytes": wanted.requested_bytes if asked else None,
        "taken_bytes": wanted.taken_bytes if asked else None,
        "allocator": wanted.allocator,
        "pinned": asked and not wanted.pageable,
        "start_s": list(wanted.start_seconds()) if asked and not wanted.pageable else None,
        "h2d_bytes_per_s": None if gpu is None else _rate(gpu, wanted.pageable),
    }


def _rate(gpu: str, pageable: bool) -> float:
    """The link's rate from pinned or pageable memory, bytes per second."""
    from kvplan.hardware_library import load_hardware

    card = load_hardware(gpu)
    link = card.h2d
    if not pageable:
        return link.copy.rate()
    if link.pageable_bytes_per_s is None:
        raise InputError("--gpu", gpu, "a profile with a rate from pageable memory")
    return link.pageable_bytes_per_s


def refusal(wanted: HostCache) -> InfeasibleError:
    """Why it does not fit, and the largest that does."""
    best = wanted.best_bytes
    change = "free memory, or take fewer ranks"
    if best:
        of = " per rank" if wanted.ranks > 1 else ""
        change = f"at most {format_bytes(best)}{of} fits"
    elif wanted.budget_bytes == 0:
        change = "nothing is left for a cache: free memory or keep less in reserve (--reserve)"
    return InfeasibleError("host", "; ".join(wanted.problems), change)


def start_words(wanted: HostCache) -> str:
    """How long pinning takes, and what shortens it."""
    low, high = wanted.start_seconds()
    advice = "" if wanted.allocator == "exact" else "; --allocator exact is 4 to 5 times as fast"
    pages = "; pages of 2 MiB and many threads that touch them are fastest"
    return f"{format_seconds(low)} to {format_seconds(high)} per rank{advice}{pages}"
