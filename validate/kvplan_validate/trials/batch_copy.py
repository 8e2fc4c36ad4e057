"""Many copies in one call of the CUDA runtime: ``cudaMemcpyBatchAsync``, from CUDA 12.8 on."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from kvplan.errors import KvplanError

ATTRIBUTES_BYTES = 256
"""More than ``cudaMemcpyAttributes`` takes; what is not set is zero."""

IN_STREAM_ORDER = 1
"""``cudaMemcpySrcAccessOrderStream``, the first field of the attributes."""


class BatchCopy:
    """One call for many copies of the same size.

    Args:
        library: the CUDA runtime.
        pairs: where to, where from.
        size: bytes of each.
    """

    def __init__(self, library: Any, pairs: Sequence[tuple[Any, Any]], size: int) -> None:
        """Fill the arrays that the call reads."""
        self.library, self.pairs, count = library, list(pairs), len(pairs)
        self.to = (ctypes.c_void_p * count)(*(to.data_ptr() for to, _ in pairs))
        self.source = (ctypes.c_void_p * count)(*(source.data_ptr() for _, source in pairs))
        self.sizes = (ctypes.c_size_t * count)(*([size] * count))
        self.attributes = ctypes.create_string_buffer(ATTRIBUTES_BYTES)
        ctypes.c_int.from_buffer(self.attributes).value = IN_STREAM_ORDER
        self.first = (ctypes.c_size_t * 1)(0)
        self.failed = ctypes.c_size_t(0)

    @classmethod
    def of(cls, pairs: Sequence[tuple[Any, Any]], size: int) -> BatchCopy | None:
        """A batch, or None where the runtime has no such call."""
        if not torch.cuda.is_available():
            return None
        from kvplan_validate.hostlane import _loaded_cudart

        library = ctypes.CDLL(_loaded_cudart())
        return cls(library, pairs, size) if hasattr(library, "cudaMemcpyBatchAsync") else None

    def launch(self, stream: Any) -> None:
        """Launch all copies in a stream other than the default one.

        Raises:
            KvplanError: CUDA refuses.
        """
        version = ctypes.c_int(0)
        self.library.cudaRuntimeGetVersion(ctypes.byref(version))
        # CUDA 13 took the index of the failed copy out of the arguments.
        failed = () if version.value >= 13000 else (ctypes.byref(self.failed),)
        code = self.library.cudaMemcpyBatchAsync(
            self.to, self.source, self.sizes, ctypes.c_size_t(len(self.pairs)), self.attributes,
            self.first, ctypes.c_size_t(1), *failed, ctypes.c_void_p(stream.cuda_stream),
        )  # fmt: skip
        if code != 0:
            raise KvplanError(f"cudaMemcpyBatchAsync failed with CUDA error {code}")
