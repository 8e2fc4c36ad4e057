"""Matrix products: rebuilding K and V of many tokens, and the linear layers of a few new ones.

Weights are stored ``[outputs, inputs]`` as checkpoints hold them. Each product reads weights that
are not in the L2 cache. A figure is seconds per product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from kvplan_validate.measure import buffers
from kvplan_validate.measure.base import Sampled, Series, Setting
from kvplan_validate.measure.machine import Machine

REBUILDS = ((4096, 8192), (4096, 2048), (5120, 10240), (7168, 14336), (3584, 1024))
"""Hidden width and width of K and V together: Llama-7B, Llama-8B, 13B, OPT-30B, Qwen-7B."""

TOKENS = tuple(64 << n for n in range(10))
"""64 to 32,768."""

LINEARS = (
    (1024, 6144), (2048, 8192), (4096, 8192), (4096, 12288), (4096, 16384), (5120, 20480),
    (4096, 28672), (3584, 37888), (4096, 131072),
    (4096, 1024), (4096, 2048), (4096, 4096), (5120, 5120), (11008, 4096), (14336, 4096),
    (18944, 3584), (20480, 5120),
)  # fmt: skip
"""Inputs and outputs of linear layers: first with more outputs than inputs, then with no more."""

ROWS = (1, 8, 32, 64)
"""New tokens per step: the batch."""


class Rebuild(Series):
    """K and V of many tokens from their activations."""

    key = "matmul.rebuild"
    sentence = (
        "K and V of many tokens in one product, written to their staging buffer: short bursts "
        "with idle gaps."
    )
    unit = "FLOP"
    seconds = 14.0
    burst_s: ClassVar[float] = 3e-3
    gap_s: ClassVar[float] = 20e-3

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every shape and token count."""
        for inputs, outputs in REBUILDS:
            for tokens in TOKENS:
                yield {"inputs": inputs, "outputs": outputs, "tokens": tokens, "dtype": "fp16"}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """Nothing: operands are made per setting."""
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Time one product."""
        inputs, outputs, tokens = (int(at[key]) for key in ("inputs", "outputs", "tokens"))
        product, copies = products(machine, inputs, outputs, tokens)
        times = machine.timer.per_operation(
            product, copies=copies, burst_s=self.burst_s, gap_s=self.gap_s, samples=5
        )
        return Sampled(samples=times, volume=2.0 * inputs * outputs * tokens)


def products(
    machine: Machine, inputs: int, outputs: int, tokens: int, dtype: str = "float16"
) -> tuple[Callable[[int], Any], int]:
    """A function that launches ``[tokens, inputs] x [inputs, outputs]``, and over how many copies.

    The result is written in place into a staging buffer, token by token.
    """
    torch = machine.torch
    kind = getattr(torch, dtype)
    item = kind.itemsize
    copies = buffers.copies_beyond_l2(machine, inputs * outputs * item, most=64)

    def random(*shape: int) -> Any:
        return buffers.fill(torch, torch.empty(*shape, device="cuda", dtype=kind)).mul_(0.05)

    weights = [random(outputs, inputs).t() for _ in range(copies)]
    places = min(copies, buffers.copies_beyond_l2(machine, tokens * inputs * item, most=8))
    activations = [random(tokens, inputs) for _ in range(places)]
    staging = torch.empty(tokens, outputs, device="cuda", dtype=kind)

    def product(index: int) -> None:
        torch.mm(activations[index % places], weights[index], out=staging)

    return product, copies


class Sustained(Series):
    """Products without pause."""

    key = "matmul.sustained"
    sentence = "The same products for 300 ms without pause, when power may limit the clock."
    unit = "FLOP"
    seconds = 5.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """The largest even burst of each shape."""
        for inputs, outputs in REBUILDS:
            yield {"inputs": inputs, "outputs": outputs, "tokens": 8192, "dtype": "fp16"}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Time the second half of a long burst, in pieces of about 10 ms."""
        inputs, outputs, tokens = (int(at[key]) for key in ("inputs", "outputs", "tokens"))
        product, copies = products(machine, inputs, outputs, tokens)
        times = machine.timer.sustained(product, copies=copies, piece_s=10e-3, pieces=30)
        return Sampled(samples=times, volume=2.0 * inputs * outputs * tokens)


class Formats(Series):
    """The same product in several formats."""

    key = "matmul.formats"
    sentence = "One large product per number format, short bursts with idle gaps."
    unit = "FLOP"
    seconds = 2.0
    shape: ClassVar[tuple[int, int, int]] = (4096, 8192, 8192)

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every format torch has a product for."""
        inputs, outputs, tokens = self.shape
        for dtype in ("fp16", "bf16", "fp32", "fp8", "int8"):
            yield {"dtype": dtype, "inputs": inputs, "outputs": outputs, "tokens": tokens}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Time one format."""
        inputs, outputs, tokens = self.shape
        names = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
        dtype = str(at["dtype"])
        if dtype in names:
            product, _ = products(machine, inputs, outputs, tokens, names[dtype])
        else:
            product = _small_format(machine.torch, dtype, inputs, outputs, tokens)
        times = machine.timer.per_operation(product, burst_s=3e-3, gap_s=20e-3, samples=5)
        return Sampled(samples=times, volume=2.0 * inputs * outputs * tokens)


def _small_format(
    torch: Any, dtype: str, inputs: int, outputs: int, tokens: int
) -> Callable[[int], Any]:
    """A function that launches a product of 8-bit operands."""
    left = torch.randn(tokens, inputs, device="cuda")
    right = torch.randn(outputs, inputs, device="cuda")
    if dtype == "int8":
        left8, right8 = ((20 * x).clamp(-127, 127).to(torch.int8) for x in (left, right))
        return lambda index: torch._int_mm(left8, right8.t())
    left8, right8 = (x.to(torch.float8_e4m3fn) for x in (left, right))
    one = torch.ones((), device="cuda")
    return lambda index: torch._scaled_mm(
        left8, right8.t(), scale_a=one, scale_b=one, out_dtype=torch.float16
    )


class Linear(Series):
    """Linear layers over a few tokens."""

    key = "matmul.linear"
    sentence = "Linear layers over a few tokens: how fast weights stream from HBM."
    seconds = 6.0

    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every shape and batch."""
        for inputs, outputs in LINEARS:
            for rows in ROWS:
                yield {"inputs": inputs, "outputs": outputs, "rows": rows, "dtype": "fp16"}

    def bench(self, machine: Machine) -> AbstractContextManager[None]:
        """Nothing."""
        return nullcontext()

    def sample(self, machine: Machine, bench: None, at: Setting) -> Sampled:
        """Time one layer; the volume is bytes of weights."""
        inputs, outputs, rows = (int(at[key]) for key in ("inputs", "outputs", "rows"))
        product, copies = products(machine, inputs, outputs, rows)
        times = machine.timer.per_operation(product, copies=copies, burst_s=2e-3)
        return Sampled(samples=times, volume=2.0 * inputs * outputs)
