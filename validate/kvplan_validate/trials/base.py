"""What a trial is: a statement that someone published, checked on the machine at hand.

Trial   name, title, source, claim, can_run(place), run(place) -> Finding
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvplan.hardware import HardwareProfile
from kvplan_validate.harness import Bench
from kvplan_validate.measure import Machine


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where trials run.

    Args:
        machine: as measurements see it.
        bench: pool and weights for decode steps.
        hardware: profile to predict with.
    """

    machine: Machine
    bench: Bench
    hardware: HardwareProfile


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What the machine does.

    Args:
        here: one sentence with the figures that decide.
        holds: whether the statement holds here, within the tolerance it names.
        figures: everything measured and predicted, SI units in the names.
    """

    here: str
    holds: bool
    figures: Mapping[str, Any] = field(default_factory=dict)


class Trial(ABC):
    """One statement.

    Attributes:
        name: short, in lower case.
        title: for people.
        source: where it was published.
        claim: the statement with its figures, and the tolerance it is checked with.
        dram_bytes: host memory it takes at most.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    claim: ClassVar[str]
    dram_bytes: ClassVar[int] = 2 << 30

    def can_run(self, place: Place) -> str | None:
        """Why it cannot run here; None where it can."""
        if not place.machine.cuda:
            return "no CUDA device"
        if (left := place.machine.free_dram_bytes()) < 2 * self.dram_bytes:
            return (
                f"{2 * self.dram_bytes / 1e9:.0f} GB of host memory wanted, {left / 1e9:.0f} free"
            )
        return None

    @abstractmethod
    def run(self, place: Place) -> Finding:
        """Measure and judge."""
