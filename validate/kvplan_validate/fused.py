"""Kernels that torch has no single operation for, in Triton: one pass over memory each.

`available` is False where Triton or a GPU is missing; `kernels` then uses plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl

    available = torch.cuda.is_available()
except ImportError:
    triton = tl = None
    available = False

ROWS = 8
"""Rows of D elements that one program of a kernel handles."""


if triton is not None:

    @triton.jit
    def _dequantise(
        packed,
        scales,
        out,
        rows,
        dim: tl.constexpr,
        group: tl.constexpr,
        bits: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0) * block + tl.arange(0, block)[:, None]
        column = tl.arange(0, dim)[None, :]
        inside = (row < rows) & (column < dim)
        row = row.to(tl.int64)
        byte = tl.load(packed + row * (dim * bits // 8) + column * bits // 8, mask=inside, other=0)
        code = (byte >> ((column % 2) * 4)) & 15 if bits == 4 else byte
        place = (row * (dim // group) + column // group) * 2
        scale = tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
        low = tl.load(scales + place + 1, mask=inside, other=0.0).to(tl.float32)
        value = code.to(tl.float32) * scale + low
        tl.store(out + row * dim + column, value.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _rotate(
        heads,
        table,
        rows,
        batch,
        kv,
        stride_n,
        stride_b,
        stride_k,
        dim: tl.constexpr,
        block: tl.constexpr,
    ):
        half: tl.constexpr = dim // 2
        row = tl.program_id(0) * block + tl.arange(0, block)[:, None]
        column = tl.arange(0, half)[None, :]
        inside = (row < rows) & (column < half)
        row = row.to(tl.int64)
        token = row // (batch * kv)
        place = heads + token * stride_n + (row // kv) % batch * stride_b + row % kv * stride_k
        low = tl.load(place + column, mask=inside, other=0.0).to(tl.float32)
        high = tl.load(place + half + column, mask=inside, other=0.0).to(tl.float32)
        cos = tl.load(table + token * dim + column, mask=inside, other=0.0)
        sin = tl.load(table + token * dim + half + column, mask=inside, other=0.0)
        kind = heads.dtype.element_ty
        tl.store(place + column, (low * cos - high * sin).to(kind), mask=inside)
        tl.store(place + half + column, (high * cos + low * sin).to(kind), mask=inside)

    @triton.jit
    def _merge(outputs, lses, out, parts, rows, dim: tl.constexpr, block: tl.constexpr):
        row = tl.program_id(0) * block + tl.arange(0, block)
        column = tl.arange(0, dim)[None, :]
        inside = row < rows
        row = row.to(tl.int64)
        most = tl.full((block,), float("-inf"), tl.float32)
        for part in range(parts):
            lse = tl.load(lses + part * rows + row, mask=inside, other=0.0)
            most = tl.maximum(most, lse)
        total = tl.zeros((block,), tl.float32)
        summed = tl.zeros((block, dim), tl.float32)
        for part in range(parts):
            lse = tl.load(lses + part * rows + row, mask=inside, other=0.0)
            weight = tl.exp(lse - most)
            total += weight
            place = outputs + (part * rows + row)[:, None] * dim + column
            value = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
            summed += weight[:, None] * value
        merged = (summed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * dim + column, merged, mask=inside[:, None])


def merge(outputs: Tensor, lses: Tensor) -> Tensor:
    """Join ``[P, ..., D]`` partial attentions by their ``[P, ...]`` log-sum-exp."""
    dim, parts = outputs.shape[-1], outputs.shape[0]
    rows = lses[0].numel()
    out = torch.empty_like(outputs[0])
    _merge[(triton.cdiv(rows, ROWS),)](outputs, lses, out, parts, rows, dim, ROWS)
    return out


def dequantise(packed: Tensor, scales: Tensor, bits: int, out: Tensor) -> None:
    """Unpack ``[..., D * bits / 8]`` codes into ``out`` ``[..., D]``, contiguous all."""
    dim, groups = out.shape[-1], scales.shape[-2]
    rows = out.numel() // dim
    grid = (triton.cdiv(rows, ROWS),)
    _dequantise[grid](packed, scales, out, rows, dim, dim // groups, bits, ROWS)


def rotate(heads: Tensor, table: Tensor) -> None:
    """Rotate ``[n, B, KV, D]`` in place; table ``[n, 2, D / 2]`` fp32, contiguous rows."""
    count, batch, kv, dim = heads.shape
    rows = count * batch * kv
    grid = (triton.cdiv(rows, ROWS),)
    _rotate[grid](
        heads, table, rows, batch, kv, heads.stride(0), heads.stride(1), heads.stride(2), dim, ROWS
    )
