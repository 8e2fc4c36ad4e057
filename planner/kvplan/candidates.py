"""Candidates of the search: schedules, their bounds, and a trial on one unit of the step.

A unit is the shortest run of layers that makes the model when repeated: one layer where all are
alike, a group of them on the layer axis, or the whole model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvplan import cost, fluid
from kvplan.allocation import stage_mixes
from kvplan.model import ModelSpec
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.simulate import Simulation, simulate
from kvplan.step import StepGraph, Structure, build_step, group_of

NEAR = 1e-3
"""Steps that differ by less than this share count as equal; the simpler schedule is taken."""

WEIGHTS_CROWD = 0.8
"""Share of the HBM budget above which weights may be worth streaming."""

USUAL_DEPTH = 3
"""Queue depth that is estimated, where it may be used and fits."""

PATTERNS = ("grouped", "alternating", "even")


@dataclass(slots=True)
class Candidate:
    """One schedule under consideration.

    Args:
        scenario: the question it was made for.
        schedule: axis, stages, queue depth.
        flow: the graph that its fluid program is stated from (`flow_graph`), small.
        relaxation: optimum of the fluid program.
        bound_s: proven lower bound on its step.
        trial_s: step of the fractional allocation on the unit; infinite until played.
        pattern: how stages are mixed, that of the best trial.
        sharp: whether the bound has been sharpened as far as branching goes.
        mixed: whether the mixture of its layers has been asked.
        apart: whether that of layers told apart has.
        built: its unit, once that was asked for.
    """

    scenario: Scenario
    schedule: Schedule
    flow: StepGraph
    relaxation: fluid.Fluid
    bound_s: float
    trial_s: float = float("inf")
    pattern: str | Sequence[Mapping[str, float]] = "grouped"
    sharp: bool = False
    mixed: bool = False
    apart: bool = False
    built: StepGraph | None = None

    @property
    def unit(self) -> StepGraph:
        """Its step graph with every allowed path, of one unit where layers repeat."""
        if self.built is None:
            self.built = unit_graph(self.scenario, self.schedule)
        return self.built

    @property
    def size(self) -> int:
        """Operations of its unit."""
        model, flow = self.scenario.model, self.flow
        if self.built is not None or unit_layers(model, cyclic(self.schedule)) is not None:
            return len(self.unit.operations)
        return round(flow.cycles * sum(flow.copies_of(operation) for operation in flow.operations))


def bounded(scenario: Scenario, schedule: Schedule, flow: StepGraph) -> Candidate | None:
    """A schedule with the bound of its fluid program; None where nothing fits."""
    relaxation = fluid.bound(flow, scenario.classes, scenario.capacity, scenario.quality)
    if relaxation is None:
        return None
    found = Candidate(scenario, schedule, flow, relaxation, relaxation.step_s)
    if schedule.axis == "token" and not flow.copies:
        found.built = flow
    return found


def schedule_with(
    scenario: Scenario, axis: str, stages: int, queue_depth: int, stream_weights: bool
) -> Schedule:
    """A schedule, with what the options fix."""
    return Schedule(
        axis=axis,
        stages=stages,
        queue_depth=queue_depth,
        boundary=scenario.options.boundary,
        mode=scenario.options.mode,
        stream_weights=stream_weights,
    )


def schedules(scenario: Scenario, stream_weights: bool, depth: int) -> Iterator[Schedule]:
    """Every schedule of one queue depth, simple ones first."""
    options, layers = scenario.options, len(scenario.model.layers)
    for axis in options.axes:
        for stages in sorted(set(options.stages)):
            if axis == "token" or stages <= layers:
                yield schedule_with(scenario, axis, stages, depth, stream_weights)


def bounded_candidates(scenario: Scenario) -> list[Candidate]:
    """A bound for every axis and stage count that fits, at the least queue depth.

    Unless asked for, weights are streamed only where they leave little HBM or do not fit.
    """
    depth = min(scenario.options.queue_depths)
    found: list[Candidate] = []
    for stream in streaming(scenario):
        grouped: StepGraph | None = None
        has_room: bool | None = None
        for schedule in schedules(scenario, stream, depth):
            if grouped is not None and schedule.axis == "layer":
                flow = regrouped(grouped, scenario.classes, schedule)
            else:
                flow = flow_graph(scenario, schedule)
            if schedule.axis == "layer":
                grouped = flow
            candidate = bounded(scenario, schedule, flow)
            if candidate is not None:
                found.append(candidate)
                continue
            if has_room is None:  # schedules differ in their buffers alone
                has_room = fluid.has_room(
                    flow, scenario.classes, scenario.capacity, scenario.quality
                )
            if not has_room:
                break
    return found


def usual_schedules(scenario: Scenario) -> list[Schedule]:
    """What one schedule is taken from: one stage count and axis; queue depths in the order to try;
    weights resident or streamed.
    """
    options = scenario.options
    depths = sorted(set(options.queue_depths), key=lambda d: (d != USUAL_DEPTH, d))
    axis = "token" if "token" in options.axes else options.axes[0]
    return [
        schedule_with(scenario, axis, min(options.stages), depth, stream)
        for depth in depths
        for stream in streaming(scenario)
    ]


def streaming(scenario: Scenario) -> tuple[bool, ...]:
    """Whether to consider resident weights, streamed weights, or both."""
    if scenario.hardware.unified:
        return (False,)
    if scenario.options.weights != "auto":
        return (scenario.options.weights == "streamed",)
    model = scenario.model
    weights = sum(cost.weight_bytes(model, layer) for layer in model.layers)
    weights += cost.shared_weight_bytes(model)
    return (False, True) if weights > WEIGHTS_CROWD * scenario.capacity["hbm"] else (False,)


def deeper_candidates(scenario: Scenario, shallow: Sequence[Candidate]) -> list[Candidate]:
    """The same schedules with more buffers, where these could be better by more than NEAR.

    More buffers take HBM, so the bound of a schedule never falls with its queue depth; the bound
    of the least depth stands for all that are not built.
    """
    found: list[Candidate] = []
    for depth in sorted(set(scenario.options.queue_depths))[1:]:
        best_s = min(c.trial_s for c in [*shallow, *found])
        for candidate in shallow:
            if candidate.bound_s * (1 + NEAR) >= best_s:
                continue
            schedule = dataclasses.replace(candidate.schedule, queue_depth=depth)
            deeper = bounded(scenario, schedule, with_queue_depth(candidate.flow, schedule))
            if deeper is not None:
                found.append(deeper)
                try_on_unit(scenario, deeper)
    return found


def unbuilt(scenario: Scenario, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Every schedule that the search has left out so far, with the fluid program's bound."""
    known = {candidate.schedule for candidate in candidates}
    found: list[Candidate] = []
    for candidate in candidates:
        for depth in scenario.options.queue_depths:
            schedule = dataclasses.replace(candidate.schedule, queue_depth=depth)
            if schedule in known:
                continue
            known.add(schedule)
            deeper = bounded(scenario, schedule, with_queue_depth(candidate.flow, schedule))
            if deeper is not None:
                found.append(deeper)
    return found


