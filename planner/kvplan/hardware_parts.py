"""The parts of a machine: GPU, host, and where their numbers come from. SI, no IO.

Each is checked when it is made; errors name the key as hardware files spell it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from kvplan.curve import Curve, pruned
from kvplan.errors import InputError

Kind = Literal["measured", "datasheet", "assumed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", "int4")


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Where a number comes from.

    Args:
        kind: ``measured`` on a machine, ``datasheet`` of a vendor, or ``assumed`` by a rule.
        source: who measured it, which document, or the rule.
        note: what else a reader should know.
        date: ``yyyy-mm-dd``; None where unknown.
    """

    kind: Kind
    source: str
    note: str = ""
    date: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.kind not in KINDS:
            raise InputError("kind", self.kind, f"one of {', '.join(KINDS)}")
        if not self.source.strip():
            raise InputError("source", self.source, "who measured it, a document, or the rule")


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmCurve:
    """One measured matrix product: seconds over tokens, ``[tokens, inputs] x [inputs, outputs]``.

    Args:
        inputs: input width.
        outputs: output width.
        dtype: format of both operands.
        seconds: the curve over tokens.
    """

    inputs: int
    outputs: int
    dtype: str
    seconds: Curve

    def __post_init__(self) -> None:
        """Check every field."""
        whole("inputs", self.inputs)
        whole("outputs", self.outputs)
        _known_dtype("dtype", self.dtype)
        check_curve("time", self.seconds)


LINEAR_SHAPES = ("wide", "narrow", "any")
"""Linear layers with more outputs than inputs; with no more, whose products are cut along the
inputs and summed to keep a GPU busy; both."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearCurve:
    """Linear layers over a few tokens: seconds over bytes of weights.

    Args:
        tokens: rows of the input.
        seconds: the curve over bytes.
        shape: of the layers, one of `LINEAR_SHAPES`.
    """

    tokens: int
    seconds: Curve
    shape: str = "any"

    def __post_init__(self) -> None:
        """Check every field."""
        whole("tokens", self.tokens)
        check_curve("time", self.seconds)
        if self.shape not in LINEAR_SHAPES:
            raise InputError("shape", self.shape, " or ".join(LINEAR_SHAPES))


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCurve:
    """One measured shape of decode attention: seconds over bytes of K and V of all sequences.

    Args:
        sequences: sequences of the batch.
        kv_heads: KV heads.
        group: query heads per KV head.
        head_dim: width of one head.
        seconds: the curve over bytes.
    """

    sequences: int
    kv_heads: int
    group: int
    head_dim: int
    seconds: Curve

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("sequences", "kv_heads", "group", "head_dim"):
            whole(name, getattr(self, name))
        check_curve("time", self.seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """The GPU.

    Args:
        name: as the vendor writes it.
        memory_bytes: memory that CUDA can allocate.
        hbm_bytes_per_s: usable streaming rate of device memory.
        flop_per_s: achieved dense matrix rate per dtype.
        gemm: measured matrix products; empty where none was measured.
        attention: seconds of one decode-attention kernel over bytes of K and V read; None
            where not measured.
        kernel_s: fixed time of one kernel on the GPU.
        launch_s: CPU time to launch one kernel, not in a graph.
        graph_launch_s: CPU time to launch one captured graph; None where unknown.
        dequantise_bytes_per_s: result bytes written per second, per stored dtype; a dtype that
            is missing was not measured.
        attention_shapes: measured decode attention per batch and grouping; empty where none was.
        gemm_sustained: share of the rate of a short burst of matrix products that lasts, under
            the power limit; None where only one rate is known.
        linear: seconds of one linear layer with few tokens over bytes of its weights; None where
            not measured.
        edge_s: from the end of a copy until a kernel that waits for it starts, or the other way
            round; None where not measured.
        wait_s: what a kernel takes longer that waits for a copy, also for one long done; None
            where not measured.
        sample_s: time per vocabulary entry to pick a token; None where not measured.
    """

    name: str
    memory_bytes: int
    hbm_bytes_per_s: float
    flop_per_s: Mapping[str, float] = field(hash=False)
    gemm: tuple[GemmCurve, ...]
    attention: Curve | None
    kernel_s: float
    launch_s: float
    graph_launch_s: float | None = None
    dequantise_bytes_per_s: Mapping[str, float] = field(hash=False)
    attention_shapes: tuple[AttentionCurve, ...] = ()
    linear: Curve | None = None
    linear_shapes: tuple[LinearCurve, ...] = ()
    gemm_sustained: float | None = None
    edge_s: float | None = None
    wait_s: float | None = None
    sample_s: float | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        whole("memory", self.memory_bytes)
        positive("hbm_bandwidth", self.hbm_bytes_per_s)
        if not self.flop_per_s:
            raise InputError("flop", None, "the rate of at least one dtype, such as fp16")
        _rates("flop", self.flop_per_s)
        if self.attention is not None:
            check_curve("attention", self.attention)
        positive("kernel", self.kernel_s)
        positive("launch", self.launch_s)
        for name in ("graph_launch", "edge", "wait", "sample"):
            seconds = getattr(self, f"{name}_s")
            if seconds is not None:
                positive(name, seconds)
        _rates("dequantise_bandwidth", self.dequantise_bytes_per_s)
        for shape in LINEAR_SHAPES:
            tokens = [curve.tokens for curve in self.linear_shapes if curve.shape == shape]
            if tokens != sorted(tokens):
                raise InputError("linear_points", tokens, "numbers of tokens that rise")
        if self.linear is not None:
            check_curve("linear", self.linear)
        if self.gemm_sustained is not None:
            share("gemm_sustained", self.gemm_sustained)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Host memory, and attention computed on the CPU.

    Args:
        dram_bytes: all of it; 0 where it is the GPU's own memory.
        pinned_bytes: most that can be pinned; None where no limit is known.
        attention_bytes_per_s: K and V bytes per second per dtype, one query head per KV head,
            beside copies where that was measured; empty where unknown.
        attention_gqa_bytes_per_s: the same for grouped-query heads.
        attention_latency_s: fixed time of one call.
        copy_share: share of the link's rate that is left while the CPU attends; None: all of it.
        copy_share_gqa: the same for grouped-query heads.
    """

    dram_bytes: int
    pinned_bytes: int | None = None
    attention_bytes_per_s: Mapping[str, float] = field(hash=False)
    attention_gqa_bytes_per_s: Mapping[str, float] = field(hash=False)
    attention_latency_s: float
    copy_share: float | None = None
    copy_share_gqa: float | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        whole("dram", self.dram_bytes, least=0)
        if self.pinned_bytes is not None:
            whole("pinned", self.pinned_bytes, least=0)
        _rates("attention_bandwidth", self.attention_bytes_per_s)
        _rates("attention_gqa_bandwidth", self.attention_gqa_bytes_per_s)
        positive("attention_latency", self.attention_latency_s)
        for name in ("copy_share", "copy_share_gqa"):
            if getattr(self, name) is not None:
                share(name, getattr(self, name))


