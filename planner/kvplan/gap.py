"""How far a plan is from the bound on all plans."""

from __future__ import annotations


def gap(taken_s: float, bound_s: float) -> float:
    """How much longer a plan takes than the bound, relative; rounding never makes it negative.

    Args:
        taken_s: what the plan takes, seconds.
        bound_s: no plan takes less, seconds; 0 where nothing is known.

    >>> gap(1.5, 1.0), gap(0.1, 0.0)
    (0.5, 0.0)
    """
    return max(taken_s / bound_s - 1.0, 0.0) if bound_s > 0 else 0.0
