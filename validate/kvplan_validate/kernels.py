"""The arithmetic of a decode step in torch: partial attention, merge, rotary embedding, unpacking.

Shapes: B sequences of a micro-batch, n tokens, H query heads, KV key-value heads, G = H / KV, D
head dimension. K and V of a token lie beside each other: ``[n, B, 2, KV, D]`` (token-major), so
that any run of tokens of the whole batch is one contiguous copy and one product writes both.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kvplan.dtypes import QUANTISED_GROUP
from kvplan_validate import fused


def partial_attention(query: Tensor, staged: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of new tokens over a run of cached ones.

    Args:
        query: ``[B, KV, G, D]``.
        staged: ``[n, B, 2, KV, D]``, token-major.

    Returns:
        Output ``[B, KV, G, D]`` and its log-sum-exp ``[B, KV, G]`` in fp32.
    """
    keys = staged[:, :, 0].permute(1, 2, 0, 3)
    values = staged[:, :, 1].permute(1, 2, 0, 3)
    return attention(query, keys, values)


def parts(query: Tensor, tokens: int) -> int:
    """Partial results that `attend` writes for a run of tokens."""
    if not (fused.available and query.is_cuda and fused.can_attend(query)):
        return 1
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    return fused.parts(query.shape[0] * query.shape[1], tokens, processors)


def attend(query: Tensor, staged: Tensor, outputs: Tensor, lses: Tensor) -> None:
    """As `partial_attention`, into given memory.

    Args:
        query: ``[B, KV, G, D]``.
        staged: ``[n, B, 2, KV, D]``, token-major.
        outputs: ``[P, B, KV, G, D]``, written; P as `parts` says.
        lses: ``[P, B, KV, G]`` in fp32, written.
    """
    if fused.available and query.is_cuda and fused.can_attend(query):
        fused.attend(query, staged, outputs, lses)
        return
    out, lse = partial_attention(query, staged)
    outputs[0].copy_(out)
    lses[0].copy_(lse)


def attention(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """As `partial_attention` for keys and values ``[B, KV, n, D]`` of any strides."""
    scale = query.shape[-1] ** -0.5
    if query.is_cuda:
        result = torch.ops.aten._scaled_dot_product_flash_attention(
            query, keys, values, 0.0, False, False, scale=scale
        )
        return result[0], result[1]
    scores = torch.matmul(query.float() * scale, keys.float().transpose(-1, -2))
    lse = torch.logsumexp(scores, dim=-1)
    out = torch.matmul(torch.exp(scores - lse[..., None]), values.float())
    return out.to(query.dtype), lse


def host_attention(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention on the CPU over head-major blocks ``[B, KV, n, D]``, in their own dtype.

    With the group folded into the query length, torch's fused CPU kernel reads K and V once; it
    sums in fp32.
    """
    result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, scale=query.shape[-1] ** -0.5
    )
    return result[0], result[1]


def merge(query: Tensor, tail: Tensor, outputs: Tensor, lses: Tensor) -> Tensor:
    """Attend the newest tokens and join partial attentions by their log-sum-exp.

    Args:
        query: ``[B, KV, G, D]``.
        tail: tokens generated since the plan began ``[t, B, 2, KV, D]``, the new one last.
        outputs: partial outputs ``[P, B, KV, G, D]``.
        lses: their log-sum-exp ``[P, B, KV, G]`` in fp32.

    Returns:
        ``[B, KV, G, D]``.
    """
    if fused.available and query.is_cuda:
        return fused.merge(query, tail, outputs, lses)
    out, lse = partial_attention(query, tail)
    weights = torch.softmax(torch.cat((lses, lse[None])), dim=0)
    outputs = torch.cat((outputs, out[None]))
    return torch.einsum("pbkgd,pbkg->bkgd", outputs.float(), weights).to(query.dtype)


def norm(rows: Tensor, weight: Tensor, epsilon: float, *, centred: bool) -> Tensor:
    """RMS norm of ``[B, h]``; layer norm without bias where ``centred``."""
    if fused.available and rows.is_cuda:
        return fused.norm(rows, weight, epsilon, centred=centred)
    size = (rows.shape[-1],)
    if centred:
        return functional.layer_norm(rows, size, weight, None, epsilon)
    return functional.rms_norm(rows, size, weight, epsilon)


def gate(inner: Tensor) -> Tensor:
    """SwiGLU's gate over ``[B, 2 I]``: gate first, then value."""
    if fused.available and inner.is_cuda:
        return fused.gate(inner)
    first, second = inner.chunk(2, dim=-1)
    return functional.silu(first) * second


def rotary_table(positions: int, dim: int, theta: float, device: torch.device) -> Tensor:
    """Cosines and sines ``[positions, 2, D / 2]`` in fp32."""
    inverse = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    return torch.stack((angles.cos(), angles.sin()), dim=1).float().to(device)


def rotate(heads: Tensor, table: Tensor) -> None:
    """Apply rotary embedding in place, halves convention.

    Args:
        heads: ``[n, ..., D]``, row i at the position of the table's row i.
        table: ``[n, 2, D / 2]`` or ``[1, 2, D / 2]``.
    """
    if fused.available and heads.is_cuda and heads.dim() == 4 and heads.shape[0] == table.shape[0]:
        fused.rotate(heads, table)
        return
    half = heads.shape[-1] // 2
    shape = (table.shape[0], *(1,) * (heads.dim() - 2), half)
    cos = table[:, 0].reshape(shape).to(heads.dtype)
    sin = table[:, 1].reshape(shape).to(heads.dtype)
    low, high = heads[..., :half], heads[..., half:]
    rotated = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    heads.copy_(rotated)


def quantise(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Pack ``[..., C]`` to 8 or 4 bits, one scale and one minimum per group of channels.

    Returns:
        Packed uint8 ``[..., C * bits / 8]`` and ``[..., C / group, 2]`` scales and minima.
    """
    group = min(QUANTISED_GROUP, values.shape[-1])
    grouped = values.reshape(*values.shape[:-1], -1, group).float()
    low = grouped.amin(-1)
    scale = ((grouped.amax(-1) - low) / (2**bits - 1)).clamp_min(1e-8)
    scale, low = scale.to(values.dtype), low.to(values.dtype)
    codes = (grouped - low.float()[..., None]) / scale.float()[..., None]
    codes = codes.round().clamp(0, 2**bits - 1).to(torch.uint8).reshape(values.shape)
    if bits == 4:
        codes = codes[..., ::2] | (codes[..., 1::2] << 4)
    return codes.contiguous(), torch.stack((scale, low), dim=-1)


def dequantise(packed: Tensor, scales: Tensor, bits: int, out: Tensor) -> None:
    """Unpack what `quantise` packed into ``out``, of the original shape."""
    if fused.available and out.is_cuda:
        fused.dequantise(packed, scales, bits, out)
        return
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2) if bits == 4 else packed
    group = out.shape[-1] // scales.shape[-2]
    grouped = codes.reshape(*out.shape[:-1], -1, group).to(out.dtype)
    out.copy_((grouped * scales[..., :1] + scales[..., 1:]).reshape(out.shape))
