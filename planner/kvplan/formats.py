"""Formats of cached numbers, block formats with their scales included, in whole bytes.

Source of the block formats: ggml's ``ggml-common.h`` (``block_q8_0`` and others): a block of values
shares its scales, so a row takes whole blocks.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

from kvplan.dtypes import CACHE_DTYPES, QUANTISED_GROUP, SCALE_BYTES
from kvplan.errors import InputError


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store numbers.

    Args:
        name: canonical name.
        block: values that are stored together.
        block_bytes: bytes of them, scales included.
    """

    name: str
    block: int
    block_bytes: int

    def row_bytes(self, elements: int) -> int:
        """Bytes of so many values in one row, in whole blocks.

        >>> find_format("q8_0").row_bytes(576), find_format("fp16").row_bytes(576)
        (612, 1152)
        """
        return -(-elements // self.block) * self.block_bytes

    @property
    def element_bytes(self) -> float:
        """Bytes of one value, its share of the scales included.

        >>> find_format("q4_0").element_bytes
        0.5625
        """
        return self.block_bytes / self.block


FORMATS = {
    format.name: format
    for format in (
        Format("fp32", 1, 4),
        Format("fp16", 1, 2),
        Format("bf16", 1, 2),
        Format("fp8", 1, 1),
        Format("int8", QUANTISED_GROUP, QUANTISED_GROUP + SCALE_BYTES),
        Format("int4", QUANTISED_GROUP, QUANTISED_GROUP // 2 + SCALE_BYTES),
        Format("q8_0", 32, 34),
        Format("q8_1", 32, 36),
        Format("q6_k", 256, 210),
        Format("q5_0", 32, 22),
        Format("q5_1", 32, 24),
        Format("q4_0", 32, 18),
        Format("q4_1", 32, 20),
        Format("iq4_nl", 32, 18),
        Format("mxfp4", 32, 17),
        Format("nvfp4", 16, 9),
        Format("fp8_ds_mla", 576, 656),
    )
}
"""Format by name. ``int8`` and ``int4`` have an fp16 scale and zero point per 64 values.

``fp8_ds_mla`` is one row of DeepSeek's latents as vLLM and SGLang keep it beside sparse attention:
512 fp8 values, four fp32 scales, and 64 bf16 values with RoPE. Source: ``concat_and_cache_ds_mla``
in vLLM's ``csrc/cache_kernels.cu``.
"""

INDEXES = {"fp8_ds_mla": Format("fp8 index", 128, 132)}
"""Formats that keep the index of sparse attention in another one: fp8 with a scale per key.

Source: sgl-project/sglang PR 11309, 975424 tokens of DeepSeek-V3.2 in 43.67 GiB.
"""

ALIASES = {
    "f32": "fp32", "float32": "fp32", "float": "fp32", "f16": "fp16", "float16": "fp16",
    "half": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "f8": "fp8",
    "float8": "fp8", "fp8_e4m3fn": "fp8", "float8_e4m3fn": "fp8", "e4m3": "fp8", "q8": "q8_0",
    "float8_e5m2": "fp8", "e5m2": "fp8", "float8_e4m3": "fp8", "fp8_e4m3fnuz": "fp8",
    "fp8_e5m2fnuz": "fp8", "fp8_inc": "fp8", "q4": "q4_0", "q5": "q5_0", "q6": "q6_k",
    "fp4": "nvfp4", "fp4_e2m1": "mxfp4", "torch.float16": "fp16", "torch.bfloat16": "bf16",
    "torch.float32": "fp32", "bfloat": "bf16", "auto": "fp16",
}  # fmt: skip
"""What other programs call them."""


def find_format(name: str, field: str = "kv_dtype") -> Format:
    """A format by its name or another program's.

    Raises:
        InputError: an unknown name; the nearest is suggested.

    >>> find_format("F16").name, find_format("q4_0").block_bytes
    ('fp16', 18)
    """
    wanted = name.strip().lower().replace("-", "_")
    found = FORMATS.get(ALIASES.get(wanted, wanted))
    if found is None:
        near = difflib.get_close_matches(wanted, [*FORMATS, *ALIASES], n=1)
        suggestion = f"did you mean {near[0]}? " if near else ""
        raise InputError(field, name, f"{suggestion}one of {', '.join(FORMATS)}")
    return found


def cache_dtype(name: str, field: str = "kv_dtype") -> str:
    """The format that a whole cache may have, by its name or another program's.

    ``auto`` is 16 bits, as engines serve models whatever their files hold.

    Raises:
        InputError: an unknown format, or one that only blocks may have.

    >>> cache_dtype("fp8_e4m3"), cache_dtype("bfloat16"), cache_dtype("auto")
    ('fp8', 'bf16', 'fp16')
    """
    try:
        found = find_format(name, field).name
    except InputError:
        raise InputError(field, name, f"one of {', '.join(CACHE_DTYPES)}") from None
    if found not in CACHE_DTYPES:
        accepted = f"one of {', '.join(CACHE_DTYPES)}; `kvplan kv-size` and `fit` know this one"
        bits = next(letter for letter in found if letter.isdigit())
        if bits in "48":
            accepted += f", and --allow int{bits} stores blocks so"
        raise InputError(field, name, accepted)
    return found


def whole_blocks(format: Format, *widths: int) -> bool:
    """Whether rows of these widths are whole blocks.

    >>> whole_blocks(find_format("q8_0"), 1024, 1000)
    False
    """
    return math.gcd(format.block, *widths) == format.block
