"""Trials of the link: sizes of copies, kinds of memory, number of copies, layout of blocks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvplan.link import Link
from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import wall_samples
from kvplan_validate.measure.copies import Ends, ends
from kvplan_validate.trials.base import Finding, Place, Trial
from kvplan_validate.trials.batch_copy import BatchCopy

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def per_copy_s(place: Place, both: Ends, direction: str, size: int) -> float:
    """Median GPU seconds of one copy among many back to back in a CUDA graph."""
    copy = both.copier(direction, size)
    return statistics.median(place.machine.timer.per_operation(copy, copies=64))


class CopyRamp(Trial):
    """A fixed time and a rate."""

    name = "copy_ramp"
    title = "The time of a copy is a fixed part and a rate"
    source = "AndreaLeang/FlexLLMGen, transfer bandwidth data set (A100 40GB, 16 GB/s link)"
    claim = (
        "3.46 us + bytes / 11.87 GB/s, within 10 % from 8 MiB up, 25 % from 2 to 8 MiB, 40 % at "
        "8 KiB to the host"
    )
    sizes = (*(KIB << n for n in range(3, 8)), 512 * KIB, *(MIB << n for n in (1, 2, 3, 5, 7, 9)))

    def run(self, place: Place) -> Finding:
        """Fit both directions; compare the fit and the profile's curves with every size."""
        figures: dict[str, Any] = {}
        worst = {"fit": 0.0, "profile": 0.0}
        holds = True
        with ends(place.machine, buffers.registered, max(self.sizes)) as both:
            for direction in ("h2d", "d2h"):
                sizes = [size for size in self.sizes if size <= both.host.nbytes]
                times = [per_copy_s(place, both, direction, size) for size in sizes]
                fixed_s, s_per_byte = fitted(sizes, times)
                link = getattr(place.hardware, direction)
                rows = [
                    {
                        "bytes": size,
                        "measured_s": seconds,
                        "fit_error": (fixed_s + s_per_byte * size) / seconds - 1,
                        "profile_error": self._profile_s(link, size) / seconds - 1,
                    }
                    for size, seconds in zip(sizes, times, strict=True)
                ]
                figures[direction] = {
                    "fixed_s": fixed_s, "bytes_per_s": 1 / s_per_byte, "sizes": rows
                }  # fmt: skip
                for row in rows:
                    allowed = 0.10 if row["bytes"] >= 8 * MIB else 0.25
                    allowed = 0.40 if row["bytes"] < 2 * MIB else allowed
                    holds &= abs(row["fit_error"]) <= allowed
                    for name in worst:
                        worst[name] = max(worst[name], abs(row[f"{name}_error"]))
        h2d = figures["h2d"]
        return Finding(
            here=f"h2d {h2d['fixed_s'] * 1e6:.2f} us + bytes / "
            f"{h2d['bytes_per_s'] / 1e9:.1f} GB/s; worst error over sizes and directions: the "
            f"fit's {worst['fit']:.0%}, the profile's curves' {worst['profile']:.0%}",
            holds=holds,
            figures=figures,
        )

    @staticmethod
    def _profile_s(link: Link | None, size: int) -> float:
        return link.copy.seconds(size) if link is not None else float("nan")


def fitted(sizes: list[int], times: list[float]) -> tuple[float, float]:
    """Fixed seconds and seconds per byte with the least squares of relative errors.

    >>> [float(round(x, 9)) for x in fitted([1000, 2000, 4000], [2.0, 3.0, 5.0])]
    [1.0, 0.001]
    """
    volume, seconds = np.array(sizes, float), np.array(times, float)
    rows = np.stack((1 / seconds, volume / seconds), axis=1)
    scale = np.abs(rows).max(axis=0)
    found = np.linalg.lstsq(rows / scale, np.ones(len(sizes)), rcond=None)[0] / scale
    return max(float(found[0]), 0.0), float(found[1])


