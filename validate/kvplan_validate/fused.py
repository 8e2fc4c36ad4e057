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

BLOCK = 64
"""Tokens that a program of the attention loads at a time."""

WAVES = 12
"""Programs of the attention per processor; two or three run at the same time, and the last ones
should be few."""

LEAST_CHUNK = 128
"""Tokens of a run at least; each costs a partial result."""

MOST_PARTS = 64
"""Runs of tokens at most."""

MOST_MERGED = 64
"""Partial results, or new tokens, that a merge loads at a time at most."""

MERGED_BY_WARP = 4
"""Of these, how many one warp of a merge takes: a row with few has one, and nobody to wait for."""

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
    def _norm(rows, weight, out, size, epsilon, centred: tl.constexpr, block: tl.constexpr):
        start = tl.program_id(0).to(tl.int64) * size
        column = tl.arange(0, block)
        inside = column < size
        value = tl.load(rows + start + column, mask=inside, other=0.0).to(tl.float32)
        if centred:
            value = tl.where(inside, value - tl.sum(value) / size, 0.0)
        scale = tl.rsqrt(tl.sum(value * value) / size + epsilon)
        factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        kind = out.dtype.element_ty
        tl.store(out + start + column, (value * scale * factor).to(kind), mask=inside)

    @triton.jit
    def _gate(inner, out, size, block: tl.constexpr):
        row = tl.program_id(1).to(tl.int64)
        column = tl.program_id(0) * block + tl.arange(0, block)
        inside = column < size
        place = inner + row * 2 * size + column
        gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(place + size, mask=inside, other=0.0).to(tl.float32)
        kind = out.dtype.element_ty
        tl.store(out + row * size + column, (gate * tl.sigmoid(gate) * value).to(kind), mask=inside)

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
    def _attend(
        query,
        staged,
        outputs,
        lses,
        tokens,
        chunk,
        rows,
        kv,
        group,
        stride_n,
        stride_b,
        stride_half,
        stride_k,
        scale,
        dim: tl.constexpr,
        heads: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        part = tl.program_id(1)
        head = tl.arange(0, heads)
        column = tl.arange(0, dim)
        asked = head < group
        new = query + (row * group + head)[:, None] * dim + column[None, :]
        wanted = tl.load(new, mask=asked[:, None], other=0.0)
        first = staged + row // kv * stride_b + row % kv * stride_k + column[None, :]
        most = tl.full((heads,), float("-inf"), tl.float32)
        total = tl.zeros((heads,), tl.float32)
        summed = tl.zeros((heads, dim), tl.float32)
        begin = part * chunk
        end = tl.minimum(begin + chunk, tokens)
        for start in range(begin, end, block):
            token = start + tl.arange(0, block)
            inside = token < end
            cached = first + token.to(tl.int64)[:, None] * stride_n
            key = tl.load(cached, mask=inside[:, None], other=0.0)
            value = tl.load(cached + stride_half, mask=inside[:, None], other=0.0)
            score = tl.dot(wanted, tl.trans(key)) * scale
            score = tl.where(inside[None, :], score, float("-inf"))
            larger = tl.maximum(most, tl.max(score, axis=1))
            kept = tl.exp2(most - larger)
            weight = tl.exp2(score - larger[:, None])
            total = total * kept + tl.sum(weight, axis=1)
            summed = tl.dot(weight.to(value.dtype), value, summed * kept[:, None])
            most = larger
        out = (part.to(tl.int64) * rows + row) * group + head
        place = outputs + out[:, None] * dim + column[None, :]
        kind = outputs.dtype.element_ty
        # A run without tokens has a log-sum-exp of minus infinity: it counts for nothing.
        shared = tl.where(total > 0.0, total, 1.0)
        tl.store(place, (summed / shared[:, None]).to(kind), mask=asked[:, None])
        tl.store(lses + out, most * 0.6931471805599453 + tl.log(shared), mask=asked)

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
        news: tl.constexpr,
        block: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, dim)
        asked = tl.load(query + row * dim + column).to(tl.float32)
        newest = tail + row // (kv * group) * stride_b + row // group % kv * dim + column[None, :]
        most = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
        summed = tl.zeros((dim,), tl.float32)
        for start in range(0, count, news):
            token = start + tl.arange(0, news)
            inside = token < count
            place = newest + token.to(tl.int64)[:, None] * stride_t
            key = tl.load(place, mask=inside[:, None], other=0.0).to(tl.float32)
            value = tl.load(place + kv * dim, mask=inside[:, None], other=0.0).to(tl.float32)
            score = tl.where(inside, tl.sum(asked[None, :] * key, axis=1) * scale, float("-inf"))
            larger = tl.maximum(most, tl.max(score, axis=0))
            kept, weight = tl.exp(most - larger), tl.exp(score - larger)
            total = total * kept + tl.sum(weight, axis=0)
            summed = summed * kept + tl.sum(weight[:, None] * value, axis=0)
            most = larger
        for start in range(0, parts, block):
            part = start + tl.arange(0, block)
            inside = part < parts
            at = part.to(tl.int64) * rows + row
            lse = tl.load(lses + at, mask=inside, other=float("-inf"))
            value = tl.load(
                outputs + at[:, None] * dim + column[None, :], mask=inside[:, None], other=0.0
            )
            larger = tl.maximum(most, tl.max(lse, axis=0))
            kept, weight = tl.exp(most - larger), tl.exp(lse - larger)
            total = total * kept + tl.sum(weight, axis=0)
            summed = summed * kept + tl.sum(weight[:, None] * value.to(tl.float32), axis=0)
            most = larger
        tl.store(out + row * dim + column, (summed / total).to(out.dtype.element_ty))


