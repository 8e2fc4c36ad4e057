"""What it costs to compute tokens from tokens: FLOP, bytes and seconds of chunks of a prefill.

Pure functions of (specs, positions, tokens). A chunk starts where the cache ends: its tokens attend
everything before them, so the same tokens cost more the later they stand.
"""

from __future__ import annotations

from itertools import pairwise

from kvplan import cost
from kvplan.curve import Curve, Piece, affine, latest, pruned, total
from kvplan.dtypes import element_bytes
from kvplan.hardware import HardwareProfile
from kvplan.model import LayerSpec, ModelSpec

ATTENTION_SHARE = 0.8
"""Rate of causal prefill attention as a share of the achieved matrix rate, where none is given.

Source: hwprofiles/measurements/h200-2026-11-29/prefill_restore.json: 588 to 609 TFLOP/s of cuDNN's
kernel over 8k and 16k tokens of 735.8 TFLOP/s of products; flash attention 2 ran at 340 there.
"""

ATTENTION_PIECES = 64
"""Most pieces that the quadratic cost of attention is cut into; equal to it where they meet."""


def attended_pairs(layer: LayerSpec, begin: int, tokens: int) -> int:
    """Pairs of a query and a key it sees, for tokens at positions ``begin`` and on.

    >>> from kvplan.model_library import load_model
    >>> llama = load_model("llama-3.1-8b").layers[0]
    >>> attended_pairs(llama, 0, 4), attended_pairs(llama, 100, 2)  # 1+2+3+4; 101+102
    (10, 203)
    """
    if layer.state is not None or not layer.query_heads:
        return 0
    end = begin + tokens
    if layer.window is None or layer.compression > 1:
        return end * (end + 1) // 2 - begin * (begin + 1) // 2
    edge = min(max(layer.window, begin), end)  # queries from here on see a full window
    growing = edge * (edge + 1) // 2 - begin * (begin + 1) // 2
    return growing + (end - edge) * layer.window


def flop(layer: LayerSpec, begin: int, tokens: int) -> float:
    """FLOP of one layer over a chunk: projections and MLP, then causal attention.

    ``2 * active_params * tokens + 2 * query_heads * (head_dim_k + head_dim_v) * pairs``. Latents
    are expanded to heads, those before the chunk too, or attended as they are, whichever is less.

    >>> from kvplan.model_library import load_model
    >>> llama = load_model("llama-3.1-8b").layers[0]
    >>> flop(llama, 0, 1) == 2 * llama.params + 4 * 32 * 128  # one token that sees itself
    True
    """
    return 2.0 * layer.active_params * tokens + attention_flop(layer, begin, tokens)


def attention_flop(layer: LayerSpec, begin: int, tokens: int) -> float:
    """FLOP of causal attention of a chunk.

    >>> from kvplan.model_library import load_model
    >>> deepseek = load_model("deepseek-v3").layers[0]
    >>> expanded = 2 * 128 * (192 + 128) * (2048 * 2049 // 2) + 2 * 512 * 128 * (128 + 128) * 2048
    >>> attention_flop(deepseek, 0, 2048) == expanded
    True
    """
    per_pair, per_token = _attention_work(layer, begin, tokens)
    return per_pair * attended_pairs(layer, begin, tokens) + per_token * (begin + tokens)


def _attention_work(layer: LayerSpec, begin: int, tokens: int) -> tuple[float, float]:
    """FLOP per pair of query and key, and per token that is attended."""
    per_pair = 2.0 * layer.query_heads * (layer.head_dim_k + layer.head_dim_v)
    per_pair /= layer.compression
    if layer.latent is None:
        return per_pair, 0.0
    heads = layer.head_dim_k - layer.latent.rope + layer.head_dim_v
    expanding = 2.0 * layer.latent.rank * layer.query_heads * heads
    absorbed = 2.0 * (layer.query_elements + layer.partial_elements)
    pairs = attended_pairs(layer, begin, tokens)
    if absorbed * pairs <= per_pair * pairs + expanding * (begin + tokens):
        return absorbed, 0.0
    return per_pair, expanding


