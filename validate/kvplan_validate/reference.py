"""A decode step in float64 on the CPU: what a plan's output is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan_validate.decoder import Decoder, LayerWeights
from kvplan_validate.store import Source


class History:
    """Random activations of cached tokens, and the K and V they stand for.

    Args:
        decoder: whose projections make K and V.
        tokens: cached tokens of each layer.
        batch: sequences of a micro-batch.
        micro_batches: how many.
        seed: same seed, same tokens.
    """

    def __init__(
        self, decoder: Decoder, tokens: list[int], batch: int, micro_batches: int, seed: int = 7
    ) -> None:
        """Draw activations and project them."""
        self.decoder = decoder
        generator = torch.Generator(device=decoder.device).manual_seed(seed)
        self.activations: list[list[Tensor]] = []
        self.tokens: list[list[Tensor]] = []
        for layer, count in zip(decoder.layers, tokens, strict=True):
            spec = layer.spec
            drawn, stored = [], []
            for _ in range(micro_batches):
                shape = (count, batch, spec.hidden)
                activations = torch.empty(shape, device=decoder.device, dtype=decoder.dtype)
                activations.normal_(generator=generator)
                kept = torch.empty(
                    count,
                    batch,
                    2,
                    spec.kv_heads,
                    spec.head_dim_k,
                    device=decoder.device,
                    dtype=decoder.dtype,
                )
                decoder.rebuild(layer, activations, kept, 0)
                drawn.append(activations)
                stored.append(kept)
            self.activations.append(drawn)
            self.tokens.append(stored)

    def source(self) -> Source:
        """The tokens as `store.fill` takes them."""

        def take(layer: int, micro_batch: int, begin: int, count: int) -> tuple[Tensor, Tensor]:
            run = slice(begin, begin + count)
            return self.activations[layer][micro_batch][run], self.tokens[layer][micro_batch][run]

        return take


def _double(matrix: Tensor | None) -> Tensor | None:
    return None if matrix is None else matrix.detach().cpu().double()


class Reference:
    """Steps in float64 over the same weights and the same cached tokens."""

    def __init__(self, decoder: Decoder, history: History) -> None:
        """Copy weights and tokens to float64; K and V are taken as stored."""
        self.decoder = decoder
        self.layers = [
            {
                name: _double(getattr(layer, name))
                for name in LayerWeights.__slots__
                if name != "spec"
            }
            for layer in decoder.layers
        ]
        self.head = decoder.head.detach().cpu().double()
        self.rotary = decoder.rotary.detach().cpu().double()
        self.cache = [[t.detach().cpu().double() for t in row] for row in history.tokens]

    def step(self, start: Tensor, micro_batch: int, position: int) -> Tensor:
        """Residual ``[B, h]`` behind the last layer; the new token joins the cache.

        Args:
            start: residual of the new tokens ``[B, h]``.
            micro_batch: which.
            position: of the new token.
        """
        hidden = start.detach().cpu().double()
        for index, layer in enumerate(self.decoder.layers):
            hidden = self._layer(index, layer, hidden, micro_batch, position)
        return hidden

    def _layer(
        self, index: int, layer: LayerWeights, hidden: Tensor, micro_batch: int, position: int
    ) -> Tensor:
        spec, weights = layer.spec, self.layers[index]

        def product(
            name: str,
            rows: Tensor,
            residual: Tensor | None = None,
            bias: Tensor | None = None,
            out: Tensor | None = None,
        ) -> Tensor:
            matrix = weights[name]
            assert matrix is not None
            added = residual if residual is not None else bias
            result = rows @ matrix.t()
            return result if added is None else result + added

        own = LayerWeights(spec=spec, **weights)
        shapes = _Shapes(self.decoder, self.rotary)
        query, fresh = shapes.project(own, hidden, position, product)
        cache = torch.cat((self.cache[index][micro_batch], fresh))
        self.cache[index][micro_batch] = cache
        out, _ = _attend(query, cache)
        return shapes.finish(own, hidden, out, product)


class _Shapes(Decoder):
    """The decoder's arithmetic over other tensors."""

    def __init__(self, decoder: Decoder, rotary: Tensor) -> None:
        self.model, self.device, self.dtype = decoder.model, rotary.device, rotary.dtype
        self.rotary = rotary


def _attend(query: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Attention in float64 over ``[n, B, 2, KV, D]``."""
    keys, values = cache[:, :, 0].permute(1, 2, 0, 3), cache[:, :, 1].permute(1, 2, 0, 3)
    scores = torch.matmul(query * query.shape[-1] ** -0.5, keys.transpose(-1, -2))
    lse = torch.logsumexp(scores, dim=-1)
    return torch.matmul(torch.exp(scores - lse[..., None]), values), lse
