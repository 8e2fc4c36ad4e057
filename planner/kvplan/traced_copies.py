"""Copies of one direction in a profiler trace."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.profiler_trace import Work
from kvplan.spans import length, union
from kvplan.units import KIB, MIB

SIZES = (64 * KIB, MIB, 16 * MIB)
"""Copy sizes at which classes end; the last class is above."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of one direction.

    Args:
        count: how many.
        size_bytes: bytes in all; None where the trace does not say.
        busy_s: time with one of them under way.
        median_bytes: half of the copies are smaller; None where the trace does not say.
        pageable_share: share of the bytes from memory that is not pinned; None where not said.
        classes: largest size of a class (None: above all) to its bytes and seconds.
    """

    count: int
    size_bytes: float | None
    busy_s: float
    median_bytes: float | None
    pageable_share: float | None
    classes: dict[int | None, tuple[float, float]]

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes over the time with a copy under way."""
        if self.size_bytes is None or self.busy_s <= 0:
            return None
        return self.size_bytes / self.busy_s

    @property
    def best_bytes_per_s(self) -> float | None:
        """Rate of the largest class of copies, where there are several."""
        if len(self.classes) < 2:
            return None
        moved, seconds = list(self.classes.values())[-1]
        return moved / seconds if seconds > 0 else None


def copies_of(work: Sequence[Work], kind: str) -> Copies:
    """Copies of a kind of work, ``h2d`` or ``d2h``."""
    own = [w for w in work if w.kind == kind]
    known = [w for w in own if w.size_bytes is not None]
    total = sum(w.size_bytes or 0.0 for w in known) if len(known) == len(own) and own else None
    told = [w for w in known if w.pinned is not None]
    classes: dict[int | None, tuple[float, float]] = {}
    for w in known:
        size = w.size_bytes or 0.0
        limit = next((most for most in SIZES if size <= most), None)
        moved, seconds = classes.get(limit, (0.0, 0.0))
        classes[limit] = (moved + size, seconds + w.end_s - w.begin_s)
    said = sum(w.size_bytes or 0.0 for w in told)
    loose = sum(w.size_bytes or 0.0 for w in told if not w.pinned)
    return Copies(
        count=len(own),
        size_bytes=total if own else 0.0,
        busy_s=length(union((w.begin_s, w.end_s) for w in own)),
        median_bytes=statistics.median(w.size_bytes or 0.0 for w in known) if known else None,
        pageable_share=loose / said if said else None,
        classes={limit: classes[limit] for limit in (*SIZES, None) if limit in classes},
    )
