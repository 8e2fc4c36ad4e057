"""What the operations of a step work on: batches, new tokens, buffers, streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.scenario import Scenario
from kvplan_validate.action import LANES
from kvplan_validate.decoder import Decoder
from kvplan_validate.partials import Partials
from kvplan_validate.pool import PinnedPool
from kvplan_validate.staging import Staging
from kvplan_validate.store import Store
from kvplan_validate.streaming import StreamedWeights


@dataclass(slots=True)
class Batch:
    """State of one micro-batch inside a step."""

    start: Tensor
    hidden: Tensor
    query: Tensor
    partials: Partials
    tokens: Tensor | None = None


class State:
    """Tensors and streams of one plan's steps, and how many tokens they have generated.

    Args:
        scenario: the question the plan answers.
        evaluation: its schedule, allocation and step graph.
        decoder: weights.
        store: cached tokens.
        pool: host memory for write-back, partial results and disk buffers.
        tail: most tokens that may be generated before the plan must be made anew.

    Raises:
        InputError: for a plan that cannot be run.
    """

    def __init__(
        self,
        scenario: Scenario,
        evaluation: Evaluation,
        decoder: Decoder,
        store: Store,
        pool: PinnedPool,
        *,
        tail: int = 1,
    ) -> None:
        """Allocate what does not depend on single operations."""
        if scenario.workload.new_tokens > 1:
            accepted = "1: a step that decodes several at once cannot be run here yet"
            raise InputError("new_tokens", scenario.workload.new_tokens, accepted)
        tiers = {v.path for v in evaluation.graph.variables if "tier" in v.stored}
        if tiers:
            accepted = "paths of a machine that exists: a what-if tier cannot be run"
            raise InputError("paths", ", ".join(sorted(tiers)), accepted)
        self.scenario, self.evaluation = scenario, evaluation
        self.decoder, self.store, self.pool = decoder, store, pool
        self.batch = scenario.workload.micro_batch
        self.cuda = decoder.device.type == "cuda"
        self.position = scenario.workload.tokens
        self.generated = 0
        self.staging = Staging(scenario, evaluation, decoder)
        self.streamed = StreamedWeights(evaluation, decoder, pool)
        self.batches = [self._new_batch() for _ in range(scenario.workload.micro_batches)]
        self.tails = self._tails(tail)
        self.streams = self._streams()

    def advance(self) -> None:
        """Keep the new token and move to the next position."""
        self.generated += 1
        self.position += 1

    def synchronise(self) -> None:
        """Wait until everything issued has run."""
        if self.cuda:
            # A blocking event leaves the core to attention on the host; a plain wait spins.
            done = torch.cuda.Event(blocking=True)
            for stream in self.streams.values():
                done.record(stream)
                done.synchronize()
            torch.cuda.synchronize()

    def _new_batch(self) -> Batch:
        spec, device, dtype = self.decoder.layers[0].spec, self.decoder.device, self.decoder.dtype
        shape = (self.batch, spec.kv_heads, spec.query_heads // spec.kv_heads, spec.head_dim_k)
        generator = torch.Generator(device=device).manual_seed(1)
        hidden = torch.empty(self.batch, spec.hidden, device=device, dtype=dtype)
        hidden.normal_(generator=generator)
        query = torch.zeros(shape, device=device, dtype=dtype)
        return Batch(hidden, hidden, query, Partials(shape, device, dtype))

    def _tails(self, most: int) -> list[list[Tensor]]:
        """New tokens of every layer and micro-batch ``[most, B, 2, KV, D]``, in HBM."""
        device, dtype = self.decoder.device, self.decoder.dtype
        shapes = [
            (most, self.batch, 2, layer.spec.kv_heads, layer.spec.head_dim_k)
            for layer in self.decoder.layers
        ]
        return [
            [torch.zeros(shape, device=device, dtype=dtype) for _ in self.batches]
            for shape in shapes
        ]

    def _streams(self) -> dict[str, Any]:
        if not self.cuda:
            return {}
        names = sorted(set(LANES.values()) - {"gpu"})
        return {"gpu": torch.cuda.Stream(), **{name: torch.cuda.Stream() for name in names}}
