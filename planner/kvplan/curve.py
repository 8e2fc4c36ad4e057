"""Convex piecewise-linear cost curves: seconds over a volume (bytes, FLOP or tokens).

A curve is the maximum of affine pieces, so a linear program states it exactly and a number
evaluates it directly: the same object serves both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Piece:
    """One affine piece: ``fixed_s + s_per_unit * volume``; neither is negative in slope."""

    fixed_s: float
    s_per_unit: float


@dataclass(frozen=True, slots=True)
class Curve:
    """``seconds(volume) = max over pieces (fixed_s + s_per_unit * volume)``.

    Units of ``volume`` are those of the quantity the curve was measured over.

    Args:
        pieces: the affine pieces.
        points: measured ``(volume, seconds)`` that it follows, in rising order; none where it was
            put together from other curves.
    """

    pieces: tuple[Piece, ...]
    points: tuple[tuple[float, float], ...] = ()

    def seconds(self, volume: float) -> float:
        """Time of one operation of this volume.

        >>> Curve((Piece(1.0, 0.0), Piece(0.0, 2.0))).seconds(3.0)
        6.0
        """
        if len(self.pieces) == 1:
            return self.pieces[0].fixed_s + self.pieces[0].s_per_unit * volume
        return max([p.fixed_s + p.s_per_unit * volume for p in self.pieces])

    def between_points(self, volume: float) -> float:
        """Time of one operation of this volume, on straight lines between its points; as `seconds`
        beyond them, or where there are none. Need not be convex, so it is for volumes that no plan
        decides.

        >>> bent = measured([(1.0, 2.0), (2.0, 3.5), (4.0, 5.0)])
        >>> bent.seconds(3.0), bent.between_points(3.0), bent.between_points(8.0)
        (4.0, 4.25, 10.0)
        """
        if not self.points or not self.points[0][0] <= volume <= self.points[-1][0]:
            return self.seconds(volume)
        places = [place for place, _ in self.points]
        above = min(bisect_right(places, volume), len(places) - 1)
        left, right = self.points[above - 1], self.points[above]
        return left[1] + _slope(left, right) * (volume - left[0])

    def scaled(self, factor: float) -> Curve:
        """The curve over a volume in another unit: ``scaled(k).seconds(v) == seconds(k * v)``.

        >>> affine(1.0, 2.0).scaled(10.0).seconds(3.0)
        61.0
        """
        pieces = tuple(Piece(p.fixed_s, p.s_per_unit * factor) for p in self.pieces)
        return Curve(pieces, tuple((v / factor, s) for v, s in self.points if factor > 0))

    def faster(self, rate: float) -> Curve:
        """Every time divided by ``rate``.

        >>> affine(1.0, 2.0).faster(2.0).seconds(3.0)
        3.5
        """
        pieces = tuple(Piece(p.fixed_s / rate, p.s_per_unit / rate) for p in self.pieces)
        return Curve(pieces, tuple((v, s / rate) for v, s in self.points))

    def within(self, most: float) -> Curve:
        """The curve for volumes up to ``most``, closer to its points there.

        What was measured over a wide range need not be convex, and far points pull the hull below
        near ones. Points beyond ``most`` are left out, one between the points around it is added.

        >>> wide = measured([(1.0, 2.0), (2.0, 3.5), (4.0, 5.0), (16.0, 17.0)])
        >>> wide.seconds(2.0), wide.within(3.0).seconds(2.0), wide.within(2.0).seconds(2.0)
        (3.0, 3.125, 3.5)
        """
        inside = [point for point in self.points if point[0] < most]
        if not inside or len(inside) == len(self.points):
            return self
        left, right = inside[-1], self.points[len(inside)]
        end = left[1] + _slope(left, right) * (most - left[0])
        return measured([*inside, (most, end)])

    def plus(self, fixed_s: float = 0.0, s_per_unit: float = 0.0) -> Curve:
        """The curve with an affine cost added to every piece (work done one after the other).

        >>> affine(1.0, 2.0).plus(0.5, 1.0).seconds(1.0)
        4.5
        """
        return Curve(
            tuple(Piece(p.fixed_s + fixed_s, p.s_per_unit + s_per_unit) for p in self.pieces)
        )

    def times(self, factor: float) -> Curve:
        """Every time multiplied: ``times(k).seconds(v) == k * seconds(v)``.

        >>> affine(1.0, 2.0).times(3.0).seconds(1.0)
        9.0
        """
        return Curve(tuple(Piece(p.fixed_s * factor, p.s_per_unit * factor) for p in self.pieces))

    def rate(self) -> float:
        """Units per second that very large operations approach.

        >>> affine(1e-6, 1 / 25e9).rate()
        25000000000.0
        """
        slope = max(p.s_per_unit for p in self.pieces)
        return 1 / slope if slope > 0 else float("inf")


ZERO = Curve((Piece(0.0, 0.0),))


def affine(fixed_s: float, s_per_unit: float) -> Curve:
    """One piece.

    >>> affine(1.0, 2.0).seconds(3.0)
    7.0
    """
    return Curve((Piece(fixed_s, s_per_unit),))


def latest(*curves: Curve) -> Curve:
    """The maximum of several curves over the same volume (work done side by side).

    >>> latest(affine(1.0, 0.0), affine(0.0, 1.0)).seconds(0.25)
    1.0
    """
    return Curve(pruned(p for c in curves for p in c.pieces))


def total(*curves: Curve) -> Curve:
    """The sum of several curves over the same volume (work done one after the other).

    >>> both = total(latest(affine(1.0, 0.0), affine(0.0, 1.0)), affine(0.0, 2.0))
    >>> [both.seconds(v) for v in (0.0, 1.0, 2.0)]
    [1.0, 3.0, 6.0]
    """
    parts = [pruned(curve.pieces) for curve in curves]
    edges = {0.0}
    for pieces in parts:
        edges |= {max(_crossing(low, high), 0.0) for low, high in pairwise(pieces)}
    starts = sorted(edges)
    found = []
    for left, right in pairwise([*starts, 2 * starts[-1] + 1]):
        inside = (left + right) / 2
        active = [max(p, key=lambda q: q.fixed_s + q.s_per_unit * inside) for p in parts]
        found.append(Piece(sum(p.fixed_s for p in active), sum(p.s_per_unit for p in active)))
    return Curve(pruned(found))


def pruned(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Keep the pieces that are the maximum somewhere at a volume of zero or more.

    >>> pruned([Piece(1, 0), Piece(0, 1), Piece(0, 0.5)])
    (Piece(fixed_s=1, s_per_unit=0), Piece(fixed_s=0, s_per_unit=1))
    """
    hull: list[Piece] = []
    for piece in sorted(set(pieces), key=lambda p: (p.s_per_unit, p.fixed_s)):
        if hull and hull[-1].s_per_unit == piece.s_per_unit:
            hull.pop()
        while hull and hull[-1].fixed_s <= piece.fixed_s:
            hull.pop()
        while len(hull) >= 2 and _crossing(hull[-2], piece) <= _crossing(hull[-2], hull[-1]):
            hull.pop()
        hull.append(piece)
    return tuple(hull)


