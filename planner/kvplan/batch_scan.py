"""Bounds of batches, and which of them are worth a plan.

With costs that grow convexly with the batch, tokens per second of the fluid program rise with the
batch, then fall, whatever binds: the weights are read (or streamed) once for more sequences until
memory sends their KV over a link that has no time left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvplan import fluid
from kvplan.batching import Batching, with_batching
from kvplan.candidates import NEAR, flow_graph, schedule_with, streaming
from kvplan.peak import least_near, peak
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario


@dataclass(slots=True)
class Scan:
    """Bounds of batches, each computed once.

    The bound is that of the schedule with the least buffers, with resident and streamed weights.
    """

    scenario: Scenario
    bounds: dict[Batching, float | None] = field(default_factory=dict)

    def bound_s(self, batching: Batching) -> float | None:
        """Lower bound on the step; None where nothing fits."""
        if batching not in self.bounds:
            self.bounds[batching] = least_step_s(with_batching(self.scenario, batching))
        return self.bounds[batching]

    def score(self, batching: Batching) -> float | None:
        """Tokens per second of the bound; None where nothing fits or the step is too long."""
        bound_s = self.bound_s(batching)
        if bound_s is None or not self.scenario.objective.accepts(bound_s):
            return None
        return batching.tokens_per_s(bound_s)

    def best(self, micro_batches: int, schedule: str) -> Batching | None:
        """The batch whose bound makes most tokens per second; of near equals the smallest."""
        least, most = self.scenario.objective.batches
        low, high = -(-least // micro_batches), most // micro_batches
        if low > high:
            return None

        def score(size: int) -> float | None:
            return self.score(Batching(size * micro_batches, micro_batches, schedule))

        found = peak(score, low, high)
        if found is None:
            return None
        size = least_near(score, found, low, NEAR)
        return Batching(size * micro_batches, micro_batches, schedule)


def least_step_s(scenario: Scenario) -> float | None:
    """Fluid bound on the step over resident and streamed weights; None where nothing fits."""
    options = scenario.options
    axis = "token" if "token" in options.axes else options.axes[0]
    stages = max(options.stages)
    if axis == "layer":
        stages = min(stages, len(scenario.model.layers))
    found = []
    for stream in streaming(scenario):
        schedule = schedule_with(scenario, axis, stages, min(options.queue_depths), stream)
        relaxation = fluid.bound(
            flow_graph(scenario, schedule), scenario.classes, scenario.capacity, scenario.quality
        )
        if relaxation is not None:
            found.append(relaxation.step_s)
    return min(found, default=None)


def ranked(scenario: Scenario, scan: Scan) -> list[Batching]:
    """Batchings worth a plan, those with the best bound first; simple ones first among equals."""
    found = list(dict.fromkeys(scanned(scenario, scan)))
    return sorted(found, key=lambda b: (-round_off(scan.score(b)), b.micro_batches, -b.batch))


def round_off(value: float | None) -> float:
    """Three digits of a value, so that near equals compare as equal."""
    return float(f"{value or 0.0:.3g}")


def scanned(scenario: Scenario, scan: Scan) -> Iterator[Batching]:
    """The best batch of every number of micro-batches, until more of them bring nothing."""
    objective = scenario.objective
    resident = largest_resident(scenario, scan)
    if resident is not None:
        yield resident
    for order in sorted(objective.schedules):  # column first
        best, idle = 0.0, 0
        for micro_batches in sorted(set(objective.micro_batches)):
            if micro_batches == 1 and order == "row" and "column" in objective.schedules:
                continue
            batching = scan.best(micro_batches, order)
            if batching is None:
                continue
            yield batching
            reached = scan.score(batching) or 0.0
            idle = idle + 1 if reached <= best * (1 + NEAR) else 0
            best = max(best, reached)
            if idle >= 2 or (order == "row" and not rows_differ(scenario)):
                break


def rows_differ(scenario: Scenario) -> bool:
    """Whether the order of micro-batches can matter: only streamed weights are loaded more often
    in rows, and rows need fewer hidden states at hand; one number of them is tried otherwise.
    """
    return any(streaming(scenario))


def largest_resident(scenario: Scenario, scan: Scan) -> Batching | None:
    """The largest batch without offload."""
    least, most = scenario.objective.batches
    if 1 not in scenario.objective.micro_batches:
        return None
    order = min(scenario.objective.schedules)

    def fits(batch: int) -> float | None:
        batching = Batching(batch, 1, order)
        found = everything_resident(with_batching(scenario, batching))
        if found is None or not scenario.objective.accepts(found.step_s):
            return None
        return float(batch)

    batch = peak(fits, least, most)
    if batch is None:
        return None
    scan.bound_s(Batching(batch, 1, order))
    return Batching(batch, 1, order)
