"""The judge: what an allocation takes and how long its step is, whoever made it.

The search, the baselines and plans written by hand all come here; nothing here sees a solver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvplan.allocation import Allocation, Segment
from kvplan.errors import InputError
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import Simulation, simulate
from kvplan.step import StepGraph, build_step
from kvplan.units import format_bytes


@dataclass(frozen=True)
class Evaluation:
    """A judged allocation.

    Args:
        schedule: how the step is pipelined.
        allocation: segments of every layer.
        streamed: share of each layer's weights that crosses the link every step.
        graph: the step graph of exactly these paths.
        values: value of every variable of the graph.
    """

    schedule: Schedule
    allocation: Allocation
    streamed: tuple[float, ...]
    graph: StepGraph
    values: tuple[float, ...]

    @cached_property
    def simulation(self) -> Simulation:
        """The run of the graph, played when first asked for."""
        return simulate(self.graph, self.values)

    @property
    def paths(self) -> frozenset[str]:
        """Names of the paths its tokens take."""
        return frozenset(segment.path for layer in self.allocation for segment in layer)

    @cached_property
    def memory_bytes(self) -> dict[str, float]:
        """Bytes per tier."""
        return self.graph.memory_bytes(self.values)

    @property
    def step_s(self) -> float:
        """Seconds of one decode step."""
        return self.simulation.step_s

    def overflow(self, capacity: dict[str, float]) -> tuple[str, float] | None:
        """The tier that holds most beyond its capacity, and by how many bytes; None if none."""
        return overflow(self.memory_bytes, capacity)


def overflow(held: Mapping[str, float], capacity: Mapping[str, float]) -> tuple[str, float] | None:
    """The tier that holds most beyond its capacity, and by how many bytes; None if none."""
    excess = {tier: held.get(tier, 0.0) - limit for tier, limit in capacity.items()}
    tier = max(sorted(excess), key=lambda t: excess[t])
    return (tier, excess[tier]) if excess[tier] > 0.5 else None


def evaluate(
    scenario: Scenario,
    schedule: Schedule,
    allocation: Allocation,
    streamed: Sequence[float] | None = None,
) -> Evaluation:
    """Run an allocation.

    Args:
        scenario: model, machine, workload.
        schedule: how the step is pipelined.
        allocation: segments of every layer, in order; they must cover its tokens once.
        streamed: share of each layer's weights that is streamed; None: none.

    Raises:
        InputError: a layer is not covered, or a path is unknown or not usable on this machine.
    """
    shares = tuple(streamed) if streamed is not None else (0.0,) * len(scenario.model.layers)
    structure, tokens = _structure(scenario, allocation)
    graph = build_step(scenario.model, scenario.hardware, scenario.workload, schedule, structure)
    values = tuple(
        shares[v.layer] if v.path == "stream_weights" else float(tokens[v.layer, v.stage, v.path])
        for v in graph.variables
    )
    return Evaluation(
        schedule=schedule, allocation=allocation, streamed=shares, graph=graph, values=values
    )


def _structure(
    scenario: Scenario, allocation: Allocation
) -> tuple[dict[tuple[int, int | None], list[Path]], dict[tuple[int, int | None, str], int]]:
    if len(allocation) != len(scenario.model.layers):
        raise InputError("decision.layers", len(allocation), f"{len(scenario.model.layers)} layers")
    structure: dict[tuple[int, int | None], list[Path]] = {}
    tokens: dict[tuple[int, int | None, str], int] = {}
    known: dict[object, dict[int | None, dict[str, int]]] = {}  # equal layers share segments
    usable: set[object] = set()
    for layer, segments in enumerate(allocation):
        key = (scenario.classes[layer], id(segments))
        if key not in known:
            known[key] = _held(scenario, layer, segments, usable)
        for stage, held in known[key].items():
            structure[layer, stage] = [REGISTRY[name] for name in held]
            for name, count in held.items():
                tokens[layer, stage, name] = count
    return structure, tokens


def _held(
    scenario: Scenario, layer: int, segments: Sequence[Segment], usable: set[object]
) -> dict[int | None, dict[str, int]]:
    """Tokens of a layer by stage and path, in the order of its segments; ``usable`` has the classes
    of layers and the paths that the machine was found to have figures for.
    """
    where, reached = f"decision.layers[{layer}]", 0
    spec, dtype = scenario.model.layers[layer], scenario.workload.kv_dtype
    found: dict[int | None, dict[str, int]] = {}
    for segment in segments:
        if segment.begin != reached or segment.end <= segment.begin:
            raise InputError(where, [segment.begin, segment.end], f"tokens from {reached} on")
        reached = segment.end
        path = REGISTRY.get(segment.path)
        if path is None:
            raise InputError(where, segment.path, f"one of {', '.join(REGISTRY)}")
        if (segment.stage is None) == (path.attends == "stage"):
            wanted = "a stage" if path.attends == "stage" else "no stage"
            raise InputError(f"{where} {path.name}", segment.stage, wanted)
        if (scenario.classes[layer], path.name) not in usable:
            if not path.available(scenario.hardware, spec, dtype):
                raise InputError(
                    where, path.name, f"a path that {scenario.hardware.name} has figures for"
                )
            usable.add((scenario.classes[layer], path.name))
        own = found.setdefault(segment.stage, {})
        own[path.name] = own.get(path.name, 0) + segment.tokens
    if reached != scenario.cached_tokens(layer):
        raise InputError(where, reached, f"{scenario.cached_tokens(layer)} tokens")
    return found


def refuse_overflow(evaluation: Evaluation, capacity: dict[str, float]) -> str | None:
    """One sentence on the tier that does not hold the allocation; None if all do."""
    over = evaluation.overflow(capacity)
    if over is None:
        return None
    tier, excess = over
    return (
        f"needs {format_bytes(evaluation.memory_bytes[tier])} of {tier}, "
        f"{format_bytes(excess)} more than its budget of {format_bytes(capacity[tier])}"
    )