def _crossing(low: Piece, high: Piece) -> float:
    """Volume from which the steeper piece is the larger one."""
    return (low.fixed_s - high.fixed_s) / (high.s_per_unit - low.s_per_unit)


def through(points: Sequence[tuple[float, float]]) -> Curve:
    """The lower convex hull of measured points ``(volume, seconds)``, extended at both ends.

    The hull never lies above a measurement; beyond the ends its first and last piece go on.
    A slope is never negative: a larger operation that measured faster lowers the smaller one.

    Raises:
        ValueError: no point, or a volume or time that is not positive.

    >>> curve = through([(1.0, 3.0), (2.0, 3.5), (4.0, 7.5), (8.0, 15.5)])
    >>> [round(curve.seconds(v), 6) for v in (1, 2, 4, 8, 16)]
    [3.0, 3.5, 7.5, 15.5, 31.5]
    """
    if not points or any(v <= 0 or s <= 0 for v, s in points):
        raise ValueError("a curve needs points of positive volume and time")
    best: dict[float, float] = {}
    for volume, seconds in points:
        best[volume] = min(seconds, best.get(volume, seconds))
    hull: list[tuple[float, float]] = []
    for point in sorted(best.items()):
        while hull and hull[-1][1] >= point[1]:
            hull.pop()
        while len(hull) >= 2 and _slope(hull[-2], point) <= _slope(hull[-2], hull[-1]):
            hull.pop()
        hull.append(point)
    if len(hull) == 1:
        volume, seconds = hull[0]
        return affine(0.0, seconds / volume)
    pieces = []
    for left, right in pairwise(hull):
        slope = _slope(left, right)
        pieces.append(Piece(left[1] - slope * left[0], slope))
    return Curve(pruned(pieces))


def measured(points: Sequence[tuple[float, float]]) -> Curve:
    """The curve of measured points in rising order: never above one, never faster than the best.

    The lower convex hull, and time in proportion to the best measured rate where the hull would be
    faster, such as beyond the largest point.

    Raises:
        ValueError: as `through`.

    >>> measured([(1.0, 2.0), (2.0, 2.5)]).seconds(4.0)
    5.0
    """
    best = affine(0.0, min(seconds / volume for volume, seconds in points))
    return Curve(latest(through(points), best).pieces, tuple(points))


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])
