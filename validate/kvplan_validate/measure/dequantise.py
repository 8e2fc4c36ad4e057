"""Unpacking int8 and int4 blocks on the GPU. The volume is bytes of the fp16 result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from kvplan.dtypes import QUANTISED_GROUP
from kvplan_validate.measure.base import Sampled, Series, Setting
from kvplan_validate.measure.machine import Machine

HEAD_DIM = 128


class Runtime(Series):
    """Unpacking as the runtime does it."""

    key = "dequantise.runtime"
    sentence = "Unpacking blocks of int8 and int4 with the kernel that the runtime uses."
    seconds = 3.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Both formats, blocks of three sizes."""
        for size in (64 << 20, 256 << 20, 16 << 20):
            for dtype in ("int8", "int4"):
                yield {"dtype": dtype, "bytes": size}

    def bench(self, machine: Machine) -> AbstractContextManager[Callable[..., None]]:
        """The runtime's function."""
        from kvplan_validate.kernels import dequantise

        return nullcontext(dequantise)

    def sample(self, machine: Machine, bench: Callable[..., None], at: Setting) -> Sampled:
        """Time one block; two blocks take turns."""
        size = int(at["bytes"])
        parts = [operands(machine.torch, "cuda", str(at["dtype"]), size) for _ in range(2)]

        def unpack(index: int) -> None:
            bench(*parts[index])

        times = machine.timer.per_operation(unpack, copies=2, burst_s=3e-3)
        return Sampled(samples=times, volume=size)


def operands(torch: Any, device: str, dtype: str, size_bytes: int) -> tuple[Any, Any, int, Any]:
    """Packed codes, scales and minima, bits, and the result's buffer ``[tokens, head_dim]``."""
    bits = {"int8": 8, "int4": 4}[dtype]
    tokens, half = size_bytes // 2 // HEAD_DIM, torch.float16
    shape = (tokens, HEAD_DIM * bits // 8)
    packed = torch.randint(0, 256, shape, device=device, dtype=torch.uint8)
    scales = torch.rand(tokens, HEAD_DIM // QUANTISED_GROUP, 2, device=device).to(half)
    return packed, scales, bits, torch.empty(tokens, HEAD_DIM, device=device, dtype=half)
