"""What a model costs: its layers in order, and what lies around them. No files."""

from __future__ import annotations

import msgspec

from kvplan.errors import InputError
from kvplan.layer import LayerSpec, _llama3_layer  # noqa: F401 (examples)
from kvplan.layer_parts import Experts, Latent, State
from kvplan.limits import (
    MAX_LAYERS,
    MAX_PARAMS,
    MAX_TOKENS,
    MAX_VOCAB,
    MAX_WIDTH,
    printable,
    require_whole,
)

__all__ = [
    "MAX_LAYERS", "MAX_PARAMS", "MAX_TOKENS", "MAX_VOCAB", "MAX_WIDTH", "WEIGHT_DTYPES", "Experts",
    "Latent", "LayerSpec", "ModelSpec", "State", "printable", "require_whole",
]  # fmt: skip

WEIGHT_DTYPES = ("fp16", "bf16", "fp32", "fp8", "int8", "int4")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that generates token by token: its decoder layers, and what lies around them.

    Args:
        name: how the model is called.
        family: ``model_type`` of its configuration.
        hidden: width of the residual stream, elements per token.
        vocab: rows of the embedding matrix.
        embedding_width: columns of the embedding matrix; ``hidden`` unless projected.
        max_positions: tokens the model was made for; None when unknown.
        weight_dtype: format of the weights, such as ``bf16`` or ``fp8``.
        layers: decoder layers, first to last.
        embedding_params: token and position embeddings, and their projections.
        head_params: what one step reads to get logits: vocabulary matrix and final norm.
        tied: the head reads the embedding matrix, which then counts once in the total.
        source: where the numbers come from.
        other_params: weights that no decode step reads: an encoder, input tables.
        source_tokens: tokens of the source that cross-attention reads, where the model fixes them.
        sequences_per_sample: sequences decoded for one sample: 2 with classifier-free guidance.
        scales: tokens of each scale of a visual autoregressive model, decoded scale by scale.
        uncounted: parts whose weights are left out, such as a vision encoder.

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
    other_params: int = 0
    source_tokens: int | None = None
    sequences_per_sample: int = 1
    scales: tuple[int, ...] = ()
    uncounted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check ranges."""
        require_whole("hidden", self.hidden, 1, MAX_WIDTH)
        require_whole("embedding_width", self.embedding_width, 1, MAX_WIDTH)
        require_whole("vocab", self.vocab, 1, MAX_VOCAB)
        require_whole("embedding_params", self.embedding_params, 1, MAX_PARAMS)
        require_whole("head_params", self.head_params, 1, MAX_PARAMS)
        require_whole("other_params", self.other_params, 0, MAX_PARAMS)
        require_whole("sequences_per_sample", self.sequences_per_sample, 1, 2)
        if self.source_tokens is not None:
            require_whole("source_tokens", self.source_tokens, 0, MAX_TOKENS)
        for tokens in self.scales:
            require_whole("scales", tokens, 1, MAX_TOKENS)
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
        return self.embedding_params + layers + self.head_params + self.other_params - shared

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

    @property
    def active_params(self) -> int:
        """Weights that one token meets, elements: of experts, only those it visits; the head
        counts, a lookup in an untied embedding does not.

        >>> _llama3(layers=(_llama3_layer(),) * 32).active_params
        7504924672
        """
        return sum(layer.active_params for layer in self.layers) + self.head_params

    @property
    def cross_elements(self) -> int:
        """Elements of cross-attention per source token, all layers together."""
        return sum(layer.cross for layer in self.layers)

    def kv_bytes(
        self, context: int, bytes_per_element: float, source_tokens: int | None = None
    ) -> float:
        """Bytes that one sequence of ``context`` tokens keeps, all layers together.

        Args:
            context: tokens in the cache.
            bytes_per_element: size of an element in the cache's format.
            other_params: weights that no decode step reads: an encoder, input tables.
        source_tokens: tokens of the source that cross-attention reads; None for the model's.

        >>> _llama3(layers=(_llama3_layer(),) * 32).kv_bytes(4096, 2) / 2**20
        512.0
        """
        source = source_tokens if source_tokens is not None else self.source_tokens or 0
        return sum(
            count * layer.cached_tokens(context) * layer.kv_bytes(bytes_per_element)
            + count * layer.held_bytes(context, bytes_per_element, source)
            for layer, count, _ in self.layer_classes
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