def products(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> Curve:
    """Seconds of the matrix products of one layer; the volume is tokens.

    Four products: Q, K and V; output; MLP up; MLP down. Other layers (latents, states, experts):
    all weights are read once, those that a token meets are worked on. A long prefill runs under the
    power limit, so where a lasting rate was measured it is that one.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> a100, llama = load_hardware("a100"), load_model("llama-3.1-8b").layers[0]
    >>> busy = 2 * (llama.params - 2 * 4096) * 8192 / 253e12  # the norms are no products
    >>> round(products(a100, llama, "bf16").seconds(8192) / busy, 3)
    1.001
    """
    lasting = hardware.gpu.gemm_sustained or 1.0
    if not layer.plain:
        gpu = hardware.gpu
        read_s = gpu.kernel_s + layer.params * element_bytes(dtype) / gpu.hbm_bytes_per_s
        rate = cost.flop_per_s(hardware, dtype) * lasting
        return latest(affine(read_s, 0.0), affine(gpu.kernel_s, 2.0 * layer.active_params / rate))
    up = layer.intermediate * (2 if layer.gated_mlp else 1)
    shapes = (
        (layer.hidden, layer.query_heads * layer.head_dim_k + layer.kv_elements),
        (layer.query_heads * layer.head_dim_v, layer.hidden),
        (layer.hidden, up),
        (layer.intermediate, layer.hidden),
    )
    burst = total(*(cost.gemm(hardware, inputs, outputs, dtype) for inputs, outputs in shapes))
    return Curve(tuple(Piece(p.fixed_s, p.s_per_unit / lasting) for p in burst.pieces))


def kernels(layer: LayerSpec) -> int:
    """Kernels of one layer of a chunk: as many as for one token."""
    return cost.project_kernels(layer) + cost.ATTEND_KERNELS + cost.FINISH_KERNELS


def elementwise(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> Curve:
    """Seconds of norms, RoPE, residuals and the activation; the volume is tokens.

    Each is one fused kernel that reads and writes device memory once.
    """
    rotated = layer.query_heads * layer.head_dim_k + layer.kv_heads * layer.head_dim_k
    gate = layer.intermediate * (3 if layer.gated_mlp else 2)
    elements = 6 * layer.hidden + (2 * rotated if layer.rope else 0) + gate
    gpu, count = hardware.gpu, kernels(layer) - cost.ATTEND_KERNELS - 4
    return affine(count * gpu.kernel_s, elements * element_bytes(dtype) / gpu.hbm_bytes_per_s)


def attention_rate(hardware: HardwareProfile) -> float:
    """FLOP/s of causal prefill attention where none was measured."""
    return cost.flop_per_s(hardware, "fp16") * ATTENTION_SHARE


def _reading(hardware: HardwareProfile, layer: LayerSpec, dtype: str, begin: int) -> Curve:
    """Seconds to read K and V of a chunk and of what it attends; the volume is its tokens."""
    size = layer.kv_bytes(element_bytes(dtype))
    before = begin if layer.window is None else min(begin, layer.window)
    if layer.latent is None and size:
        curve = cost.attend(hardware, layer, dtype, 1).scaled(size)
    else:
        curve = affine(hardware.gpu.kernel_s, size / hardware.gpu.hbm_bytes_per_s)
    return Curve(
        tuple(Piece(p.fixed_s + p.s_per_unit * before, p.s_per_unit) for p in curve.pieces)
    )


def attention_s(
    hardware: HardwareProfile, layer: LayerSpec, dtype: str, begin: int, tokens: int,
    flop_per_s: float,
) -> float:  # fmt: skip
    """Seconds of causal attention of a chunk: the longer of its FLOP and of reading K and V once.

    Args:
        hardware: the machine.
        layer: the layer.
        dtype: cache format.
        begin: tokens before the chunk.
        tokens: tokens of the chunk.
        flop_per_s: rate of the kernel.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> a100, llama = load_hardware("a100"), load_model("llama-3.1-8b").layers[0]
    >>> pairs = 2048 * 2049 // 2
    >>> attention_s(a100, llama, "fp16", 0, 2048, 2e14) == 4 * 32 * 128 * pairs / 2e14
    True
    """
    computing_s = attention_flop(layer, begin, tokens) / flop_per_s
    return max(computing_s, _reading(hardware, layer, dtype, begin).seconds(tokens))


def attention(
    hardware: HardwareProfile, layer: LayerSpec, dtype: str, begin: int, most: int,
    flop_per_s: float, block: int = 64,
) -> Curve:  # fmt: skip
    """`attention_s` as a curve over the tokens of the chunk, at most ``most``.

    FLOP grow with the square of the tokens: between whole blocks they are interpolated, never below
    the truth.

    Args:
        hardware: the machine.
        layer: the layer.
        dtype: cache format.
        begin: tokens before the chunk.
        most: tokens of the whole chunk.
        flop_per_s: rate of the kernel.
        block: tokens between the points at which the curve is exact, at least.
    """
    per_pair, per_token = _attention_work(layer, begin, most)
    step = max(block, -(-most // ATTENTION_PIECES))
    nodes = [*range(0, most, step), most]
    times = [
        (x, (per_pair * attended_pairs(layer, begin, x) + per_token * (begin + x)) / flop_per_s)
        for x in nodes
    ]
    chords = []
    for (left, low), (right, high) in pairwise(times):
        slope = (high - low) / (right - left)
        chords.append(Piece(low - slope * left, slope))
    return latest(Curve(pruned(chords)), _reading(hardware, layer, dtype, begin))


def workspace_bytes(model: ModelSpec, tokens: int) -> float:
    """Activations of a chunk: two copies of the widest hidden state with its MLP input, and the
    fp32 logits of one token. Assumed, as an upper bound without fusion.
    """
    widest = max(
        2 * layer.hidden + layer.intermediate * (2 if layer.gated_mlp else 1)
        for layer in model.layers
    )
    return tokens * 2 * widest * element_bytes(model.weight_dtype) + 4 * model.vocab
