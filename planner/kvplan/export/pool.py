"""The host pool of a runtime: whole chunks of tokens, all layers together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment
from kvplan.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A host pool of one engine.

    Args:
        asked_bytes: what the plan or the user wants.
        chunk_tokens: tokens per chunk.
        chunk_bytes: K and V of one chunk on all ranks, aligned as the runtime does.
        chunks: whole chunks.
        ranks: ranks that share it.
    """

    asked_bytes: float
    chunk_tokens: int
    chunk_bytes: int
    chunks: int
    ranks: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all ranks together."""
        return self.chunks * self.chunk_bytes

    @property
    def rank_bytes(self) -> int:
        """Bytes of each rank."""
        return math.ceil(self.total_bytes / self.ranks)

    @property
    def taken(self) -> str:
        """Who takes the bytes, as the start of a sentence.

        >>> Pool(asked_bytes=1, chunk_tokens=1, chunk_bytes=1, chunks=1, ranks=2).taken
        '2 ranks take'
        """
        return f"{self.ranks} ranks take" if self.ranks > 1 else "one rank takes"

    @property
    def tokens(self) -> int:
        """Tokens it holds."""
        return self.chunks * self.chunk_tokens


def asked_bytes(
    demand: CacheDemand, deployment: Deployment, token_bytes: float | None = None
) -> float:
    """Bytes of all ranks that the pool should hold.

    Args:
        demand: the plan's cache.
        deployment: ranks and what is asked for.
        token_bytes: one token on all ranks; None for what they hold, copies of heads included.
    """
    if token_bytes is None:
        token_bytes = demand.engine_token_bytes(deployment.ranks)
    if isinstance(deployment.pool, int):
        return float(deployment.pool)
    whole = demand.all_bytes if deployment.pool == "all" else demand.place_bytes["host"]
    if not whole:
        return 0.0
    return whole * token_bytes / demand.token_bytes


def size_pool(
    demand: CacheDemand, deployment: Deployment, chunk_tokens: int, align: int = 1,
    token_bytes: float | None = None,
) -> Pool:  # fmt: skip
    """The pool in whole chunks: rounded up to hold the plan, down to keep within a given size.

    Args:
        demand: the plan's cache.
        deployment: its host.
        chunk_tokens: tokens per chunk of the runtime.
        align: bytes that the runtime rounds a chunk up to.
        token_bytes: one token on all ranks; None for what they hold, copies of heads included.

    Raises:
        InputError: nothing to hold, or less than one chunk.
    """
    if token_bytes is None:
        token_bytes = demand.engine_token_bytes(deployment.ranks)
    asked = asked_bytes(demand, deployment, token_bytes)
    if not asked and isinstance(deployment.pool, str):
        raise InputError(
            "--pool",
            deployment.pool,
            "a size such as 40GiB: this plan keeps everything in HBM and offloads nothing",
        )
    chunk = math.ceil(chunk_tokens * token_bytes)
    chunk = -(-chunk // align) * align
    given = isinstance(deployment.pool, int)
    chunks = int(asked // chunk) if given else math.ceil(asked / chunk - 1e-9)
    if chunks < 1:
        raise InputError(
            "--pool",
            deployment.pool,
            f"at least {format_bytes(chunk)}, one chunk of {chunk_tokens} tokens over all layers; "
            "the runtime would start with a pool that holds nothing",
        )
    return Pool(
        asked_bytes=asked,
        chunk_tokens=chunk_tokens,
        chunk_bytes=chunk,
        chunks=chunks,
        ranks=deployment.ranks,
    )


def round_up(tokens: int, multiple: int) -> int:
    """The next multiple.

    >>> round_up(24, 16), round_up(64, 16)
    (32, 64)
    """
    return -(-tokens // multiple) * multiple
