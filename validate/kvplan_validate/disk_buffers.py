"""Reads of tokens on disk: page-aligned pinned buffers that reads fill in turn."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from kvplan.graph import Operation
from kvplan_validate.pool import PinnedPool

Stage = tuple[int, int, int]
"""Layer, stage, micro-batch."""


class DiskBuffers:
    """Q pinned host buffers, taken in turn by the stages that read from disk.

    Args:
        pool: host memory.
        depth: Q.
        size: bytes that the largest read may fill; asked for when the first buffer is taken.
    """

    def __init__(self, pool: PinnedPool, depth: int, size: Callable[[], int]) -> None:
        """No buffer is taken yet."""
        self._pool, self._depth, self._size = pool, depth, size
        self._buffers: dict[int, Tensor] = {}
        self.turns: dict[Stage, int] = {}

    def of(self, operation: Operation) -> Tensor:
        """The buffer of an operation's stage, in the order in which stages ask first."""
        key = (operation.layer, operation.stage or 0, operation.micro_batch)
        slot = self.turns.setdefault(key, len(self.turns)) % self._depth
        if slot not in self._buffers:
            self._buffers[slot] = self._pool.take(self._size())
        return self._buffers[slot]
