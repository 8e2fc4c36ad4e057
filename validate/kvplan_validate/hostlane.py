"""Work of the CPU inside the order of a CUDA stream: attention on the host, disk reads.

A host function takes its turn in a stream like a kernel does, eagerly and in a captured graph, so
the launching thread never waits for it.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import KvplanError

SWITCH_S = 1e-4
"""Seconds after which the launching thread lets a host function have the interpreter."""

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostLane:
    """Launches Python functions in streams and keeps what they raise."""

    def __init__(self) -> None:
        """Find the CUDA runtime that torch has loaded."""
        self.failure: BaseException | None = None
        self._kept: list[Any] = []
        if torch.cuda.is_available():
            # A host function must not wait long for the interpreter while steps are launched.
            sys.setswitchinterval(SWITCH_S)
        self._runtime = ctypes.CDLL(_loaded_cudart()) if torch.cuda.is_available() else None

    def prepared(self, work: Callable[[], None]) -> Callable[[Any], None]:
        """A launcher of the same work for many steps, its callback made once."""
        if self._runtime is None:
            return lambda stream: work()

        def call(_: object) -> None:
            try:
                _leave_a_core()
                work()
            except BaseException as error:
                self.failure = error

        function = _HOST_FUNCTION(call)
        self._kept.append(function)
        runtime = self._runtime

        def launch(stream: Any) -> None:
            code = runtime.cudaLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), function, None)
            if code != 0:
                raise KvplanError(f"cudaLaunchHostFunc failed with CUDA error {code}")

        return launch

    def check(self) -> None:
        """Raise what a host function raised."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


_ready = threading.local()


def _leave_a_core() -> None:
    """Leave a core to the launching thread; once per thread that runs host functions.

    A team as large as the machine waits at every barrier for the thread that lost its core.
    """
    if not getattr(_ready, "done", False):
        torch.set_num_threads(max((os.cpu_count() or 1) - 1, 1))
        _ready.done = True


def _loaded_cudart() -> str:
    """Path of the CUDA runtime library in this process."""
    torch.cuda.init()
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.search(r"(/\S*libcudart[^/\s]*\.so\S*)", line)
        if match:
            return match[1]
    raise KvplanError("the CUDA runtime library is not loaded in this process")


class _Mapped:
    """Registered host memory as seen from the GPU."""

    def __init__(self, tensor: Tensor) -> None:
        kinds = {torch.float16: "<f2", torch.float32: "<f4", torch.uint8: "|u1"}
        kind = kinds.get(tensor.dtype, "<f2")
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": kind,
            "data": (tensor.data_ptr(), False),
            "version": 3,
            "strides": None,
        }


def mapped(tensor: Tensor) -> Tensor:
    """A CUDA view of contiguous registered host memory; kernels reach it over the link.

    A query and a partial result travel this way: a few kilobytes that a copy engine would queue
    behind megabytes.
    """
    if not torch.cuda.is_available():
        return tensor
    view = torch.as_tensor(_Mapped(tensor), device="cuda")
    return view.view(tensor.dtype) if view.dtype != tensor.dtype else view
