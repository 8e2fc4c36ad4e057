"""Cost functions: (specs, formats) to curves or seconds. They know no schedule, solver or file.

Each returns a convex `Curve`, so the program can state it and the simulator can evaluate it.
"""

from __future__ import annotations

import math

from kvplan.curve import Curve, Piece, affine, latest
from kvplan.dtypes import element_bytes
from kvplan.hardware import HardwareProfile
from kvplan.hardware_parts import AttentionCurve
from kvplan.model import LayerSpec, ModelSpec

PROJECT_KERNELS = 5
"""Norm, query projection, K and V projection, keeping both. As kvplan's runtime launches them."""

ROTARY_KERNELS = 2
"""Rotating query and key, where the model does."""

FINISH_KERNELS = 7
"""Merge of partials with the new token, keeping the residual, output projection, norm, MLP up,
activation, MLP down. As kvplan's runtime launches them."""

HEAD_KERNELS = 4
"""Final norm, vocabulary projection, choosing and embedding the token."""

ATTEND_KERNELS = 1
"""One partial attention with log-sum-exp per stage; the merge is counted in finish."""


def project_kernels(layer: LayerSpec) -> int:
    """Kernels that projecting a new token launches."""
    return PROJECT_KERNELS + (ROTARY_KERNELS if layer.rope else 0)


def linear(hardware: HardwareProfile, inputs: int, outputs: int, dtype: str, tokens: int) -> float:
    """Seconds of one linear layer over a few tokens: weights are read once.

    Args:
        hardware: the machine.
        inputs: input width.
        outputs: output width.
        dtype: weight format.
        tokens: rows of the input.
    """
    shape = "wide" if outputs > inputs else "narrow"
    read_s = read_weights_s(hardware, inputs * outputs * element_bytes(dtype), tokens, shape)
    work_s = 2.0 * tokens * inputs * outputs / flop_per_s(hardware, dtype)
    return max(read_s, hardware.gpu.kernel_s + work_s)


def read_weights_s(
    hardware: HardwareProfile, size: float, tokens: int, shape: str = "wide"
) -> float:
    """Seconds of one product that reads weights for a few tokens, as measured for that many.

    Args:
        hardware: the machine.
        size: bytes of the weights.
        tokens: rows of the input; the curve of the next larger number that was measured counts.
        shape: of the layer, ``wide`` or ``narrow`` (`LINEAR_SHAPES`).
    """
    gpu = hardware.gpu
    own = [c for c in gpu.linear_shapes if c.shape in (shape, "any")] or gpu.linear_shapes
    enough = [c for c in own if c.tokens >= tokens] or own[-1:]
    if enough:
        return enough[0].seconds.between_points(size)
    if gpu.linear is not None:
        return gpu.linear.seconds(size)
    return gpu.kernel_s + size / gpu.hbm_bytes_per_s


def flop_per_s(hardware: HardwareProfile, dtype: str) -> float:
    """Achieved dense matrix rate in a format; fp16 and bf16 stand in for each other."""
    rates = hardware.gpu.flop_per_s
    for name in (dtype, "fp16", "bf16"):
        if name in rates:
            return rates[name]
    return max(rates.values())


def gemm(hardware: HardwareProfile, inputs: int, outputs: int, dtype: str) -> Curve:
    """Seconds of one matrix product over many tokens; the curve's volume is tokens.

    Where the profile holds measured products, the one nearest in weight count is scaled by the
    ratio of weights; never less than reading the weights once.
    """
    gpu = hardware.gpu
    read_s = gpu.kernel_s + inputs * outputs * element_bytes(dtype) / gpu.hbm_bytes_per_s
    weights = inputs * outputs
    if not gpu.gemm:
        work = affine(gpu.kernel_s, 2.0 * weights / flop_per_s(hardware, dtype))
    else:
        nearest = min(gpu.gemm, key=lambda g: abs(math.log(g.inputs * g.outputs / weights)))
        ratio = weights / (nearest.inputs * nearest.outputs)
        work = Curve(
            tuple(type(p)(p.fixed_s * ratio, p.s_per_unit * ratio) for p in nearest.seconds.pieces)
        )
    return latest(affine(read_s, 0.0), work)


