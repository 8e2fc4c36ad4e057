"""Values between measured points."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place between points, on straight lines of the logarithms.

    Args:
        points: ``(place, value)``, places rising, all above zero.
        at: a place from the first of them up to, not including, the last.

    >>> round(between(((1, 1.0), (4, 2.0)), 2), 3)
    1.414
    """
    above = bisect_right(points, (at, math.inf))
    (low, low_value), (high, high_value) = points[above - 1], points[above]
    part = math.log(at / low) / math.log(high / low)
    return float(low_value * (high_value / low_value) ** part)
