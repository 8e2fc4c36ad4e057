"""Attention on the CPU by the compiled kernel, against float64; and asked for through flags."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from kvplan_validate import host_kernel  # noqa: E402

pytestmark = pytest.mark.skipif(host_kernel.library() is None, reason="no C compiler")

BOUNDS = {torch.float16: 5e-4, torch.bfloat16: 4e-3, torch.float32: 1e-6}
SHAPES = (
    (2, 8, 4, 1000, 128),
    (1, 32, 1, 77, 128),
    (3, 4, 7, 513, 64),
    (2, 2, 9, 64, 80),
    (1, 1, 3, 1, 96),
    (1, 2, 16, 4099, 256),
)


def prepared(
    shape: tuple[int, int, int, int, int], dtype: Any
) -> tuple[host_kernel.Attention, Any, Any]:
    batch, heads, group, tokens, dim = shape
    torch.manual_seed(sum(shape))
    query = torch.randn(batch, heads, group, dim).to(dtype)
    keys, values = (torch.randn(batch, heads, tokens, dim).to(dtype) for _ in range(2))
    out = torch.full_like(query, float("nan"))
    lse = torch.full(query.shape[:-1], float("nan"))
    scores = query.double() @ keys.double().transpose(-1, -2) * dim**-0.5
    wanted = torch.softmax(scores, -1) @ values.double()
    attention = host_kernel.Attention(query, keys, values, out, lse)
    return attention, wanted, torch.logsumexp(scores, -1)


def check(attention: host_kernel.Attention, wanted: Any, sums: Any, dtype: Any) -> None:
    error = (attention.out.double() - wanted).norm() / wanted.norm()
    assert error < BOUNDS[dtype]
    torch.testing.assert_close(attention.lse.double(), sums, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_float64(shape: tuple[int, int, int, int, int], dtype: Any) -> None:
    attention, wanted, sums = prepared(shape, dtype)
    attention()
    check(attention, wanted, sums, dtype)


def test_same_result_every_time() -> None:
    attention, _, _ = prepared(SHAPES[0], torch.float16)
    attention()
    first = attention.out.clone()
    for _ in range(20):
        attention.out.fill_(float("nan"))
        attention()
        assert torch.equal(attention.out, first)


def test_large_scores_stay_finite() -> None:
    attention, _, _ = prepared(SHAPES[0], torch.float32)
    attention.query.mul_(1000.0)
    attention()
    assert torch.isfinite(attention.out).all()
    assert torch.isfinite(attention.lse).all()


def test_server_answers_calls_in_order_over_and_over() -> None:
    cases = [prepared(shape, torch.float16) for shape in SHAPES[:3]]
    flags = [host_kernel.new_flags() for _ in cases]
    attentions = [attention for attention, _, _ in cases]
    server = host_kernel.Server(list(zip(attentions, flags, strict=True)))
    try:
        for _ in range(3):
            for (attention, wanted, sums), own in zip(cases, flags, strict=True):
                attention.out.fill_(float("nan"))
                go = ctypes.c_uint32.from_address(host_kernel.go_of(own))
                done = ctypes.c_uint32.from_address(host_kernel.done_of(own))
                go.value = 1
                end = time.monotonic() + 30
                while done.value == 0:
                    assert time.monotonic() < end
                done.value = 0
                check(attention, wanted, sums, torch.float16)
    finally:
        server.close()


def test_unknown_shapes_are_left_to_torch() -> None:
    assert not host_kernel.can_run(torch.float16, 72)
    assert not host_kernel.can_run(torch.float64, 64)
    assert not host_kernel.can_run(torch.float16, 512)
