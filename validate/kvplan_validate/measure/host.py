"""Attention on the CPU: how fast K and V stream, alone and beside copies; and the way there.

Blocks are head-major ``[sequences, kv_heads, tokens, head_dim]``, grouped queries folded into the
query's length ``[sequences, kv_heads, group, head_dim]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from kvplan_validate.measure import buffers, copies
from kvplan_validate.measure.base import Sampled, Series, Setting, wall_samples
from kvplan_validate.measure.machine import Machine

HEAD_DIM = 128
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
HEADS = {"mha": (32, 1), "gqa": (8, 4)}
KERNELS = ("bmm", "sdpa")
"""Of torch; ``native`` is the runtime's own, where a C compiler is found."""
SIZE = 2 << 30
"""Bytes of K and V: several times what a large server's cache holds."""

COPIED = 4 << 30
"""Bytes that copies beside it come from: no cache keeps them from the memory's bandwidth."""

SEQUENCES = 8

CHAIN = 40
"""Hand-overs that are timed together."""


@dataclass
class Blocks:
    """K and V of one dtype at a time, ``size_bytes`` of them."""

    torch: Any
    size_bytes: int
    _dtype: str = ""
    _numbers: Any = field(default=None, repr=False)

    def numbers(self, dtype: str) -> Any:
        """Random numbers of a dtype; those of another one are freed."""
        if dtype != self._dtype:
            self._numbers = None
            kind = getattr(self.torch, DTYPES[dtype])
            empty = self.torch.empty(self.size_bytes // kind.itemsize, dtype=kind)
            self._numbers, self._dtype = buffers.fill(self.torch, empty), dtype
        return self._numbers


class Attention(Series):
    """Streaming rate of CPU attention."""

    key = "host.attention"
    sentence = "Attention on the CPU over head-major blocks, alone and while copies run."
    seconds = 12.0
    needs = "torch"

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every dtype and grouping with the runtime's kernel; beside copies where there is a GPU.

        With one thread less than cores, as the runtime does: launching needs a core too.
        """
        threads = max(int(machine.torch.get_num_threads()) - 1, 1)
        runs: list[tuple[str, int]] = [("nothing", threads)]
        if machine.cuda:
            runs.append(("copies", threads))
        for kernel in best_kernels(machine.torch):
            for dtype in DTYPES if kernel != "sdpa" else ("fp16", "bf16"):
                for heads in HEADS:
                    for beside, count in runs:
                        at = {"dtype": dtype, "heads": heads, "kernel": kernel}
                        yield {**at, "beside": beside, "threads": count}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Blocks]:
        size = min(SIZE, machine.free_dram_bytes() // 8)
        while size > 8 << 20 and machine.clock.left_s() < 8 * size / SIZE:
            size //= 2  # a slow machine or a short budget
        threads = machine.torch.get_num_threads()
        try:
            yield Blocks(machine.torch, size)
        finally:
            machine.torch.set_num_threads(threads)

    def bench(self, machine: Machine) -> AbstractContextManager[Blocks]:
        """Blocks that no cache holds."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: Blocks, at: Setting) -> Sampled:
        """Time one kind of attention; beside copies also their rate."""
        kv_heads, group = HEADS[str(at["heads"])]
        numbers = bench.numbers(str(at["dtype"]))
        tokens = numbers.numel() // (2 * SEQUENCES * kv_heads * HEAD_DIM)
        used = 2 * SEQUENCES * kv_heads * tokens * HEAD_DIM
        keys, values = numbers[:used].view(2, SEQUENCES, kv_heads, tokens, HEAD_DIM)
        query = machine.torch.randn(SEQUENCES, kv_heads, group, HEAD_DIM).to(numbers.dtype)
        attend = attention(machine.torch, str(at["kernel"]), query, keys, values)
        machine.torch.set_num_threads(int(at["threads"]))
        busy: AbstractContextManager[Callable[[], float] | None] = (
            copies.running(machine, COPIED) if at["beside"] == "copies" else nullcontext()
        )
        with busy as rate:
            attend()
            if rate is not None:
                rate()
            times = wall_samples(attend, most=7, budget_s=_share(machine, 12), warm=0)
            notes = {} if rate is None else {"copy_bytes_per_s": rate()}
        return Sampled(samples=times, volume=used * numbers.itemsize, notes=notes)


def _share(machine: Machine, parts: int) -> float:
    """Seconds for one of so many settings, at most one."""
    return min(1.0, max(machine.clock.left_s(), 0.1) / parts)


def attention(
    torch: Any, kernel: str, query: Any, keys: Any, values: Any
) -> Callable[[], tuple[Any, Any]]:
    """A function that attends on the CPU and returns the output and its log-sum-exp.

    ``native`` is the runtime's own kernel, ``sdpa`` torch's fused one, ``bmm`` two matrix products
    around a softmax in fp32.
    """
    if kernel == "native":
        from kvplan_validate.host_kernel import Attention as Native

        out = torch.empty_like(query)
        lse = torch.empty(query.shape[:-1], dtype=torch.float32)
        run = Native(query, keys, values, out, lse)

        def attend_natively() -> tuple[Any, Any]:
            run()
            return out, lse

        return attend_natively
    scale = query.shape[-1] ** -0.5
    if kernel == "sdpa":
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return lambda: fused(query, keys, values, 0.0, False, scale=scale)
    flat = (query * scale).flatten(0, 1)
    keys, values = keys.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)

    def attend() -> tuple[Any, Any]:
        scores = torch.bmm(flat, keys).float()
        lse = torch.logsumexp(scores, dim=-1)
        weights = torch.exp(scores - lse[..., None]).to(values.dtype)
        return torch.bmm(weights, values), lse

    return attend


