"""Whether a host cache fits: all ranks of a host together, as their allocator really takes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvplan.errors import InputError
from kvplan.host_memory import HostMemory
from kvplan.pinning import LARGEST_REGISTRATION_BYTES, WAYS, Allocator, taken_bytes
from kvplan.units import GB, GIB, format_bytes

RESERVE_BYTES = 10 * GB
"""Kept for everything else on the host. Source: the same figure in sgl-project/sglang PR 8102."""

PROCESS_BYTES = 4 * GIB
"""Host memory of one rank's process beside the cache: loading, staging, context. Assumed."""


@dataclass(frozen=True, kw_only=True)
class HostCache:
    """A host cache that is asked for, on a host.

    Args:
        memory: of the host.
        size_bytes: asked for, of one rank; None: only the budget is asked.
        ranks: processes on this host that each allocate their own.
        reserve_bytes: kept free.
        growth_bytes: what the process is known to take more under load.
        allocator: how the memory is pinned.
        buffers: that a rank's cache is made of, each pinned by itself (one per layer, often).
        pin_limit_bytes: most that can be pinned, where it was measured.
    """

    memory: HostMemory
    size_bytes: int | None = None
    ranks: int = 1
    reserve_bytes: int = RESERVE_BYTES
    growth_bytes: int = 0
    allocator: Allocator = "caching"
    buffers: int = 1
    pin_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("ranks", "buffers"):
            if getattr(self, name) < 1:
                raise InputError(name, getattr(self, name), "a whole number, 1 or more")

    @property
    def budget_bytes(self) -> int:
        """Of all ranks together; never negative."""
        left = self.memory.free_bytes - self.reserve_bytes - self.growth_bytes
        return max(left, 0)

    @property
    def rank_budget_bytes(self) -> int:
        """Of one rank, divided before any of them allocates."""
        return self.budget_bytes // self.ranks

    @property
    def requested_bytes(self) -> int:
        """All ranks together, as asked for."""
        return (self.size_bytes or 0) * self.ranks

    @property
    def taken_bytes(self) -> int:
        """All ranks together, as the allocator takes it."""
        return self.rank_taken_bytes * self.ranks

    @property
    def rank_taken_bytes(self) -> int:
        """One rank, as it is really taken."""
        return (self.size_bytes or 0) if self.pageable else self._pinned_bytes

    @property
    def _pinned_bytes(self) -> int:
        """One rank, as the allocator pins it."""
        each = -(-(self.size_bytes or 0) // self.buffers)
        return max(taken_bytes(each, self.allocator) * self.buffers, self.size_bytes or 0)

    @property
    def best_bytes(self) -> int:
        """The largest size of one rank that fits and wastes nothing."""
        size = self.rank_budget_bytes // self.buffers
        if self.allocator == "exact" or size < 1:
            return self.rank_budget_bytes
        return self.buffers << (size.bit_length() - 1)

    @property
    def pageable(self) -> bool:
        """Whether it must be planned in memory that is not pinned: the limit is unknown, or less.

        Under Windows and WSL it is no fixed share of anything (0.5 to 94 GiB were seen), so only a
        measured limit counts.
        """
        if self.pin_limit_bytes is None:
            return self.memory.virtual
        return self._pinned_bytes * self.ranks > self.pin_limit_bytes

    @cached_property
    def problems(self) -> list[str]:
        """Why it does not fit; empty where it does."""
        over = self.taken_bytes - self.budget_bytes
        if self.budget_bytes and (self.size_bytes is None or over <= 0):
            return []
        free = f"{format_bytes(self.memory.free_bytes)} free"
        if self.memory.bound_by_cgroup:
            free += " under the cgroup's limit"
        kept = f"less {_exactly(self.reserve_bytes)} kept in reserve"
        if self.growth_bytes:
            kept += f" and {format_bytes(self.growth_bytes)} of growth"
        asked = "a cache" if self.size_bytes is None else self._asked()
        return [f"{asked} against a budget of {format_bytes(self.budget_bytes)} ({free}, {kept})"]

    @cached_property
    def warnings(self) -> list[str]:
        """What is likely to go wrong although it fits."""
        found = []
        left = self.budget_bytes - self.taken_bytes
        need = PROCESS_BYTES * self.ranks
        if self.size_bytes is not None and not self.problems and left < need:
            found.append(
                f"{format_bytes(left)} left for {_ranks(self.ranks)} beside the reserve; a process "
                f"takes about {format_bytes(PROCESS_BYTES)} of its own"
            )
        if self.pageable:
            found.append(self._unpinned())
        if self.allocator == "exact" and (self.size_bytes or 0) >= LARGEST_REGISTRATION_BYTES:
            found.append("one registration of 512 GiB or more fails: register in pieces")
        return found

    @cached_property
    def notes(self) -> list[str]:
        """What it costs more than it seems."""
        if self.taken_bytes <= self.requested_bytes:
            return []
        return [
            f"the allocator rounds {_exactly(self.size_bytes or 0)} up to "
            f"{format_bytes(self.rank_taken_bytes)}: ask for {self._round()}, or register mapped "
            "memory (--allocator exact)"
        ]

    def words(self) -> str:
        """What is asked for.

        >>> HostCache(memory=HostMemory(available_bytes=10**12), size_bytes=10**11, ranks=4).words()
        '400 GB (4 ranks of 100 GB)'
        """
        of = f" ({_ranks(self.ranks)} of {_exactly(self.size_bytes or 0)})"
        return _exactly(self.requested_bytes) + of * (self.ranks > 1)

    def _asked(self) -> str:
        asked = self.words()
        if self.taken_bytes > self.requested_bytes:
            asked += f", which takes {format_bytes(self.taken_bytes)} when pinned,"
        return asked

    def _round(self) -> str:
        return "a power of two" if self.buffers == 1 else "buffers of a power of two"

    def _unpinned(self) -> str:
        if self.pin_limit_bytes is None:
            return (
                "how much can be pinned is not known under Windows and WSL and no fixed share of "
                "anything: measure it and give --pinned-limit; planned from pageable memory"
            )
        return (
            f"more than the {format_bytes(self.pin_limit_bytes)} that can be pinned: planned from "
            "pageable memory"
        )

    def start_seconds(self) -> tuple[float, float]:
        """Shortest and longest time to pin one rank's cache; ranks pin side by side at best."""
        return WAYS[self.allocator].seconds(self.rank_taken_bytes)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _exactly(size: int) -> str:
    """A size in the unit it was likely typed in."""
    if size >= GB and size % (GB // 100) == 0:
        return f"{size / GB:g} GB"
    return format_bytes(size)
