"""Layouts: a schedule and which paths the stages of each kind of layer have, and their neighbours.

A layout says where tokens may be, not how many: an operation that a stage does not have takes no
time and nothing waits for it, while one that a program leaves without tokens still has its fixed
part. So the program of a layout is solved as it stands, and layouts are compared by its optimum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.graph import Structure
from kvplan.paths import REGISTRY, Path
from kvplan.sample import firsts
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule

Names = frozenset[str]
"""Names of paths."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Where the tokens of a layer may be, beside HBM.

    Args:
        stages: paths of each stage.
        away: paths that attend where tokens lie.
    """

    stages: tuple[Names, ...]
    away: Names = frozenset()

    def with_stage(self, stage: int, names: Names) -> Layer:
        """The same with other paths in one stage."""
        return replace(self, stages=(*self.stages[:stage], names, *self.stages[stage + 1 :]))


@dataclass(frozen=True, slots=True)
class Layout:
    """A schedule on the token axis and what each kind of layer has.

    Args:
        schedule: how the step is pipelined.
        kinds: kind of every layer of the model, numbered from 0 as they come.
        layers: by number of the kind.
    """

    schedule: Schedule
    kinds: tuple[int, ...]
    layers: tuple[Layer, ...]

    def over(self, kinds: tuple[int, ...]) -> Layout:
        """The same over other kinds, each as the first of its layers is here."""
        layers = tuple(self.layers[self.kinds[first]] for first in firsts(kinds))
        return Layout(self.schedule, kinds, layers)

    def with_layer(self, each: int, layer: Layer, leaders: Sequence[int]) -> Layout:
        """The same with another layer in one kind and in those that it leads."""
        pairs = zip(self.layers, leaders, strict=True)
        layers = tuple(layer if leader == each else own for own, leader in pairs)
        return replace(self, layers=layers)

    def led(self, leaders: Sequence[int]) -> Layout:
        """The same where every kind has what its leader has."""
        return replace(self, layers=tuple(self.layers[leader] for leader in leaders))


def allowed(scenario: Scenario, kinds: Sequence[int]) -> list[tuple[Path, ...]]:
    """Paths that layers may use, by number of their kind."""
    return [scenario.paths[scenario.model.layers[layer]] for layer in firsts(kinds)]


def names(paths: Sequence[Path], attends: str) -> Names:
    """Names of the paths that attend in a place."""
    return frozenset(path.name for path in paths if path.attends == attends)


def with_every_path(scenario: Scenario, schedule: Schedule, kinds: tuple[int, ...]) -> Layout:
    """Every path in every stage."""
    layers = (
        Layer((names(paths, "stage"),) * schedule.stages, names(paths, "away"))
        for paths in allowed(scenario, kinds)
    )
    return Layout(schedule, kinds, tuple(layers))


def with_one_path(layout: Layout, name: str) -> Layout:
    """One path alone in every stage that may have it; the others are as they were."""
    return replace(
        layout,
        layers=tuple(
            replace(
                layer,
                stages=tuple(frozenset((name,)) if name in held else held for held in layer.stages),
            )
            for layer in layout.layers
        ),
    )


def layout_of(plan: Evaluation, kinds: tuple[int, ...]) -> Layout:
    """What most layers of each kind have in a plan on the token axis."""
    counts: list[Counter[Layer]] = [Counter() for _ in firsts(kinds)]
    for each, segments in zip(kinds, plan.allocation, strict=True):
        held: list[set[str]] = [set() for _ in range(plan.schedule.stages)]
        away = set()
        for segment in segments:
            if segment.stage is not None:
                held[segment.stage].add(segment.path)
            elif REGISTRY[segment.path].attends == "away":
                away.add(segment.path)
        counts[each][Layer(tuple(map(frozenset, held)), frozenset(away))] += 1
    usual = Layout(plan.schedule, kinds, tuple(c.most_common(1)[0][0] for c in counts))
    return next(resized(usual, (plan.schedule.stages,)))


def structure(scenario: Scenario, layout: Layout, layers: Sequence[int]) -> Structure:
    """Paths of each layer and stage of a graph; tokens may stay in HBM in every layer."""
    found = dict[tuple[int, int | None], Sequence[Path]]()
    for layer in layers:
        own = scenario.paths[scenario.model.layers[layer]]
        has = layout.layers[layout.kinds[layer]]
        found[layer, None] = [p for p in own if p.attends == "resident" or p.name in has.away]
        for stage, held in enumerate(has.stages):
            if held:
                found[layer, stage] = [p for p in own if p.name in held]
    return found


def other_in_paths(scenario: Scenario, layout: Layout, leaders: Sequence[int]) -> Iterator[Layout]:
    """Every layout that differs in a path of a stage, taken, left out or in place of another one,
    or in one that attends away.

    Args:
        scenario: the question.
        layout: what they differ from.
        leaders: for each kind the one whose layers it copies.
    """
    paths = allowed(scenario, layout.kinds)
    for each in sorted(set(leaders)):
        for layer in other_paths(paths[each], layout.layers[each]):
            yield layout.with_layer(each, layer, leaders)


def other_in_kinds(scenario: Scenario, layout: Layout, leaders: Sequence[int]) -> Iterator[Layout]:
    """Every layout where one kind has no stage with tokens, or the same as another kind."""
    paths, kinds = allowed(scenario, layout.kinds), sorted(set(leaders))
    for each in kinds if len(kinds) > 1 else ():
        own = layout.layers[each]
        nothing = replace(own, stages=(frozenset(),) * layout.schedule.stages)
        same = [layout.layers[other] for other in kinds if paths[other] == paths[each]]
        for layer in dict.fromkeys((nothing, *same)):
            if layer != own:
                yield layout.with_layer(each, layer, leaders)


def other_paths(paths: Sequence[Path], layer: Layer) -> Iterator[Layer]:
    """What a layer may have instead, one path being another."""
    for name in sorted(names(paths, "away")):
        yield replace(layer, away=layer.away ^ {name})
    staged = sorted(names(paths, "stage"))
    for stage, held in enumerate(layer.stages):
        for name in staged:
            if not held and (stage == 0 or layer.stages[stage - 1]):
                yield layer.with_stage(stage, frozenset((name,)))
            elif held and held != {name}:
                yield layer.with_stage(stage, held ^ {name})
            if name not in held:
                for other in sorted(held):
                    yield layer.with_stage(stage, (held - {other}) | {name})


def other_in_stages(layout: Layout, leaders: Sequence[int]) -> Iterator[Layout]:
    """Every layout that differs in a stage of one kind, left out or there twice, in how many empty
    ones there are, or in how many buffers.

    Stages of a layer are as large as their mean, nearly, so some can be empty only where that is
    small, which more of them make it.
    """
    schedule, count = layout.schedule, layout.schedule.stages
    for by in (-1, 1):
        other = changed(schedule, count, schedule.queue_depth + by)
        if other is not None:
            yield replace(layout, schedule=other)
    yield from resized(layout, (count - 1, count + 1))
    for each in sorted(set(leaders)):
        own = layout.layers[each].stages
        for stage, held in enumerate(own):
            if held:
                fewer = Layer(own[:stage] + own[stage + 1 :], layout.layers[each].away)
                more = Layer((*own[:stage], held, *own[stage:]), layout.layers[each].away)
                less = layout.with_layer(each, fewer, leaders)
                yield from resized(less, (count, count + 1, count + 2))
                yield from resized(layout.with_layer(each, more, leaders), (count, count + 1))


def resized(layout: Layout, counts: Iterable[int]) -> Iterator[Layout]:
    """The same with so many stages, the empty ones last; none where those that are not are more."""
    held = [tuple(filter(None, layer.stages)) for layer in layout.layers]
    for count in counts:
        schedule = changed(layout.schedule, count, layout.schedule.queue_depth)
        if schedule is not None and max(map(len, held)) <= count:
            layers = tuple(
                replace(layer, stages=own + (frozenset(),) * (count - len(own)))
                for layer, own in zip(layout.layers, held, strict=True)
            )
            yield Layout(schedule, layout.kinds, layers)


def changed(schedule: Schedule, stages: int, queue_depth: int) -> Schedule | None:
    """A schedule with so many stages and buffers; None where there is no such one.

    >>> changed(Schedule(queue_depth=1), 4, 0)
    """
    try:
        return replace(schedule, stages=stages, queue_depth=queue_depth)
    except InputError:
        return None
