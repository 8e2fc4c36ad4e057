"""How large a cache is: what grows, what windows hold, what is fixed; on one of several ranks.

Exact whole bytes. Where an engine charges every layer as if it kept all tokens, its figure stands
beside the true one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Literal

from kvplan.errors import InputError
from kvplan.formats import FORMATS, INDEXES, Format, whole_blocks
from kvplan.layer import LayerSpec
from kvplan.layer_parts import RECURRENT_BYTES
from kvplan.limits import MAX_TOKENS
from kvplan.model import ModelSpec

Layout = Literal["latent", "expanded"]
MOST_RANKS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """What K, V and indexes are stored in.

    Args:
        k: format of K and of latents; None for what the model fixes, or 16 bits.
        v: format of V; None likewise.
    """

    k: Format | None = None
    v: Format | None = None

    def of(self, layer: LayerSpec) -> tuple[Format, Format]:
        """Formats of one layer's K and V."""
        fixed_k, fixed_v = layer.dtype_k or "fp16", layer.dtype_v or "fp16"
        return self.k or FORMATS[fixed_k], self.v or FORMATS[fixed_v]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one layer keeps of one sequence on one rank.

    Args:
        entry_bytes: bytes of one more entry while every window is filling.
        growth: bytes that one more token adds, a fraction where entries stand for several tokens.
        growing_bytes: what grows with the context.
        window_bytes: what its window holds.
        fixed_bytes: states and cross-attention.
    """

    entry_bytes: int = 0
    growth: Fraction = Fraction(0)
    growing_bytes: int = 0
    window_bytes: int = 0
    fixed_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.growing_bytes + self.window_bytes + self.fixed_bytes


def heads_per_rank(heads: int, ranks: int) -> int:
    """K and V heads on one rank: never less than one, so more ranks than heads repeat them.

    >>> heads_per_rank(8, 4), heads_per_rank(4, 8), heads_per_rank(10, 4)
    (2, 1, 3)
    """
    return -(-heads // ranks)


def widths(layer: LayerSpec, ranks: int, layout: Layout) -> tuple[int, int, int]:
    """Elements of K, of V and of the index that one entry has on one rank.

    A latent and an index are whole on every rank; heads are divided.
    """
    if layer.latent is not None and (layout == "latent" or not expands(layer)):
        return layer.latent.width, 0, layer.index
    heads = heads_per_rank(layer.kv_heads, ranks)
    return heads * layer.head_dim_k, heads * layer.head_dim_v, layer.index


def expands(layer: LayerSpec) -> bool:
    """Whether some engines store per-head K and V in place of this layer's latent."""
    return layer.latent is not None and layer.head_dim_k != layer.latent.width