class Call(Series):
    """Fixed time of one call."""

    key = "host.call"
    sentence = "Attention on the CPU over 64 tokens that a cache holds: the time of a call."
    seconds = 0.5
    needs = "torch"
    unit = ""

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every dtype and kernel."""
        for dtype in DTYPES:
            for kernel in (*best_kernels(machine.torch)[:1], *KERNELS):
                yield {"dtype": dtype, "kernel": kernel, "sequences": 1, "tokens": 64}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Time one call."""
        attend = _small(machine.torch, str(at["dtype"]), str(at["kernel"]))[1]
        return Sampled(samples=wall_samples(attend, most=100, budget_s=0.2, warm=5))


def best_kernels(torch: Any) -> tuple[str, ...]:
    """The kernel that the runtime uses, first, and torch's fused one beside it."""
    from kvplan_validate.host_kernel import library

    return ("native", "sdpa") if library() is not None else ("sdpa",)


def _small(torch: Any, dtype: str, kernel: str) -> tuple[Any, Callable[[], tuple[Any, Any]]]:
    """A query ``[1, 32, 1, 128]`` and attention over 64 tokens with it."""
    kind = getattr(torch, DTYPES[dtype])
    query = torch.randn(1, 32, 1, HEAD_DIM).to(kind)
    keys, values = torch.randn(2, 1, 32, 64, HEAD_DIM).to(kind)
    return query, attention(torch, kernel, query, keys, values)


def _small_native(torch: Any) -> Any:
    """The runtime's kernel over 64 tokens of one sequence."""
    from kvplan_validate.host_kernel import Attention as Native

    query = torch.randn(1, 32, 1, HEAD_DIM).half()
    keys, values = torch.randn(2, 1, 32, 64, HEAD_DIM).half()
    return Native(query, keys, values, torch.empty_like(query), torch.empty(1, 32, 1))


class HandOver(Series):
    """From the GPU to the CPU and back, as the runtime does it."""

    key = "host.hand_over"
    sentence = (
        "A kernel writes a query to the host, a host function attends 64 tokens, a kernel reads "
        "the partial result: all in the order of one stream."
    )
    seconds = 0.5
    unit = ""

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """With the work of the CPU, and without."""
        for work in ("attention", "none"):
            yield {"work": work, "dtype": "fp16", "sequences": 1, "tokens": 64}

    @contextmanager
    def _bench(self, machine: Machine) -> Iterator[Any]:
        with buffers.registered(machine.torch, 1 << 20) as host:
            yield host

    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """Registered memory for the query and the result."""
        return self._bench(machine)

    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Time chains of hand-overs on the GPU's clock."""
        from kvplan_validate.hostlane import HostLane, mapped

        torch, stream = machine.torch, machine.timer.stream
        kernel = best_kernels(torch)[0]
        query, attend = _small(torch, "fp16", kernel)
        flat = bench[: query.nbytes].view(query.dtype)
        there, here = mapped(flat), torch.zeros(query.numel(), dtype=query.dtype, device="cuda")
        lane = HostLane()
        if at["work"] == "none":
            launch = lane.prepared(lambda: None)
        elif kernel == "native" and lane.can_be_asked:
            steps = lane.asked(_small_native(torch))
            lane.serve()

            def launch(stream: Any) -> None:
                for step in steps:
                    step(stream)
        else:
            launch = lane.prepared(lambda: (attend(), None)[1])
        samples = []
        with torch.cuda.stream(stream):
            for _ in range(8):
                marks = [torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2)]
                marks[0].record(stream)
                for _ in range(CHAIN):
                    torch.mul(here, 1, out=there)
                    launch(stream)
                    torch.mul(there, 1, out=here)
                marks[1].record(stream)
                marks[1].synchronize()
                samples.append(marks[0].elapsed_time(marks[1]) / 1e3 / CHAIN)
        lane.check()
        lane.close()
        return Sampled(samples=tuple(samples[2:]))
