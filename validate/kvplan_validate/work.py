"""What each operation of the step graph does: its word to a function that runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvplan.graph import Operation
from kvplan_validate import kernels
from kvplan_validate.action import IMPLIED, LANES, Action, nothing
from kvplan_validate.decoder import Product
from kvplan_validate.disk_buffers import DiskBuffers
from kvplan_validate.host_work import HostWork
from kvplan_validate.hostlane import HostLane
from kvplan_validate.staging import Place
from kvplan_validate.state import State
from kvplan_validate.store import BITS, Piece, unpack
from kvplan_validate.token_file import aligned

Run = Callable[[], None]


class Work:
    """Makes the operations of a plan's step ready; ``do_<word>`` for each word of the graph.

    Args:
        state: what they work on.
    """

    def __init__(self, state: State) -> None:
        """Nothing is ready yet."""
        self.state, self.lane = state, HostLane()
        self.host = HostWork(state, self.lane)
        depth = state.evaluation.schedule.queue_depth
        self.disk = DiskBuffers(state.pool, depth, self.disk_bytes)
        self._written = self._write_back_area()

    def actions(self) -> list[Action]:
        """All operations of the step, ready, in the order of the graph."""
        made = [
            Action(operation, self._made(operation), self._lane_of(operation))
            for operation in self.state.evaluation.graph.operations
        ]
        for batch in self.state.batches:
            batch.partials.allocate()
        self.lane.serve()
        return made

    def _made(self, operation: Operation) -> Run:
        if operation.operation in IMPLIED:
            return nothing
        make: Callable[[Operation], Run] = getattr(self, f"do_{operation.operation}")
        return make(operation)

    def _lane_of(self, operation: Operation) -> str:
        """The stream of an operation; with a server to ask, the host's work needs none."""
        lane = LANES.get(operation.resource, "gpu")
        return "gpu" if lane == "host" and self.host.asked else lane

    def piece(self, operation: Operation) -> Piece:
        """The cached tokens that an operation moves or reads."""
        key = (operation.layer, operation.stage, operation.path or "", operation.micro_batch)
        return self.state.store.pieces[key]

    def place(self, operation: Operation) -> Place:
        """Where an operation's tokens are staged."""
        return self.state.staging.place(operation)

    # -- weights and layers --------------------------------------------------------------------

    def do_load_weights(self, operation: Operation) -> Run:
        """Streamed rows of a layer, to HBM."""
        streamed = self.state.streamed
        visit = streamed.visit()
        return lambda: streamed.load(operation.layer, visit)

    def _product(self, operation: Operation) -> Product:
        """Multiplies by matrices of the operation's layer, as the last load brought them."""
        visit = self.state.streamed.visits - 1
        return partial(self._multiply, operation.layer, visit)

    def _multiply(self, layer: int, visit: int, name: str, rows: Tensor, **added: Any) -> Tensor:
        return self.state.streamed.product(layer, name, rows, visit, **added)

    def do_project(self, operation: Operation) -> Run:
        """Query, key and value of the new token."""
        state, layer = self.state, self.state.decoder.layers[operation.layer]
        batch = state.batches[operation.micro_batch]
        tail = state.tails[operation.layer][operation.micro_batch]
        product = self._product(operation)

        def run() -> None:
            if operation.layer == 0:
                batch.hidden = batch.start
            query, fresh = state.decoder.project(layer, batch.hidden, state.position, product)
            batch.query.copy_(query)
            tail[state.generated].copy_(fresh[0])

        return run

    def do_finish(self, operation: Operation) -> Run:
        """Merge the partial attentions of a layer; output projection and MLP."""
        state, layer = self.state, self.state.decoder.layers[operation.layer]
        batch = state.batches[operation.micro_batch]
        tail = state.tails[operation.layer][operation.micro_batch]
        product = self._product(operation)
        returned = self.host.returned(operation.layer, operation.micro_batch)

        def run() -> None:
            returned()
            newest = tail[: state.generated + 1]
            attended = kernels.merge(batch.query, newest, *batch.partials.of(operation.layer))
            batch.hidden = state.decoder.finish(layer, batch.hidden, attended, product)

        return run

    def do_write_back(self, operation: Operation) -> Run:
        """The new token of a layer, to host memory."""
        state, tail = self.state, self.state.tails[operation.layer][operation.micro_batch]
        return lambda: _copy(tail[state.generated], self._written)

    def _write_back_area(self) -> Tensor:
        """Host memory for one step's new tokens of one layer and micro-batch."""
        spec, dtype = self.state.decoder.layers[0].spec, self.state.decoder.dtype
        item = torch.empty(0, dtype=dtype).element_size()
        flat = self.state.pool.take(self.state.batch * spec.kv_elements * item)
        return flat.view(dtype).view(self.state.batch, 2, spec.kv_heads, spec.head_dim_k)

    def do_head(self, operation: Operation) -> Run:
        """Logits, the next token, its embedding."""
        decoder, batch = self.state.decoder, self.state.batches[operation.micro_batch]

        def run() -> None:
            batch.tokens = decoder.logits(batch.hidden).argmax(-1)
            decoder.start(batch.tokens, batch.start)

        return run

    # -- staged tokens -------------------------------------------------------------------------

    def do_copy_kv(self, operation: Operation) -> Run:
        """Tokens of a stage, to their staging buffer."""
        return partial(_copy, self._source(operation), self.place(operation).incoming)

    do_copy_activations = do_copy_kv

    def _source(self, operation: Operation) -> Tensor:
        if operation.path == "fetch_disk":
            return self.disk.of(operation)[: self.place(operation).incoming.numel()]
        data = self.piece(operation).data
        assert data is not None, operation
        return data

    def do_read_disk(self, operation: Operation) -> Run:
        """Tokens of a stage, from a file to a pinned buffer."""
        needed, file = self.place(operation).incoming.numel(), self.state.store.file
        assert file is not None, operation
        offset = self.piece(operation).offset
        view = memoryview(self.disk.of(operation)[: aligned(needed)].numpy())
        return self.on_disk_lane(lambda: file.read(view, offset, needed))

    def on_disk_lane(self, read: Run) -> Run:
        """A read by the CPU that takes its turn in the stream of disk reads."""
        launch = self.lane.prepared(read)
        return lambda: launch(self.state.streams.get("disk"))

    def disk_bytes(self) -> int:
        """Bytes of a host buffer that any read fits in."""
        return aligned(self.state.staging.largest("fetch_disk"))

    def do_rebuild(self, operation: Operation) -> Run:
        """K and V of tokens from their activations."""
        decoder, place, piece = self.state.decoder, self.place(operation), self.piece(operation)
        layer = decoder.layers[operation.layer]
        flat = piece.data if operation.path == "recompute_resident" else place.incoming
        assert flat is not None
        kept = flat if flat.dtype == decoder.dtype else flat.view(decoder.dtype)
        activations = kept.view(piece.count, self.state.batch, -1)
        return lambda: decoder.rebuild(layer, activations, place.staged, piece.begin)

    def do_dequantise(self, operation: Operation) -> Run:
        """Tokens of a stage from codes and scales."""
        place, path = self.place(operation), operation.path or ""
        spec, count = self.state.decoder.layers[operation.layer].spec, place.staged.shape[0]
        codes, scales = unpack(path, spec, place.incoming, count, self.state.batch)
        return lambda: kernels.dequantise(codes, scales, BITS[path], place.staged)

    # -- attention -----------------------------------------------------------------------------

    def do_attend(self, operation: Operation) -> Run:
        """Attention over a staged stage."""
        return self.attending(operation, self.state.staging.whole(operation))

    def do_attend_resident(self, operation: Operation) -> Run:
        """Attention over the tokens of a layer that are in HBM."""
        data = self.piece(operation).data
        assert data is not None
        return self.attending(operation, data)

    def attending(self, operation: Operation, tokens: Tensor) -> Run:
        """Partial attention over tokens ``[n, B, 2, KV, D]``, kept until the merge."""
        batch = self.state.batches[operation.micro_batch]
        count = kernels.parts(batch.query, tokens.shape[0])
        slots = batch.partials.take(operation.layer, count)

        def run() -> None:
            outputs, lses = batch.partials.at(slots)
            kernels.attend(batch.query, tokens, outputs, lses)

        return run

    def do_send_query(self, operation: Operation) -> Run:
        """See `HostWork`."""
        return self.host.send_query(operation)

    def do_attend_host(self, operation: Operation) -> Run:
        """See `HostWork`."""
        return self.host.attend(operation)

    def do_return_partial(self, operation: Operation) -> Run:
        """See `HostWork`."""
        return self.host.return_partial(operation)


def _copy(source: Tensor, out: Tensor) -> None:
    """A copy by a copy engine."""
    out.copy_(source, non_blocking=True)
