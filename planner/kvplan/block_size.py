"""Sizes of blocks: smaller ones are tried where a gap is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvplan.scenario import Scenario

GEMM_TILE = 128
"""Rows that a matrix product works on at once; blocks are kept at multiples of it."""

LEAST_BLOCK = 4
"""Tokens below which a block is not cut."""


def finer_blocks(scenario: Scenario) -> Iterator[int]:
    """Halves of the block size whose rows over a micro-batch still fill whole GEMM tiles."""
    block = scenario.workload.block
    while (
        scenario.options.refine_blocks
        and block % 2 == 0
        and block // 2 >= LEAST_BLOCK
        and block // 2 * scenario.workload.micro_batch % GEMM_TILE == 0
    ):
        block //= 2
        yield block


def block_sizes(scenario: Scenario) -> list[int]:
    """The block size, and its halves down to the smallest."""
    return [scenario.workload.block, *finer_blocks(scenario)]


def with_block(scenario: Scenario, block: int) -> Scenario:
    """The same question in other blocks."""
    workload = replace(scenario.workload, block=block)
    return replace(scenario, workload=workload)
