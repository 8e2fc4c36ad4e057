"""Where a layer's partial attentions are kept until they are merged."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Partials:
    """Partial outputs and their log-sum-exp of one micro-batch, one layer at a time.

    The attentions of a layer take slots when the step is made ready and write to them when it
    runs, so that nothing has to be gathered before the merge.

    Args:
        shape: of a query, ``(B, KV, G, D)``.
        device: where.
        dtype: of the outputs.
    """

    def __init__(self, shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> None:
        """No slots yet."""
        self._shape, self._device, self._dtype = tuple(shape), device, dtype
        self._taken: dict[int, int] = {}
        self._outputs = self._lses = torch.empty(0)

    def take(self, layer: int, count: int) -> slice:
        """Slots of one attention of a layer."""
        first = self._taken.get(layer, 0)
        self._taken[layer] = first + count
        return slice(first, first + count)

    def allocate(self) -> None:
        """Get memory, once every attention has its slots."""
        most = max(self._taken.values(), default=0)
        self._outputs = torch.empty(most, *self._shape, device=self._device, dtype=self._dtype)
        self._lses = torch.empty(most, *self._shape[:-1], device=self._device)

    def at(self, slots: slice) -> tuple[Tensor, Tensor]:
        """Outputs ``[P, B, KV, G, D]`` and log-sum-exps ``[P, B, KV, G]`` (fp32) of some slots."""
        return self._outputs[slots], self._lses[slots]

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """All of a layer."""
        return self.at(slice(0, self._taken.get(layer, 0)))
