"""Decode attention on the GPU: the flash kernel, one query against a run of cached tokens.

Grouped queries are folded into the query's length: ``q [sequences, kv_heads, group, head_dim]``.
A figure is seconds per kernel; the volume is bytes of K and V, none of them in the L2 cache. The
kernel cuts a run of tokens into parts, so that all processors have work; what merging them takes
longer than merging one is a part of the figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting
from kvplan_validate.measure.machine import Machine

HEAD_DIM = 128
SHAPES = ((16, 32, 1), (1, 8, 4), (16, 8, 4), (64, 8, 4), (64, 32, 1), (1, 4, 7), (1, 32, 1))
"""Sequences, KV heads and query heads per KV head; 4 to 2048 rows for the kernel to spread."""

FOOTPRINT = 16 << 30
"""Bytes that inputs are taken from: as many as a resident cache, more than page tables reach."""

LARGE = 64 << 20
"""Bytes from which inputs are taken from all of the pool."""

FEW_SHAPES = ((16, 32, 1), (1, 32, 1), (16, 8, 4))

SIZES = tuple(1 << n for n in range(20, 32))
"""Bytes of K and V: 1 MiB to 2 GiB."""

LEAST_TOKENS = 16

Part = Callable[[int], Any]
"""Part ``i`` of a pool of random numbers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of one attention: ``[tokens, sequences, 2, kv_heads, head_dim]`` of K and V, fp16."""

    sequences: int
    kv_heads: int
    group: int
    tokens: int

    @property
    def elements(self) -> int:
        """Numbers of K and V."""
        return self.tokens * self.sequences * 2 * self.kv_heads * HEAD_DIM


class TokenMajor(Series):
    """Attention over staged tokens."""

    key = "attention.token_major"
    sentence = "Flash attention over K and V as they are staged: K and V of a token adjacent."
    seconds = 12.0
    shapes: ClassVar[tuple[tuple[int, int, int], ...]] = SHAPES
    sizes: ClassVar[tuple[int, ...]] = SIZES

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every batch, grouping and size that is a whole number of tokens, 16 or more."""
        for sequences, kv_heads, group in self.shapes:
            token_bytes = sequences * 2 * kv_heads * HEAD_DIM * 2
            for size in self.sizes:
                if size >= LEAST_TOKENS * token_bytes:
                    yield {
                        "sequences": sequences,
                        "kv_heads": kv_heads,
                        "group": group,
                        "head_dim": HEAD_DIM,
                        "tokens": size // token_bytes,
                        "bytes": size,
                    }

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Any]:
        free = int(machine.torch.cuda.mem_get_info()[0])
        yield buffers.pool(machine, max(*self.sizes, min(FOOTPRINT, free // 4)))

    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """One pool of random numbers, as large as the largest size."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time one shape."""
        names = ("sequences", "kv_heads", "group", "tokens")
        shape = Shape(*(int(at[name]) for name in names))
        size = 2 * shape.elements
        if shape.elements > bench.numel():
            raise MemoryError("not enough GPU memory is free for this size")
        most = 64 if size >= LARGE else buffers.copies_beyond_l2(machine, size, most=192)
        copies = max(min(most, bench.numel() // shape.elements), 1)
        query = machine.torch.randn(
            (shape.sequences, shape.kv_heads, shape.group, HEAD_DIM),
            device=bench.device,
            dtype=bench.dtype,
        )
        times = self.times(machine, query, shape, lambda i: part_of(bench, shape, i), copies)
        return Sampled(samples=times, volume=size)

    def times(
        self, machine: Machine, query: Any, shape: Shape, part: Part, copies: int
    ) -> tuple[float, ...]:
        """Seconds of the runtime's kernel on parts of the pool, ``[tokens, sequences, 2, kv_heads,
        head_dim]`` each, and of merging what it writes beyond merging one partial result.
        """
        from kvplan_validate import kernels

        torch, count = machine.torch, kernels.parts(query, shape.tokens)
        outputs = torch.zeros(count, *query.shape, device=query.device, dtype=query.dtype)
        lses = torch.zeros(count, *query.shape[:-1], device=query.device)
        whole = (shape.tokens, shape.sequences, 2, shape.kv_heads, HEAD_DIM)

        def attend(index: int) -> None:
            kernels.attend(query, part(index).view(whole), outputs, lses)

        if count == 1:
            return timed(machine, attend, copies)
        tail = torch.zeros(1, *whole[1:], device=query.device, dtype=query.dtype)

        def both(index: int) -> None:
            attend(index)
            kernels.merge(query, tail, outputs, lses)

        one_s = median(
            timed(machine, lambda index: kernels.merge(query, tail, outputs[:1], lses[:1]), 1)
        )
        return tuple(seconds - one_s for seconds in timed(machine, both, copies))


def timed(machine: Machine, work: Callable[[int], Any], copies: int) -> tuple[float, ...]:
    """Seconds of work that takes parts of the pool in turn."""
    return machine.timer.per_operation(work, copies=copies, burst_s=1.5e-3, samples=5)


def part_of(pool: Any, shape: Shape, index: int) -> Any:
    """Part ``index`` of a pool, as many numbers as the shape has."""
    return pool[index * shape.elements : (index + 1) * shape.elements]


class HeadMajor(TokenMajor):
    """Attention over tokens that lie head by head."""

    key = "attention.head_major"
    sentence = "Flash attention over K and V that are contiguous per head, for comparison."
    seconds = 3.0
    shapes = FEW_SHAPES
    sizes = tuple(1 << n for n in range(22, 31, 2))

    def times(
        self, machine: Machine, query: Any, shape: Shape, part: Part, copies: int
    ) -> tuple[float, ...]:
        """Seconds of torch's kernel on K and V ``[sequences, kv_heads, tokens, head_dim]``."""
        flash = machine.torch.ops.aten._scaled_dot_product_flash_attention
        whole = (2, shape.sequences, shape.kv_heads, shape.tokens, HEAD_DIM)

        def attend(index: int) -> Any:
            keys, values = part(index).view(whole)
            return flash(query, keys, values, 0.0, False, False, scale=HEAD_DIM**-0.5)[:2]

        return timed(machine, attend, copies)