class MemoryKinds(Trial):
    """Pageable, pinned, and pinned anew for every copy."""

    name = "memory_kinds"
    title = "Pageable copies are slow, and pinning inside the loop is slower still"
    source = "rapidsai/dask-cuda#98; vetter/shoc#79 (PCIe 3.0 x16)"
    claim = (
        "pageable 5 to 12 GB/s, pinned 11 to 12.4 GB/s of 15.75; allocating pinned memory for "
        "every copy 3.3 GB/s, the rates of both in series (within 15 %)"
    )
    size = 256 * MIB

    def run(self, place: Place) -> Finding:
        """One large copy each way of getting memory."""
        torch = place.machine.torch
        with ends(place.machine, buffers.registered, self.size) as both:
            size = both.host.nbytes
            pinned_s = per_copy_s(place, both, "h2d", size)
            pageable_s = self._pageable_s(torch, both.gpu, size)
            alloc, whole = self._allocated_s(torch, both.gpu, size)
        rates = {
            "pageable_bytes_per_s": size / pageable_s,
            "pinned_bytes_per_s": size / pinned_s,
            "allocate_bytes_per_s": size / alloc,
            "allocate_and_copy_bytes_per_s": size / whole,
            "series_bytes_per_s": size / (alloc + pinned_s),
        }
        series = rates["allocate_and_copy_bytes_per_s"] / rates["series_bytes_per_s"]
        raw = place.hardware.h2d.raw_bytes_per_s
        pinned = rates["pinned_bytes_per_s"]
        return Finding(
            here=", ".join(f"{k.removesuffix('_bytes_per_s').replace('_', ' ')} {v / 1e9:.1f} GB/s"
                           for k, v in rates.items()),
            holds=rates["pageable_bytes_per_s"] < pinned <= raw and abs(series - 1) <= 0.15,
            figures={**rates, "raw_bytes_per_s": raw},
        )  # fmt: skip

    @staticmethod
    def _pageable_s(torch: Any, gpu: Any, size: int) -> float:
        with buffers.pageable(torch, size) as host:

            def copy() -> None:
                gpu[:size].copy_(host)
                torch.cuda.synchronize()

            return statistics.median(wall_samples(copy, most=7, budget_s=2.0))

    @staticmethod
    def _allocated_s(torch: Any, gpu: Any, size: int) -> tuple[float, float]:
        """Seconds to allocate pinned memory, and to allocate it and copy from it."""
        allocated, whole = [], []
        for _ in range(5):
            buffers.empty_pinned_cache(torch)
            begin = time.perf_counter()
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            allocated.append(time.perf_counter() - begin)
            gpu[:size].copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - begin)
            del host
        buffers.empty_pinned_cache(torch)
        return statistics.median(allocated), statistics.median(whole)


class SmallCopies(Trial):
    """Thousands of small copies."""

    name = "small_copies"
    title = "Small blocks are bound by the number of copies, and batching helps only there"
    source = "vllm-project/vllm#40549, #44341 (MI300X, 4096 copies of 4 to 128 KiB)"
    claim = (
        "5.5 us per copy in a loop, 2.6 us batched; below about 32 KiB time goes with the count "
        "and batching halves it, above it goes with the bytes"
    )
    count = 4096
    sizes = (4 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB)

    def run(self, place: Place) -> Finding:
        """A loop, one graph, one batched call and one long copy, per size."""
        rows = []
        with ends(place.machine, buffers.registered, 2 * GIB) as both:
            for size in self.sizes:
                if size * self.count <= both.host.nbytes:
                    rows.append(self._row(place, both, size))
        first, last = rows[0], rows[-1]
        gain = first["loop_s"] / min(first["graph_s"], first.get("batch_s", first["graph_s"]))
        bound = first["loop_s"] / rows[1]["loop_s"] > 0.75
        late = last["loop_s"] / last["graph_s"] < 1.2
        curve = place.hardware.h2d.copy
        edge = curve.seconds(0) * curve.rate() / KIB
        return Finding(
            here=f"{first['loop_s'] / self.count * 1e6:.2f} us per copy in a loop, "
            f"{first['loop_s'] / self.count / gain * 1e6:.2f} us batched at "
            f"{self.sizes[0] // KIB} KiB; batching gains {gain:.1f}x there and "
            f"{last['loop_s'] / last['graph_s']:.2f}x at {last['bytes'] // KIB} KiB; by the "
            f"profile, copies in a graph are bound by count below {edge:.0f} KiB",
            holds=bound and gain >= 1.5 and late,
            figures={"copies": self.count, "sizes": rows},
        )

    def _row(self, place: Place, both: Ends, size: int) -> dict[str, Any]:
        torch, stream = place.machine.torch, place.machine.timer.stream
        parts = [slice(i * size, (i + 1) * size) for i in range(self.count)]
        pairs = [(both.gpu[part], both.host[part]) for part in parts]

        def loop() -> None:
            for to, source in pairs:
                to.copy_(source, non_blocking=True)

        def waited(body: Callable[[], Any]) -> float:
            def once() -> None:
                with torch.cuda.stream(stream):
                    body()
                stream.synchronize()

            return statistics.median(wall_samples(once, most=5, budget_s=1.0))

        whole = slice(0, size * self.count)
        row: dict[str, Any] = {
            "bytes": size,
            "loop_s": waited(loop),
            "contiguous_s": waited(lambda: both.gpu[whole].copy_(both.host[whole], True)),
            "predicted_graph_s": self.count * place.hardware.h2d.copy.seconds(size),
        }
        graph = place.machine.timer.capture(loop)
        try:
            row["graph_s"] = waited(graph.replay)
        finally:
            torch.cuda.synchronize()
            graph.reset()
        batch = BatchCopy.of(pairs, size)
        if batch is not None:
            row["batch_s"] = waited(lambda: batch.launch(stream))
        return row


