"""What a host has free: meminfo, cgroups of both versions, and caches against it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from kvplan.errors import InputError
from kvplan.host_cache import HostCache
from kvplan.host_memory import HostMemory, read_host_memory
from kvplan.pinning import taken_bytes
from kvplan.units import GIB, MIB

MEMINFO = "MemTotal:       65536000 kB\nMemFree:  1000 kB\nMemAvailable:   33554432 kB\n"
FREE = 32 * GIB


def host(root: Path, files: Mapping[str, object]) -> HostMemory:
    """A machine of these files."""
    for name, content in {"proc/meminfo": MEMINFO, "proc/version": "Linux", **files}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(content), encoding="utf-8")
    return read_host_memory(root)


V2 = "0::/pod/engine\n"
V1 = "12:cpu,cpuacct:/x\n7:memory:/pod/engine\n0::/\n"

MACHINES: dict[str, tuple[dict[str, object], int]] = {
    "no cgroup": ({}, FREE),
    "no limit": ({"proc/self/cgroup": V2, "sys/fs/cgroup/pod/engine/memory.max": "max",
                  "sys/fs/cgroup/pod/engine/memory.current": GIB}, FREE),
    "version 2": ({"proc/self/cgroup": V2, "sys/fs/cgroup/pod/engine/memory.max": 8 * GIB,
                   "sys/fs/cgroup/pod/engine/memory.current": 3 * GIB}, 5 * GIB),
    "its parent binds": ({"proc/self/cgroup": V2,
                          "sys/fs/cgroup/pod/engine/memory.max": 8 * GIB,
                          "sys/fs/cgroup/pod/engine/memory.current": GIB,
                          "sys/fs/cgroup/pod/memory.max": 16 * GIB,
                          "sys/fs/cgroup/pod/memory.current": 14 * GIB}, 2 * GIB),
    "files that can be dropped": ({"proc/self/cgroup": V2,
                                   "sys/fs/cgroup/pod/engine/memory.max": 8 * GIB,
                                   "sys/fs/cgroup/pod/engine/memory.current": 7 * GIB,
                                   "sys/fs/cgroup/pod/engine/memory.stat":
                                   f"anon 5\ninactive_file {4 * GIB}\n"}, 5 * GIB),
    "seen from inside": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": 4 * GIB,
                          "sys/fs/cgroup/memory.current": GIB}, 3 * GIB),
    "version 1": ({"proc/self/cgroup": V1,
                   "sys/fs/cgroup/memory/pod/engine/memory.limit_in_bytes": 6 * GIB,
                   "sys/fs/cgroup/memory/pod/engine/memory.usage_in_bytes": 2 * GIB}, 4 * GIB),
    "version 1 without limit": ({"proc/self/cgroup": V1,
                                 "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**63 - 4096,
                                 "sys/fs/cgroup/memory/memory.usage_in_bytes": GIB}, FREE),
    "a limit above the host": ({"proc/self/cgroup": V2,
                                "sys/fs/cgroup/pod/engine/memory.max": 900 * GIB,
                                "sys/fs/cgroup/pod/engine/memory.current": GIB}, FREE),
    "used beyond its limit": ({"proc/self/cgroup": V2,
                               "sys/fs/cgroup/pod/engine/memory.max": GIB,
                               "sys/fs/cgroup/pod/engine/memory.current": 2 * GIB}, 0),
    "a path that climbs": ({"proc/self/cgroup": "0::/../../other\n"}, FREE),
    "files of nonsense": ({"proc/self/cgroup": "nonsense\n::\n0::/pod\n",
                           "sys/fs/cgroup/pod/memory.max": "many",
                           "sys/fs/cgroup/pod/memory.current": ""}, FREE),
}  # fmt: skip


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine(tmp_path: Path, name: str) -> None:
    files, free = MACHINES[name]
    assert host(tmp_path, files).free_bytes == free


def test_a_machine_without_meminfo_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/proc/meminfo.*--available"):
        read_host_memory(tmp_path)


def test_windows_is_told_by_its_kernel(tmp_path: Path) -> None:
    wsl = "Linux version 6.6.87.2-microsoft-standard-WSL2"
    assert host(tmp_path, {"proc/version": wsl}).virtual
    assert not host(tmp_path, {"proc/version": "Linux version 6.8"}).virtual


def test_nothing_known_is_refused() -> None:
    with pytest.raises(InputError):
        HostMemory()


@given(
    free=st.integers(0, 2**42), ranks=st.integers(1, 16), reserve=st.integers(0, 2**36),
    buffers=st.integers(1, 64),
)  # fmt: skip
@examples(60)
def test_the_largest_cache_fits_and_wastes_nothing(
    free: int, ranks: int, reserve: int, buffers: int
) -> None:
    memory = HostMemory(available_bytes=free)
    asked = HostCache(memory=memory, ranks=ranks, reserve_bytes=reserve, buffers=buffers)
    best = asked.best_bytes
    if best < buffers:
        return
    taken = HostCache(memory=memory, ranks=ranks, reserve_bytes=reserve, buffers=buffers,
                      size_bytes=best)  # fmt: skip
    assert not taken.problems
    assert taken.taken_bytes == taken.requested_bytes
    assert 2 * best > asked.rank_budget_bytes - buffers


@given(size=st.integers(1, 2**44))
@examples(60)
def test_rounding_is_to_the_next_power_of_two(size: int) -> None:
    taken = taken_bytes(size)
    assert size <= taken < 2 * size
    assert taken & (taken - 1) == 0


def test_buffers_are_rounded_one_by_one() -> None:
    """vllm-project/vllm issue 53042: 400 GiB in 8 ranks of 24 buffers took 769."""
    cache = HostCache(memory=HostMemory(available_bytes=2048 * GIB), ranks=8, buffers=24,
                      size_bytes=50 * GIB)  # fmt: skip
    assert cache.taken_bytes / GIB == pytest.approx(769, rel=0.01)


def test_a_huge_registration_is_warned_of() -> None:
    said = run("host", "--available", "2TiB", "--cache", "600GiB", "--allocator", "exact")
    assert (said.code, "register in pieces" in said.err) == (0, True)


def test_json_keys_are_stable() -> None:
    asked = ("host", "--available", "64GiB", "--json")
    keys = {
        "verdict", "reasons", "free_bytes", "reserve_bytes", "growth_bytes", "budget_bytes",
        "ranks", "rank_budget_bytes", "rank_best_bytes", "requested_bytes", "taken_bytes",
        "allocator", "pinned", "start_s", "h2d_bytes_per_s",
    }  # fmt: skip
    for more in ((), ("--cache", "8GiB"), ("--cache", "900GiB"), ("--cache", "1GiB", "--wsl")):
        found = run(*asked, *more)
        document = json.loads(found.out)
        assert document.keys() == keys
        assert found.code == (3 if document["verdict"] == "reject" else 0)
    assert json.loads(run(*asked).out)["verdict"] is None


def test_this_machine_can_be_asked() -> None:
    found = run("host", "--reserve", "0", "--json")
    assert found.code == 0, found.err
    assert json.loads(found.out)["free_bytes"] > MIB
