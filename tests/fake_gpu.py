"""A stand-in for ``torch.cuda`` on the CPU: the GPU's code runs, its times mean nothing."""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import Any

_MAKERS = ("empty", "ones", "rand", "randint", "randn", "zeros")


class Event:
    """A moment on the CPU's clock."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return max((other.at - self.at) * 1e3, 1e-6)


class Stream:
    """Everything is done when it is launched."""

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: Stream) -> None:
        pass


class Graph:
    """Captures nothing; its replay does nothing."""

    def capture_begin(self, capture_error_mode: str) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        pass

    def reset(self) -> None:
        pass


class FakeTorch:
    """The torch module with device ``cuda`` on the CPU.

    Args:
        torch: the real module.
        registers: registrations until CUDA refuses one.
    """

    def __init__(self, torch: Any, registers: int = 1000) -> None:
        self._torch, self.registered, self.registers = torch, 0, registers
        runtime = SimpleNamespace(
            cudaHostRegister=self._register, cudaHostUnregister=self._unregister
        )
        properties = SimpleNamespace(
            name="Fake GPU", total_memory=1 << 33, L2_cache_size=1 << 16, multi_processor_count=2
        )
        self.cuda = SimpleNamespace(
            Event=Event, Stream=Stream, CUDAGraph=Graph, cudart=lambda: runtime,
            stream=lambda stream: contextlib.nullcontext(), synchronize=lambda: None,
            empty_cache=lambda: None, _sleep=lambda cycles: None, is_available=lambda: True,
            mem_get_info=lambda: (1 << 33, 1 << 33), get_device_properties=lambda _: properties,
        )  # fmt: skip
        self.version = SimpleNamespace(cuda="0.0")

        def flash(q: Any, k: Any, v: Any, *options: Any, scale: float) -> tuple[Any, Any]:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
            return out, None

        cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        self.ops = SimpleNamespace(
            aten=SimpleNamespace(
                _scaled_dot_product_flash_attention=flash,
                _scaled_dot_product_flash_attention_for_cpu=cpu,
            )
        )

    def _register(self, pointer: int, size: int, flags: int) -> int:
        self.registered += 1
        return 0 if self.registered <= self.registers else 2

    def _unregister(self, pointer: int) -> int:
        self.registered -= 1
        return 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._torch, name)
        return _on_cpu(found) if name in (*_MAKERS, "empty_like") else found


def _on_cpu(maker: Any) -> Any:
    def make(*sizes: Any, **options: Any) -> Any:
        options.pop("pin_memory", None)
        return maker(*sizes, **options | {"device": "cpu"})

    return make
