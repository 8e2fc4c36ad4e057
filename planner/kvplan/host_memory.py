"""How much memory a process on this host may still take: what the host has free, and its cgroup."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvplan.errors import InputError
from kvplan.units import KIB

UNLIMITED = 1 << 60
"""A cgroup limit from here on means none: version 1 shows a number of this size."""

_MEMINFO = re.compile(r"^(\w+):\s+(\d+) kB$", re.M)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Memory of one host, or of one container on it.

    Args:
        available_bytes: that the host can give without swapping; None where unknown.
        limit_bytes: of the cgroup; None for no limit.
        usage_bytes: that the cgroup has taken, what it can drop at once not counted.
        virtual: a Windows host, or Linux under it (WSL), whose driver limits pinned memory.
    """

    available_bytes: int | None = None
    limit_bytes: int | None = None
    usage_bytes: int = 0
    virtual: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        if self.available_bytes is None and self.limit_bytes is None:
            raise InputError("available", None, "free host memory, a cgroup limit, or both")

    @property
    def free_bytes(self) -> int:
        """``min(limit - usage, available)``.

        >>> HostMemory(available_bytes=900, limit_bytes=400, usage_bytes=291).free_bytes
        109
        """
        bounds = [] if self.available_bytes is None else [self.available_bytes]
        if self.limit_bytes is not None:
            bounds.append(max(self.limit_bytes - self.usage_bytes, 0))
        return min(bounds)

    @property
    def bound_by_cgroup(self) -> bool:
        """Whether the cgroup, not the host, is what leaves so little."""
        if self.limit_bytes is None:
            return False
        return self.available_bytes is None or self.free_bytes < self.available_bytes


def read_host_memory(root: str | Path = "/") -> HostMemory:
    """What this machine says.

    Every cgroup from the process's own up to the root counts, in version 1 and 2; the one with
    least room binds.

    Args:
        root: folder in which ``proc`` and ``sys`` lie; for tests.

    Raises:
        InputError: no ``/proc/meminfo``, as on other systems than Linux.
    """
    root = Path(root)
    meminfo = dict(_MEMINFO.findall(_text(root / "proc/meminfo")))
    if "MemAvailable" not in meminfo:
        raise InputError(
            "/proc/meminfo", None, "a Linux host; give --available, what the host has free"
        )
    rooms = [room for group in _groups(root) if (room := _room(group)) is not None]
    limit, usage = min(rooms, key=lambda room: room[0] - room[1], default=(None, 0))
    return HostMemory(
        available_bytes=int(meminfo["MemAvailable"]) * KIB,
        limit_bytes=limit,
        usage_bytes=usage,
        virtual="microsoft" in _text(root / "proc/version").lower(),
    )


def _groups(root: Path) -> list[Path]:
    """Folders of the memory cgroups of this process, innermost first."""
    found: list[Path] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        if ".." not in inside.parts:
            found += [top / part for part in (inside, *inside.parents)]
    return found


def _room(group: Path) -> tuple[int, int] | None:
    """Limit and usage of one cgroup; None where it has no limit."""
    for limit_file, usage_file, droppable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _text(group / limit_file).strip(), _text(group / usage_file).strip()
        if not limit.isdecimal() or not usage.isdecimal() or int(limit) >= UNLIMITED:
            continue
        stat = re.search(rf"^{droppable} (\d+)$", _text(group / "memory.stat"), re.M)
        return int(limit), max(int(usage) - (int(stat[1]) if stat else 0), 0)
    return None


def _text(file: Path) -> str:
    """The text of a small file; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
