"""Bytes of a model's weights in the formats that people serve."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.model import ModelSpec


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How weights are stored.

    Args:
        bits: per weight of the layers, scales included.
        around: bits per weight of embeddings and head, which quantisers leave alone.
    """

    bits: float
    around: float


_GROUPED = 4 + (16 + 4) / 128
"""4 bits, and per 128 weights one fp16 scale and one 4-bit zero point.

Source: file layout of GPTQ and AWQ checkpoints with ``group_size`` 128.
"""

FORMATS = {
    "fp32": WeightFormat(32, 32),
    "fp16": WeightFormat(16, 16),
    "bf16": WeightFormat(16, 16),
    "fp8": WeightFormat(8, 16),
    "int8": WeightFormat(8, 16),
    "gptq": WeightFormat(_GROUPED, 16),
    "awq": WeightFormat(_GROUPED, 16),
    "int4": WeightFormat(_GROUPED, 16),
    "nf4": WeightFormat(4 + 8 / 64 + 32 / (64 * 256), 16),
    "fp4": WeightFormat(4 + 8 / 16, 16),
}
"""Formats by name. ``nf4``: QLoRA, arXiv 2305.14314, section 3: 8-bit scales per 64 weights, scaled
again per 256 of them. ``fp4``: NVFP4, an fp8 scale per 16 weights. ``fp8`` and ``int8``: scales per
tensor or channel are left out, below 0.1 %."""

_SPELLED = {"gptq-int4": "gptq", "gptq4": "gptq", "awq-int4": "awq", "w4a16": "int4", "bnb4": "nf4",
            "nvfp4": "fp4", "w8a8": "int8", "w8a16": "int8", "float16": "fp16", "half": "fp16",
            "bfloat16": "bf16", "float32": "fp32", "fp8_e4m3": "fp8"}  # fmt: skip


def weight_format(name: str, field: str = "--weights-dtype") -> WeightFormat:
    """A format by name, also as engines spell it.

    Raises:
        InputError: an unknown format.

    >>> weight_format("awq").bits, weight_format("bfloat16").bits
    (4.15625, 16)
    """
    word = name.strip().lower()
    word = _SPELLED.get(word, word)
    if word not in FORMATS:
        raise InputError(field, name, f"one of {', '.join(FORMATS)}")
    return FORMATS[word]


def weight_bytes(model: ModelSpec, dtype: str | None = None) -> float:
    """Bytes of all weights, embeddings and head included.

    Args:
        model: the model.
        dtype: a format; None for that of the model.

    >>> from kvplan.model_library import load_model
    >>> round(weight_bytes(load_model("llama-3.1-8b")) / 2**30, 2)
    14.96
    >>> round(weight_bytes(load_model("llama-3.1-8b"), "awq") / 1e9, 2)
    5.73
    """
    how = weight_format(dtype or model.weight_dtype)
    layers = sum(layer.params for layer in model.layers)
    return (layers * how.bits + (model.params - layers) * how.around) / 8


def around_bytes(model: ModelSpec, dtype: str | None = None) -> float:
    """Bytes of embeddings and head alone."""
    how = weight_format(dtype or model.weight_dtype)
    layers = sum(layer.params for layer in model.layers)
    return (model.params - layers) * how.around / 8
