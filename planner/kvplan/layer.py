"""One decoder layer: what it caches per token and per sequence, and what it weighs.

A layer may cache K and V heads (of all tokens, of a window or of a chunk), one latent per token,
an index beside either, entries that stand for several tokens, a state of fixed size, K and V of a
source, or nothing. Whole numbers, no files.
"""

from __future__ import annotations

import math

import msgspec

from kvplan.dtypes import element_bytes
from kvplan.errors import InputError
from kvplan.layer_parts import Experts as Experts
from kvplan.layer_parts import Latent as Latent
from kvplan.layer_parts import State as State
from kvplan.limits import MAX_PARAMS, MAX_TOKENS, MAX_WIDTH, printable, require_whole


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decoder layer: attention or state with its cache, and the MLP.

    Args:
        hidden: width of the layer's input, elements per token.
        query_heads: query heads; 0 where the layer has no attention.
        kv_heads: key/value heads; divides ``query_heads``; 0 where it caches no K and V.
        head_dim_k: elements of one key head.
        head_dim_v: elements of one value head.
        window: sliding window in tokens; None when every token is attended.
        chunked: the window is a chunk: attention does not cross its edges.
        latent: cached in place of K and V heads, which are then those it expands to.
        index: elements per entry that sparse attention keeps beside it to choose by.
        compression: tokens that one cached entry stands for; above 1 the last ``window`` tokens
            are kept whole beside the entries.
        cross: elements of K and V per token of a source (text, sound, image) beside them.
        state: what a recurrent layer keeps.
        shared: attends the cache of an earlier layer and keeps none.
        dtype_k: format of K where the model fixes it; None for the cache's.
        dtype_v: format of V where the model fixes it; None for the cache's.
        intermediate: width inside the MLP, elements, of all experts a token visits; 0 for none.
        gated_mlp: three MLP matrices (gate, up, down) instead of two.
        experts: experts of the MLP; None where it is dense.
        rope: keys are rotated, so a rebuilt key needs its position.
        attention_params: everything of the layer that is not the MLP: projections, states'
            parameters, biases and norms.
        mlp_params: MLP matrices of all experts, router, biases and norm.

    Raises:
        InputError: a value out of range, or parts that do not fit together.
    """

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    window: int | None = None
    chunked: bool = False
    latent: Latent | None = None
    index: int = 0
    compression: int = 1
    cross: int = 0
    state: State | None = None
    shared: bool = False
    dtype_k: str | None = None
    dtype_v: str | None = None
    intermediate: int
    gated_mlp: bool
    experts: Experts | None = None
    rope: bool
    attention_params: int
    mlp_params: int

    def __post_init__(self) -> None:
        """Check ranges and how the heads fit together."""
        require_whole("hidden", self.hidden, 1, MAX_WIDTH)
        heads = 1 if self.kv_heads and self.state is None else 0
        require_whole("query_heads", self.query_heads, heads, MAX_WIDTH)
        require_whole("kv_heads", self.kv_heads, 0, MAX_WIDTH)
        for field in ("head_dim_k", "head_dim_v"):
            require_whole(field, getattr(self, field), 1 if self.kv_heads else 0, MAX_WIDTH)
        for field in ("index", "cross", "intermediate"):
            require_whole(field, getattr(self, field), 0, MAX_WIDTH)
        for field in ("attention_params", "mlp_params"):
            require_whole(field, getattr(self, field), 0, MAX_PARAMS)
        require_whole("compression", self.compression, 1, MAX_TOKENS)
        if self.window is not None:
            require_whole("window", self.window, 1, MAX_TOKENS)
        for field in ("gated_mlp", "rope", "chunked", "shared"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(field, printable(getattr(self, field)), "true or false")
        for field in ("dtype_k", "dtype_v"):
            if getattr(self, field) is not None:
                element_bytes(getattr(self, field))
        self._check_heads()

    def _check_heads(self) -> None:
        if self.kv_heads and self.query_heads % self.kv_heads:
            raise InputError(
                "kv_heads", self.kv_heads, f"a divisor of the {self.query_heads} query heads"
            )
        for field in ("head_dim_k", "head_dim_v"):
            if self.query_heads * getattr(self, field) > MAX_WIDTH:
                accepted = f"at most {MAX_WIDTH} elements over {self.query_heads} query heads"
                raise InputError(field, getattr(self, field), accepted)
        if self.cross and self.cross % max(self.head_dim_k + self.head_dim_v, 1):
            raise InputError("cross", self.cross, "whole heads of K and V")
        if self.compression > 1 and self.window is None:
            raise InputError("window", None, "a window beside compressed entries")

    # -- what is cached ------------------------------------------------------------------------

    @property
    def entry_elements(self) -> int:
        """Elements of one entry of the cache that this layer attends, its own or another's."""
        if self.latent is not None:
            return self.latent.width + self.index
        return self.kv_heads * (self.head_dim_k + self.head_dim_v) + self.index

    @property
    def kv_elements(self) -> int:
        """Elements that this layer stores per token, K and V (or the latent) and the index.

        >>> _llama3_layer().kv_elements  # 8 heads x (128 + 128)
        2048
        """
        return 0 if self.shared else self.entry_elements

    def cached_tokens(self, context: int) -> int:
        """Entries that one sequence keeps in this layer, ``min(context, window)``.

        Where entries stand for several tokens, the whole ones: ``context // compression``.

        >>> _llama3_layer().cached_tokens(32768), _llama3_layer(window=4096).cached_tokens(32768)
        (32768, 4096)
        """
        if not self.kv_elements:
            return 0
        if self.compression > 1:
            return context // self.compression
        return self.attended_tokens(context)

    def attended_tokens(self, context: int) -> int:
        """Tokens of the context within the window."""
        return context if self.window is None else min(context, self.window)

    def kv_bytes(self, bytes_per_element: float) -> float:
        """Bytes of one cached token, K and V (or the latent) and the index together.

        >>> _llama3_layer().kv_bytes(2)
        4096
        """
        if self.dtype_k is None and self.dtype_v is None:
            return self.kv_elements * bytes_per_element
        size_k = element_bytes(self.dtype_k) if self.dtype_k else bytes_per_element
        size_v = element_bytes(self.dtype_v) if self.dtype_v else bytes_per_element
        heads = 0 if self.shared else self.kv_heads
        return heads * (self.head_dim_k * size_k + self.head_dim_v * size_v)

    def held_bytes(self, context: int, bytes_per_element: float, source_tokens: int = 0) -> float:
        """Bytes per sequence that cannot be placed token by token: state, source, raw window.

        Args:
            context: tokens in the cache.
            bytes_per_element: size of an element in the cache's format.
            source_tokens: tokens of the source that cross-attention reads.

        >>> _llama3_layer().held_bytes(4096, 2)
        0.0
        """
        held = 0.0 if self.state is None else self.state.held_bytes(bytes_per_element)
        held += self.cross * source_tokens * bytes_per_element
        if self.compression > 1:
            raw = self.entry_elements - self.index
            held += self.attended_tokens(context) * raw * bytes_per_element
        return held

    def borrowed_bytes(self, context: int, bytes_per_element: float) -> float:
        """Bytes per sequence that it reads of another layer's cache."""
        if not self.shared:
            return 0.0
        return self.attended_tokens(context) * self.entry_elements * bytes_per_element

    # -- how attention reads it ----------------------------------------------------------------

    @property
    def cache_heads(self) -> int:
        """Heads of the cache that query heads share: 1 for a latent."""
        return 1 if self.latent is not None else max(self.kv_heads, 1)

    @property
    def query_elements(self) -> int:
        """Elements of one token's query as attention takes it; for a latent, in its space."""
        width = self.head_dim_k if self.latent is None else self.latent.width
        return self.query_heads * width

    @property
    def partial_elements(self) -> int:
        """Elements of one token's partial result as attention gives it, before up-projection."""
        width = self.head_dim_v if self.latent is None else self.latent.rank
        return self.query_heads * width

    @property
    def plain(self) -> bool:
        """Whether it is attention over its own K and V heads, with a dense MLP."""
        return (
            self.kv_heads > 0
            and self.intermediate > 0
            and self.latent is None
            and self.state is None
            and self.experts is None
            and not (self.shared or self.index or self.cross or self.compression > 1)
        )

    # -- rebuilding it -------------------------------------------------------------------------

    @property
    def activation_elements(self) -> int:
        """Elements of the attention input that one cached entry is rebuilt from.

        >>> _llama3_layer().activation_elements
        4096
        """
        return self.hidden * self.compression

    @property
    def rebuild_flop(self) -> int:
        """FLOP that rebuild one entry, ``2 * hidden * kv_elements`` (4hw); to the latent for MLA.

        >>> _llama3_layer().rebuild_flop  # 4 x 4096 x 1024
        16777216
        """
        return 2 * self.activation_elements * self.kv_elements

    def act_over_kv(
        self, bytes_per_element: float = 2, activation_bytes_per_element: float | None = None
    ) -> float:
        """Activation bytes over KV bytes of one token; above 1 a recompute moves more bytes.

        Args:
            bytes_per_element: size of a cached K or V element, bytes.
            activation_bytes_per_element: size of an activation element; None for the same.

        Returns:
            The ratio; infinity where nothing is cached per token.

        >>> _llama3_layer().act_over_kv(2)  # 4096 / 2048
        2.0
        """
        if not self.kv_elements:
            return math.inf
        activation = activation_bytes_per_element
        size = bytes_per_element if activation is None else activation
        return self.activation_elements * size / self.kv_bytes(bytes_per_element)

    # -- weights -------------------------------------------------------------------------------

    @property
    def params(self) -> int:
        """Weights of the layer in memory, elements.

        >>> _llama3_layer().params
        218112000
        """
        return self.attention_params + self.mlp_params

    @property
    def active_params(self) -> int:
        """Weights that one token meets: of the experts, only those it visits."""
        if self.experts is None:
            return self.params
        idle = self.experts.count - self.experts.active
        return self.params - idle * self.experts.params

    def read_params(self, tokens: int) -> float:
        """Weights that a step over so many tokens reads; see `Experts.touched`."""
        if self.experts is None:
            return float(self.params)
        idle = self.experts.count - self.experts.touched(tokens)
        return self.params - idle * self.experts.params


def _llama3_layer(window: int | None = None) -> LayerSpec:
    """One layer of Llama-3-8B, for the examples on this page."""
    return LayerSpec(
        hidden=4096,
        query_heads=32,
        kv_heads=8,
        head_dim_k=128,
        head_dim_v=128,
        window=window,
        intermediate=14336,
        gated_mlp=True,
        rope=True,
        attention_params=41_947_136,
        mlp_params=176_164_864,
    )
