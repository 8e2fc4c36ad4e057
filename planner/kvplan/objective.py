"""What a plan is to be best at: the latency of a given batch, or throughput over batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.workload import MAX_BATCH

GOALS = ("latency", "throughput")
ORDERS = ("column", "row")
MOST_SEGMENTS = 64
AUTO_SEGMENTS = 4
"""Segments of a generation that are planned where their number is left open."""

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Micro-batches that a search for throughput tries unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What to be best at, and within what.

    Args:
        goal: ``latency``: the shortest step of the workload as it is; ``throughput``: most tokens
            per second over batches, micro-batches and their order.
        max_step_s: longest step that is accepted, seconds; None for any.
        batches: least and most sequences to consider, for throughput.
        micro_batches: parts of the batch to consider, for throughput.
        schedules: orders of micro-batches to consider, for throughput.
        segments: parts of the generation with decisions of their own; None: only its last step
            is planned.
    """

    goal: str = "latency"
    max_step_s: float | None = None
    batches: tuple[int, int] = (1, MAX_BATCH)
    micro_batches: tuple[int, ...] = MICRO_BATCHES
    schedules: tuple[str, ...] = ORDERS
    segments: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if self.goal not in GOALS:
            raise InputError("objective", self.goal, " or ".join(GOALS))
        limit = self.max_step_s
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise InputError("max_step_s", limit, "a time above 0, such as 100ms")
        if self.segments is not None and not 1 <= self.segments <= MOST_SEGMENTS:
            raise InputError("segments", self.segments, f"a whole number from 1 to {MOST_SEGMENTS}")
        least, most = self.batches
        if not 1 <= least <= most <= MAX_BATCH:
            raise InputError("batches", f"{least}..{most}", f"a range within 1 to {MAX_BATCH}")
        if not self.micro_batches or not all(1 <= m <= MAX_BATCH for m in self.micro_batches):
            raise InputError("micro_batches", self.micro_batches, f"numbers from 1 to {MAX_BATCH}")
        if not self.schedules or not set(self.schedules) <= set(ORDERS):
            raise InputError("schedule", self.schedules, " or ".join(ORDERS))
        if least == most and all(most % m for m in self.micro_batches):
            raise InputError("micro_batches", self.micro_batches, f"divisors of batch {most}")

    @property
    def seeks_throughput(self) -> bool:
        """Whether batch and micro-batches are to be chosen."""
        return self.goal == "throughput"

    def accepts(self, step_s: float) -> bool:
        """Whether a step is short enough."""
        return self.max_step_s is None or step_s <= self.max_step_s * (1 + 1e-9)