def can_attend(query: Tensor) -> bool:
    """Whether `attend` knows the shape: half precision, a head dimension that is a power of 2."""
    group, dim = query.shape[-2:]
    half = query.dtype in (torch.float16, torch.bfloat16)
    return half and 16 <= dim <= 256 and dim & (dim - 1) == 0 and group <= 64


def parts(rows: int, tokens: int, processors: int) -> int:
    """Runs of tokens that a row is cut into, so that all processors have several to work on.

    >>> parts(rows=8, tokens=4096, processors=132), parts(rows=512, tokens=4096, processors=132)
    (32, 4)
    """
    wanted = -(-WAVES * processors // rows)
    return max(min(wanted, tokens // LEAST_CHUNK, MOST_PARTS), 1)


def attend(query: Tensor, staged: Tensor, outputs: Tensor, lses: Tensor) -> None:
    """Attend ``[n, B, 2, KV, D]`` in as many parts as outputs ``[P, B, KV, G, D]`` has."""
    batch, kv, group, dim = query.shape
    tokens, count = staged.shape[0], outputs.shape[0]
    chunk = -(-tokens // (count * BLOCK)) * BLOCK
    strides = staged.stride(0), staged.stride(1), staged.stride(2), staged.stride(3)
    scale = dim**-0.5 * 1.4426950408889634
    heads = max(triton.next_power_of_2(group), 16)
    _attend[(batch * kv, count)](
        query, staged, outputs, lses, tokens, chunk, batch * kv, kv, group, *strides, scale,
        dim, heads, BLOCK, num_warps=4, num_stages=3,
    )  # fmt: skip


def merge(query: Tensor, tail: Tensor, outputs: Tensor, lses: Tensor) -> Tensor:
    """Attend ``[t, B, 2, KV, D]`` new tokens and join ``[P, B, KV, G, D]`` partial attentions."""
    batch, kv, group, dim = query.shape
    rows, count, joined = batch * kv * group, tail.shape[0], outputs.shape[0]
    news, block = (min(triton.next_power_of_2(max(n, 2)), MOST_MERGED) for n in (count, joined))
    warps = min(max(max(news, block) // MERGED_BY_WARP, 1), 8)
    out = torch.empty_like(query)
    _merge[(rows,)](
        query, tail, outputs, lses, out, joined, count, rows, kv, group,
        tail.stride(0), tail.stride(1), dim**-0.5, dim, news, block, num_warps=warps,
    )  # fmt: skip
    return out


def dequantise(packed: Tensor, scales: Tensor, bits: int, out: Tensor) -> None:
    """Unpack ``[..., D * bits / 8]`` codes into ``out`` ``[..., D]``, contiguous all."""
    dim, groups = out.shape[-1], scales.shape[-2]
    rows = out.numel() // dim
    grid = (triton.cdiv(rows, ROWS),)
    _dequantise[grid](packed, scales, out, rows, dim, dim // groups, bits, ROWS)


def norm(rows: Tensor, weight: Tensor, epsilon: float, *, centred: bool) -> Tensor:
    """RMS norm of ``[B, h]``, or layer norm without bias where the mean is taken off."""
    size, out = rows.shape[-1], torch.empty_like(rows)
    block = triton.next_power_of_2(size)
    warps = min(max(block // 512, 1), 16)
    _norm[(rows.shape[0],)](rows, weight, out, size, epsilon, centred, block, num_warps=warps)
    return out


def gate(inner: Tensor) -> Tensor:
    """``silu(first half) * second half`` of ``[B, 2 I]``."""
    rows, size = inner.shape[0], inner.shape[1] // 2
    out = torch.empty(rows, size, device=inner.device, dtype=inner.dtype)
    block = 1024
    _gate[(triton.cdiv(size, block), rows)](inner, out, size, block)
    return out


def rotate(heads: Tensor, table: Tensor) -> None:
    """Rotate ``[n, B, KV, D]`` in place; table ``[n, 2, D / 2]`` fp32, contiguous rows."""
    count, batch, kv, dim = heads.shape
    rows = count * batch * kv
    grid = (triton.cdiv(rows, ROWS),)
    _rotate[grid](
        heads, table, rows, batch, kv, heads.stride(0), heads.stride(1), heads.stride(2), dim, ROWS
    )
