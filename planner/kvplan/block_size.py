"""Sizes of blocks: smaller ones are tried where a gap is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvplan.blocks import Blocks
from kvplan.scenario import Scenario

GEMM_ROWS = 32
"""Rows of a matrix product that blocks of what it makes hold a multiple of. At such numbers an H200
takes as long as on the line between multiples of its tiles of 128 rows, a median of 0.5 % more or
less (``validate/results/h200-2026-11-30/gemm_rows.json``).
"""


def finer_blocks(scenario: Scenario) -> Iterator[int]:
    """Halves of the block size whose rows over a micro-batch suit a matrix product."""
    block = scenario.workload.block
    while (
        scenario.options.refine_blocks
        and block % 2 == 0
        and block // 2 * scenario.workload.micro_batch % GEMM_ROWS == 0
    ):
        block //= 2
        yield block


def block_sizes(scenario: Scenario) -> list[int]:
    """The block size, and the smaller ones that all paths may have."""
    return [scenario.workload.block, *finer_blocks(scenario)]


def finest(scenario: Scenario) -> int:
    """The block size of a plan in which only what is rebuilt keeps to more."""
    return 1 if scenario.options.refine_blocks else scenario.workload.block


def blocks_in(scenario: Scenario, block: int) -> Blocks:
    """Blocks of a plan with that block size; larger where rebuilt, if products want more rows."""
    return Blocks(block, max(block, block_sizes(scenario)[-1]))


def with_block(scenario: Scenario, block: int) -> Scenario:
    """The same question in other blocks."""
    workload = replace(scenario.workload, block=block)
    return replace(scenario, workload=workload)
