"""The best plan so far, while a search looks for better ones."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.candidates import Candidate
from kvplan.evaluate import Evaluation


@dataclass(slots=True)
class Best:
    """A judged plan and where it comes from.

    Args:
        plan: the plan.
        candidate: its schedule.
        block: tokens per block of it.
        judged: plans that were judged, it included.
    """

    plan: Evaluation
    candidate: Candidate
    block: int
    judged: int = 1

    @property
    def step_s(self) -> float:
        """Seconds of one decode step."""
        return self.plan.step_s

    def offer(
        self, plan: Evaluation | None, candidate: Candidate, block: int, least_gain: float = 0.0
    ) -> bool:
        """Take another plan if its step is shorter by more than a share; whether it was."""
        self.judged += 1
        if plan is None or plan.step_s >= self.step_s * (1 - least_gain):
            return False
        self.plan, self.candidate, self.block = plan, candidate, block
        return True
