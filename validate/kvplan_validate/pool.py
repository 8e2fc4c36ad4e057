"""Host memory that copies can use at full speed: registered once, carved without waste.

The caching pinned allocator rounds every request up to a power of two and pins slowly; touching
plain memory and registering it costs a tenth of the time and no rounding.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import Any

import torch

from kvplan.errors import ResourceError
from kvplan.units import format_bytes
from kvplan_validate import host_memory
from kvplan_validate.faults import clear_cuda_error

ALIGNMENT = 4096
"""Bytes; a page, so that direct disk reads may land anywhere in the pool."""

TOUCH = 64 * 2**20
"""Bytes written at a time when memory is first touched."""


class PinnedPool:
    """One registered allocation, handed out front to back.

    Args:
        size: bytes.
        pin: whether to register it with CUDA; without a GPU it stays plain memory.
        wrap: start again from the front when used up: pieces then share memory, which does not
            matter where only time is measured.
        tile: bytes to fill the memory with, over and over; None: zeros.

    Raises:
        ResourceError: the memory cannot be had or cannot be registered.
    """

    def __init__(
        self,
        size: int,
        *,
        pin: bool | None = None,
        wrap: bool = False,
        tile: torch.Tensor | None = None,
    ) -> None:
        """Map, touch and register the memory."""
        self.wrap = wrap
        self.size = -(-max(size, ALIGNMENT) // ALIGNMENT) * ALIGNMENT
        self.used = 0
        self.pinned = False
        self.memory = torch.empty(0, dtype=torch.uint8)
        left = host_memory.available_bytes()
        if left is not None and self.size > left:
            raise self._refused("dram", f"{format_bytes(left)} can be used")
        try:
            self._map: mmap.mmap | None = mmap.mmap(-1, self.size)
            self.memory = torch.frombuffer(self._map, dtype=torch.uint8)
            self._touch(torch.zeros(TOUCH, dtype=torch.uint8) if tile is None else tile)
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            raise self._refused("dram", str(error).strip() or type(error).__name__) from None
        if torch.cuda.is_available() if pin is None else pin:
            code = int(_cudart().cudaHostRegister(self.memory.data_ptr(), self.size, 0))
            if code != 0:
                clear_cuda_error()
                raise self._refused("pinned", f"CUDA refuses to register it, error {code}")
            self.pinned = True

    def _touch(self, tile: torch.Tensor) -> None:
        for begin in range(0, self.size, tile.numel()):
            part = self.memory[begin : begin + tile.numel()]
            part.copy_(tile[: part.numel()])

    def _refused(self, resource: str, reason: str) -> ResourceError:
        return ResourceError(
            resource, f"{format_bytes(self.size)} of host memory: {reason}", "lower --pool"
        )

    def take(self, size: int) -> torch.Tensor:
        """The next bytes, as uint8, aligned to a page.

        Raises:
            ResourceError: the pool is used up.
        """
        begin = self.used
        rounded = -(-size // ALIGNMENT) * ALIGNMENT
        if self.wrap and begin + rounded > self.size >= rounded:
            begin = 0
        end = begin + rounded
        if end > self.size:
            short = format_bytes(end - self.size)
            raise ResourceError(
                "pinned", f"the pool of {format_bytes(self.size)} is {short} short", "raise --pool"
            )
        self.used = end
        return self.memory[begin : begin + size]

    def reset(self) -> None:
        """Hand everything out again; earlier tensors alias what comes next."""
        self.used = 0

    def __del__(self) -> None:
        """Memory that is freed while it is registered could not be registered again."""
        if getattr(self, "size", 0) and getattr(self, "memory", None) is not None:
            self.close()

    def close(self) -> None:
        """Unregister and free, also where the GPU no longer answers."""
        if self.pinned:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()
            _cudart().cudaHostUnregister(self.memory.data_ptr())
            self.pinned = False
        self.memory = torch.empty(0, dtype=torch.uint8)
        self._map = None
        self.size = self.used = 0


def largest(size: int, least: int, notice: Callable[[str], None], **options: Any) -> PinnedPool:
    """A pool of a size, or of half of it, and so on, where that is all that can be had.

    Args:
        size: bytes wanted.
        least: bytes below which the refusal stands.
        notice: takes one sentence if the pool is smaller than wanted.
        options: of `PinnedPool`.

    Raises:
        ResourceError: not even ``least`` can be had.
    """
    wanted, refusal = size, ""
    while True:
        try:
            pool = PinnedPool(size, **options)
        except ResourceError as error:
            if size // 2 < least:
                raise
            refusal = refusal or error.reason
            size //= 2
        else:
            if size < wanted:
                notice(f"{format_bytes(size)} are used instead of {refusal}")
            return pool


def _cudart() -> Any:
    return torch.cuda.cudart()
