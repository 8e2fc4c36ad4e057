"""What can go wrong on a machine, in one line each: memory, disk, the GPU itself."""

from __future__ import annotations

import contextlib
import errno
import gc

import torch

from kvplan.errors import KvplanError, ResourceError
from kvplan.units import format_bytes
from kvplan_validate import host_memory

_HBM_WORDS = ("out of memory", "ALLOC_FAILED")
_DRAM_WORDS = ("can't allocate memory", "not enough memory", "Cannot allocate memory")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def fault(error: BaseException) -> KvplanError | None:
    """What an exception means to a user; None where it is a fault of kvplan itself.

    >>> print(fault(OSError(28, "No space left on device", "/data/cache")))
    cannot run here: disk: No space left on device: /data/cache; free some space
    >>> fault(KeyError("layer")) is None
    True
    """
    if isinstance(error, KvplanError):
        return error
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    cuda = "CUDA" in text or "CUBLAS" in text.upper() or "cudnn" in text.lower()
    if isinstance(error, torch.OutOfMemoryError) or (cuda and _says(text, _HBM_WORDS)):
        return ResourceError("hbm", _hbm_left(), "lower --hbm, the batch or the context")
    if isinstance(error, MemoryError) or _says(text, _DRAM_WORDS):
        return ResourceError("dram", _dram_left(), "lower --dram, the batch or the context")
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f": {error.filename}" if error.filename else ""
        return ResourceError("disk", f"{error.strerror}{where}", "free some space")
    if isinstance(error, RuntimeError) and cuda:
        return ResourceError("gpu", text[:200], "see the driver's log (dmesg, nvidia-smi)")
    return None


def described(error: BaseException) -> str:
    """The fault in one line, or what the exception says about a fault of kvplan."""
    found = fault(error)
    text = str(found) if found else f"{INTERNAL} ({type(error).__name__}: {error})"
    return " ".join(text.split())[:300]


INTERNAL = "internal error"
"""How the reason of a fault of kvplan begins."""


def recover() -> str | None:
    """Free what a failed run left behind and clear its CUDA error.

    Returns:
        Why the GPU cannot be used any more in this process; None where it can.
    """
    gc.collect()
    if not torch.cuda.is_available():
        return None
    for tidy in (torch.cuda.synchronize, torch.cuda.empty_cache):
        with contextlib.suppress(RuntimeError):  # the failed run's error, reported late
            tidy()
    clear_cuda_error()
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def clear_cuda_error() -> None:
    """Take an error that CUDA keeps, so that the next launch does not report it as its own."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


def _says(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


def _hbm_left() -> str:
    try:
        free, total = torch.cuda.mem_get_info()
    except Exception:  # no GPU, or one that no longer answers
        return "the GPU's memory is used up"
    return f"the GPU's memory is used up ({format_bytes(free)} of {format_bytes(total)} left)"


def _dram_left() -> str:
    left = host_memory.available_bytes()
    return "host memory is used up" + ("" if left is None else f" ({format_bytes(left)} left)")
