"""What a trace says about the link."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.traced_copies import Copies


@dataclass(frozen=True, slots=True)
class Advice:
    """One change.

    Args:
        what: what to do, and on what grounds.
        saves_s: most it can save over the trace, seconds; None where the trace cannot say.
    """

    what: str
    saves_s: float | None


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a trace says about the link.

    Args:
        verdict: ``link``, ``exposed``, ``gpu``, ``idle`` or ``mixed``.
        answer: the verdict as a sentence.
        window_s: from the first to the last work of the GPU.
        steps: steps in it; 0 where not known.
        busy_s: resource to the time it worked.
        hidden_share: share of the copies' time to the GPU that the GPU worked beside; None: none.
        exposed_s: time with a copy to the GPU under way and the GPU waiting.
        idle_s: time in which nothing at all ran.
        best_s: the busiest resource's time: what perfect overlap would take.
        h2d: copies to the GPU.
        d2h: copies from it.
        advice: changes, those that save most first.
    """

    verdict: str
    answer: str
    window_s: float
    steps: int
    busy_s: dict[str, float]
    hidden_share: float | None
    exposed_s: float
    idle_s: float
    best_s: float
    h2d: Copies
    d2h: Copies
    advice: tuple[Advice, ...]
