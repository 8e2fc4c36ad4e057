"""What is measured while steps run: latencies, busy resources, links, tiers, the card itself."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvplan.evaluate import Evaluation
from kvplan_validate.nvml import Card, Reading

WINDOW = 10_000
"""Steps that percentiles look back over, of the case that runs."""

QUANTILES = (0.5, 0.95, 0.99)

TIERS = {"resident": "hbm", "recompute_resident": "hbm", "fetch_disk": "disk"}
"""Tier that serves a path; every other path is served from host memory."""


def quantile(samples: Sequence[float], share: float) -> float:
    """Smallest sample that is no less than a share of all.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5), quantile([1.0, 2.0], 0.99)
    (2.0, 2.0)
    """
    ordered = sorted(samples)
    return ordered[min(max(-(-int(share * 1000) * len(ordered) // 1000) - 1, 0), len(ordered) - 1)]


def served_tokens(evaluation: Evaluation) -> dict[str, int]:
    """Cached tokens of all layers that one step reads from each tier, per sequence."""
    found = {"hbm": 0, "dram": 0, "disk": 0}
    for segments in evaluation.allocation:
        for segment in segments:
            found[TIERS.get(segment.path, "dram")] += segment.tokens
    return found


@dataclass
class Metrics:
    """Counters since the start, and the figures of the case that runs.

    Args:
        card: the GPU's own counters, where NVML is there.
        sinks: called after every change: a table, a file.
    """

    card: Card | None = None
    sinks: list[Callable[[Metrics], None]] = field(default_factory=list)
    case: dict[str, str] = field(default_factory=dict)
    predicted_s: float = 0.0
    predicted_busy_s: Mapping[str, float] = field(default_factory=dict)
    busy_s: Mapping[str, float] = field(default_factory=dict)
    step_tokens: Mapping[str, int] = field(default_factory=dict)
    step_bytes: Mapping[str, float] = field(default_factory=dict)
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    steps: int = 0
    step_seconds: float = 0.0
    busy_seconds: dict[str, float] = field(default_factory=dict)
    link_bytes: dict[str, float] = field(default_factory=dict)
    tier_tokens: dict[str, float] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=lambda: {"measured": 0, "failed": 0})
    reading: Reading | None = None

    def begin(self, case: Mapping[str, object], evaluation: Evaluation) -> None:
        """A case starts."""
        self.case = {name: str(value) for name, value in case.items()}
        self.predicted_s = evaluation.step_s
        self.predicted_busy_s = dict(evaluation.simulation.busy_s)
        self.step_tokens = served_tokens(evaluation)
        self.step_bytes = evaluation.graph.link_bytes(evaluation.values)
        self.busy_s = {}
        self.recent_s.clear()

    def occupied(self, busy_s: Mapping[str, float]) -> None:
        """Busy seconds of each resource in one step of the case, measured."""
        self.busy_s = dict(busy_s)

    def ran(self, samples_s: Sequence[float]) -> None:
        """Some steps are done."""
        self.recent_s.extend(samples_s)
        self.steps += len(samples_s)
        self.step_seconds += sum(samples_s)
        _add(self.busy_seconds, self.busy_s, len(samples_s))
        _add(self.link_bytes, self.step_bytes, len(samples_s))
        _add(self.tier_tokens, self.step_tokens, len(samples_s))
        if self.card is not None:
            self.reading = self.card.read()
        self._tell()

    def ended(self, *, measured: bool) -> None:
        """A case is over."""
        self.cases["measured" if measured else "failed"] += 1
        self._tell()

    def _tell(self) -> None:
        for sink in self.sinks:
            sink(self)

    def latency_s(self) -> dict[float, float]:
        """Quantile to seconds of the recent steps; empty before the first."""
        return {q: quantile(self.recent_s, q) for q in QUANTILES} if self.recent_s else {}

    def utilisation(self) -> dict[str, float]:
        """Share of the median step that each resource works, at most 1."""
        if not self.recent_s:
            return {}
        step_s = statistics.median(self.recent_s)
        return {name: min(seconds / step_s, 1.0) for name, seconds in self.busy_s.items()}

    def hit_rate(self) -> dict[str, float]:
        """Share of cached tokens that each tier serves, of the case that runs."""
        total = sum(self.step_tokens.values())
        return {tier: tokens / total for tier, tokens in self.step_tokens.items()} if total else {}


def _add(totals: dict[str, float], each: Mapping[str, float], times: int) -> None:
    for name, value in each.items():
        totals[name] = totals.get(name, 0) + value * times