class BlockLayout(Trial):
    """Blocks of one layer against blocks of all layers."""

    name = "block_layout"
    title = "A block's K and V are two small copies per layer; contiguous layers win"
    source = "vllm-project/vllm#33398, #27743 (Llama-3.1-8B bf16, blocks of 16 tokens)"
    claim = (
        "64 KiB per block and layer, not 32; 131072 tokens take 3.44 s at the 5 GB/s of small "
        "blocks and 0.34 s at 50 GB/s; contiguous layers cut the load to a third (at most half)"
    )
    tokens, block, layers = 131072, 16, 32
    part = 8 * 128 * 2 * 16
    """Bytes of K alone: 8 heads of 128 in two bytes, 16 tokens."""

    def run(self, place: Place) -> Finding:
        """Rates of K and V apart, together, and of all layers of a block together."""
        total = self.tokens // self.block * self.layers * 2 * self.part
        with ends(place.machine, buffers.registered, 512 * MIB) as both:
            looped = self._looped_s(place, both, self.part)
            seconds = {
                "parts_looped": looped / self.part,
                "parts_graph": per_copy_s(place, both, "h2d", self.part) / self.part,
                "layer_block_graph": per_copy_s(place, both, "h2d", 2 * self.part) / 2 / self.part,
                "all_layers_looped": self._looped_s(place, both, 2 * self.part * self.layers)
                / (2 * self.part * self.layers),
            }
        totals = {name: each * total for name, each in seconds.items()}
        ratio = totals["all_layers_looped"] / totals["parts_looped"]
        return Finding(
            here=f"{2 * self.part // KIB} KiB per block and layer; {self.tokens} tokens take "
            f"{totals['parts_looped']:.2f} s as separate K and V of each layer, "
            f"{totals['all_layers_looped']:.2f} s with a block's layers together: "
            f"{ratio:.2f} of the time",
            holds=2 * self.part == 65536 and ratio <= 0.5,
            figures={"bytes": total, "seconds": totals, "ratio": ratio},
        )

    @staticmethod
    def _looped_s(place: Place, both: Ends, size: int) -> float:
        """Seconds per copy of a queue that Python launches."""
        torch, stream = place.machine.torch, place.machine.timer.stream
        count = min(2048, both.host.nbytes // size)
        parts = [slice(i * size, (i + 1) * size) for i in range(count)]
        pairs = [(both.gpu[part], both.host[part]) for part in parts]

        def queue() -> None:
            with torch.cuda.stream(stream):
                for to, source in pairs:
                    to.copy_(source, non_blocking=True)
            stream.synchronize()

        return statistics.median(wall_samples(queue, most=7, budget_s=1.0)) / float(count)
