"""Attention on the host as the operations of a step: send the query, attend, fetch the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kvplan.graph import Operation
from kvplan_validate import host_kernel, kernels
from kvplan_validate.action import nothing
from kvplan_validate.hostlane import HostLane, mapped
from kvplan_validate.state import State


class HostWork:
    """What a step does for tokens that are attended where they lie.

    Where the GPU can write to host memory and wait for it, it asks a server for the work and waits
    on its own stream; the answer is then awaited just before the merge, which needs it first.

    Args:
        state: of the step.
        lane: where the CPU's work is launched.
    """

    def __init__(self, state: State, lane: HostLane) -> None:
        """Find out whether the GPU can ask."""
        self.state, self.lane = state, lane
        operations = state.evaluation.graph.operations
        wanted = any(o.operation == "attend_host" for o in operations)
        dim = state.decoder.layers[0].spec.head_dim_k
        runs = host_kernel.can_run(state.decoder.dtype, dim)
        self.asked = wanted and lane.can_be_asked and runs
        self._buffers: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._answers: dict[tuple[int, int], Callable[[Any], None]] = {}
        self._returns: dict[tuple[int, int], Callable[[], None]] = {}

    def send_query(self, operation: Operation) -> Callable[[], None]:
        """The query of a layer, to host memory."""
        query = mapped(self._of(operation)[0])
        batch = self.state.batches[operation.micro_batch]
        return lambda: _through(batch.query, query)

    def attend(self, operation: Operation) -> Callable[[], None]:
        """Attention over the tokens of a layer that stay on the host."""
        query, out, lse = self._of(operation)
        key = (operation.layer, None, "attend_host", operation.micro_batch)
        data = self.state.store.pieces[key].data
        assert data is not None
        keys, values = data[0], data[1]

        def attend() -> None:
            result, sums = kernels.host_attention(query, keys, values)
            out.copy_(result)
            lse.copy_(sums)

        work: Callable[[], None] = attend
        if host_kernel.can_run(query.dtype, query.shape[-1]):
            work = native = host_kernel.Attention(query, keys, values, out, lse)
            if self.asked:
                ask, answered = self.lane.asked(native)
                self._answers[operation.layer, operation.micro_batch] = answered
                return lambda: ask(self.state.streams["gpu"])
        launch = self.lane.prepared(work)
        return lambda: launch(self.state.streams.get("host"))

    def return_partial(self, operation: Operation) -> Callable[[], None]:
        """The partial result of a layer, to HBM."""
        _, out, lse = self._of(operation)
        far_out, far_lse = mapped(out), mapped(lse)
        batch = self.state.batches[operation.micro_batch]
        slots = batch.partials.take(operation.layer, 1)

        def run() -> None:
            near_out, near_lse = batch.partials.at(slots)
            _through(far_out, near_out[0])
            _through(far_lse, near_lse[0])

        key = (operation.layer, operation.micro_batch)
        answered = self._answers.get(key)
        if answered is None:
            return run

        def returned() -> None:
            answered(self.state.streams["gpu"])
            run()

        self._returns[key] = returned
        return nothing

    def returned(self, layer: int, micro_batch: int) -> Callable[[], None]:
        """What the merge of a layer has to do first."""
        return self._returns.get((layer, micro_batch), nothing)

    def _of(self, operation: Operation) -> tuple[Tensor, Tensor, Tensor]:
        """Pinned query, output and log-sum-exp of one micro-batch, two sets taken in turn."""
        slot = (operation.layer % 2, operation.micro_batch)
        if slot not in self._buffers:
            like, pool = self.state.batches[0].query, self.state.pool
            shape, count, dtype = like.shape, like.numel(), like.dtype
            item = torch.empty(0, dtype=dtype).element_size()
            query = pool.take(count * item).view(dtype).view(shape)
            out = pool.take(count * item).view(dtype).view(shape)
            lse = pool.take(count // shape[-1] * 4).view(torch.float32).view(shape[:-1])
            self._buffers[slot] = (query, out, lse)
        return self._buffers[slot]


def _through(source: Tensor, out: Tensor) -> None:
    """A copy by a kernel: it does not queue behind what a copy engine has to move."""
    torch.mul(source, 1, out=out)