def peak_rate(curve: Curve) -> float:
    """The largest volume per second a curve reaches at any volume.

    >>> from kvplan.curve import Piece
    >>> peak_rate(Curve((Piece(1.0, 1.0), Piece(-1.0, 2.0))))  # 2 in 3 s is its best
    0.6666666666666666
    """
    pieces = pruned(curve.pieces)
    best = curve.rate()
    for low, high in pairwise(pieces):
        volume = (low.fixed_s - high.fixed_s) / (high.s_per_unit - low.s_per_unit)
        if volume > 0:
            seconds = curve.seconds(volume)
            best = max(best, volume / seconds) if seconds > 0 else math.inf
    return best


def times(rates: Mapping[str, float], factor: float) -> dict[str, float]:
    """Every rate multiplied."""
    return {dtype: rate * factor for dtype, rate in rates.items()}


def share(field: str, value: object) -> None:
    """Refuse what is not above 0 and at most 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InputError(field, value, "a share above 0 and at most 1")


def positive(name: str, value: float) -> float:
    """Return the value if it is a finite number above zero, else raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(name, value, "a finite number above 0")
    return value


def whole(name: str, value: int, least: int = 1) -> int:
    """Return the value if it is a whole number from ``least`` up, else raise InputError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, value, f"a whole number, {least} or more")
    return value


def check_curve(name: str, curve: Curve) -> None:
    """Raise InputError unless the curve is finite, rises, and never takes negative time."""
    numbers = [n for p in curve.pieces for n in (p.fixed_s, p.s_per_unit)]
    if not numbers or not all(math.isfinite(n) for n in numbers):
        raise InputError(name, curve, "a curve of finite numbers")
    if min(p.s_per_unit for p in curve.pieces) < 0 or curve.seconds(0.0) < 0:
        raise InputError(name, curve, "times that are not negative and do not fall with size")
    if curve.rate() == math.inf:
        raise InputError(name, curve, "a time that grows with size")


def _known_dtype(name: str, dtype: str) -> None:
    if dtype not in DTYPES:
        raise InputError(name, dtype, f"one of {', '.join(DTYPES)}")


def _rates(name: str, rates: Mapping[str, float]) -> None:
    for dtype, rate in rates.items():
        _known_dtype(name, dtype)
        positive(f"{name}.{dtype}", rate)
