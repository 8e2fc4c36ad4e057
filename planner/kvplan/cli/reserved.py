"""What engines set aside for a sequence whose windows also hold a chunk of its prompt."""

from __future__ import annotations

from typing import Any

from kvplan.units import format_bytes


def reserved(size_bytes: int | None, pool_bytes: float, context: int) -> dict[str, Any] | None:
    """The concurrency, and the tokens, that an engine prints for a pool; None without windows.

    >>> reserved(2**30, 2.5 * 2**30, 4096)
    {'bytes_per_sequence': 1073741824, 'max_concurrency': 2.5, 'tokens': 10240}
    """
    if size_bytes is None:
        return None
    most = pool_bytes / size_bytes
    return {
        "bytes_per_sequence": size_bytes, "max_concurrency": most, "tokens": int(most * context),
    }  # fmt: skip


def reserved_words(found: dict[str, Any]) -> str:
    """The same in words."""
    return (
        f"{format_bytes(found['bytes_per_sequence'])} set aside per sequence, with a chunk of the "
        f"prompt in every window: concurrency {found['max_concurrency']:.2f}, "
        f"{found['tokens']:,} tokens, as an engine with a pool for all kinds of layers prints"
    )
