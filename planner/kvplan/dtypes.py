"""Bytes of one cached element, per storage format."""

from __future__ import annotations

from kvplan.errors import InputError

QUANTISED_GROUP = 64
"""Elements that share one scale and one zero point."""

SCALE_BYTES = 4
"""One fp16 scale and one fp16 zero point per group.

Source: KIVI, arXiv 2402.02750, stores an fp16 scale and minimum per group.
"""

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
_QUANTISED_BITS = {"int8": 8, "int4": 4}

CACHE_DTYPES = ("fp16", "bf16", "fp8", "fp32")
"""Formats a cache may have as a whole (``--kv-dtype``)."""

QUANTISED_DTYPES = tuple(_QUANTISED_BITS)
"""Formats a block may be stored in beside the cache's own (``--allow``)."""


def element_bytes(dtype: str) -> float:
    """Bytes per element, scales included.

    Args:
        dtype: one of ``fp32 fp16 bf16 fp8 int8 int4``.

    Raises:
        InputError: an unknown format.

    >>> element_bytes("fp16"), element_bytes("int8"), element_bytes("int4")
    (2.0, 1.0625, 0.5625)
    """
    if dtype in _BYTES:
        return _BYTES[dtype]
    if dtype in _QUANTISED_BITS:
        return _QUANTISED_BITS[dtype] / 8 + SCALE_BYTES / QUANTISED_GROUP
    known = ", ".join([*_BYTES, *_QUANTISED_BITS])
    raise InputError("dtype", dtype, f"one of {known}")
