"""Attention on the CPU by a small C library, compiled where it runs.

torch's fused kernel gives whole (sequence, head) rows to threads, so that few sequences leave
cores idle, and unpacks half precision slower than memory delivers it. This one cuts rows into
chunks of tokens. Without a C compiler the runtime falls back to torch's.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import KvplanError

SOURCE = Path(__file__).with_name("host_attention.c")
FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-ffp-contract=fast",
    "-shared", "-fPIC", "-pthread",
)  # fmt: skip
BLOCK = 64
"""Tokens that the kernel scores at a time."""

CHUNKS_PER_THREAD = 6
"""Chunks that every thread should find, so that the last ones to end are close together."""

MOST_DIM = 256
LANES = 16
KINDS = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}


class _Job(ctypes.Structure):
    """``Job`` of host_attention.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "out", "lse")),
        *((name, ctypes.c_int64) for name in ("rows", "group", "tokens", "dim", "chunk")),
        ("scale", ctypes.c_float),
        ("kind", ctypes.c_int32),
        ("partial", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
    )


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled library with its team of threads started; None where nothing compiles it.

    The team has one thread less than there are cores: launching needs a core too.
    """
    compiler = next(filter(shutil.which, [os.environ.get("CC", "cc"), "gcc", "clang"]), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "host_attention.so")
        command = [compiler, *FLAGS, os.fspath(SOURCE), "-o", os.fspath(out), "-lm"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=120)
            loaded = ctypes.CDLL(os.fspath(out))
        except (OSError, subprocess.SubprocessError):
            return None
    loaded.host_attention.argtypes = [ctypes.c_void_p]
    loaded.host_attention.restype = None
    loaded.host_attention_serve.argtypes = [ctypes.c_void_p, ctypes.c_int]
    loaded.host_attention_serve.restype = ctypes.c_void_p
    loaded.host_attention_leave.argtypes = [ctypes.c_void_p]
    return loaded if loaded.host_attention_open(threads()) == 0 else None


def threads() -> int:
    """Threads of the team."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)


def chunk(rows: int, tokens: int, team: int) -> int:
    """Tokens of one chunk: a whole number of blocks, six chunks or more for every thread.

    >>> chunk(rows=32, tokens=1638, team=15), chunk(rows=1, tokens=100, team=15)
    (576, 64)
    """
    fair = rows * tokens / (CHUNKS_PER_THREAD * team)
    return max(round(fair / BLOCK), 1) * BLOCK


@dataclass(slots=True)
class Attention:
    """One attention over fixed tensors, run as often as wanted.

    Args:
        query: ``[B, KV, G, D]``, contiguous.
        keys: ``[B, KV, n, D]``, contiguous.
        values: as keys.
        out: as query.
        lse: ``[B, KV, G]`` in fp32.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    out: Tensor
    lse: Tensor
    _job: Any = None

    def __post_init__(self) -> None:
        """Describe the job to the library.

        Raises:
            KvplanError: the library is missing or cannot do this shape (see `can_run`).
        """
        if not can_run(self.query.dtype, self.query.shape[-1]):
            raise KvplanError("the host's attention kernel cannot run this shape here")
        batch, heads, group, dim = self.query.shape
        rows, tokens = batch * heads, self.keys.shape[2]
        tensors = (self.query, self.keys, self.values, self.out, self.lse)
        assert all(tensor.is_contiguous() for tensor in tensors)
        self._job = _Job(
            *(tensor.data_ptr() for tensor in tensors),
            *(rows, group, tokens, dim, chunk(rows, tokens, threads())),
            dim**-0.5,
            KINDS[self.query.dtype],
        )
        loaded = library()
        assert loaded is not None
        if loaded.host_attention_prepare(ctypes.byref(self._job)):
            raise MemoryError("no memory for partial results of attention on the host")

    @property
    def function(self) -> Any:
        """The C function; it has the type of a CUDA host function."""
        loaded = library()
        assert loaded is not None
        return loaded.host_attention

    @property
    def argument(self) -> ctypes.c_void_p:
        """What the function is given."""
        return ctypes.c_void_p(ctypes.addressof(self._job))

    def __call__(self) -> None:
        """Attend; out and lse are written when it returns."""
        self.function(self.argument)

    def __del__(self) -> None:
        """Free the library's scratch."""
        loaded = library()
        if self._job is not None and loaded is not None:
            loaded.host_attention_release(ctypes.byref(self._job))


class _Call(ctypes.Structure):
    """``Call`` of host_attention.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("go", "done", "job"))


FLAGS_BYTES = 128
"""Memory of the flags of one call, each in a cache line of its own."""


class Server:
    """A thread that runs attentions when the GPU asks for them, in a fixed order.

    Args:
        calls: attentions in the order of a step, and the flags of each (see `new_flags`).
    """

    def __init__(self, calls: Sequence[tuple[Attention, Tensor]]) -> None:
        """Start the thread."""
        loaded = library()
        assert loaded is not None
        self._kept = list(calls)  # the thread reads both until it ends
        self._calls = (_Call * len(calls))()
        for call, (attention, flags) in zip(self._calls, calls, strict=True):
            call.go, call.done = go_of(flags), done_of(flags)
            call.job = attention.argument.value
        self._server: int | None = loaded.host_attention_serve(self._calls, len(calls))
        if not self._server:
            raise KvplanError("no thread for attention on the host could be started")

    def close(self) -> None:
        """End the thread; the GPU must not ask any more."""
        loaded = library()
        if self._server and loaded is not None:
            loaded.host_attention_leave(self._server)
        self._server = None

    def __del__(self) -> None:
        """End the thread before what it reads is gone."""
        self.close()


def new_flags() -> Tensor:
    """Two cleared flags, ``[FLAGS_BYTES]`` uint8 that the GPU can reach where there is one."""
    pinned = torch.cuda.is_available()
    return torch.zeros(FLAGS_BYTES, dtype=torch.uint8, pin_memory=pinned)


def go_of(flags: Tensor) -> int:
    """Address of the flag by which the GPU asks."""
    return int(flags.data_ptr())


def done_of(flags: Tensor) -> int:
    """Address of the flag by which the host answers."""
    return int(flags.data_ptr()) + FLAGS_BYTES // 2


def can_run(dtype: torch.dtype, dim: int) -> bool:
    """Whether the library is there and knows the format and the head dimension."""
    return dtype in KINDS and dim % LANES == 0 and dim <= MOST_DIM and library() is not None
