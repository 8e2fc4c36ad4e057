"""The runtime: run a plan's step graph with real tensors, streams and events.

It walks the same operations that the program and the simulator read. Each operation becomes one
action on the stream of its resource; each edge between resources becomes an event. On a machine
without CUDA the same actions run in order, which tests logic and numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.graph import Operation
from kvplan.scenario import Scenario
from kvplan_validate import host_kernel, kernels
from kvplan_validate.decoder import Decoder, Product
from kvplan_validate.hostlane import HostLane, mapped
from kvplan_validate.partials import Partials
from kvplan_validate.pool import PinnedPool
from kvplan_validate.staging import Place, Staging
from kvplan_validate.store import BITS, Store, unpack
from kvplan_validate.streaming import BUFFERS, StreamedWeights
from kvplan_validate.token_file import aligned

LANES = {"gpu": "gpu", "h2d": "h2d", "d2h": "d2h", "disk": "disk", "host": "host", None: "host"}
"""Resource to stream; queries and partial results travel on the stream of the host's work."""

SPIN_CYCLES_PER_S = 2e9
"""Clock cycles of the GPU per second, at most; a slower clock spins longer."""

LAUNCH_S = 20e-6
"""Seconds to launch a kernel or to record an event from Python, about."""

MOST_HOLD_S = 0.2
"""A step that takes longer to launch waits for copies meanwhile."""

MOST_QUEUED = 400
"""Entries in a stream's queue; CUDA makes the launching thread wait at about a thousand."""

QUEUED_WITH_EACH = 4
"""Events around an operation."""

Tenant = tuple[list[int], list[int]]
"""Actions that enter a buffer, and actions that leave it."""


@dataclass(slots=True)
class Action:
    """An operation made ready to run.

    Args:
        operation: of the step graph.
        run: does it, on the current stream.
        lane: stream it runs on.
        waits: indices of operations of this step on other lanes that it waits for.
        reaches_back: indices of operations of the last step on other lanes that it waits for.
        records: whether another lane waits for it.
    """

    operation: Operation
    run: Callable[[], None]
    lane: str
    waits: list[int] = field(default_factory=list)
    reaches_back: list[int] = field(default_factory=list)
    records: bool = False

    @property
    def runs(self) -> bool:
        """Whether there is anything to do."""
        return self.run is not _nothing


@dataclass(slots=True)
class Batch:
    """State of one micro-batch inside a step."""

    start: Tensor
    hidden: Tensor
    query: Tensor
    partials: Partials
    tokens: Tensor | None = None


