"""Whether a simple plan does as well: then it is the one to ship."""

from __future__ import annotations

from collections.abc import Mapping

NEAR = 1e-3
"""Rates that differ by less than this share count as equal; the simpler plan is taken."""


def as_good(simple: Mapping[str, float | None], planned: float) -> str | None:
    """The first simple plan that makes as many tokens per second as the planned one.

    Args:
        simple: name to tokens per second, predicted or measured, the simplest first; None where
            the plan is not possible.
        planned: tokens per second of the plan that was searched for.

    Returns:
        The name of the first that comes within NEAR of the best of all; None where the planned
        one is better than every simple one.

    >>> as_good({"resident": None, "default": 28.61}, 24.11), as_good({"default": 7.68}, 15.27)
    ('default', None)
    """
    best = max([planned, *(rate for rate in simple.values() if rate is not None)])
    for name, rate in simple.items():
        if rate is not None and rate * (1 + NEAR) >= best:
            return name
    return None
