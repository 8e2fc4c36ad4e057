"""One schedule, judged quickly: its bound, and the fractional allocation behind it, played.

A search tries every schedule, rounds to blocks and judges whole graphs. An estimate takes one
schedule, leaves tokens fractional and plays one unit of the step. It is what maps of many
scenarios are drawn from, and it says so: its step is not that of a plan that can be run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan import candidates, fluid
from kvplan.errors import InfeasibleError
from kvplan.infeasible import explain_infeasible
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import Simulation
from kvplan.step import StepGraph


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated step.

    Args:
        schedule: how the step is pipelined.
        step_s: simulated step of the fractional allocation, seconds.
        bound_s: no allocation under this schedule takes less, seconds.
        shares: path to its share of all tokens.
        memory_bytes: tier to bytes.
        simulation: the run behind ``step_s``.
    """

    schedule: Schedule
    step_s: float
    bound_s: float
    shares: dict[str, float]
    memory_bytes: dict[str, float]
    simulation: Simulation

    @property
    def recompute_ratio(self) -> float:
        """Share of all tokens whose K and V are rebuilt."""
        return sum(s for path, s in self.shares.items() if path.startswith("recompute"))


def estimate(scenario: Scenario, schedule: Schedule | None = None) -> Estimate:
    """Estimate the step of a scenario.

    Args:
        scenario: the question.
        schedule: how to pipeline it; None takes the fewest stages the scenario allows and, of its
            queue depths, 3 or else the least. Weights are streamed where that is faster.

    Raises:
        InfeasibleError: nothing fits under this schedule.

    >>> from kvplan.hardware_library import load_hardware
    >>> from kvplan.model_library import load_model
    >>> from kvplan.workload import Workload
    >>> found = estimate(Scenario(model=load_model("llama-7b"), hardware=load_hardware("a100"),
    ...     workload=Workload(batch=32, context=2048)))
    >>> found.bound_s <= found.step_s < 1.05 * found.bound_s, sorted(found.shares)
    (True, ['fetch', 'recompute_resident', 'resident'])
    """
    found = try_estimate(scenario, schedule)
    if found is None and schedule is None:
        raise explain_infeasible(scenario)
    if found is None:
        raise InfeasibleError(
            "hbm",
            "nothing fits under the schedule that was asked for",
            "another schedule, or `kvplan solve`",
        )
    return found


def try_estimate(scenario: Scenario, schedule: Schedule | None = None) -> Estimate | None:
    """`estimate`, or None where nothing fits: quicker, as it does not say why."""
    resident = everything_resident(scenario)
    if resident is not None:
        relaxation = fluid.bound(resident.graph, scenario.classes, scenario.capacity)
        bound_s = min(relaxation.step_s, resident.step_s) if relaxation else 0.0
        return _estimate(
            resident.schedule, bound_s, resident.graph, resident.values, resident.simulation
        )
    chosen = [schedule] if schedule else candidates.usual_schedules(scenario)
    for group in _by_depth(chosen):
        found = [e for e in (_of_schedule(scenario, s) for s in group) if e is not None]
        if found:
            return min(found, key=lambda e: e.step_s)
    return None


def _by_depth(schedules: Sequence[Schedule]) -> list[list[Schedule]]:
    groups: dict[int, list[Schedule]] = {}
    for schedule in schedules:
        groups.setdefault(schedule.queue_depth, []).append(schedule)
    return list(groups.values())


def _of_schedule(scenario: Scenario, schedule: Schedule) -> Estimate | None:
    flow = candidates.flow_graph(scenario, schedule)
    candidate = candidates.bounded(scenario, schedule, flow)
    if candidate is None:
        return None
    layers = candidates.unit_layers(scenario.model, candidates.cyclic(schedule))
    whole = list(range(len(scenario.model.layers))) if layers is None else layers
    played = [
        candidates.unit_play(scenario, candidate, pattern, whole)
        for pattern in candidates.patterns(scenario, candidate)
    ]
    graph, values, simulation = min(played, key=lambda p: p[2].step_s)
    return _estimate(schedule, candidate.bound_s, graph, values, simulation)


def _estimate(
    schedule: Schedule,
    bound_s: float,
    graph: StepGraph,
    values: Sequence[float],
    simulation: Simulation,
) -> Estimate:
    counts: dict[str, float] = {}
    for variable, value in zip(graph.variables, values, strict=True):
        if variable.path != "stream_weights":
            counts[variable.path] = counts.get(variable.path, 0.0) + value
    total = sum(counts.values()) or 1.0
    shares = {path: counts[path] / total for path in sorted(counts) if counts[path] > 0}
    return Estimate(
        schedule, simulation.step_s, bound_s, shares, graph.memory_bytes(values), simulation
    )
