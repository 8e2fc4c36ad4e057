"""What would help a plan whose link is nearly always busy, and how much."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvplan.document import values
from kvplan.errors import KvplanError
from kvplan.evaluate import Evaluation
from kvplan.scenario import Scenario
from kvplan.solve import Search, search

BUSY = 0.8
"""Share of the step from which on a link counts as the limit."""

WORTH = 0.01
"""Share of the step below which a change is not worth saying."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change.

    Args:
        change: what to do.
        step_s: predicted step with it, seconds.
        saved_s: what it takes off the step, seconds.
    """

    change: str
    step_s: float
    saved_s: float

    def sentence(self) -> str:
        """The change with what it would bring.

        >>> Advice("--allow int8", 0.010, 0.002).sentence()
        '--allow int8: 2.00 ms less per step (-17 %)'
        """
        share = self.saved_s / (self.step_s + self.saved_s)
        saved = f"{self.saved_s * 1e3:.2f} ms less per step (-{100 * share:.0f} %)"
        return f"{self.change}: {saved}"


def advice(scenario: Scenario, evaluation: Evaluation) -> list[Advice]:
    """Changes that would shorten the step, the best first.

    More recompute and lower precision: solved again with every exact path, and with int8 and int4.
    More resident and a faster link: the duals of the exact program.
    """
    found: list[Advice] = []

    def add(change: str, step_s: float) -> None:
        saved_s = evaluation.step_s - step_s
        if saved_s > WORTH * evaluation.step_s:
            found.append(Advice(change, step_s, saved_s))

    exact = _solved(scenario, evaluation, {})
    if exact is not None:
        change = f"keep, recompute or fetch as solve would ({_shares(exact.best)})"
        add(change, exact.best.step_s)
        for value in values(scenario, exact):
            add(value.what, evaluation.step_s - value.saved_s)
    for precision in ("int8", "int4"):
        if precision not in scenario.options.allow:
            lower = _solved(scenario, evaluation, {precision: 1.0})
            if lower is not None:
                add(f"--allow {precision} ({_shares(lower.best)})", lower.best.step_s)
    return sorted(found, key=lambda one: one.step_s)


def _solved(scenario: Scenario, evaluation: Evaluation, allow: dict[str, float]) -> Search | None:
    """The search with the plan's own pipeline, whole blocks: seconds, not minutes."""
    schedule = evaluation.schedule
    options = dataclasses.replace(
        scenario.options,
        paths=None,
        allow={**scenario.options.allow, **allow},
        axes=(schedule.axis,),
        stages=(schedule.stages,),
        queue_depths=(schedule.queue_depth,),
        refine_blocks=False,
    )
    try:
        return search(dataclasses.replace(scenario, options=options))
    except KvplanError:
        return None


def _shares(evaluation: Evaluation) -> str:
    total: dict[str, int] = {}
    for segments in evaluation.allocation:
        for segment in segments:
            total[segment.path] = total.get(segment.path, 0) + segment.tokens
    everything = sum(total.values())
    ordered = sorted(total, key=lambda path: -total[path])
    return ", ".join(f"{path} {100 * total[path] / everything:.0f} %" for path in ordered)