def with_queue_depth(graph: StepGraph, schedule: Schedule) -> StepGraph:
    """The graph's variables and buffers at another queue depth; its edges stay as they were."""
    buffers = [
        b if b.holds == "weights" else dataclasses.replace(b, count=schedule.queue_depth)
        for b in graph.buffers
    ]
    return dataclasses.replace(graph, buffers=buffers, schedule=schedule)


def unit_layers(model: ModelSpec, schedule: Schedule) -> list[int] | None:
    """The shortest run of layers that, repeated, makes the model and whole stages; None if all.

    Across a barrier layers are not alike: the first one starts with empty buffers.
    """
    if schedule.boundary == "barrier":
        return None
    count = len(model.layers)
    step = 1 if schedule.axis == "token" else count // schedule.stages
    if schedule.axis == "layer" and count % schedule.stages:
        return None
    for size in range(step, count // 2 + 1, step):
        if count % size == 0 and all(
            model.layers[i] == model.layers[i % size] for i in range(count)
        ):
            return list(range(size))
    return None


def full_structure(scenario: Scenario, schedule: Schedule, layers: Sequence[int]) -> Structure:
    """Every allowed path in every layer and stage."""
    structure: dict[tuple[int, int | None], tuple[Path, ...]] = {}
    count = len(scenario.model.layers)
    for layer in layers:
        paths = scenario.paths[scenario.model.layers[layer]]
        structure[layer, None] = tuple(p for p in paths if p.attends != "stage")
        staged = tuple(p for p in paths if p.attends == "stage")
        if schedule.axis == "token":
            stages: Sequence[int] = range(schedule.stages)
        else:
            stages = (group_of(layer, count, schedule.stages),)
        structure.update({(layer, stage): staged for stage in stages})
    return structure


def cyclic(schedule: Schedule) -> Schedule:
    """The schedule without its barrier: never slower, so its bounds hold for both."""
    return dataclasses.replace(schedule, boundary="overlap")


def unit_graph(scenario: Scenario, schedule: Schedule) -> StepGraph:
    """The step graph of one unit with every allowed path in every stage, without a barrier."""
    schedule = cyclic(schedule)
    unit = unit_layers(scenario.model, schedule)
    layers = range(len(scenario.model.layers)) if unit is None else unit
    return build_unit(scenario, schedule, full_structure(scenario, schedule, layers), unit)


def flow_graph(scenario: Scenario, schedule: Schedule) -> StepGraph:
    """A graph with the fluid program of the unit's, which forgets order: one layer of each kind. On
    the layer axis the mean group of layers is what a staging buffer holds.
    """
    classes, schedule = scenario.classes, cyclic(schedule)
    alike = {classes.index(each): classes.count(each) for each in dict.fromkeys(classes)}
    layers = list(alike)
    graph = build_step(
        scenario.model,
        scenario.hardware,
        scenario.workload,
        schedule,
        full_structure(scenario, schedule, layers),
        layers,
        alike if len(alike) > 1 else None,
    )
    if schedule.axis == "layer":
        passes = 1 + max(o.micro_batch for o in graph.operations)
        groups = filled_groups(graph, classes) * (
            passes if scenario.workload.schedule == "row" else 1
        )
        share_tenants(graph, {layer: count / groups for layer, count in alike.items()})
    return graph


def filled_groups(graph: StepGraph, classes: Sequence[int]) -> int:
    """Groups of layers, on the layer axis, of which any may stage tokens; at least one."""
    staging = {classes[v.layer] for v in graph.variables if v.stage is not None}
    filled = {
        group_of(layer, len(classes), graph.schedule.stages)
        for layer, each in enumerate(classes)
        if each in staging
    }
    return max(len(filled), 1)


def share_tenants(graph: StepGraph, share: Mapping[int, float]) -> None:
    """Let staging buffers have one tenant, with so many times what each layer stages."""
    for buffer in graph.buffers:
        if buffer.holds == "stages":
            mean: dict[int, float] = {}
            for tenant in buffer.tenants:
                for variable, size in tenant.items():
                    own = size * share[graph.variables[variable].layer]
                    mean[variable] = mean.get(variable, 0.0) + own
            buffer.tenants = [mean]


def regrouped(graph: StepGraph, classes: Sequence[int], schedule: Schedule) -> StepGraph:
    """What `flow_graph` has on the layer axis, for another number of groups: edges and the stages
    of operations stay as they were.
    """
    other = dataclasses.replace(graph, schedule=cyclic(schedule))
    larger = filled_groups(graph, classes) / filled_groups(other, classes)
    buffers = [b.scaled(larger) if b.holds == "stages" else b for b in graph.buffers]
    return dataclasses.replace(other, buffers=buffers)


def build_unit(
    scenario: Scenario, schedule: Schedule, structure: Structure, unit: Sequence[int] | None
) -> StepGraph:
    """The step graph of a run of layers (None: all), without a barrier."""
    return build_step(
        scenario.model, scenario.hardware, scenario.workload, cyclic(schedule), structure, unit
    )


def targets(scenario: Scenario, relaxation: fluid.Fluid) -> list[dict[str, float]]:
    """Tokens per path of every layer, as the fluid program wants them."""
    return [
        {
            path: tokens
            for (of, path), tokens in relaxation.tokens.items()
            if of == scenario.classes[layer] and path != "stream_weights"
        }
        for layer in range(len(scenario.model.layers))
    ]


def streamed(scenario: Scenario, relaxation: fluid.Fluid) -> list[float]:
    """Share of every layer's weights to stream."""
    return [
        min(relaxation.tokens.get((each, "stream_weights"), 0.0), 1.0) for each in scenario.classes
    ]


def try_on_unit(scenario: Scenario, candidate: Candidate) -> None:
    """Play the fractional allocation on one unit, with each pattern of mixing stages."""
    unit = unit_layers(scenario.model, cyclic(candidate.schedule))
    if unit is None:
        candidate.trial_s = candidate.bound_s
        return
    for pattern in patterns(scenario, candidate):
        step_s = play_unit(scenario, candidate, pattern, unit)
        if step_s < candidate.trial_s:
            candidate.trial_s, candidate.pattern = step_s, pattern


def patterns(scenario: Scenario, candidate: Candidate) -> tuple[str, ...]:
    """Patterns that mix stages differently: one, where a layer's stages all hold the same path."""
    if candidate.schedule.axis == "token":
        for layer, wanted in enumerate(targets(scenario, candidate.relaxation)):
            if len(staged(scenario, layer, wanted)) > 1:
                return PATTERNS
    return PATTERNS[:1]


def staged(scenario: Scenario, layer: int, wanted: Mapping[str, float]) -> dict[str, float]:
    """Tokens of the paths that a layer's stages hold; next to none are left out."""
    least = 1e-6 * scenario.cached_tokens(layer)
    return {n: t for n, t in wanted.items() if t > least and REGISTRY[n].attends == "stage"}


def fractional(
    scenario: Scenario, candidate: Candidate, pattern: str, layers: Sequence[int]
) -> tuple[dict[tuple[int, int | None], list[Path]], dict[tuple[int, int | None, str], float]]:
    """Paths and tokens of every layer and stage, before rounding to blocks."""
    schedule, wanted = candidate.schedule, targets(scenario, candidate.relaxation)
    structure: dict[tuple[int, int | None], list[Path]] = {}
    tokens: dict[tuple[int, int | None, str], float] = {}
    for layer in layers:
        least = 1e-6 * scenario.cached_tokens(layer)
        inside = staged(scenario, layer, wanted[layer])
        if schedule.axis == "token":
            mixes = list(enumerate(stage_mixes(inside, schedule.stages, pattern)))
        else:
            mixes = [(group_of(layer, len(scenario.model.layers), schedule.stages), inside)]
        places: list[tuple[int | None, str, float]] = [
            (stage, name, count) for stage, mix in mixes for name, count in mix.items()
        ]
        outside = {n: t for n, t in wanted[layer].items() if REGISTRY[n].attends != "stage"}
        places += [(None, n, t) for n, t in outside.items() if t > least]
        for stage, name, count in places:
            if count > 0:
                tokens[layer, stage, name] = count
                structure.setdefault((layer, stage), []).append(REGISTRY[name])
    return structure, tokens


def play_unit(scenario: Scenario, candidate: Candidate, pattern: str, unit: Sequence[int]) -> float:
    """Step of the fractional allocation of one unit."""
    return unit_play(scenario, candidate, pattern, unit)[2].step_s


def unit_play(
    scenario: Scenario, candidate: Candidate, pattern: str, unit: Sequence[int]
) -> tuple[StepGraph, list[float], Simulation]:
    """Graph, values and run of the fractional allocation of one unit; absent paths cost nothing."""
    structure, tokens = fractional(scenario, candidate, pattern, unit)
    shares = streamed(scenario, candidate.relaxation)
    graph = build_unit(scenario, candidate.schedule, structure, unit)
    values = [
        shares[v.layer] if v.path == "stream_weights" else tokens[v.layer, v.stage, v.path]
        for v in graph.variables
    ]
    return graph, values, simulate(graph, values)


def least_bound(candidates: Sequence[Candidate]) -> float:
    """The bound over all candidates, seconds."""
    return min(c.bound_s for c in candidates)


def simplicity(candidate: Candidate) -> tuple[int, int, int, int]:
    """Resident weights, then token ranges, then few stages, then few buffers come first."""
    schedule = candidate.schedule
    return (
        schedule.stream_weights,
        schedule.axis != "token",
        schedule.stages,
        schedule.queue_depth,
    )
