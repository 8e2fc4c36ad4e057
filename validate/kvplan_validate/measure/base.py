"""What a measurement is: a small named object that says what it measures and whether it can here.

Measurement   key, sentence, can_run(machine), run(machine) -> Measured
└── Series    one prepared bench, one `Point` per setting; a setting that fails is recorded
"""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from kvplan_validate.measure.machine import Machine

Setting = Mapping[str, int | str]
"""What is varied: ``{"direction": "h2d", "bytes": 4096}``."""

NO_TIME = "the time budget was spent"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """Raw samples of one operation.

    Args:
        samples: one figure per repeat, in ``unit``.
        volume: bytes or FLOP of one operation; None where a rate has no meaning.
        unit: ``s`` or ``B``.
        notes: figures that were seen at the same time, SI units in their names.
    """

    samples: tuple[float, ...]
    volume: float | None = None
    unit: Literal["s", "B"] = "s"
    notes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What was sampled at one setting, or why nothing was."""

    at: Setting
    sampled: Sampled | None = None
    error: str | None = None

    def document(self) -> dict[str, Any]:
        """The point as JSON: setting, unit, median, spread, rate, samples; or the error."""
        if self.sampled is None:
            return {"at": dict(self.at), "error": self.error}
        sampled = self.sampled
        middle = statistics.median(sampled.samples)
        document: dict[str, Any] = {
            "at": dict(self.at),
            "unit": sampled.unit,
            "median": middle,
            "spread": spread(sampled.samples),
            "samples": list(sampled.samples),
        }
        if sampled.volume is not None and middle > 0:
            document |= {"volume": sampled.volume, "volume_per_s": sampled.volume / middle}
        if sampled.notes:
            document["notes"] = dict(sampled.notes)
        return document


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All points of one measurement."""

    points: tuple[Point, ...]

    def document(self) -> list[dict[str, Any]]:
        """The points as JSON."""
        return [point.document() for point in self.points]


class Measurement(ABC):
    """One thing that can be measured.

    Attributes:
        key: noun of its module, then what: ``copies.registered``.
        sentence: what it measures, in one sentence.
        unit: what one unit of volume is: ``B``, ``FLOP``, or empty where there is no rate.
        seconds: how long it takes on a fast machine; shares of the time budget follow from it.
        needs: ``cuda``, ``torch`` or nothing.
        visits: 2 where others on the machine can slow it for seconds: it runs again at the end,
            and each setting keeps the faster of its two medians.
    """

    key: ClassVar[str]
    sentence: ClassVar[str]
    unit: ClassVar[str] = "B"
    seconds: ClassVar[float] = 1.0
    needs: ClassVar[Literal["cuda", "torch", ""]] = "cuda"
    visits: ClassVar[Literal[1, 2]] = 1

    def can_run(self, machine: Machine) -> str | None:
        """Why it cannot run here; None where it can."""
        if self.needs and machine.torch is None:
            return "torch is not installed"
        if self.needs == "cuda" and not machine.cuda:
            return "no CUDA device"
        return None

    @abstractmethod
    def run(self, machine: Machine) -> Measured:
        """Measure, within the time that ``machine.clock`` still has."""


class Series(Measurement):
    """A measurement of the same thing at several settings; the first is never left out."""

    @abstractmethod
    def settings(self, machine: Machine) -> Iterator[Setting]:
        """Every setting, the most important ones first."""

    @abstractmethod
    def bench(self, machine: Machine) -> AbstractContextManager[Any]:
        """Buffers and the like; freed at the end."""

    @abstractmethod
    def sample(self, machine: Machine, bench: Any, at: Setting) -> Sampled:
        """Measure one setting."""

    def run(self, machine: Machine) -> Measured:
        """Measure every setting; one that fails is recorded and the rest go on."""
        with self.bench(machine) as bench:
            return Measured(points=tuple(self._points(machine, bench)))

    def _points(self, machine: Machine, bench: Any) -> Iterator[Point]:
        for index, at in enumerate(self.settings(machine)):
            if index and machine.clock.left_s() <= 0:
                yield Point(at=at, error=NO_TIME)
                continue
            try:
                yield Point(at=at, sampled=self.sample(machine, bench, at))
            except Exception as error:
                yield Point(at=at, error=reason(error))
                machine.recover()


def reason(error: BaseException) -> str:
    """One short line for an exception.

    >>> reason(ValueError("first line\\nsecond"))
    'ValueError: first line'
    """
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300].removesuffix(": ")


def spread(samples: tuple[float, ...]) -> float:
    """Distance of the quartiles as a share of the median; 0 for fewer than two samples.

    >>> spread((1.0, 2.0, 3.0, 4.0, 5.0))
    0.6666666666666666
    """
    middle = statistics.median(samples)
    if len(samples) < 2 or middle == 0:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / middle


def wall_samples(operation: Any, *, most: int, budget_s: float, warm: int = 1) -> tuple[float, ...]:
    """Wall-clock seconds of an operation that returns when it is done.

    Args:
        operation: called without arguments.
        most: repeats at most.
        budget_s: no repeat starts after so many seconds; there is always one.
        warm: calls before the first that counts; they count against the budget.
    """
    end = time.perf_counter() + budget_s
    for _ in range(warm):
        operation()
    samples: list[float] = []
    while not samples or (len(samples) < most and time.perf_counter() < end):
        start = time.perf_counter()
        operation()
        samples.append(time.perf_counter() - start)
    return tuple(samples)
