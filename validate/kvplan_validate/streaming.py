"""Streamed weights: a share of each layer's matrices waits in host memory.

Of every matrix but the K and V projection, the last rows are streamed and the others stay. Two
buffers of the size of the streamed rows of the largest layer are filled in turn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan.evaluate import Evaluation
from kvplan_validate.decoder import Decoder, LayerWeights
from kvplan_validate.pool import PinnedPool

BUFFERS = 2


class StreamedWeights:
    """Moves streamed rows and puts matrices together for use."""

    def __init__(self, evaluation: Evaluation, decoder: Decoder, pool: PinnedPool) -> None:
        """Take the streamed rows out of HBM into the pool."""
        self.decoder, self.shares = decoder, evaluation.streamed
        self.on = evaluation.schedule.stream_weights
        self.visits = 0
        self.host: list[dict[str, Tensor]] = []
        self.slots: list[Tensor] = []
        if not self.on:
            return
        largest = 0
        for layer, share in zip(decoder.layers, self.shares, strict=True):
            rows = {name: self._rows(layer, name, share) for name in layer.streamable()}
            kept, size = {}, 0
            for name, count in rows.items():
                matrix = getattr(layer, name)
                moved = matrix[matrix.shape[0] - count :]
                flat = pool.take(max(moved.numel() * moved.element_size(), 1))
                host = flat[: moved.numel() * moved.element_size()].view(moved.dtype)
                kept[name] = host.view(moved.shape)
                kept[name].copy_(moved)
                size += moved.numel()
                setattr(layer, name, matrix[: matrix.shape[0] - count].clone())
            self.host.append(kept)
            largest = max(largest, size)
        shape = (largest,)
        self.slots = [
            torch.empty(shape, dtype=decoder.dtype, device=decoder.device) for _ in range(BUFFERS)
        ]

    @staticmethod
    def _rows(layer: LayerWeights, name: str, share: float) -> int:
        return round(int(getattr(layer, name).shape[0]) * share)

    def visit(self) -> int:
        """Number of the next load; loads take the buffers in turn."""
        self.visits += 1
        return self.visits - 1

    def _parts(self, layer: int, visit: int) -> dict[str, Tensor]:
        slot, begin, parts = self.slots[visit % BUFFERS], 0, {}
        for name, host in self.host[layer].items():
            parts[name] = slot[begin : begin + host.numel()].view(host.shape)
            begin += host.numel()
        return parts

    def load(self, layer: int, visit: int) -> None:
        """Copy the streamed rows of a layer into its buffer."""
        for name, part in self._parts(layer, visit).items():
            part.copy_(self.host[layer][name], non_blocking=True)

    def product(
        self,
        layer: int,
        name: str,
        rows: Tensor,
        visit: int,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """``rows @ W.T`` with the rows of W in HBM and those just streamed side by side.

        Args:
            layer: whose matrix.
            name: which matrix.
            rows: ``[B, inputs]``.
            visit: the load that brought the streamed rows.
            residual: ``[B, outputs]`` to add, or None.
            bias: ``[outputs]`` to add, or None.
            out: where to, or None; may be the residual itself, which saves a copy of it.
        """
        resident = getattr(self.decoder.layers[layer], name)
        added = residual if residual is not None else bias
        if self.on:
            streamed = self._parts(layer, visit)[name]
            both = torch.cat((rows @ resident.t(), rows @ streamed.t()), dim=-1)
            return both if added is None else torch.add(both, added, out=out)
        if added is None:
            return torch.mm(rows, resident.t(), out=out)
        return torch.addmm(added, rows, resident.t(), out=out)
