"""What is asked of the machine: sequences, tokens, formats, and the memory that may be used."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.dtypes import CACHE_DTYPES
from kvplan.errors import InputError

MAX_BATCH = 1 << 16
MAX_CONTEXT = 1 << 30
MAX_RANKS = 64
MAX_NEW = 1 << 20


def tokens_per_s(batch: int, step_s: float, new_tokens: int) -> float:
    """New tokens of all sequences per second.

    Args:
        batch: sequences decoded together.
        step_s: seconds of one step.
        new_tokens: tokens each sequence decodes in it.

    >>> tokens_per_s(32, 0.25, 1), tokens_per_s(32, 0.25, 4)
    (128.0, 512.0)
    """
    return batch * new_tokens / step_s


def _whole(field: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, value, f"a whole number from {low} to {high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One decode step of a batch.

    Args:
        batch: sequences decoded together.
        context: tokens already in the cache, per sequence.
        gen: tokens still to be generated; the plan is made for ``context + gen`` tokens, the
            last and slowest step, so that it stays feasible until the end.
        kv_dtype: format of the cache where no path says otherwise.
        block: tokens per block, the smallest run of tokens that gets one decision.
        micro_batches: equal parts the batch is decoded in.
        layer_tokens: most tokens of the context that each layer keeps, for every layer; None keeps
            all. Generated tokens come on top.
        tp: GPUs that share every layer (tensor parallelism).
        schedule: with several micro-batches, ``column`` takes all of them through one layer
            before the next (weights are loaded once per layer), ``row`` takes one through all.
        source_tokens: tokens of the source (text, sound, image) that cross-attention reads; None
            where the model has none.
        new_tokens: tokens each sequence decodes in one step: 1, those of a whole scale of a visual
            autoregressive model, or a draft that is verified.
    """

    batch: int = 32
    context: int = 4096
    gen: int = 0
    kv_dtype: str = "fp16"
    block: int = 64
    micro_batches: int = 1
    schedule: str = "column"
    source_tokens: int | None = None
    tp: int = 1
    layer_tokens: tuple[int, ...] | None = None
    new_tokens: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        _whole("batch", self.batch, 1, MAX_BATCH)
        _whole("context", self.context, 1, MAX_CONTEXT)
        _whole("gen", self.gen, 0, MAX_CONTEXT)
        _whole("block", self.block, 1, 1 << 20)
        _whole("micro_batches", self.micro_batches, 1, self.batch)
        _whole("tp", self.tp, 1, MAX_RANKS)
        _whole("new_tokens", self.new_tokens, 1, MAX_NEW)
        for tokens in self.layer_tokens or ():
            _whole("layer_tokens", tokens, 1, MAX_CONTEXT)
        if self.batch % self.micro_batches:
            accepted = f"a divisor of batch {self.batch}"
            raise InputError("micro_batches", self.micro_batches, accepted)
        if self.kv_dtype not in CACHE_DTYPES:
            raise InputError("kv_dtype", self.kv_dtype, f"one of {', '.join(CACHE_DTYPES)}")
        if self.source_tokens is not None:
            _whole("source_tokens", self.source_tokens, 0, MAX_CONTEXT)
        if self.schedule not in ("column", "row"):
            raise InputError("schedule", self.schedule, "column or row")

    @property
    def tokens(self) -> int:
        """Tokens per sequence that the plan is made for."""
        return self.context + self.gen

    @property
    def micro_batch(self) -> int:
        """Sequences per micro-batch."""
        return self.batch // self.micro_batches

    @property
    def rows(self) -> int:
        """New tokens of all sequences of a micro-batch: rows of every product of a step."""
        return self.micro_batch * self.new_tokens

    def tokens_per_s(self, step_s: float) -> float:
        """New tokens of all sequences per second, for a step of so many seconds."""
        return tokens_per_s(self.batch, step_s, self.new_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Memory that a plan may use, in bytes; None takes what the hardware profile states.

    Args:
        hbm_bytes: cap on GPU memory.
        utilisation: share of the card's memory that may be used; the rest is for the CUDA
            context, fragmentation and other processes. The smaller of both limits counts.
        reserve_bytes: taken off the HBM budget for anything else.
        dram_bytes: host memory for the cache and streamed weights.
        pinned_bytes: page-locked part of it; None: all of it may be pinned.
        disk_bytes: disk for the cache; 0 turns the disk off.
        uplink_bytes_per_s: what the GPUs of a tensor-parallel group together get from host memory
            over a link they share; None: each has its own.

    Host memory and disk are those of the whole group.
    """

    hbm_bytes: int | None = None
    utilisation: float = 0.9
    reserve_bytes: int = 0
    dram_bytes: int | None = None
    pinned_bytes: int | None = None
    disk_bytes: int = 0
    uplink_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        for field in ("hbm_bytes", "reserve_bytes", "dram_bytes", "pinned_bytes", "disk_bytes"):
            value = getattr(self, field)
            if value is not None:
                _whole(field, value, 0, 2**62)
        if self.uplink_bytes_per_s is not None and not 0 < self.uplink_bytes_per_s < 1e18:
            accepted = "a rate above 0, such as 25GB/s"
            raise InputError("uplink_bytes_per_s", self.uplink_bytes_per_s, accepted)
        if not isinstance(self.utilisation, (int, float)) or not 0 < self.utilisation <= 1:
            raise InputError("utilisation", self.utilisation, "a share above 0 and at most 1")
