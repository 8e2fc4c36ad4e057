"""Host memory of the machine this runs on: free, limited by its container, and /dev/shm."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kvplan.errors import InputError
from kvplan.units import KIB

UNLIMITED = 2**60
"""Limits above this are no limits: version 1 of cgroups writes the largest page count."""

_LIMITS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat"),
    (
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and statistics of version 2 and 1. Source: Linux, Documentation/admin-guide."""


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes of this machine.

    Args:
        free_bytes: what new processes can take (``MemAvailable``).
        limit_bytes: limit of the container; None for none.
        used_bytes: what counts against it and cannot be reclaimed.
        shm_bytes: free in ``/dev/shm``; None where there is none.
    """

    free_bytes: int
    limit_bytes: int | None
    used_bytes: int
    shm_bytes: int | None


def measure(root: str = "/") -> HostMemory:
    """Read the memory of this machine.

    Args:
        root: where the file system begins.

    Raises:
        InputError: not Linux.
    """
    top = Path(root)
    limit, used = _container(top)
    shm = top / "dev/shm"
    return HostMemory(
        free_bytes=_available(top),
        limit_bytes=limit,
        used_bytes=used,
        shm_bytes=shutil.disk_usage(shm).free if shm.is_dir() else None,
    )


def _available(top: Path) -> int:
    try:
        lines = (top / "proc/meminfo").read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * KIB
    except (OSError, ValueError, KeyError, IndexError):
        raise InputError("--host", "here", "a size: this machine has no /proc/meminfo") from None


def _container(top: Path) -> tuple[int | None, int]:
    for limit, used, statistics in _LIMITS:
        most = _number(top / limit)
        if most is not None and most < UNLIMITED:
            return most, max((_number(top / used) or 0) - _cached(top / statistics), 0)
    return None, 0


def _cached(file: Path) -> int:
    """Page cache that the kernel gives back under pressure."""
    try:
        fields = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
        return int(fields.get("inactive_file", fields.get("total_inactive_file", "0")))
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
