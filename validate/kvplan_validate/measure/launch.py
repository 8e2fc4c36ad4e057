"""What it costs to start work: kernels in a chain, launches from Python, graphs, events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting, wall_samples
from kvplan_validate.measure.machine import Machine

SHORT, LONG = 100, 1100
"""Kernels in two chains; a kernel takes a thousandth of the difference."""


LAYERS = 6
"""Layers of the small model whose step is issued."""

LAUNCHES = 100
"""Launches that are timed together; a queue of the driver holds more."""


class _Tiny(Series):
    """Measurements with kernels that do next to nothing; no rate has a meaning."""

    unit = ""
    seconds = 0.5

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Any]:
        torch = machine.torch
        yield [torch.randn(256, device="cuda", dtype=torch.float32) for _ in range(2)]

    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """Two buffers of 1 KiB."""
        return self._bench(machine)


class Kernel(_Tiny):
    """The floor of a kernel inside a graph."""

    key = "launch.kernel"
    sentence = "Chains of tiny kernels in a CUDA graph: seconds per kernel, start to start."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """The slope between two lengths."""
        yield {"kernels": LONG - SHORT}

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time two chains; the difference is that of their kernels."""
        x = bench[0]
        short, long = (
            machine.timer.graph_samples(
                repeated(lambda: x.add_(1.0), count), samples=9, launch_s=5e-3
            )
            for count in (SHORT, LONG)
        )
        pairs = zip(short, long, strict=True)
        return Sampled(samples=tuple((b - a) / (LONG - SHORT) for a, b in pairs))


class Light(_Tiny):
    """Kernels between the large ones of a decode step."""

    key = "launch.light"
    sentence = "The runtime's norms, copies, merge and activation in a graph: mean per kernel."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """One batch: such kernels take as long for any few sequences."""
        yield {"sequences": 16, "hidden": 4096}

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time a long chain of the mix less a short one."""
        mix = _light(machine.torch, int(at["sequences"]), int(at["hidden"]))

        def chain(rounds: int) -> Callable[[], None]:
            return repeated(lambda: [kernel() for kernel in mix], rounds)

        short, long = (
            machine.timer.graph_samples(chain(rounds), samples=9, launch_s=5e-3)
            for rounds in (20, 120)
        )
        pairs = zip(short, long, strict=True)
        return Sampled(samples=tuple((b - a) / (100 * len(mix)) for a, b in pairs))


def _light(torch: Any, sequences: int, hidden: int) -> list[Callable[[], Any]]:
    """Two norms, three copies, the merge of one partial result and an activation."""
    from kvplan_validate import kernels

    half = {"device": "cuda", "dtype": torch.float16}
    x, out = torch.randn(sequences, hidden, **half), torch.empty(sequences, hidden, **half)
    wide, weight = torch.randn(sequences, 4 * hidden, **half), torch.ones(hidden, **half)
    query = torch.randn(sequences, hidden // 128, 1, 128, **half)
    tail = torch.randn(1, sequences, 2, hidden // 128, 128, **half)
    outputs = torch.randn(1, *query.shape, **half)
    lses = torch.randn(1, *query.shape[:-1], device="cuda")
    copies = [lambda: out.copy_(x)] * 3

    def norm() -> Any:
        return kernels.norm(x, weight, 1e-5, centred=True)

    return [
        norm, norm, *copies, lambda: kernels.merge(query, tail, outputs, lses),
        lambda: torch.nn.functional.relu(wide),
    ]  # fmt: skip


class Issue(_Tiny):
    """Launching through the runtime."""

    key = "launch.issue"
    sentence = "CPU time to issue a small decode step through the runtime, per kernel or copy."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """A pipeline of four stages, half of the tokens recomputed."""
        yield {"layers": LAYERS, "stages": 4}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Any]:
        bench, runtime, launches = small_step(LAYERS)
        try:
            yield runtime, launches
        finally:
            runtime.close()
            bench.close()

    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """A runtime of a model too small to keep a GPU busy."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """CPU time of whole steps on an idle GPU, divided by their launches."""
        runtime, launches = bench
        runtime.step()
        runtime.synchronise()
        return Sampled(samples=machine.timer.cpu_samples(runtime.step, launches, samples=15))


def small_step(layers: int) -> tuple[Any, Any, float]:
    """Pools, an eager runtime of a small model, and how many launches its step graph counts."""
    from kvplan.evaluate import Evaluation
    from kvplan.forced import forced
    from kvplan.hardware_library import load_hardware
    from kvplan.model import LayerSpec, ModelSpec
    from kvplan.scenario import Scenario
    from kvplan.schedule import Schedule
    from kvplan.workload import Workload
    from kvplan_validate.harness import Bench, ready

    layer = LayerSpec(
        hidden=512, query_heads=8, kv_heads=8, head_dim_k=64, head_dim_v=64, intermediate=2048,
        gated_mlp=False, rope=False, attention_params=4 * 512 * 512, mlp_params=2 * 512 * 2048,
    )  # fmt: skip
    model = ModelSpec(
        name="small", family="small", hidden=512, vocab=512, embedding_width=512,
        weight_dtype="fp16", layers=(layer,) * layers, embedding_params=512, head_params=512,
        tied=False, source="launch.issue",
    )  # fmt: skip
    scenario = Scenario(
        model=model, hardware=load_hardware("h200"), workload=Workload(batch=4, context=512)
    )
    schedule = Schedule(stages=4, queue_depth=4, mode="eager")
    found = forced(scenario, schedule, {"recompute": 0.5, "fetch": 0.5})
    assert isinstance(found, Evaluation), found
    launches = sum(operation.kernels for operation in found.graph.operations)
    bench = Bench(64 << 20)
    return bench, ready(bench, scenario, found), launches


class Sample(_Tiny):
    """Picking the next token."""

    key = "launch.sample"
    sentence = "The largest of the scores of a vocabulary, per entry."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """A large vocabulary."""
        yield {"sequences": 16, "vocabulary": 1 << 17}

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time arg-max; a figure is seconds per entry."""
        entries = int(at["vocabulary"])
        scores = machine.torch.randn(int(at["sequences"]), entries, device="cuda").half()
        times = machine.timer.per_operation(lambda index: scores.argmax(-1))
        return Sampled(samples=tuple(seconds / entries for seconds in times))


