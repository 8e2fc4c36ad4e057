"""Many decode steps over a tiered pool: each full block of new tokens joins it, and the plan is
made anew for the longer context; blocks then move to where it wants them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.graph import Operation
from kvplan.scenario import Scenario
from kvplan_validate.decoder import Decoder
from kvplan_validate.pool import PinnedPool
from kvplan_validate.runtime import Runtime
from kvplan_validate.state import State
from kvplan_validate.store import Piece, Source, Store, layout
from kvplan_validate.tiers import BlockKey, TieredPool
from kvplan_validate.work import Run, Work

TIER_OF = {"resident": "hbm", "fetch": "dram", "fetch_disk": "disk"}
"""Paths whose tokens are kept as K and V in the cache's own format, and where."""

Planner = Callable[[Scenario], Evaluation]
"""The plan for a context."""


def placement(scenario: Scenario, evaluation: Evaluation) -> dict[BlockKey, str]:
    """The tier that a plan wants for every block.

    Raises:
        InputError: a path that does not keep K and V, or a run of tokens that is not whole blocks.
    """
    block, found = scenario.workload.block, dict[BlockKey, str]()
    for layer, segments in enumerate(evaluation.allocation):
        for segment in segments:
            if segment.path not in TIER_OF:
                raise InputError(
                    f"decision.layers[{layer}]", segment.path, f"one of {', '.join(TIER_OF)}"
                )
            if segment.begin % block or segment.end % block:
                where = f"decision.layers[{layer}] {segment.path}"
                run = [segment.begin, segment.end]
                raise InputError(where, run, f"whole blocks of {block} tokens")
            for number in range(segment.begin // block, segment.end // block):
                for micro_batch in range(scenario.workload.micro_batches):
                    found[layer, micro_batch, number] = TIER_OF[segment.path]
    return found


def block_bytes(scenario: Scenario, item: int) -> int:
    """Bytes of the largest layer's block.

    Args:
        scenario: model and workload.
        item: bytes per element.
    """
    workload = scenario.workload
    widest = max(layer.kv_elements for layer in scenario.model.layers)
    return workload.block * workload.micro_batch * widest * item


class PooledWork(Work):
    """Operations whose tokens are blocks of a tiered pool; they stay where they are meanwhile.

    Args:
        blocks: holds every block of the plan, in the tier that the plan wants.
        state: what they work on.
    """

    def __init__(self, blocks: TieredPool, state: State) -> None:
        """Keep the pool at hand while operations are made ready."""
        self.blocks = blocks
        super().__init__(state)

    def keys_read(self) -> list[BlockKey]:
        """Every block that a step reads."""
        return [
            key
            for layer, segments in enumerate(self.state.evaluation.allocation)
            for segment in segments
            for micro_batch in range(self.state.scenario.workload.micro_batches)
            for key in self._keys(layer, micro_batch, Piece(segment.begin, segment.tokens))
        ]

    def _keys(self, layer: int, micro_batch: int, piece: Piece) -> list[BlockKey]:
        block = self.state.scenario.workload.block
        numbers = range(piece.begin // block, (piece.begin + piece.count) // block)
        return [(layer, micro_batch, number) for number in numbers]

    def _keys_of(self, operation: Operation) -> list[BlockKey]:
        return self._keys(operation.layer, operation.micro_batch, self.piece(operation))

    def disk_bytes(self) -> int:
        """A slot per block of the largest piece on disk."""
        block, pieces = self.state.scenario.workload.block, self.state.store.pieces
        most = max(p.count for key, p in pieces.items() if key[2] == "fetch_disk")
        return most // block * self.blocks.slot_bytes

    def _pages(self, operation: Operation) -> list[Tensor]:
        """A page-aligned host buffer per block of a piece on disk."""
        return list(self.disk.of(operation).split(self.blocks.slot_bytes))

    def do_read_disk(self, operation: Operation) -> Run:
        """Blocks of a stage, each to pages of its own."""
        file, size = self.blocks.file, self.blocks.block_bytes
        assert file is not None
        keys, pages = self._keys_of(operation), self._pages(operation)
        reads = [
            (memoryview(page.numpy()), self.blocks.offset(key))
            for key, page in zip(keys, pages, strict=False)
        ]

        def read() -> None:
            for view, offset in reads:
                file.read(view, offset, size)

        return self.on_disk_lane(read)

    def do_copy_kv(self, operation: Operation) -> Run:
        """Blocks of a stage, one after the other into its staging buffer."""
        keys, size = self._keys_of(operation), self.blocks.block_bytes
        parts = self.place(operation).incoming.split(size)
        if operation.path == "fetch_disk":
            sources = [page[:size] for page in self._pages(operation)[: len(keys)]]
        else:
            sources = [self.blocks.memory(key) for key in keys]
        pairs = list(zip(parts, sources, strict=True))

        def copy() -> None:
            for part, source in pairs:
                part.copy_(source, non_blocking=True)

        return copy

    def do_attend_resident(self, operation: Operation) -> Run:
        """Attention over each run of adjacent blocks in HBM."""
        decoder, batch = self.state.decoder, self.state.batch
        spec, dtype = decoder.layers[operation.layer].spec, decoder.dtype
        shape = (-1, batch, 2, spec.kv_heads, spec.head_dim_k)
        attends = [
            self.attending(operation, self.blocks.span(run).view(dtype).view(shape))
            for run in self.blocks.runs(self._keys_of(operation))
        ]

        def attend() -> None:
            for each in attends:
                each()

        return attend


class PooledRuntime(Runtime):
    """A runtime over a tiered pool, which counts every block that is read.

    Args:
        blocks: holds every block of the plan, in the tier that the plan wants.
        state: what the plan's operations work on.
    """

    def __init__(self, blocks: TieredPool, state: State) -> None:
        """Make every operation ready."""
        work = PooledWork(blocks, state)
        super().__init__(state, lambda _: work)
        self.blocks, self._read = blocks, work.keys_read()

    def step(self) -> None:
        """One decode step; every block it reads is counted."""
        for key in self._read:
            self.blocks.touch(key)
        super().step()


class Decoding:
    """Decodes token after token.

    Args:
        scenario: the question at the first context, whole blocks of tokens.
        plan: the plan for a scenario of any context; paths of `TIER_OF` only.
        decoder: weights.
        blocks: where cached tokens are kept; of `block_bytes`.
        host: host memory for everything else a runtime needs.

    Raises:
        InputError: the context is not whole blocks, layers differ, or a path keeps no K and V.
    """

    def __init__(
        self,
        scenario: Scenario,
        plan: Planner,
        decoder: Decoder,
        blocks: TieredPool,
        host: PinnedPool,
    ) -> None:
        """Plan for the first context."""
        if scenario.workload.tokens % scenario.workload.block or scenario.workload.gen:
            accepted = f"a multiple of the block, {scenario.workload.block}, and no gen"
            raise InputError("context", scenario.workload.tokens, accepted)
        if len({layer.kv_elements for layer in scenario.model.layers}) > 1:
            raise InputError("model", scenario.model.name, "layers of equal K and V")
        self.scenario, self.plan, self.decoder = scenario, plan, decoder
        self.blocks, self.host = blocks, host
        self.evaluation = plan(scenario)
        self.wanted = placement(scenario, self.evaluation)
        self.moved = 0
        self.runtime: PooledRuntime | None = None

    def fill(self, source: Source) -> None:
        """Put the cached tokens of the first context where the plan wants them."""
        block = self.scenario.workload.block
        for (layer, micro_batch, number), tier in self.wanted.items():
            _, tokens = source(layer, micro_batch, number * block, block)
            self.blocks.put((layer, micro_batch, number), tokens.contiguous(), tier)
        self._start({})

    def step(self) -> None:
        """Decode one token of every sequence."""
        assert self.runtime is not None, "fill first"
        self.runtime.step()
        self.runtime.advance()
        if self.runtime.state.generated == self.scenario.workload.block:
            self._grow()

    def hit_rate(self) -> dict[str, float]:
        """Share of block reads that each tier has served so far."""
        return self.blocks.traffic.hit_rate()

    def _grow(self) -> None:
        """The new tokens become a block; the next plan says where every block belongs."""
        runtime, workload = self.runtime, self.scenario.workload
        assert runtime is not None
        runtime.synchronise()
        starts = {index: batch.start.clone() for index, batch in enumerate(runtime.state.batches)}
        tails = runtime.state.tails
        self.close()
        number = workload.tokens // workload.block
        longer = dataclasses.replace(workload, context=workload.context + workload.block)
        self.scenario = dataclasses.replace(self.scenario, workload=longer)
        self.evaluation = self.plan(self.scenario)
        self.wanted = placement(self.scenario, self.evaluation)
        for layer, of_layer in enumerate(tails):
            for micro_batch, tail in enumerate(of_layer):
                self.blocks.put((layer, micro_batch, number), tail)
        self.moved += self.blocks.follow(self.wanted)
        self._start(starts)

    def _start(self, starts: Mapping[int, Tensor]) -> None:
        self.host.reset()
        store = Store(layout(self.evaluation.allocation, self.scenario.workload.micro_batches))
        block = self.scenario.workload.block
        state = State(self.scenario, self.evaluation, self.decoder, store, self.host, tail=block)
        self.runtime = PooledRuntime(self.blocks, state)
        for index, start in starts.items():
            self.runtime.state.batches[index].start.copy_(start)
        self.runtime.synchronise()  # blocks were moved on another stream than the step's

    def close(self) -> None:
        """Wait for the last step and drop its runtime; the blocks stay in their pool."""
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None
        if self.decoder.device.type == "cuda":
            torch.cuda.synchronize()
