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
    def _merge(
        query,
        tail,
        outputs,
        lses,
        out,
        parts,
        count,
        rows,
        kv,
        group,
        stride_t,
        stride_b,
        scale,
        dim: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0) * block + tl.arange(0, block)
        column = tl.arange(0, dim)[None, :]
        inside = row < rows
        row = row.to(tl.int64)
        sequence = row // (kv * group)
        head = row // group % kv
        asked = tl.load(query + row[:, None] * dim + column, mask=inside[:, None], other=0.0)
        asked = asked.to(tl.float32)
        most = tl.full((block,), float("-inf"), tl.float32)
        total = tl.zeros((block,), tl.float32)
        summed = tl.zeros((block, dim), tl.float32)
        for token in range(count):
            place = tail + token * stride_t + sequence * stride_b + head * dim
            place = place[:, None] + column
            key = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
            value = tl.load(place + kv * dim, mask=inside[:, None], other=0.0).to(tl.float32)
            score = tl.sum(asked * key, axis=1) * scale
            larger = tl.maximum(most, score)
            kept, weight = tl.exp(most - larger), tl.exp(score - larger)
            total = total * kept + weight
            summed = summed * kept[:, None] + weight[:, None] * value
            most = larger
        for part in range(parts):
            lse = tl.load(lses + part * rows + row, mask=inside, other=0.0)
            larger = tl.maximum(most, lse)
            kept, weight = tl.exp(most - larger), tl.exp(lse - larger)
            total = total * kept + weight
            place = outputs + (part * rows + row)[:, None] * dim + column
            value = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
            summed = summed * kept[:, None] + weight[:, None] * value
            most = larger
        merged = (summed / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + row[:, None] * dim + column, merged, mask=inside[:, None])


def merge(query: Tensor, tail: Tensor, outputs: Tensor, lses: Tensor) -> Tensor:
    """Attend ``[t, B, 2, KV, D]`` new tokens and join ``[P, B, KV, G, D]`` partial attentions."""
    batch, kv, group, dim = query.shape
    rows = batch * kv * group
    out = torch.empty_like(query)
    _merge[(triton.cdiv(rows, ROWS),)](
        query,
        tail,
        outputs,
        lses,
        out,
        outputs.shape[0],
        tail.shape[0],
        rows,
        kv,
        group,
        tail.stride(0),
        tail.stride(1),
        dim**-0.5,
        dim,
        ROWS,
    )
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
