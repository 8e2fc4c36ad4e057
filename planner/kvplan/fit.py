"""What fits beside the weights: pool, blocks, the longest context, the largest batch.

An engine takes a share of the card, runs its longest prefill, and gives its KV cache the rest::

    pool = memory * utilisation - reserve - weights - activation peak - outside torch

The pool falls while the peak grows and jumps where prompts start to be cut into chunks, so which
contexts fit need not be one range from 1 up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import msgspec

from kvplan.errors import InputError
from kvplan.formats import find_format
from kvplan.kv_size import Formats, KvSize, at
from kvplan.model import MAX_TOKENS, ModelSpec
from kvplan.prefill_peak import Chunking, activation_peak_bytes
from kvplan.units import GIB
from kvplan.weights import weight_bytes

OUTSIDE_TORCH_BYTES = int(0.4 * GIB)
"""CUDA context, NCCL and what else lies outside the allocator of torch.

Assumed; vllm-project/vllm issues 10517 and 11251 report 0.35 and 0.39 GiB.
"""

MOST_BATCH = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model on a card, and how an engine divides its memory.

    Args:
        model: the whole model.
        memory_bytes: of one card, as the engine sees it.
        utilisation: share of it that the engine takes.
        reserve_bytes: taken off that share.
        weights_bytes: of one rank; None: counted from the parameters.
        weights_dtype: format they are counted in; None for the model's.
        peak_bytes: activations at the peak; None: estimated.
        outside_bytes: CUDA context and libraries.
        kv_dtype: format of the cache.
        block: tokens per block of the cache.
        chunking: how prompts are cut.
        tp: ranks the heads are divided over.
        pp: ranks the layers are divided over.
        source_tokens: that cross-attention reads; None for the model's.
    """

    model: ModelSpec
    memory_bytes: int
    utilisation: float = 0.9
    reserve_bytes: int = 0
    weights_bytes: float | None = None
    weights_dtype: str | None = None
    peak_bytes: float | None = None
    outside_bytes: int = OUTSIDE_TORCH_BYTES
    kv_dtype: str = "fp16"
    block: int = 16
    chunking: Chunking = field(default_factory=Chunking)
    tp: int = 1
    pp: int = 1
    source_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        if not 0 < self.utilisation <= 1:
            raise InputError("utilisation", self.utilisation, "a share above 0 and at most 1")
        if self.block < 1:
            raise InputError("block_size", self.block, "a whole number of tokens, 1 or more")
        find_format(self.kv_dtype)
        for layer in dict.fromkeys(self.model.layers):
            if layer.query_heads % self.tp:
                accepted = f"a divisor of the {layer.query_heads} query heads of {self.model.name}"
                raise InputError("tp", self.tp, accepted)
        if not 1 <= self.pp <= len(self.model.layers):
            accepted = f"from 1 to the {len(self.model.layers)} layers of {self.model.name}"
            raise InputError("pp", self.pp, accepted)
        if self.model.cross_elements and self.source_tokens is self.model.source_tokens is None:
            raise InputError("source_tokens", None, "the tokens that cross-attention reads")

    @cached_property
    def cache(self) -> KvSize:
        """The cache of one sequence on the rank that holds most."""
        format = find_format(self.kv_dtype)
        size = KvSize(
            model=self.model, context=0, formats=Formats(k=format, v=format), ranks=self.tp,
            source_tokens=self.source_tokens,
        )  # fmt: skip
        if self.pp == 1:
            return size
        count = math.ceil(len(self.model.layers) / self.pp)
        counts = [count] * (len(self.model.layers) // count)
        counts += [rest] if (rest := len(self.model.layers) % count) else []
        held = at(size, context=self.model.max_positions or 1 << 20).split(counts)
        start = count * held.index(max(held))
        layers = self.model.layers[start : start + count]
        return at(size, model=msgspec.structs.replace(self.model, layers=layers))

    @cached_property
    def _sequence_bytes(self) -> dict[int, int]:
        """Bytes of a sequence by its tokens, as far as they were asked for."""
        return {}

    @cached_property
    def rank_weights_bytes(self) -> float:
        """Weights of one rank."""
        if self.weights_bytes is not None:
            return self.weights_bytes
        return weight_bytes(self.model, self.weights_dtype) / (self.tp * self.pp)

    @property
    def budget_bytes(self) -> float:
        """What the engine may use of one card."""
        return self.memory_bytes * self.utilisation - self.reserve_bytes

    def peak(self, context: int, batch: int = 1) -> float:
        """Activations at the peak where no context is longer than this."""
        if self.peak_bytes is not None:
            return self.peak_bytes
        tokens = self.chunking.prefill_tokens(context)
        return activation_peak_bytes(self.model, tokens, batch, self.tp)

    def pool_bytes(self, context: int, batch: int = 1) -> float:
        """What is left for the KV cache of one rank; negative where something else does not fit."""
        fixed = self.rank_weights_bytes + self.outside_bytes
        return self.budget_bytes - fixed - self.peak(context, batch)

    def sequence_bytes(self, context: int) -> int:
        """KV bytes of one sequence on one rank, in whole blocks."""
        tokens = min(math.ceil(context / self.block) * self.block, MAX_TOKENS)
        if tokens not in self._sequence_bytes:
            self._sequence_bytes[tokens] = at(self.cache, context=tokens).total_bytes
        return self._sequence_bytes[tokens]

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of one block of every layer on one rank, as engines charge; 0 where none grow."""
        return self.block * self.cache.uniform_bytes_per_token

    def blocks(self, context: int, batch: int = 1) -> int:
        """Blocks of the pool, every layer in each as engines count."""
        if not self.block_bytes:
            return 0
        return max(int(self.pool_bytes(context, batch) // self.block_bytes), 0)

    def concurrency(self, context: int, batch: int = 1) -> float:
        """Sequences of this context that the pool holds, as a fraction."""
        return max(self.pool_bytes(context, batch), 0.0) / self.sequence_bytes(context)

    def reserved_bytes(self, context: int) -> int | None:
        """What an engine sets aside for one sequence of a model with windows; None without any.

        Engines divide the pool by this for the concurrency that they print.
        """
        cache = at(self.cache, context=context)
        if not cache.has_windows:
            return None
        return cache.reserved_bytes(self.chunking.prefill_tokens(context), self.block)

    def fits(self, context: int, batch: int) -> bool:
        """Whether so many sequences of this context fit at once."""
        return batch * self.sequence_bytes(context) <= self.pool_bytes(context, batch)

    def most_batch(self, context: int) -> int:
        """The largest batch at a context; 0 where not even one fits."""
        return _last(lambda batch: self.fits(context, batch), 1, MOST_BATCH)

    def contexts(self, batch: int, most: int = MAX_TOKENS - 1) -> list[tuple[int, int]]:
        """Every range of contexts that fits, first and last included, shortest first.

        Between two contexts at which the peak may fall the longer one needs more, so each such
        range is searched by halving.
        """
        edges = [0, *(turn for turn in self.chunking.turns() if 0 < turn < most), most]
        found: list[tuple[int, int]] = []
        for low, high in pairwise(edges):
            last = _last(lambda context: self.fits(context, batch), low + 1, high)
            if not last:
                continue
            if found and found[-1][1] == low:
                found[-1] = (found[-1][0], last)
            else:
                found.append((low + 1, last))
        return found

    def most_context(self, batch: int, most: int = MAX_TOKENS - 1) -> int:
        """The longest context at a batch; 0 where none fits."""
        ranges = self.contexts(batch, most)
        return ranges[-1][1] if ranges else 0

    def limit(self, context: int, batch: int) -> str:
        """What takes the memory that is missing: ``weights``, ``activation peak`` or ``kv``."""
        if self.budget_bytes < self.rank_weights_bytes + self.outside_bytes:
            return "weights"
        enough = self.pool_bytes(context, batch) >= self.sequence_bytes(1)
        return "kv" if enough else "activation peak"


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last whole number from ``low`` to ``high`` that holds, where smaller ones do; else 0."""
    if low > high or not holds(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def decode_gain(fit: Fit, context: int, batch: int, kv_dtype: str) -> float:
    """Most by which a decode step gets faster with the cache in another format, as a share.

    A step reads all weights and all K and V once; nothing else is made smaller, so this is a bound:
    what it takes to convert, and launches, only lower it.

    >>> from kvplan.model_library import load_model
    >>> fit = Fit(model=load_model("qwen3-8b"), memory_bytes=80 * GIB)
    >>> round(decode_gain(fit, 16384, 8, "fp8"), 2)
    0.37
    """
    now = fit.rank_weights_bytes + batch * fit.sequence_bytes(context)
    other = replace(fit, kv_dtype=kv_dtype)
    then = fit.rank_weights_bytes + batch * other.sequence_bytes(context)
    return now / then - 1.0
