"""Plans where equal layers differ: some stage tokens, and the next ones none, or on other paths.

Fixed times of a link are then paid for fewer layers, and its buffers are large enough to be filled
around the head, where all links wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.best import Best
from kvplan.candidates import Candidate, least_bound
from kvplan.descent import Descent, of_use
from kvplan.layout import Layout, layout_of
from kvplan.layout_blocks import Rounding
from kvplan.sample import all_layers, one_repeat, some_repeats
from kvplan.scenario import Scenario

REPEATS = (1, 2, 3)
"""Repeats of layers that may differ."""

MOST_REPEATED = 6
"""Layers of these together, at most."""

MOST_ALIKE = 3
"""Layouts whose equal layers are alike that the search starts from."""

MOST_TRIED = 2
"""Layouts of some repeats that the search over the whole step starts from."""

MOST_STATED = 12_000
"""Operations of the programs solved for so many repeats, about."""

MOST_WHOLE = 60_000
"""Operations of the programs of the whole step solved, about."""

MOST_ROUNDED = 1
"""Layouts that get whole blocks, at most, for each number of repeats."""

WOULD_DO = 0.999
"""Ratio of a layout's optimum to a good step, below which other layouts are not needed."""

ENOUGH = 0.9985
"""Ratio of a layout's optimum to a good step at which whole blocks are likely to make it one."""

WIDE = 1.02
"""Ratio of the best step to a good one from which twice as much is solved, and rounded."""

LEAST_GAIN = 1e-3
"""Share by which a layout's optimum must be shorter than the best step, and than the optimum where
equal layers are alike, or it must be a good one.
"""


def tell_apart(
    scenario: Scenario, candidates: Sequence[Candidate], best: Best, layouts: Sequence[Layout]
) -> None:
    """Look for a plan where equal layers differ: those of some repeats, then of the whole step.

    Args:
        scenario: the question.
        candidates: every schedule, with its bound.
        best: the best plan so far.
        layouts: good ones whose equal layers are alike, the best first.
    """
    good_s = least_bound(candidates) * (1 + scenario.options.good_gap)
    by_schedule = of_use(candidates, best)
    layouts = [each for each in layouts if each.schedule in by_schedule][:MOST_ALIKE]
    whole = Descent(scenario, by_schedule, all_layers(scenario, 1), MOST_WHOLE)
    kinds = whole.sample.kinds
    least_s = min((whole.step_s(each.over(kinds)) for each in layouts), default=0.0)
    if least_s <= good_s * WOULD_DO:
        return  # what is left is due to whole blocks
    effort = 2 if best.step_s > good_s * WIDE else 1
    repeat = len(one_repeat(scenario).layers)
    for repeats in [r for r in REPEATS if r * repeat <= MOST_REPEATED] or (1,):
        sample, nearest = some_repeats(scenario, repeats), layouts
        if sample is not None and repeats > 1:
            search = Descent(scenario, by_schedule, sample, MOST_STATED * effort)
            for layout in layouts:
                search.descend(layout.over(sample.kinds))
            nearest = search.least(float("inf"))[:MOST_TRIED]
        sample = all_layers(scenario, repeats)
        search = Descent(
            scenario, by_schedule, sample, MOST_WHOLE * effort, enough_s=good_s * ENOUGH
        )
        starts = [each.over(sample.kinds) for each in nearest]
        if best.plan.schedule in by_schedule:
            starts.insert(0, layout_of(best.plan, sample.kinds))
        for layout in dict.fromkeys(starts):
            search.descend(layout)
        rounding = Rounding(scenario, best, good_s, MOST_ROUNDED * effort)
        worth_s = max(min(best.step_s, least_s) * (1 - LEAST_GAIN), good_s)
        for layout in [*search.least(worth_s), *starts]:
            if best.step_s <= good_s:
                return
            if search.step_s(layout) < min(best.step_s, worth_s):
                rounding.offer(layout, by_schedule[layout.schedule])
        if not rounding.done and repeats > 1:
            return  # layers are better alike
