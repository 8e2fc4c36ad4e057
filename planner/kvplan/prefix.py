"""What is to be restored: a known prefix, how it is stored, and who else uses the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.dtypes import CACHE_DTYPES, QUANTISED_DTYPES
from kvplan.errors import InputError
from kvplan.schedule import MODES

SOURCES = ("dram", "disk")
"""Where the prefix waits."""

LAYOUTS = {
    "layer": "a layer's tokens, K and V, in one copy",
    "block": "one copy per layer and block, K and V together",
    "split-block": "two copies per layer and block, K and V apart",
    "whole-block": "one copy per block, all layers together",
}
"""How the stored prefix is cut into copies."""

MOST_TOKENS = 1 << 30
MOST_REQUESTS = 1024


def _whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, value, f"a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A known prefix that requests start with.

    Args:
        tokens: tokens of the prefix.
        suffix: new tokens of each request behind it; the first token needs at least one.
        requests: requests with such a prefix that arrive together, restored one after the other.
        source: where its K and V (or activations) wait: ``dram`` or ``disk``.
        kv_dtype: format of the cache.
        stored_dtype: inexact format it is stored in, unpacked on arrival; None: as in the cache.
        block: tokens per block of the store.
        chunk: most tokens computed together.
        granularity: how the store is cut into copies, see `LAYOUTS`.
        overlap: whether the suffix is computed layer by layer as K and V arrive; False: once all
            of it is there.
        pinned: whether host memory is page-locked.
        gpu_busy: share of the GPU's time that others take.
        link_busy: share of the link's time that others take.
        prefill_tokens_per_s: measured rate of computing the whole prefix; None: predicted.
        attention_flop_per_s: measured rate of prefill attention; None: assumed.
        mode: ``graph``, or ``eager``: a layer takes at least the time to launch its kernels.
    """

    tokens: int
    suffix: int = 1
    requests: int = 1
    source: str = "dram"
    kv_dtype: str = "fp16"
    stored_dtype: str | None = None
    block: int = 16
    chunk: int = 2048
    granularity: str = "layer"
    overlap: bool = True
    pinned: bool = True
    gpu_busy: float = 0.0
    link_busy: float = 0.0
    prefill_tokens_per_s: float | None = None
    attention_flop_per_s: float | None = None
    mode: str = "graph"

    def __post_init__(self) -> None:
        """Check every field."""
        _whole("prefix", self.tokens, 1, MOST_TOKENS)
        _whole("suffix", self.suffix, 1, MOST_TOKENS)
        _whole("concurrency", self.requests, 1, MOST_REQUESTS)
        _whole("block", self.block, 1, 1 << 20)
        _whole("chunk", self.chunk, 1, MOST_TOKENS)
        for field, value, known in (
            ("from", self.source, SOURCES),
            ("kv_dtype", self.kv_dtype, CACHE_DTYPES),
            ("granularity", self.granularity, tuple(LAYOUTS)),
            ("mode", self.mode, MODES),
        ):
            if value not in known:
                raise InputError(field, value, f"one of {', '.join(known)}")
        if self.stored_dtype is not None and self.stored_dtype not in QUANTISED_DTYPES:
            raise InputError(
                "stored_as", self.stored_dtype, f"one of {', '.join(QUANTISED_DTYPES)}"
            )
        for field, share in (("gpu_busy", self.gpu_busy), ("link_busy", self.link_busy)):
            if not 0 <= share < 1:
                raise InputError(field, share, "a share from 0 to below 1")
        for field, rate, unit in (
            ("prefill_rate", self.prefill_tokens_per_s, "tokens"),
            ("attention_flops", self.attention_flop_per_s, "FLOP"),
        ):
            if rate is not None and not 0 < rate < math.inf:
                raise InputError(field, rate, f"{unit} per second, above 0")
