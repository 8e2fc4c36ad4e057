"""Host memory that a run may still take: what the system has left, or its container."""

from __future__ import annotations

from pathlib import Path

MARGIN = 512 * 2**20
"""Bytes left to everything else: a process that takes the last page is killed, not refused."""

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Limit, use and statistics of a container's memory: cgroup 2, cgroup 1."""


def available_bytes() -> int | None:
    """Bytes that may be touched before the system or the container runs out; None if unknown."""
    known = [size for size in (_system(), *(_container(*files) for files in _CGROUPS)) if size]
    return max(min(known) - MARGIN, 0) if known else None


def _system() -> int | None:
    for line in _lines(_MEMINFO):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _container(limit: str, use: str, statistics: str) -> int | None:
    """Limit less use; pages of files that can be dropped do not count as used."""
    most, used = (_first_number(Path(file)) for file in (limit, use))
    if most is None or used is None:
        return None
    names = ("inactive_file ", "total_inactive_file ")
    droppable = [int(x.split()[1]) for x in _lines(Path(statistics)) if x.startswith(names)]
    return max(most - used + max(droppable, default=0), 1)


def _first_number(file: Path) -> int | None:
    lines = _lines(file)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