class Fork(_Tiny):
    """Streams inside a graph."""

    key = "launch.fork"
    sentence = "Record and wait between two streams: what a fork and a join add to a kernel."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """On the GPU in a graph and in streams; on the CPU that launches."""
        for where in ("graph", "stream", "cpu"):
            yield {"where": where}

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time rounds with and without the fork."""
        timer, rounds = machine.timer, 100
        pair = _Pair(machine, *bench)
        chain, fork = repeated(pair.chained, rounds), repeated(pair.forked, rounds)
        if at["where"] == "cpu":
            return Sampled(samples=timer.cpu_samples(repeated(pair.handed_over, rounds), rounds))
        if at["where"] == "graph":
            alone, forked = timer.graph_samples(chain), timer.graph_samples(fork)
        else:
            alone, forked = (
                tuple(timer.spanned(body, rounds * 2e-4) for _ in range(7))
                for body in (chain, fork)
            )
        pairs = zip(alone, forked, strict=True)
        return Sampled(samples=tuple(max(b - a, 0.0) / rounds for a, b in pairs))


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tiny kernel on the timer's stream, alone or beside one on another stream."""

    machine: Machine
    x: Any
    y: Any

    def chained(self) -> None:
        """The first alone."""
        self.x.add_(1.0)

    def forked(self) -> None:
        """The second beside the first, joined after."""
        main, side = self.machine.timer.stream, self.machine.timer.side
        side.wait_stream(main)
        self.x.add_(1.0)
        with self.machine.torch.cuda.stream(side):
            self.y.add_(1.0)
        main.wait_stream(side)

    def handed_over(self) -> None:
        """One event, recorded and waited for."""
        event = self.machine.torch.cuda.Event()
        event.record(self.machine.timer.stream)
        self.machine.timer.side.wait_event(event)


class Graph(_Tiny):
    """Launching a captured graph."""

    key = "launch.graph"
    sentence = "Launching a CUDA graph of tiny kernels: CPU time of the call, and until it is done."

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Graphs of several sizes."""
        for nodes in (512, 1, 64, 2048):
            for until in ("launched", "done"):
                yield {"nodes": nodes, "until": until}

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Wall-clock time of one replay on an idle GPU."""
        timer, x = machine.timer, bench[0]
        graph = timer.capture(repeated(lambda: x.add_(1.0), int(at["nodes"])))
        try:
            if at["until"] == "launched":
                return Sampled(samples=timer.cpu_samples(graph.replay, 1, samples=25))

            def whole() -> None:
                with machine.torch.cuda.stream(timer.stream):
                    graph.replay()
                timer.stream.synchronize()

            return Sampled(samples=wall_samples(whole, most=25, budget_s=0.3, warm=2))
        finally:
            machine.torch.cuda.synchronize()
            graph.reset()


class Eager(Series):
    """Launching from Python."""

    key = "launch.eager"
    sentence = "CPU time to launch one operation from Python, per operation of a decode step."
    unit = ""
    seconds = 1.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """The mix of a decode step, and each of its operations."""
        for operation in ("mix", "linear", "add", "layer_norm", "attention", "copy"):
            yield {"operation": operation}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[dict[str, Callable[[], Any]]]:
        with buffers.registered(machine.torch, 1 << 20) as host:
            yield _operations(machine.torch, host)

    def bench(self, machine: Machine) -> AbstractContextManager[dict[str, Callable[[], Any]]]:
        """One launcher per operation."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: dict[str, Callable[[], Any]], at: Setting) -> Sampled:
        """CPU time of a run of launches on an idle GPU."""
        name, rounds = str(at["operation"]), LAUNCHES
        some = list(bench.values()) if name == "mix" else [bench[name]]

        def body() -> None:
            for index in range(rounds):
                some[index % len(some)]()

        times = machine.timer.cpu_samples(body, rounds)
        return Sampled(samples=times)


def _operations(torch: Any, host: Any) -> dict[str, Callable[[], Any]]:
    """Launchers of the operations of a decode step, on operands too small to keep a GPU busy."""
    half = {"device": "cuda", "dtype": torch.float16}
    x, y, weight = (torch.randn(*shape, **half) for shape in ((8, 1024), (8, 1024), (1024, 1024)))
    norm = torch.ones(1024, **half)
    query, keys = torch.randn(8, 8, 1, 128, **half), torch.randn(8, 8, 64, 128, **half)
    to = torch.empty_like(host, device="cuda")
    functional = torch.nn.functional
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    return {
        "linear": lambda: functional.linear(x, weight),
        "add": lambda: torch.add(x, y),
        "layer_norm": lambda: functional.layer_norm(x, (1024,), norm, norm),
        "attention": lambda: flash(query, keys, keys, 0.0, False, False, scale=0.088),
        "copy": lambda: to[:65536].copy_(host[:65536], non_blocking=True),
    }


def repeated(launch: Callable[[], Any], count: int) -> Callable[[], None]:
    """A function that launches ``count`` times."""

    def body() -> None:
        for _ in range(count):
            launch()

    return body