class Runtime:
    """Runs decode steps of one plan.

    Args:
        scenario: the question the plan answers.
        evaluation: its schedule, allocation and step graph.
        decoder: weights.
        store: cached tokens.
        pool: host memory for write-back, partial results and disk buffers.
        tail: most tokens that may be generated before the plan must be made anew.
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
        """Allocate buffers and make every operation ready."""
        if scenario.workload.new_tokens > 1:
            accepted = "1: a step that decodes several at once cannot be run here yet"
            raise InputError("new_tokens", scenario.workload.new_tokens, accepted)
        tiers = {v.path for v in evaluation.graph.variables if "tier" in v.stored}
        if tiers:
            accepted = "paths of a machine that exists: a what-if tier cannot be run"
            raise InputError("paths", ", ".join(sorted(tiers)), accepted)
        self.scenario, self.evaluation, self.decoder, self.store = (
            scenario,
            evaluation,
            decoder,
            store,
        )
        self.pool, self.lane = pool, HostLane()
        self.batch = scenario.workload.micro_batch
        self.cuda = decoder.device.type == "cuda"
        self.position = scenario.workload.tokens
        self.generated, self.most = 0, tail
        self.staging = Staging(scenario, evaluation, decoder)
        self.streamed = StreamedWeights(evaluation, decoder, pool)
        self.batches = [self._new_batch() for _ in range(scenario.workload.micro_batches)]
        self.tails = self._tails(tail)
        self.streams = self._streams()
        self._host: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._answers: dict[tuple[int, int], Callable[[Any], None]] = {}
        self._returns: dict[tuple[int, int], Callable[[], None]] = {}
        self._disk: dict[int, Tensor] = {}
        self._disk_turns: dict[tuple[int, int, int], int] = {}
        self._written = self._write_back_area()
        self._asked = self._can_ask()
        self.actions = self._prepare()
        self.lane.serve()
        self._events: list[Any] = [None] * len(self.actions)
        self._graph: Any = None

    # -- buffers -------------------------------------------------------------------------------

    def _new_batch(self) -> Batch:
        spec, device, dtype = self.decoder.layers[0].spec, self.decoder.device, self.decoder.dtype
        shape = (self.batch, spec.kv_heads, spec.query_heads // spec.kv_heads, spec.head_dim_k)
        generator = torch.Generator(device=device).manual_seed(1)
        hidden = torch.empty(self.batch, spec.hidden, device=device, dtype=dtype)
        hidden.normal_(generator=generator)
        query = torch.zeros(shape, device=device, dtype=dtype)
        return Batch(hidden, hidden, query, Partials(shape, device, dtype))

    def _tails(self, most: int) -> list[list[Tensor]]:
        """New tokens of every layer and micro-batch, in HBM."""
        return [
            [
                torch.zeros(
                    most,
                    self.batch,
                    2,
                    layer.spec.kv_heads,
                    layer.spec.head_dim_k,
                    device=self.decoder.device,
                    dtype=self.decoder.dtype,
                )
                for _ in self.batches
            ]
            for layer in self.decoder.layers
        ]

    def _write_back_area(self) -> Tensor:
        """Host memory for one step's new tokens of one layer and micro-batch."""
        spec = self.decoder.layers[0].spec
        item = torch.empty(0, dtype=self.decoder.dtype).element_size()
        flat = self.pool.take(self.batch * spec.kv_elements * item)
        return flat.view(self.decoder.dtype).view(self.batch, 2, spec.kv_heads, spec.head_dim_k)

    def _streams(self) -> dict[str, Any]:
        if not self.cuda:
            return {}
        names = sorted(set(LANES.values()) - {"gpu"})
        return {"gpu": torch.cuda.Stream(), **{name: torch.cuda.Stream() for name in names}}

    # -- making operations ready ---------------------------------------------------------------

    def _prepare(self) -> list[Action]:
        operations = self.evaluation.graph.operations
        skipped = {"launch", "end_step", "make_way"}
        actions = []
        for operation in operations:
            make: Callable[[Operation], Callable[[], None]] | None = None
            if operation.operation not in skipped:
                make = getattr(self, f"_do_{operation.operation}")
            run = make(operation) if make is not None else _nothing
            actions.append(Action(operation, run, self._lane_of(operation)))
        for action in actions:
            for before, lag in action.operation.after:
                other = actions[before]
                if other.operation.operation in skipped or other.lane == action.lane:
                    continue
                (action.waits if lag == 0 else action.reaches_back).append(before)
                other.records = True
        self._wait_for_last_tenants(actions)
        for batch in self.batches:
            batch.partials.allocate()
        return actions

    def _lane_of(self, operation: Operation) -> str:
        """The stream of an operation; with a server to ask, the host's work needs none."""
        lane = LANES.get(operation.resource, "gpu")
        return "gpu" if lane == "host" and self._asked else lane

    def _can_ask(self) -> bool:
        """Whether the GPU asks a server for attention on the host."""
        wanted = any(o.operation == "attend_host" for o in self.evaluation.graph.operations)
        dim = self.decoder.layers[0].spec.head_dim_k
        return wanted and self.lane.can_be_asked and host_kernel.can_run(self.decoder.dtype, dim)

    def _wait_for_last_tenants(self, actions: list[Action]) -> None:
        """First tenants of a buffer wait for its last tenant of the step before.

        The graph lets buffers rotate on across steps; here every step starts at the first one.
        """
        self._rotate(actions, self._staged_tenants(actions), len(self.staging.buffers))
        depth = self.evaluation.schedule.queue_depth
        self._rotate(actions, self._disk_tenants(actions), depth)
        self._rotate(actions, self._weight_tenants(actions), BUFFERS)

    @staticmethod
    def _rotate(actions: list[Action], tenants: list[Tenant], count: int) -> None:
        for number, (enters, _) in enumerate(tenants[:count]):
            _, leaves = tenants[range(number, len(tenants), count)[-1]]
            for enter in enters:
                for leave in leaves:
                    if actions[enter].lane != actions[leave].lane:
                        actions[enter].reaches_back.append(leave)
                        actions[leave].records = True

    def _staged_tenants(self, actions: list[Action]) -> list[Tenant]:
        """What writes to and what reads from each staging buffer in turn."""
        tenants: dict[int, Tenant] = {}
        for index, action in enumerate(actions):
            operation = action.operation
            if operation.stage is None or operation.operation in ("launch", "read_disk"):
                continue
            enters, leaves = tenants.setdefault(self.staging.unit(operation), ([], []))
            (leaves if operation.operation == "attend" else enters).append(index)
        return [tenants[unit] for unit in sorted(tenants)]

    def _disk_tenants(self, actions: list[Action]) -> list[Tenant]:
        """Reads into host buffers and the copies that empty them, in turn."""
        of_disk = [i for i, a in enumerate(actions) if a.operation.path == "fetch_disk"]
        reads = [i for i in of_disk if actions[i].operation.operation == "read_disk"]
        copies = [i for i in of_disk if actions[i].operation.operation == "copy_kv"]
        return [([read], [copy]) for read, copy in zip(reads, copies, strict=True)]

    def _weight_tenants(self, actions: list[Action]) -> list[Tenant]:
        """Loads of weights and the layers that use them, in turn."""
        tenants: list[Tenant] = []
        for index, action in enumerate(actions):
            if action.operation.operation == "load_weights":
                tenants.append(([index], []))
            elif action.operation.operation == "finish" and tenants:
                tenants[-1][1].append(index)
        return tenants

    def _place(self, operation: Operation) -> Place:
        return self.staging.place(operation)

    def _do_load_weights(self, operation: Operation) -> Callable[[], None]:
        visit = self.streamed.visit()
        return lambda: self.streamed.load(operation.layer, visit)

    def _product(self, operation: Operation) -> Product:
        """Multiplies by matrices of the operation's layer, as the last load brought them."""
        visit = self.streamed.visits - 1
        return partial(self._multiply, operation.layer, visit)

    def _multiply(self, layer: int, visit: int, name: str, rows: Tensor, **added: Any) -> Tensor:
        return self.streamed.product(layer, name, rows, visit, **added)

    def _do_project(self, operation: Operation) -> Callable[[], None]:
        layer = self.decoder.layers[operation.layer]
        batch = self.batches[operation.micro_batch]
        tail = self.tails[operation.layer][operation.micro_batch]
        product = self._product(operation)

        def run() -> None:
            if operation.layer == 0:
                batch.hidden = batch.start
            query, fresh = self.decoder.project(layer, batch.hidden, self.position, product)
            batch.query.copy_(query)
            tail[self.generated].copy_(fresh[0])

        return run

    def _do_copy_kv(self, operation: Operation) -> Callable[[], None]:
        place = self._place(operation)
        source = self._source(operation)
        return partial(_copy, source, place.incoming)

    _do_copy_activations = _do_copy_kv

    def _source(self, operation: Operation) -> Tensor:
        key = (operation.layer, operation.stage, operation.path or "", operation.micro_batch)
        if operation.path == "fetch_disk":
            return self._disk_buffer(operation)
        data = self.store.pieces[key].data
        assert data is not None, key
        return data

    def _disk_buffer(self, operation: Operation) -> Tensor:
        """What the piece of an operation fills of its host buffer."""
        return self._disk_pages(operation)[: self._place(operation).incoming.numel()]

    def _disk_pages(self, operation: Operation) -> Tensor:
        """One of Q pinned host buffers that disk reads fill in turn, in the order of the graph."""
        key = (operation.layer, operation.stage or 0, operation.micro_batch)
        turn = self._disk_turns.setdefault(key, len(self._disk_turns))
        slot = turn % self.evaluation.schedule.queue_depth
        if slot not in self._disk:
            self._disk[slot] = self.pool.take(aligned(self.staging.largest("fetch_disk")))
        return self._disk[slot][: aligned(self._place(operation).incoming.numel())]

    def _do_read_disk(self, operation: Operation) -> Callable[[], None]:
        key = (operation.layer, operation.stage, operation.path or "", operation.micro_batch)
        piece, view = self.store.pieces[key], memoryview(self._disk_pages(operation).numpy())
        needed, file = self._place(operation).incoming.numel(), self.store.file
        assert file is not None, key

        launch = self.lane.prepared(lambda: file.read(view, piece.offset, needed))
        return lambda: launch(self.streams.get("disk"))

    def _do_rebuild(self, operation: Operation) -> Callable[[], None]:
        layer, place = self.decoder.layers[operation.layer], self._place(operation)
        key = (operation.layer, operation.stage, operation.path or "", operation.micro_batch)
        piece = self.store.pieces[key]
        flat = piece.data if operation.path == "recompute_resident" else place.incoming
        assert flat is not None
        kept = flat if flat.dtype == self.decoder.dtype else flat.view(self.decoder.dtype)
        activations = kept.view(piece.count, self.batch, -1)
        return lambda: self.decoder.rebuild(layer, activations, place.staged, piece.begin)

    def _do_dequantise(self, operation: Operation) -> Callable[[], None]:
        place, path = self._place(operation), operation.path or ""
        spec = self.decoder.layers[operation.layer].spec
        codes, scales = unpack(path, spec, place.incoming, place.staged.shape[0], self.batch)
        return lambda: kernels.dequantise(codes, scales, BITS[path], place.staged)

    def _do_attend(self, operation: Operation) -> Callable[[], None]:
        staged = self.staging.whole(operation)
        return self._attending(operation, staged)

    def _do_attend_resident(self, operation: Operation) -> Callable[[], None]:
        key = (operation.layer, None, "resident", operation.micro_batch)
        data = self.store.pieces[key].data
        assert data is not None
        return self._attending(operation, data)

    def _attending(self, operation: Operation, staged: Tensor) -> Callable[[], None]:
        batch = self.batches[operation.micro_batch]
        count = kernels.parts(batch.query, staged.shape[0])
        slots = batch.partials.take(operation.layer, count)

        def run() -> None:
            outputs, lses = batch.partials.at(slots)
            kernels.attend(batch.query, staged, outputs, lses)

        return run

    def _host_buffers(self, operation: Operation) -> tuple[Tensor, Tensor, Tensor]:
        """Pinned query, output and log-sum-exp of one micro-batch, two sets taken in turn."""
        slot = (operation.layer % 2, operation.micro_batch)
        if slot not in self._host:
            shape, dtype = self.batches[0].query.shape, self.decoder.dtype
            item = torch.empty(0, dtype=dtype).element_size()
            count = self.batches[0].query.numel()
            query = self.pool.take(count * item).view(dtype).view(shape)
            out = self.pool.take(count * item).view(dtype).view(shape)
            lse = self.pool.take(count // shape[-1] * 4).view(torch.float32).view(shape[:-1])
            self._host[slot] = (query, out, lse)
        return self._host[slot]

    def _do_send_query(self, operation: Operation) -> Callable[[], None]:
        query = mapped(self._host_buffers(operation)[0])
        batch = self.batches[operation.micro_batch]
        return lambda: _through(batch.query, query)

    def _do_attend_host(self, operation: Operation) -> Callable[[], None]:
        query, out, lse = self._host_buffers(operation)
        key = (operation.layer, None, "attend_host", operation.micro_batch)
        data = self.store.pieces[key].data
        assert data is not None
        keys, values = data[0], data[1]
        if host_kernel.can_run(query.dtype, query.shape[-1]):
            work = host_kernel.Attention(query, keys, values, out, lse)
            if self._asked:
                ask, answered = self.lane.asked(work)
                self._answers[operation.layer, operation.micro_batch] = answered
                return lambda: ask(self.streams["gpu"])
            launch = self.lane.prepared(work)
            return lambda: launch(self.streams.get("host"))

        def attend() -> None:
            result, sums = kernels.host_attention(query, keys, values)
            out.copy_(result)
            lse.copy_(sums)

        launch = self.lane.prepared(attend)
        return lambda: launch(self.streams.get("host"))

    def _do_return_partial(self, operation: Operation) -> Callable[[], None]:
        _, out, lse = self._host_buffers(operation)
        far_out, far_lse = mapped(out), mapped(lse)
        batch = self.batches[operation.micro_batch]
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
            answered(self.streams["gpu"])
            run()

        self._returns[key] = returned  # just before the merge, which needs it first
        return _nothing

    def _do_finish(self, operation: Operation) -> Callable[[], None]:
        layer = self.decoder.layers[operation.layer]
        batch = self.batches[operation.micro_batch]
        tail = self.tails[operation.layer][operation.micro_batch]
        product = self._product(operation)
        returned = self._returns.get((operation.layer, operation.micro_batch), _nothing)

        def run() -> None:
            returned()
            newest = tail[: self.generated + 1]
            attended = kernels.merge(batch.query, newest, *batch.partials.of(operation.layer))
            batch.hidden = self.decoder.finish(layer, batch.hidden, attended, product)

        return run

    def _do_write_back(self, operation: Operation) -> Callable[[], None]:
        tail = self.tails[operation.layer][operation.micro_batch]
        return lambda: _copy(tail[self.generated], self._written)

    def _do_head(self, operation: Operation) -> Callable[[], None]:
        batch = self.batches[operation.micro_batch]

        def run() -> None:
            batch.tokens = self.decoder.logits(batch.hidden).argmax(-1)
            self.decoder.start(batch.tokens, batch.start)

        return run

    # -- running -------------------------------------------------------------------------------

    def step(self) -> None:
        """One decode step; asynchronous on a GPU."""
        if self._graph is not None:
            self._graph.replay()
            return
        self._issue(reach_back=True)

    def _issue(self, *, reach_back: bool) -> None:
        if not self.cuda:
            for action in self.actions:
                action.run()
            return
        events = self._events
        before_all, lane = torch.cuda.current_stream(), ""
        for index, action in enumerate(self.actions):
            stream = self.streams[action.lane]
            if action.lane != lane:
                torch.cuda.set_stream(stream)
                lane = action.lane
            for before in action.waits:
                stream.wait_event(events[before])
            if reach_back:
                for before in action.reaches_back:
                    if events[before] is not None:
                        stream.wait_event(events[before])
            action.run()
            if action.records:
                if events[index] is None:
                    events[index] = torch.cuda.Event()
                events[index].record(stream)
        torch.cuda.set_stream(before_all)

    def timed_step(self) -> list[tuple[Action, float, float]]:
        """One eager step with an event before and after each action: (action, begin, end) in s.

        The GPU is held until about everything is launched, so that launching is not what is timed.
        Where work of the CPU takes its turn in a stream, it is not, and the launching thread stops
        now and then: it must not wait for a full queue while that work waits for it.
        """
        if not self.cuda:
            return self._timed_on_cpu()
        self.synchronise()
        on_host = any(a.operation.operation in ("attend_host", "read_disk") for a in self.actions)
        hold_s = 0.0 if on_host else self._launch_s()
        begun = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self.streams["gpu"]):
            torch.cuda._sleep(int(hold_s * SPIN_CYCLES_PER_S))
            begun.record()
        for stream in self.streams.values():
            stream.wait_event(begun)
        marks = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in self.actions
        ]
        plain = [action.run for action in self.actions]
        queued = 0.0
        for action, run, (first, last) in zip(self.actions, plain, marks, strict=True):
            queued += action.operation.kernels + QUEUED_WITH_EACH
            stops = on_host and action.lane == "gpu" and queued > MOST_QUEUED
            queued = 0.0 if stops else queued
            stream = self.streams[action.lane]
            action.run = partial(_between, run, first, last, stream, stops=stops)
        try:
            self._issue(reach_back=False)
            self.synchronise()
        finally:
            for action, run in zip(self.actions, plain, strict=True):
                action.run = run
        return [
            (action, begun.elapsed_time(first) / 1e3, begun.elapsed_time(last) / 1e3)
            for action, (first, last) in zip(self.actions, marks, strict=True)
        ]

    def _launch_s(self) -> float:
        """About how long the CPU takes to launch a timed step, at most `MOST_HOLD_S`."""
        queued = sum(a.operation.kernels + QUEUED_WITH_EACH for a in self.actions)
        return min(queued * LAUNCH_S, MOST_HOLD_S)

    def _timed_on_cpu(self) -> list[tuple[Action, float, float]]:
        spans = []
        begun = time.perf_counter()
        for action in self.actions:
            first = time.perf_counter()
            action.run()
            spans.append((action, first - begun, time.perf_counter() - begun))
        return spans

    def capture(self) -> None:
        """Turn the step into one CUDA graph; copies and host work included."""
        if not self.cuda:
            return
        self._issue(reach_back=True)
        self.synchronise()
        self._events = [None] * len(self.actions)
        graph = torch.cuda.CUDAGraph()
        main = self.streams["gpu"]
        others = [stream for name, stream in self.streams.items() if name != "gpu"]
        with torch.cuda.graph(graph, stream=main):
            for stream in others:
                stream.wait_stream(main)
            self._issue(reach_back=False)
            for stream in others:
                main.wait_stream(stream)
        self._graph = graph

    def close(self) -> None:
        """Wait for what was issued and drop the captured graph, actions and buffers."""
        self.synchronise()
        if self._graph is not None:
            self._graph.reset()
        self._graph, self.actions, self._events = None, [], []
        self.lane.close()

    def advance(self) -> None:
        """Keep the new token and move to the next position (eager mode)."""
        self.generated += 1
        self.position += 1

    def synchronise(self) -> None:
        """Wait until everything issued has run; raise what the CPU's part raised."""
        if self.cuda:
            # A blocking event leaves the core to attention on the host; a plain wait spins.
            done = torch.cuda.Event(blocking=True)
            for stream in self.streams.values():
                done.record(stream)
                done.synchronize()
            torch.cuda.synchronize()
        self.lane.check()


def _copy(source: Tensor, out: Tensor) -> None:
    """A copy by a copy engine."""
    out.copy_(source, non_blocking=True)


def _through(source: Tensor, out: Tensor) -> None:
    """A copy by a kernel: it does not queue behind what a copy engine has to move."""
    torch.mul(source, 1, out=out)


def _between(run: Callable[[], None], first: Any, last: Any, stream: Any, *, stops: bool) -> None:
    """Run with an event recorded before and after; wait for it where told so."""
    first.record(stream)
    run()
    last.record(stream)
    if stops:
        stream.synchronize()


def _nothing() -> None:
    """Launches and the end of a step are there in any case."""
