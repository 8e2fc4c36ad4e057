"""The largest value of a function of whole numbers that rises, then falls."""

from __future__ import annotations

from collections.abc import Callable

GOLDEN = (5**0.5 - 1) / 2

Score = Callable[[int], float | None]
"""A value, or None where the number is too large to be possible."""


def peak(score: Score, least: int, most: int, width: float = 0.0) -> int | None:
    """The number whose score is largest.

    Numbers are doubled until the score falls or is None, then the bracket is narrowed by golden
    section. The score must be None from some number on, or nowhere.

    Args:
        score: what to maximise; called once or more per number, so remember what is dear.
        least: smallest number.
        most: largest number.
        width: bracket, as a share of the number, that is narrow enough.

    Returns:
        The number, or None where not even the least has a score.

    >>> peak(lambda n: -abs(n - 37.0), 1, 1000), peak(lambda n: n if n <= 50 else None, 1, 1000)
    (37, 50)
    """
    value = score(least)
    if value is None:
        return None
    best, low, high = (value, least), least, most
    at = least
    while at < most:
        at = min(at * 2, most)
        value = score(at)
        if value is None:
            high = _last(score, best[1], at)
            break
        if value < best[0]:
            high = at
            break
        low, best = best[1], (value, at)
    return _golden(score, low, high, width)


def _last(score: Score, possible: int, impossible: int) -> int:
    """The largest number that has a score."""
    while impossible - possible > 1:
        middle = (possible + impossible) // 2
        if score(middle) is None:
            impossible = middle
        else:
            possible = middle
    return possible


def _golden(score: Score, low: int, high: int, width: float) -> int:
    def value(at: int) -> float:
        found = score(at)
        return -float("inf") if found is None else found

    ends = (low, high)
    while high - low > max(3.0, width * high):
        step = round((high - low) * GOLDEN)
        left, right = high - step, low + step
        if left == right:
            right += 1
        if value(left) < value(right):
            low = left
        else:
            high = right
    inside = range(low, high + 1) if high - low <= 3 else (low, (low + high) // 2, high)
    best: int = max({*inside, *ends}, key=lambda at: (value(at), -at))
    return best


def least_near(score: Score, at: int, least: int, share: float) -> int:
    """The smallest number below a peak whose score is within a share of the peak's.

    >>> least_near(lambda n: min(n, 40.0), 100, 1, 0.0)
    40
    """
    top = score(at)
    assert top is not None
    enough, short = at, least - 1
    while enough - short > 1:
        middle = (enough + short) // 2
        value = score(middle)
        if value is not None and value >= top * (1 - share):
            enough = middle
        else:
            short = middle
    return enough
