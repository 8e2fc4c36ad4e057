"""Trials of pinned memory: how much an allocator takes, where the limit lies, how long it takes."""

from __future__ import annotations

import mmap
import time
from typing import Any

from kvplan.errors import ResourceError
from kvplan.units import format_bytes
from kvplan_validate import pool
from kvplan_validate.faults import clear_cuda_error
from kvplan_validate.measure import Clock, buffers, pinned
from kvplan_validate.measure.machine import memory_bytes, usable_cores
from kvplan_validate.trials.base import Finding, Place, Trial

MIB, GIB = 1 << 20, 1 << 30


class AllocatorRounding(Trial):
    """What a caching allocator takes."""

    name = "pinned_rounding"
    title = "A caching allocator of pinned memory rounds up to powers of two"
    source = (
        "LMCache/LMCache#1147; pytorch/pytorch#150517; sgl-project/sglang#36562; cupy/cupy#7742"
    )
    claim = "129.5 MB take 256 MB, 4.0 GiB take 4, 4.1 take 8, 5.0 take 8 (within 2 %)"
    dram_bytes = 8 * GIB
    requests = (round(129.5 * MIB), 4 * GIB, round(4.1 * GIB), 5 * GIB)

    def run(self, place: Place) -> Finding:
        """Allocate each size, and register the same size instead."""
        rows = [self._row(place.machine.torch, size) for size in self.requests]
        said = [f"{format_bytes(r['asked'])} take {format_bytes(r['allocator'])}" for r in rows]
        exact = [r["allocator"] / (1 << (r["asked"] - 1).bit_length()) for r in rows]
        spare = max(r["registered"] / r["asked"] for r in rows)
        return Finding(
            here=f"{', '.join(said)}; registered memory takes at most {spare:.3f} of what is asked",
            holds=all(abs(share - 1) <= 0.02 for share in exact),
            figures={"bytes": rows},
        )

    @staticmethod
    def _row(torch: Any, size: int) -> dict[str, int]:
        buffers.empty_pinned_cache(torch)
        before = memory_bytes("MemAvailable")
        tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        taken = before - memory_bytes("MemAvailable")
        del tensor
        buffers.empty_pinned_cache(torch)
        before = memory_bytes("MemAvailable")
        held = pool.PinnedPool(size, pin=True)
        registered = before - memory_bytes("MemAvailable")
        held.close()
        return {"asked": size, "allocator": taken, "registered": registered}


class PinLimit(Trial):
    """Where pinning ends, and what a refusal leaves behind."""

    name = "pin_limit"
    title = "The limit of pinned memory is found by asking, and a refusal does no harm"
    source = (
        "FlashML-org/FreeToken#233, #27; microsoft/WSL#14078; LMCache/LMCache#1063 (0.5 to 94 GiB)"
    )
    claim = (
        "the limit is no fixed share of RAM; a run must find it without a crash, clear the error "
        "and go on with what it got"
    )
    dram_bytes = 4 * GIB
    seconds = 8.0

    def run(self, place: Place) -> Finding:
        """Register until refused or half is reached; provoke a refusal; compute afterwards."""
        machine, torch = place.machine, place.machine.torch
        machine.clock = Clock(time.monotonic() + self.seconds)
        points = pinned.Limit().run(machine).document()
        limit = next(p for p in points if p["at"] == {"action": "limit"})
        code = self._refused_twice(torch)
        computes = float(torch.ones(4, device="cuda").sum()) == 4.0
        asked = 2 * memory_bytes("MemTotal")
        try:
            pool.largest(asked, asked, lambda text: None, pin=True).close()
            stopped = False
        except ResourceError:
            stopped = True
        found = format_bytes(limit["median"]) if "median" in limit else limit["error"]
        refused = bool(limit.get("notes", {}).get("refused"))
        return Finding(
            here=f"{found} registered, {'then refused' if refused else 'not refused so far'}; "
            f"after a refusal (error {code}) the next kernel is "
            f"{'right' if computes else 'wrong'}; twice the host's memory is "
            f"{'refused before it is touched' if stopped else 'not refused'}",
            holds="median" in limit and code != 0 and computes and stopped,
            figures={"limit": limit, "refusal_code": code},
        )

    @staticmethod
    def _refused_twice(torch: Any) -> int:
        """CUDA's error for registering what is registered; it is cleared."""
        with buffers.registered(torch, MIB) as tensor:
            code = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))
            clear_cuda_error()
        return code


class PinSpeed(Trial):
    """How fast memory is pinned."""

    name = "pin_speed"
    title = "Pinning hundreds of GiB takes minutes; touching in parallel first is faster"
    source = "ai-dynamo/dynamo#13710; NVIDIA/TensorRT-LLM#15430; ROCm/mori#679; rapidsai/rmm#2496"
    claim = (
        "2.9 GiB/s by the driver's allocation, 8.7 GiB/s touched by 32 threads and registered, "
        "14 GiB/s with 2 MiB pages; 300 GB take 97 s by the driver (within a factor of 2)"
    )
    dram_bytes = 4 * GIB
    size = 4 * GIB

    def run(self, place: Place) -> Finding:
        """The same size pinned in four ways."""
        torch, threads = place.machine.torch, usable_cores()
        seconds = {
            "driver": self._driver_s(torch),
            "touched_by_one": self._registered_s(torch, threads=1, huge=False),
            "touched_by_all": self._registered_s(torch, threads=threads, huge=False),
            "huge_pages": self._registered_s(torch, threads=threads, huge=True),
        }
        rates = {name: self.size / taken for name, taken in seconds.items()}
        said = ", ".join(f"{k.replace('_', ' ')} {v / GIB:.1f}" for k, v in rates.items())
        minutes_s = 300e9 / rates["driver"]
        best = max(("touched_by_one", "touched_by_all", "huge_pages"), key=lambda k: rates[k])
        return Finding(
            here=f"GiB/s: {said}; 300 GB would take {minutes_s:.0f} s by the driver, "
            f"{300e9 / rates[best]:.0f} s {best.replace('_', ' ')}",
            holds=rates["touched_by_all"] > 1.5 * rates["driver"] and 97 / 2 <= minutes_s <= 97 * 2,
            figures={"bytes": self.size, "threads": threads, "seconds": seconds},
        )

    def _driver_s(self, torch: Any) -> float:
        buffers.empty_pinned_cache(torch)
        begin = time.perf_counter()
        tensor = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
        taken = time.perf_counter() - begin
        del tensor
        buffers.empty_pinned_cache(torch)
        return taken

    def _registered_s(self, torch: Any, *, threads: int, huge: bool) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            begin = time.perf_counter()
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has no huge pages
            mapping = mmap.mmap(-1, self.size, flags=private)
            if huge and hasattr(mmap, "MADV_HUGEPAGE"):
                mapping.madvise(mmap.MADV_HUGEPAGE)
            tensor = torch.frombuffer(mapping, dtype=torch.uint8)
            tensor.fill_(0)
            buffers.register(torch, tensor)
            taken = time.perf_counter() - begin
            buffers.unregister(torch, tensor)
            return taken
        finally:
            torch.set_num_threads(before)