@dataclass(frozen=True, kw_only=True)
class KvSize:
    """The cache of a model at a context.

    Args:
        model: the model; only its layers count.
        context: tokens in the cache, per sequence.
        batch: samples decoded together.
        formats: what it is stored in.
        ranks: tensor-parallel ranks.
        layout: how latents are stored.
        source_tokens: tokens that cross-attention reads; None for the model's.

    Raises:
        InputError: a number out of range.
    """

    model: ModelSpec
    context: int
    batch: int = 1
    formats: Formats = field(default_factory=Formats)
    ranks: int = 1
    layout: Layout = "latent"
    source_tokens: int | None = None

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, low, high in (("context", 0, MAX_TOKENS), ("batch", 1, 2**24),
                                ("ranks", 1, MOST_RANKS)):  # fmt: skip
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(name, value, f"a whole number from {low} to {high}")
        for layer in dict.fromkeys(self.model.layers):
            key = self.formats.of(layer)[0]
            latent = layer.latent.width if layer.latent and self.layout == "latent" else None
            if key.name in INDEXES and layer.kv_elements and latent != key.block:
                accepted = f"another format: this one is for whole latents of {key.block} elements"
                raise InputError("kv_dtype", key.name, accepted)

    @property
    def sequences(self) -> int:
        """Sequences in the cache: with classifier-free guidance two for every sample."""
        return self.batch * self.model.sequences_per_sample

    @property
    def source(self) -> int:
        """Tokens that cross-attention reads; 0 where nothing says how many."""
        return self.model.source_tokens or 0 if self.source_tokens is None else self.source_tokens

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What every layer keeps."""
        known: dict[LayerSpec, Part] = {}
        for layer in self.model.layers:
            if layer not in known:
                known[layer] = self.part(layer)
        return tuple(known[layer] for layer in self.model.layers)

    def part(self, layer: LayerSpec) -> Part:
        """What one layer keeps of one sequence on one rank."""
        key, value = self.formats.of(layer)
        fixed = self._fixed(layer, key, value)
        if not layer.kv_elements:
            return Part(fixed_bytes=fixed)
        of_k, of_v, of_index = widths(layer, self.ranks, self.layout)
        raw = key.row_bytes(of_k) + (value.row_bytes(of_v) if of_v else 0)
        entry = raw + (INDEXES.get(key.name, key).row_bytes(of_index) if of_index else 0)
        kept = layer.attended_tokens(self.context)
        filling = layer.window is not None and self.context < layer.window
        if layer.compression > 1:
            growth = Fraction(entry, layer.compression) + (raw if filling else 0)
            return Part(
                entry_bytes=raw, growth=growth, window_bytes=kept * raw, fixed_bytes=fixed,
                growing_bytes=self.context // layer.compression * entry,
            )  # fmt: skip
        if layer.window is not None:
            growth = Fraction(entry if filling else 0)
            return Part(
                entry_bytes=entry, growth=growth, window_bytes=kept * entry, fixed_bytes=fixed
            )
        return Part(
            entry_bytes=entry, growth=Fraction(entry), growing_bytes=kept * entry, fixed_bytes=fixed
        )

    def _fixed(self, layer: LayerSpec, key: Format, value: Format) -> int:
        """State and cross-attention: divided by heads; convolutions are kept in 16 bits or more."""
        held = 0
        if layer.state is not None:
            conv = max(key.element_bytes, 2.0)
            share = Fraction(heads_per_rank(layer.state.heads, self.ranks), layer.state.heads)
            size = layer.state.conv * int(conv) + layer.state.recurrent * RECURRENT_BYTES
            held += -(-size * share.numerator // share.denominator)
        if layer.cross:
            heads = layer.cross // (layer.head_dim_k + layer.head_dim_v)
            own = heads_per_rank(heads, self.ranks)
            row = key.row_bytes(own * layer.head_dim_k) + value.row_bytes(own * layer.head_dim_v)
            held += row * self.source
        return held

    # -- sums ----------------------------------------------------------------------------------

    @property
    def bytes_per_token(self) -> float:
        """Growth of one more token, of one sequence on one rank; whole where it is."""
        return _plain(sum((part.growth for part in self.parts), Fraction(0)))

    @property
    def growing_bytes(self) -> int:
        """What grows with the context, of the whole batch on one rank."""
        return self.sequences * sum(part.growing_bytes for part in self.parts)

    @property
    def window_bytes(self) -> int:
        """What windows hold, of the whole batch on one rank."""
        return self.sequences * sum(part.window_bytes for part in self.parts)

    @property
    def fixed_bytes(self) -> int:
        """States and cross-attention, of the whole batch on one rank."""
        return self.sequences * sum(part.fixed_bytes for part in self.parts)

    @property
    def total_bytes(self) -> int:
        """All of the cache, of the whole batch on one rank.

        >>> from kvplan.model_library import load_model
        >>> KvSize(model=load_model("llama-3.1-8b"), context=4096).total_bytes // 2**20
        512
        """
        return self.growing_bytes + self.window_bytes + self.fixed_bytes

    @property
    def kv_layers(self) -> int:
        """Layers that keep something per token of the context."""
        return sum(part.entry_bytes > 0 for part in self.parts)

    @property
    def uniform_bytes_per_token(self) -> int:
        """What an engine with one page size charges for a token: every layer, windowed or not."""
        return sum(part.entry_bytes for part in self.parts)

    @property
    def uniform_total_bytes(self) -> int:
        """Everything if every layer kept every token, as such an engine charges."""
        return self.sequences * self.context * self.uniform_bytes_per_token + self.fixed_bytes

    @property
    def replication(self) -> float:
        """How often the ranks together hold each byte that grows; 1 where heads divide evenly."""
        alone = at(self, ranks=1).uniform_bytes_per_token
        return self.ranks * self.uniform_bytes_per_token / alone if alone else 1.0

    @property
    def act_over_kv(self) -> float | None:
        """16-bit activations over K and V of one token, in the layers that keep any."""
        whole = at(self, ranks=1)
        pairs = [
            (layer.activation_elements * 2, part.entry_bytes)
            for layer, part in zip(self.model.layers, whole.parts, strict=True)
            if part.entry_bytes
        ]
        return sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None

    def split(self, layers: Sequence[int]) -> list[int]:
        """Bytes on each of several devices that hold so many layers each.

        Raises:
            InputError: the counts do not add up to the model's layers.
        """
        if sum(layers) != len(self.parts):
            raise InputError(
                "layers_per_device", list(layers), f"counts that add up to {len(self.parts)} layers"
            )
        found, first = [], 0
        for count in layers:
            own = self.parts[first : first + count]
            found.append(self.sequences * sum(part.total_bytes for part in own))
            first += count
        return found

    def tokens_in(self, pool_bytes: int) -> int | None:
        """Tokens per sequence that a pool of memory holds; None where there is no limit."""
        if at(self, context=MAX_TOKENS).total_bytes <= pool_bytes:
            return None
        low, high = 0, MAX_TOKENS
        while high - low > 1:
            middle = (low + high) // 2
            if at(self, context=middle).total_bytes <= pool_bytes:
                low = middle
            else:
                high = middle
        return low

    def uniform_tokens_in(self, pool_bytes: int) -> int | None:
        """Tokens of all sequences that a pool holds where every layer is charged for all tokens."""
        rate = self.uniform_bytes_per_token
        return max(pool_bytes - self.fixed_bytes, 0) // rate if rate else None

    def reserved_bytes(self, chunk: int, block: int = 16) -> int:
        """What engines set aside for one sequence on one rank while its prompt is read in chunks.

        A windowed layer then keeps its window and a chunk, in whole blocks and one block more.

        Args:
            chunk: most tokens of one prefill.
            block: tokens per block of the cache.

        Source: vLLM, ``SlidingWindowSpec`` and ``ChunkedLocalAttentionSpec``,
        ``max_memory_usage_bytes``.
        """
        total = 0
        for layer, part in zip(self.model.layers, self.parts, strict=True):
            tokens, more = self.context, 0
            if layer.compression > 1 or not part.entry_bytes:
                total += part.total_bytes
                continue
            if layer.window is not None:
                kept = layer.window + chunk - (0 if layer.chunked else 1)
                tokens, more = min(kept, tokens), 0 if layer.chunked else 1
            blocks = -(-tokens // block) + more
            total += blocks * block * part.entry_bytes + part.fixed_bytes
        return total

    @property
    def has_windows(self) -> bool:
        """Whether some layer keeps less than the context."""
        return any(
            layer.window is not None and layer.window < self.context and part.entry_bytes
            for layer, part in zip(self.model.layers, self.parts, strict=True)
        )

    def partial_blocks(self) -> str | None:
        """Name of a format whose blocks do not divide a head; None where all do."""
        for layer in dict.fromkeys(self.model.layers):
            if not layer.kv_elements:
                continue
            key, value = self.formats.of(layer)
            latent = layer.latent is not None and self.layout == "latent"
            of_k = layer.latent.width if layer.latent and latent else layer.head_dim_k
            if not whole_blocks(key, of_k):
                return key.name
            if not latent and not whole_blocks(value, layer.head_dim_v):
                return value.name
        return None


def at(size: KvSize, **changes: object) -> KvSize:
    """The same question with something changed."""
    fields = ("model", "context", "batch", "formats", "ranks", "layout", "source_tokens")
    return KvSize(**{name: getattr(size, name) for name in fields} | changes)


def _plain(value: Fraction) -> float:
    """A whole number where it is one, so that JSON shows no needless decimals."""
    return value.numerator if value.denominator == 1 else float(value)
