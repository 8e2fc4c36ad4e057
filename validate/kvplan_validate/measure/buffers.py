"""Buffers to measure with: random content, and host memory of each kind."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvplan_validate.measure.machine import Machine

_TILE = 1 << 22


def fill(torch: Any, tensor: Any) -> Any:
    """Fill a contiguous tensor with random numbers and return it.

    On the CPU, where making random numbers is slow, 4 Mi of them are repeated.
    """
    flat = tensor.view(-1)
    if tensor.dtype == torch.uint8:
        tile = torch.randint(0, 256, (min(_TILE, flat.numel()),), dtype=torch.uint8)
    elif tensor.is_cuda:
        return tensor.normal_()
    else:
        tile = torch.randn(min(_TILE, flat.numel()), dtype=torch.float32).to(tensor.dtype)
    tile = tile.to(tensor.device)
    for start in range(0, flat.numel(), tile.numel()):
        part = flat[start : start + tile.numel()]
        part.copy_(tile[: part.numel()])
    return tensor


@contextmanager
def pageable(torch: Any, size_bytes: int) -> Iterator[Any]:
    """Ordinary host memory, touched and random, ``[size_bytes]`` uint8."""
    yield fill(torch, _mapped(torch, size_bytes))


@contextmanager
def registered(torch: Any, size_bytes: int) -> Iterator[Any]:
    """Host memory that is touched first and registered with CUDA then, ``[size_bytes]`` uint8.

    Raises:
        RuntimeError: CUDA refuses.
    """
    tensor = fill(torch, _mapped(torch, size_bytes))
    register(torch, tensor)
    try:
        if not tensor.is_pinned():
            raise RuntimeError("torch does not see registered memory as pinned")
        yield tensor
    finally:
        unregister(torch, tensor)


@contextmanager
def pinned(torch: Any, size_bytes: int) -> Iterator[Any]:
    """Host memory of torch's pinned allocator, ``[size_bytes]`` uint8; given back at the end."""
    tensor = fill(torch, torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True))
    try:
        yield tensor
    finally:
        del tensor
        empty_pinned_cache(torch)


def register(torch: Any, tensor: Any) -> None:
    """Register touched memory with CUDA.

    Raises:
        RuntimeError: CUDA refuses; its error is cleared.
    """
    code = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
    if int(code) != 0:
        try:  # the next launch would report the refusal as its own
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        raise RuntimeError(f"cudaHostRegister of {tensor.nbytes} bytes: error {int(code)}")


def unregister(torch: Any, tensor: Any) -> None:
    """Undo `register`, once everything that uses the memory is done."""
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def empty_pinned_cache(torch: Any) -> None:
    """Give pinned memory that torch keeps for later back to the system."""
    torch.cuda.synchronize()
    give_back = getattr(torch._C, "_host_emptyCache", None)
    if give_back is not None:
        give_back()


def untouched(torch: Any, size_bytes: int) -> Any:
    """A fresh mapping that no page of is there yet, ``[size_bytes]`` uint8."""
    return _mapped(torch, size_bytes)


def _mapped(torch: Any, size_bytes: int) -> Any:
    return torch.frombuffer(mmap.mmap(-1, size_bytes), dtype=torch.uint8)


def pool(machine: Machine, size_bytes: int) -> Any:
    """GPU memory of random fp16 numbers, ``[size_bytes / 2]``, at most a third of what is free."""
    size = min(size_bytes, machine.free_hbm_bytes() // 3)
    elements = size // 2
    return fill(
        machine.torch, machine.torch.empty(elements, device="cuda", dtype=machine.torch.float16)
    )


def copies_beyond_l2(machine: Machine, size_bytes: int, most: int = 400) -> int:
    """How many buffers of a size to rotate over, so that none is still in the L2 cache."""
    return max(1, min(most, -(-3 * machine.l2_bytes // size_bytes)))