def rebuild(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> Curve:
    """Seconds to rebuild K and V from activations; the curve's volume is tokens.

    Two projections (4hw FLOP per token, w the K or V width), or one down-projection to the latent,
    then RoPE reads and writes K. Rebuilds
    go on for the whole step, so where a rate under the power limit was measured it is that one.

    Source: KVPR, arXiv 2411.17089, equations 6-11, for the FLOP.
    """
    lasting = hardware.gpu.gemm_sustained or 1.0
    burst = gemm(hardware, layer.activation_elements, layer.kv_elements, dtype)
    product = Curve(tuple(Piece(p.fixed_s, p.s_per_unit / lasting) for p in burst.pieces))
    if not layer.rope:
        return product
    rotated = layer.latent.rope if layer.latent else layer.kv_heads * layer.head_dim_k
    k_bytes = rotated * element_bytes(dtype)
    gpu = hardware.gpu
    return product.plus(gpu.kernel_s, 2.0 * k_bytes / gpu.hbm_bytes_per_s)


def attend(
    hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int,
    most_tokens: float = math.inf,
) -> Curve:  # fmt: skip
    """Seconds of one partial decode attention; the curve's volume is bytes of K and V read.

    It follows what was measured up to ``most_tokens`` of each sequence.

    All query heads work on the one latent of a token, so with many heads a latent takes as long
    as the products need: ``2 * heads * (width + rank)`` FLOP per token.

    Of the shapes that were measured, the one nearest in rows (sequences times KV heads) is taken,
    since rows are what the kernel spreads over the GPU; then the one nearest in grouping.
    """
    gpu = hardware.gpu
    if not gpu.attention_shapes:
        read = gpu.attention or affine(gpu.kernel_s, 1.0 / gpu.hbm_bytes_per_s)
    else:
        group, rows = layer.query_heads / layer.cache_heads, sequences * layer.cache_heads

        def distance(shape: AttentionCurve) -> tuple[float, float]:
            apart = abs(math.log(shape.sequences * shape.kv_heads / rows))
            return apart, abs(math.log(shape.group / group))

        read = min(gpu.attention_shapes, key=distance).seconds
    read = read.within(layer.kv_bytes(element_bytes(dtype)) * sequences * most_tokens)
    if layer.latent is None:
        return read
    work = 2.0 * (layer.query_elements + layer.partial_elements)
    per_byte = work / layer.kv_bytes(element_bytes(dtype))
    return latest(read, affine(gpu.kernel_s, per_byte / flop_per_s(hardware, dtype)))


def attend_work(hardware: HardwareProfile, layer: LayerSpec, dtype: str, new: int) -> Curve:
    """Seconds that the products of several queries need; the volume is bytes of K and V read.

    Each new token of a sequence takes ``2 * heads * (K + V width)`` FLOP per cached token, at the
    rate of matrix products; with many of them that is the limit and no longer reading.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> layer = load_model("llama-7b").layers[0]  # 32 heads of 128; a token is 16 KiB
    >>> curve = attend_work(load_hardware("a100"), layer, "fp16", 64)
    >>> round(curve.pieces[0].s_per_unit * 16384 * flop_per_s(load_hardware("a100"), "fp16"))
    1048576
    """
    work = 2.0 * new * (layer.query_elements + layer.partial_elements)
    per_byte = work / layer.kv_bytes(element_bytes(dtype))
    return affine(hardware.gpu.kernel_s, per_byte / flop_per_s(hardware, dtype))


def attend_new_s(
    hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int, new: int
) -> float:
    """Seconds in which the new tokens of each sequence attend to each other, all to all; one new
    token is part of the merge.
    """
    if new == 1:
        return 0.0
    work = 2.0 * sequences * new * new * (layer.query_elements + layer.partial_elements)
    return hardware.gpu.kernel_s + work / flop_per_s(hardware, dtype)


def new_bytes(model: ModelSpec, dtype: str, sequences: int, new: int) -> float:
    """Bytes of K and V of several new tokens a sequence, of two layers: one that is computed, one
    that is sent to its place; one new token is in the workspace.
    """
    if new == 1:
        return 0.0
    rows = sequences * new
    return 2.0 * rows * max(layer.kv_bytes(element_bytes(dtype)) for layer in model.layers)


def attend_staged(
    hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int,
    most_tokens: float = math.inf,
) -> Curve:  # fmt: skip
    """As `attend`, for tokens that a copy brings: a kernel that waits takes a little longer."""
    attended = attend(hardware, layer, dtype, sequences, most_tokens)
    return attended.plus(hardware.gpu.wait_s or 0.0, 0.0)


def edge_s(hardware: HardwareProfile) -> dict[tuple[str, str], float]:
    """Seconds between the end of an operation and the start of one on another resource that waits
    for it, by both resources; pairs that are missing take none.
    """
    seconds = hardware.gpu.edge_s
    return {} if seconds is None else {("h2d", "gpu"): seconds, ("gpu", "h2d"): seconds}


def dequantise(hardware: HardwareProfile, stored_dtype: str, dtype: str) -> Curve:
    """Seconds to unpack a block; the curve's volume is bytes written.

    Where the profile has no measured rate: packed bytes read and result written at HBM rate.
    """
    gpu = hardware.gpu
    rate = gpu.dequantise_bytes_per_s.get(stored_dtype)
    if rate is None:
        packed = element_bytes(stored_dtype) / element_bytes(dtype)
        rate = gpu.hbm_bytes_per_s / (1.0 + packed)
    return affine(gpu.kernel_s, 1.0 / rate)


def copy_to_gpu(hardware: HardwareProfile) -> Curve:
    """Seconds of one host-to-device copy in a queue of copies; the volume is bytes."""
    return hardware.h2d.copy


def copy_to_host(hardware: HardwareProfile) -> Curve:
    """Seconds of one device-to-host copy; the volume is bytes."""
    return hardware.d2h.copy


def read_disk(hardware: HardwareProfile) -> Curve | None:
    """Seconds of one disk read; the volume is bytes. None where the machine has no disk."""
    return hardware.disk.read if hardware.disk else None


def attend_host(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> Curve | None:
    """Seconds of attention on the CPU; the volume is bytes of K and V. None where unknown."""
    host = hardware.host
    grouped = layer.query_heads > layer.cache_heads
    rates = host.attention_gqa_bytes_per_s if grouped else host.attention_bytes_per_s
    rate = rates.get(dtype)
    return None if rate is None else affine(host.attention_latency_s, 1.0 / rate)


def weights_s(
    hardware: HardwareProfile, read: float, used: float, dtype: str, tokens: int
) -> float:
    """Seconds of products over a few tokens whose shapes do not matter.

    Args:
        hardware: the machine.
        read: weights read, elements.
        used: weights that each token meets, elements.
        dtype: weight format.
        tokens: rows of the input.
    """
    if read <= 0:
        return 0.0
    gpu = hardware.gpu
    size = read * element_bytes(dtype)
    read_s = read_weights_s(hardware, size, tokens)
    return max(read_s, gpu.kernel_s + 2.0 * tokens * used / flop_per_s(hardware, dtype))


def attend_tier(hardware: HardwareProfile) -> Curve | None:
    """Seconds of attention over K and V in the what-if tier; the volume is bytes. None without."""
    tier = hardware.tier
    if tier is None or tier.attended_by == "none":
        return None
    fixed_s = hardware.gpu.kernel_s if tier.attended_by == "gpu" else 0.0
    return affine(fixed_s, 1.0 / tier.bytes_per_s)


def read_tier(hardware: HardwareProfile) -> Curve | None:
    """Seconds of one read out of the what-if tier; the volume is bytes. None without.

    Assumed to start as a copy does, and to end no earlier than the tier's rate allows.
    """
    tier = hardware.tier
    if tier is None or tier.attended_by != "none":
        return None
    fixed_s = max(piece.fixed_s for piece in hardware.h2d.copy.pieces)
    return affine(fixed_s, 1.0 / tier.bytes_per_s)


def project_s(hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int) -> float:
    """Seconds of the norm and the QKV projection of the new token.

    Layers with a latent, an index, a state or a source read all of their attention weights here
    but the output projection.
    """
    kernels_s = (project_kernels(layer) - 2) * hardware.gpu.kernel_s
    if layer.plain or (layer.experts and not _unusual(layer)):
        queries = layer.query_heads * layer.head_dim_k
        return (
            kernels_s
            + linear(hardware, layer.hidden, queries, dtype, sequences)
            + linear(hardware, layer.hidden, layer.kv_elements, dtype, sequences)
        )
    output = layer.query_heads * layer.head_dim_v * layer.hidden
    weights = max(layer.attention_params - output, 0)
    return kernels_s + weights_s(hardware, weights, weights, dtype, sequences)


def _unusual(layer: LayerSpec) -> bool:
    """Whether its attention is more or less than its own K and V heads."""
    return not layer.kv_elements or bool(
        layer.latent or layer.state or layer.index or layer.cross or layer.compression > 1
    )


def finish_s(hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int) -> float:
    """Seconds of the merge, the output projection and the MLP of the new token.

    Of experts, those are read that the sequences are expected to touch (`Experts.touched`). Ranks
    add up what the output projection gives, and what the MLP gives.
    """
    reduced_s = all_reduce_s(hardware, sequences * layer.hidden * element_bytes(dtype))
    seconds = (FINISH_KERNELS - 3) * hardware.gpu.kernel_s + reduced_s
    heads = layer.query_heads * layer.head_dim_v
    if heads:
        seconds += linear(hardware, heads, layer.hidden, dtype, sequences)
    if layer.experts is not None:
        read = layer.read_params(sequences) - layer.attention_params
        used = layer.active_params - layer.attention_params
        return seconds + reduced_s + weights_s(hardware, read, used, dtype, sequences)
    if not layer.intermediate:
        return seconds
    up = layer.intermediate * (2 if layer.gated_mlp else 1)
    return (
        seconds
        + linear(hardware, layer.hidden, up, dtype, sequences)
        + linear(hardware, layer.intermediate, layer.hidden, dtype, sequences)
        + reduced_s
    )


def held_s(hardware: HardwareProfile, layer: LayerSpec, held: float, borrowed: float) -> float:
    """Seconds to read what a layer attends or updates without placing it token by token.

    Args:
        hardware: the machine.
        layer: the layer.
        held: bytes of state, source and raw window, of all sequences; a state is also written.
        borrowed: bytes it reads of another layer's cache.
    """
    if not held and not borrowed:
        return 0.0
    passes = 2.0 if layer.state is not None else 1.0
    return hardware.gpu.kernel_s + (passes * held + borrowed) / hardware.gpu.hbm_bytes_per_s


PEER_LATENCY_S = 30e-6
"""Of a collective over host memory, where a profile says nothing of peers: assumed, twice the
latency of a tiny copy to the host and back (14.7 us each measured on one H200's host).
"""


def all_reduce_s(hardware: HardwareProfile, size: float) -> float:
    """Seconds of adding up a result over all ranks: latency, then ``2 (T - 1) / T`` of its bytes.

    Where the profile knows no peer link the bytes go through host memory at the link's rate.

    Args:
        hardware: the machine, one rank of T.
        size: bytes of the result.

    Source: bandwidth-optimal ring, Patarasuk and Yuan, JPDC 69(2), 2009.
    """
    ranks, peer = hardware.ranks, hardware.peer
    if ranks == 1:
        return 0.0
    share = 2.0 * (ranks - 1) / ranks
    if peer is None:
        return PEER_LATENCY_S + share * size / hardware.h2d.copy.rate()
    return peer.latency_s + share * size / peer.bytes_per_s


def head_s(hardware: HardwareProfile, model: ModelSpec, sequences: int) -> float:
    """Seconds of the final norm, the vocabulary projection and sampling."""
    gpu = hardware.gpu
    width = max(model.head_params // model.vocab, 1)
    sample_s = (gpu.sample_s or 0.0) * model.vocab
    extra_s = (HEAD_KERNELS - 2) * gpu.kernel_s + max(sample_s, gpu.kernel_s)
    return extra_s + linear(hardware, width, model.vocab, model.weight_dtype, sequences)


def make_way(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> Curve | None:
    """Seconds that the link loses to the CPU's attention; the volume is bytes of K and V.

    While the CPU streams memory, copies from it run at a share of their rate.
    """
    attending = attend_host(hardware, layer, dtype)
    grouped = layer.query_heads > layer.kv_heads
    left = hardware.host.copy_share_gqa if grouped else hardware.host.copy_share
    if attending is None or left is None:
        return None
    return affine(0.0, (1.0 - left) * attending.pieces[-1].s_per_unit)


def query_s(hardware: HardwareProfile, layer: LayerSpec, dtype: str, sequences: int) -> float:
    """Seconds until a query has reached the host: latency plus its few bytes."""
    size = sequences * layer.query_elements * element_bytes(dtype)
    return hardware.d2h.latency_s + size / hardware.d2h.copy.rate()


def partial_s(hardware: HardwareProfile, layer: LayerSpec, sequences: int) -> float:
    """Seconds until a partial result (fp32, with its log-sum-exp) has come back from the host."""
    size = sequences * (layer.partial_elements + layer.query_heads) * 4
    return hardware.h2d.latency_s + size / hardware.h2d.copy.rate()


def weight_bytes(model: ModelSpec, layer: LayerSpec) -> float:
    """Bytes of one layer's weights."""
    return layer.params * element_bytes(model.weight_dtype)


def streamable_bytes(model: ModelSpec, layer: LayerSpec) -> float:
    """Bytes of one layer's weights that may be streamed: all but the K and V projections, which
    rebuilds need before the layer is reached.
    """
    kept = layer.hidden * layer.kv_elements
    return max(layer.params - kept, 0) * element_bytes(model.weight_dtype)


def shared_weight_bytes(model: ModelSpec) -> float:
    """Bytes of embeddings and head, which always stay in HBM."""
    layers = sum(layer.params for layer in model.layers)
    return (model.params - layers) * element_bytes(model.weight_dtype)


def workspace_bytes(model: ModelSpec, sequences: int) -> float:
    """Activation workspace of one decode step of a micro-batch: two copies of the widest hidden
    state and its MLP input, and fp32 logits. Assumed, as an upper bound without fusion.
    """
    widest = max(
        2 * layer.hidden + layer.intermediate * (2 if layer.gated_mlp else 1)
        for layer in model.layers
    )
    size = max(element_bytes(model.weight_dtype), 2.0)  # activations of quantised weights
    return sequences * (2 * widest * size + 4 * model.vocab)
