"""A decoder with random weights in a model's exact shape: what a step computes around attention.

Weights are random, so outputs mean nothing; sizes, dtypes and the order of operations are those of
the model. Layers without rotary embedding use LayerNorm, biases and ReLU (OPT), the others RMSNorm
and SwiGLU (Llama, Mistral, Qwen).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kvplan.errors import InputError
from kvplan.model import LayerSpec, ModelSpec
from kvplan_validate import kernels

Product = Callable[..., Tensor]
"""(name, rows, residual=, bias=) to rows times a matrix."""

ROPE_THETA = 10_000.0
EPSILON = 1e-5


@dataclass(slots=True)
class LayerWeights:
    """Weights of one layer; products are ``x @ W.T``.

    Args:
        spec: shapes.
        query: ``[H * D, h]``.
        key_value: ``[2 * KV * D, h]``, rows ordered K then V, as tokens are stored.
        output: ``[h, H * D]``.
        up: ``[I or 2 I, h]``.
        down: ``[h, I]``.
        norms: two norm weights ``[2, h]``.
        query_bias, key_value_bias: biases, or None.
    """

    spec: LayerSpec
    query: Tensor
    key_value: Tensor
    output: Tensor
    up: Tensor
    down: Tensor
    norms: Tensor
    query_bias: Tensor | None
    key_value_bias: Tensor | None

    def streamable(self) -> tuple[str, ...]:
        """Names of the matrices a share of which may be streamed."""
        return ("query", "output", "up", "down")


def refuse_unusual(model: ModelSpec) -> None:
    """Refuse layers that this decoder has no kernels for.

    Raises:
        InputError: a layer that is not attention over its own K and V heads with a dense MLP.
    """
    for index, layer in enumerate(model.layers):
        if not layer.plain or layer.head_dim_k != layer.head_dim_v:
            accepted = (
                "a model whose layers all attend their own K and V heads of one width and have a "
                f"dense MLP; layer {index} does not, so plans for it cannot be run here yet"
            )
            raise InputError("model", model.name, accepted)


class Decoder:
    """Random weights of a whole model on one device.

    Args:
        model: shapes.
        device: where.
        dtype: fp16, bf16 or fp32 tensors.
        seed: same seed, same weights.
        positions: rows of the rotary table.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: torch.device,
        dtype: torch.dtype,
        *,
        seed: int = 0,
        positions: int = 4096,
    ) -> None:
        """Draw the weights."""
        refuse_unusual(model)
        self.model, self.device, self.dtype = model, device, dtype
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.layers = [self._layer(spec) for spec in model.layers]
        self.head = self._matrix(model.vocab, model.hidden)
        self.final_norm = torch.ones(model.hidden, device=device, dtype=dtype)
        dim = model.layers[0].head_dim_k
        self.rotary = kernels.rotary_table(positions, dim, ROPE_THETA, device)

    def _matrix(self, outputs: int, inputs: int) -> Tensor:
        drawn = torch.empty(outputs, inputs, device=self.device, dtype=self.dtype)
        return drawn.normal_(0.0, inputs**-0.5, generator=self._generator)

    def _layer(self, spec: LayerSpec) -> LayerWeights:
        heads = spec.query_heads * spec.head_dim_k
        bias = not spec.rope
        inner = spec.intermediate * (2 if spec.gated_mlp else 1)
        return LayerWeights(
            spec=spec,
            query=self._matrix(heads, spec.hidden),
            key_value=self._matrix(spec.kv_elements, spec.hidden),
            output=self._matrix(spec.hidden, spec.query_heads * spec.head_dim_v),
            up=self._matrix(inner, spec.hidden),
            down=self._matrix(spec.hidden, spec.intermediate),
            norms=torch.ones(2, spec.hidden, device=self.device, dtype=self.dtype),
            query_bias=self._matrix(heads, 1)[:, 0] * 0.1 if bias else None,
            key_value_bias=self._matrix(spec.kv_elements, 1)[:, 0] * 0.1 if bias else None,
        )

    def norm(self, hidden: Tensor, weight: Tensor, spec: LayerSpec) -> Tensor:
        """Normalise ``[B, h]``."""
        return kernels.norm(hidden, weight, EPSILON, centred=not spec.rope)

    def rebuild(self, layer: LayerWeights, activations: Tensor, out: Tensor, first: int) -> None:
        """K and V of cached tokens from their activations, rotated at their positions.

        Args:
            layer: whose.
            activations: ``[n, B, h]``.
            out: ``[n, B, 2, KV, D]``, written.
            first: position of the first token.
        """
        count, batch, hidden = activations.shape
        rows, target = activations.view(count * batch, hidden), out.view(count * batch, -1)
        if layer.key_value_bias is None:
            torch.mm(rows, layer.key_value.t(), out=target)
        else:
            torch.addmm(layer.key_value_bias, rows, layer.key_value.t(), out=target)
        if layer.spec.rope:
            kernels.rotate(out[:, :, 0], self.rotary[first : first + count])

    def project(
        self, layer: LayerWeights, hidden: Tensor, position: int, product: Product
    ) -> tuple[Tensor, Tensor]:
        """Query and new K, V of one token per sequence.

        Args:
            layer: whose.
            hidden: ``[B, h]``.
            position: of the new token.
            product: multiplies by a matrix that may be streamed.

        Returns:
            Query ``[B, KV, G, D]`` and new token ``[1, B, 2, KV, D]``.
        """
        spec, batch = layer.spec, hidden.shape[0]
        normed = self.norm(hidden, layer.norms[0], spec)
        query = product("query", normed, bias=layer.query_bias)
        fresh = functional.linear(normed, layer.key_value, layer.key_value_bias)
        fresh = fresh.view(1, batch, 2, spec.kv_heads, spec.head_dim_k)
        if spec.rope:
            table = self.rotary[position : position + 1]
            kernels.rotate(query.view(1, batch, spec.query_heads, spec.head_dim_k), table)
            kernels.rotate(fresh[:, :, 0], table)
        group = spec.query_heads // spec.kv_heads
        return query.view(batch, spec.kv_heads, group, spec.head_dim_k), fresh

    def finish(
        self, layer: LayerWeights, hidden: Tensor, attended: Tensor, product: Product
    ) -> Tensor:
        """Output projection and MLP behind the merged attention.

        Args:
            layer: whose.
            hidden: residual ``[B, h]``.
            attended: ``[B, KV, G, D]``.
            product: multiplies by a matrix that may be streamed.

        Returns:
            The next residual ``[B, h]``.
        """
        spec = layer.spec
        hidden = product("output", attended.reshape(hidden.shape[0], -1), residual=hidden)
        inner = product("up", self.norm(hidden, layer.norms[1], spec))
        inner = kernels.gate(inner) if spec.gated_mlp else functional.relu(inner)
        return product("down", inner, residual=hidden, out=hidden)

    def start(self, tokens: Tensor, out: Tensor) -> None:
        """Residual ``[B, h]`` of the next step, from its tokens (embeddings tied to the head)."""
        torch.index_select(self.head, 0, tokens, out=out)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token scores ``[B, vocab]``."""
        normed = self.norm(hidden, self.final_norm, self.model.layers[-1])
        return functional.linear(normed, self.head)
