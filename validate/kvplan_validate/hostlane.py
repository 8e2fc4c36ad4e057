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
from kvplan_validate.host_kernel import Attention, Server, done_of, go_of, new_flags

SWITCH_S = 1e-4
"""Seconds after which the launching thread lets a host function have the interpreter."""

WAIT_EQUAL = 1
"""``CU_STREAM_WAIT_VALUE_EQ`` of CUDA's driver."""

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class HostLane:
    """Launches Python functions in streams and keeps what they raise."""

    def __init__(self) -> None:
        """Find the CUDA runtime that torch has loaded."""
        self.failure: BaseException | None = None
        self._kept: list[Any] = []
        self._calls: list[tuple[Attention, Tensor]] = []
        self._server: Server | None = None
        if torch.cuda.is_available():
            # A host function must not wait long for the interpreter while steps are launched.
            sys.setswitchinterval(SWITCH_S)
        self._runtime = ctypes.CDLL(_loaded_cudart()) if torch.cuda.is_available() else None
        self._driver = _driver() if torch.cuda.is_available() else None

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

    @property
    def can_be_asked(self) -> bool:
        """Whether a stream can write to host memory and wait for it."""
        return self._driver is not None

    def asked(self, work: Attention) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        """Launchers that ask the server to do a piece of work, and that wait until it is done.

        Between them the stream may do other things; a host function would need a stream of its
        own, and a graph with such a branch was seen to slow all of its copies by a tenth.

        Args:
            work: what to do; asked for in the order of these calls, over and over.
        """
        driver = self._driver
        assert driver is not None
        flags = new_flags()
        self._calls.append((work, flags))
        go, done = go_of(flags), done_of(flags)
        write, wait = driver.cuStreamWriteValue32_v2, driver.cuStreamWaitValue32_v2

        def call(function: Any, stream: Any, address: int, value: int, flag: int) -> None:
            handle = ctypes.c_void_p(stream.cuda_stream)
            code = function(handle, ctypes.c_uint64(address), value, flag)
            if code != 0:
                raise KvplanError(f"{function.__name__} failed with CUDA error {code}")

        def ask(stream: Any) -> None:
            call(write, stream, go, 1, 0)

        def answered(stream: Any) -> None:
            call(wait, stream, done, 1, WAIT_EQUAL)
            call(write, stream, done, 0, 0)

        return ask, answered

    def serve(self) -> None:
        """Start to answer the GPU's calls, once all launchers are made."""
        if self._calls and self._server is None:
            self._server = Server(self._calls)

    def close(self) -> None:
        """Stop answering; nothing may be running any more."""
        if self._server is not None:
            self._server.close()
        self._server, self._calls = None, []

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


def _driver() -> ctypes.CDLL | None:
    """CUDA's driver, if streams can wait for host memory with it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    needed = ("cuStreamWriteValue32_v2", "cuStreamWaitValue32_v2")
    return driver if all(hasattr(driver, name) for name in needed) else None


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
        kinds = {torch.float32: "<f4", torch.int32: "<i4", torch.uint8: "|u1"}
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
