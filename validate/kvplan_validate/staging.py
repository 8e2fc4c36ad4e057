"""Staging buffers in HBM: Q equal ones, taken in turn by stages (or groups of layers).

A buffer holds, for each of its tenants, K and V token-major ``[n, B, 2, KV, D]`` over all paths of
the stage, then the bytes that come in another form (activations, packed codes).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvplan.evaluate import Evaluation
from kvplan.graph import Operation
from kvplan.scenario import Scenario
from kvplan_validate.decoder import Decoder
from kvplan_validate.store import piece_bytes

ALIGNMENT = 256
"""Bytes between parts of a buffer, as matrix kernels like them."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path of one stage lands.

    Args:
        unit: which tenant, counted over the step.
        staged: K and V of the path ``[n, B, 2, KV, D]``.
        incoming: flat bytes that a copy writes: the same memory, or beside it.
    """

    unit: int
    staged: Tensor
    incoming: Tensor


@dataclass(slots=True)
class _Stage:
    """Tokens per path of one layer, stage and micro-batch, in their order in the buffer."""

    unit: int
    offset: int
    counts: dict[str, int]


class Staging:
    """All buffers of a plan, and where each operation finds its part."""

    def __init__(self, scenario: Scenario, evaluation: Evaluation, decoder: Decoder) -> None:
        """Lay tenants out and allocate as many bytes as the largest needs."""
        self.scenario, self.decoder = scenario, decoder
        self.batch = scenario.workload.micro_batch
        self.item = torch.empty(0, dtype=decoder.dtype).element_size()
        self.stages: dict[tuple[int, int, int], _Stage] = {}
        self.depth = evaluation.schedule.queue_depth
        sizes = self._lay_out(evaluation)
        size = max(sizes, default=0)
        count = min(self.depth, max(len(sizes), 1))
        device = decoder.device
        self.buffers = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(count)]

    def _lay_out(self, evaluation: Evaluation) -> list[int]:
        """Assign every stage its tenant, in the order of the graph; returns bytes per tenant."""
        sizes: list[int] = []
        group: tuple[int, int] | None = None
        for operation in evaluation.graph.operations:
            if operation.operation != "attend" or operation.stage is None:
                continue
            key = (operation.layer, operation.stage, operation.micro_batch)
            counts = self._counts(evaluation, operation)
            same = (operation.stage, self._group_batch(operation.micro_batch))
            if evaluation.schedule.axis == "token" or group != same:
                sizes.append(0)
                group = same
            self.stages[key] = _Stage(len(sizes) - 1, sizes[-1], counts)
            sizes[-1] += self._bytes(operation.layer, counts)
        return sizes

    def _group_batch(self, micro_batch: int) -> int:
        return 0 if self.scenario.workload.schedule == "column" else micro_batch

    def _counts(self, evaluation: Evaluation, operation: Operation) -> dict[str, int]:
        variables = evaluation.graph.variables
        return {variables[v].path: round(evaluation.values[v]) for v in operation.variables}

    def _bytes(self, layer: int, counts: dict[str, int]) -> int:
        spec = self.decoder.layers[layer].spec
        staged = sum(counts.values()) * self.batch * spec.kv_elements * self.item
        beside = sum(
            _aligned(piece_bytes(path, spec, n, self.batch, self.item))
            for path, n in counts.items()
            if _beside(path)
        )
        return _aligned(staged) + beside

    def place(self, operation: Operation) -> Place:
        """Where the path of an operation lands."""
        assert operation.stage is not None
        assert operation.path is not None
        stage = self.stages[operation.layer, operation.stage, operation.micro_batch]
        spec = self.decoder.layers[operation.layer].spec
        per_token = self.batch * spec.kv_elements * self.item
        buffer = self.buffers[stage.unit % len(self.buffers)][stage.offset :]
        before, beside = 0, _aligned(sum(stage.counts.values()) * per_token)
        for path, count in stage.counts.items():
            size = piece_bytes(path, spec, count, self.batch, self.item)
            if path == operation.path:
                flat = buffer[before : before + count * per_token]
                incoming = buffer[beside : beside + size] if _beside(path) else flat
                return Place(stage.unit, self._shaped(flat, operation.layer), incoming)
            before += count * per_token
            beside += _aligned(size) if _beside(path) else 0
        raise KeyError(operation.path)

    def unit(self, operation: Operation) -> int:
        """Which tenant the stage of an operation is, counted over the step."""
        assert operation.stage is not None
        return self.stages[operation.layer, operation.stage, operation.micro_batch].unit

    def whole(self, operation: Operation) -> Tensor:
        """K and V of all paths of a stage ``[n, B, 2, KV, D]``."""
        assert operation.stage is not None
        stage = self.stages[operation.layer, operation.stage, operation.micro_batch]
        spec = self.decoder.layers[operation.layer].spec
        size = sum(stage.counts.values()) * self.batch * spec.kv_elements * self.item
        buffer = self.buffers[stage.unit % len(self.buffers)]
        return self._shaped(buffer[stage.offset : stage.offset + size], operation.layer)

    def _shaped(self, flat: Tensor, layer: int) -> Tensor:
        spec = self.decoder.layers[layer].spec
        return flat.view(self.decoder.dtype).view(-1, self.batch, 2, spec.kv_heads, spec.head_dim_k)

    def largest(self, path: str) -> int:
        """Bytes of the largest piece of a path."""
        sizes = [
            piece_bytes(
                path, self.decoder.layers[layer].spec, stage.counts[path], self.batch, self.item
            )
            for (layer, _, _), stage in self.stages.items()
            if path in stage.counts
        ]
        return max(sizes, default=0)

    def poison(self) -> None:
        """Fill the buffers with NaN, so that what is not written shows."""
        for buffer in self.buffers:
            buffer.fill_(0xFF)


def _beside(path: str) -> bool:
    """Whether what comes in is not K and V in the cache's own format."""
    return path == "recompute" or path in ("fetch_int8", "fetch_int4")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
