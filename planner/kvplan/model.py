"""What a model costs per token and layer: typed specs, whole numbers, no files."""

from __future__ import annotations

import msgspec

from kvplan.errors import InputError

MAX_LAYERS = 10_000
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24
MAX_TOKENS = 2**31
MAX_PARAMS = 2**60
WEIGHT_DTYPES = ("fp16", "bf16", "fp32")


def require_whole(field: str, value: object, low: int, high: int) -> int:
    """Accept a whole number in a range, and nothing that only looks like one.

    Args:
        field: what to name in the error.
        value: what was given; ``True``, ``8.0`` and ``"8"`` are refused.
        low: smallest accepted value.
        high: largest accepted value.

    Raises:
        InputError: not an integer, or out of range.

    >>> require_whole("layers", 32, 1, 10_000)
    32
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, printable(value), f"a whole number from {low} to {high}")
    return value


def printable(value: object) -> object:
    """A value that an error can always show: huge integers and containers become a phrase.

    >>> printable(8), printable([1, 2]), printable(10**5000)
    (8, 'a list', 'an integer of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"a {type(value).__name__}"


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decoder layer: attention with its cache, and the MLP.

    Args:
        hidden: width of the attention input, elements per token.
        query_heads: query heads.
        kv_heads: key/value heads; divides ``query_heads``.
        head_dim_k: elements of one key head.
        head_dim_v: elements of one value head.
        window: sliding window in tokens; None when every token is attended.
        intermediate: width inside the MLP, elements.
        gated_mlp: three MLP matrices (gate, up, down) instead of two.
        rope: keys are rotated, so a rebuilt key needs its position.
        attention_params: Q, K, V and output projections, their biases and norms.
        mlp_params: MLP matrices, their biases and norm.

    Raises:
        InputError: a value out of range, or KV heads that do not divide the query heads.
    """

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    window: int | None = None
    intermediate: int
    gated_mlp: bool
    rope: bool
    attention_params: int
    mlp_params: int

    def __post_init__(self) -> None:
        """Check ranges and how the heads fit together."""
        for field in (
            "hidden",
            "query_heads",
            "kv_heads",
            "head_dim_k",
            "head_dim_v",
            "intermediate",
        ):
            require_whole(field, getattr(self, field), 1, MAX_WIDTH)
        for field in ("attention_params", "mlp_params"):
            require_whole(field, getattr(self, field), 1, MAX_PARAMS)
        if self.window is not None:
            require_whole("window", self.window, 1, MAX_TOKENS)
        for field in ("gated_mlp", "rope"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(field, printable(getattr(self, field)), "true or false")
        if self.query_heads % self.kv_heads:
            raise InputError(
                "kv_heads", self.kv_heads, f"a divisor of the {self.query_heads} query heads"
            )
        for field in ("head_dim_k", "head_dim_v"):
            if self.query_heads * getattr(self, field) > MAX_WIDTH:
                accepted = f"at most {MAX_WIDTH} elements over {self.query_heads} query heads"
                raise InputError(field, getattr(self, field), accepted)

    @property
    def kv_elements(self) -> int:
        """Cached elements per token, K and V together.

        >>> _llama3_layer().kv_elements  # 8 heads x (128 + 128)
        2048
        """
        return self.kv_heads * (self.head_dim_k + self.head_dim_v)

    @property
    def params(self) -> int:
        """Weights of the layer, elements.

        >>> _llama3_layer().params
        218112000
        """
        return self.attention_params + self.mlp_params

    @property
    def activation_elements(self) -> int:
        """Elements per token of the attention input that K and V are rebuilt from.

        >>> _llama3_layer().activation_elements
        4096
        """
        return self.hidden

    @property
    def rebuild_flop(self) -> int:
        """FLOP per token that rebuild K and V: ``2 * hidden * kv_elements`` (4hw).

        >>> _llama3_layer().rebuild_flop  # 4 x 4096 x 1024
        16777216
        """
        return 2 * self.hidden * self.kv_elements

    def cached_tokens(self, context: int) -> int:
        """Tokens that one sequence keeps in this layer, ``min(context, window)``.

        >>> _llama3_layer().cached_tokens(32768), _llama3_layer(window=4096).cached_tokens(32768)
        (32768, 4096)
        """
        return context if self.window is None else min(context, self.window)

    def kv_bytes(self, bytes_per_element: float) -> float:
        """Bytes of one cached token, K and V together.

        >>> _llama3_layer().kv_bytes(2)
        4096
        """
        return self.kv_elements * bytes_per_element

    def act_over_kv(
        self, bytes_per_element: float = 2, activation_bytes_per_element: float | None = None
    ) -> float:
        """Activation bytes over KV bytes of one token; above 1 a recompute moves more bytes.

        Args:
            bytes_per_element: size of a cached K or V element, bytes.
            activation_bytes_per_element: size of an activation element; None for the same.

        >>> _llama3_layer().act_over_kv(2)  # 4096 / 2048
        2.0
        """
        activation = activation_bytes_per_element
        size = bytes_per_element if activation is None else activation
        return self.activation_elements * size / self.kv_bytes(bytes_per_element)


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder-only model: its layers in order, and what lies around them.

    Args:
        name: how the model is called.
        family: ``model_type`` of its configuration.
        hidden: width of the residual stream, elements per token.
        vocab: rows of the embedding matrix.
        embedding_width: columns of the embedding matrix; ``hidden`` unless projected.
        max_positions: tokens the model was made for; None when unknown.
        weight_dtype: ``fp16``, ``bf16`` or ``fp32``.
        layers: decoder layers, first to last.
        embedding_params: token and position embeddings, and their projections.
        head_params: what one step reads to get logits: vocabulary matrix and final norm.
        tied: the head reads the embedding matrix, which then counts once in the total.
        source: where the numbers come from.

    Raises:
        InputError: a value out of range, or no layers.
    """

    name: str
    family: str
    hidden: int
    vocab: int
    embedding_width: int
    max_positions: int | None = None
    weight_dtype: str
    layers: tuple[LayerSpec, ...]
    embedding_params: int
    head_params: int
    tied: bool
    source: str

    def __post_init__(self) -> None:
        """Check ranges."""
        require_whole("hidden", self.hidden, 1, MAX_WIDTH)
        require_whole("embedding_width", self.embedding_width, 1, MAX_WIDTH)
        require_whole("vocab", self.vocab, 1, MAX_VOCAB)
        require_whole("embedding_params", self.embedding_params, 1, MAX_PARAMS)
        require_whole("head_params", self.head_params, 1, MAX_PARAMS)
        require_whole("number of layers", len(self.layers), 1, MAX_LAYERS)
        if self.max_positions is not None:
            require_whole("max_positions", self.max_positions, 1, MAX_TOKENS)
        if self.weight_dtype not in WEIGHT_DTYPES:
            accepted = f"one of {', '.join(WEIGHT_DTYPES)}"
            raise InputError("weight_dtype", printable(self.weight_dtype), accepted)

    @property
    def params(self) -> int:
        """Weights of the whole model, elements; a tied vocabulary matrix counts once.

        >>> _llama3(layers=(_llama3_layer(),) * 32).params
        8030261248
        """
        shared = self.vocab * self.embedding_width if self.tied else 0
        layers = sum(layer.params for layer in self.layers)
        return self.embedding_params + layers + self.head_params - shared

    @property
    def layer_classes(self) -> tuple[tuple[LayerSpec, int, tuple[int, ...]], ...]:
        """Equal layers together: ``(layer, count, indices)``, in order of first appearance.

        >>> full, windowed = _llama3_layer(), _llama3_layer(window=4096)
        >>> model = _llama3(layers=(full, windowed, full))
        >>> [(layer.window, n, where) for layer, n, where in model.layer_classes]
        [(None, 2, (0, 2)), (4096, 1, (1,))]
        """
        where: dict[LayerSpec, list[int]] = {}
        for index, layer in enumerate(self.layers):
            where.setdefault(layer, []).append(index)
        return tuple((layer, len(found), tuple(found)) for layer, found in where.items())

    @property
    def uniform(self) -> bool:
        """Whether all layers are equal.

        >>> _llama3(layers=(_llama3_layer(), _llama3_layer(window=4096))).uniform
        False
        """
        return all(layer == self.layers[0] for layer in self.layers)

    def kv_bytes(self, context: int, bytes_per_element: float) -> float:
        """Bytes that one sequence of ``context`` tokens keeps, all layers together.

        >>> _llama3(layers=(_llama3_layer(),) * 32).kv_bytes(4096, 2) / 2**20
        512.0
        """
        return sum(
            count * layer.cached_tokens(context) * layer.kv_bytes(bytes_per_element)
            for layer, count, _ in self.layer_classes
        )


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


def _llama3(layers: tuple[LayerSpec, ...]) -> ModelSpec:
    """Llama-3-8B around some layers, for the examples on this page."""
    return ModelSpec(
        name="example",
        family="llama",
        hidden=4096,
        vocab=128256,
        embedding_width=4096,
        max_positions=8192,
        weight_dtype="bf16",
        layers=layers,
        embedding_params=525_336_576,
        head_params=525_340_672,
        tied=False,
        source="example",
    )
