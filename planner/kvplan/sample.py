"""Samples: layers that stand for all of a model's while plans are compared.

Most models repeat a few layers many times, and so do their best plans. A program of one repeat, or
of as many as may differ from each other, is solved in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.scenario import Scenario

LONGEST = 8
"""Layers of a repeat, at most."""

NEARLY = 0.85
"""Share of the layers, and of what they cache, that is as a repeat has it, at least."""

ENDS = 2
"""Layers on each side of the head that differ from the others."""

FEW = 12
"""Layers that cache tokens up to which each one differs from all others."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Layers that stand for all.

    Args:
        layers: those whose program is solved.
        kinds: kind of every layer of the model, numbered from 0 as they come. Layers of a kind have
            the same paths in their stages.
        leaders: for each kind the one whose paths it has: itself, if the sample has it.
    """

    layers: range
    kinds: tuple[int, ...]
    leaders: tuple[int, ...]


def one_repeat(scenario: Scenario) -> Sample:
    """The shortest run of layers that, repeated, is nearly the model, equal layers being alike; all
    layers where there is none, or where a barrier makes the first one differ.
    """
    return sampled(scenario, repeat_of(scenario), scenario.classes)


def some_repeats(scenario: Scenario, count: int) -> Sample | None:
    """So many repeats, each layer of which may differ from all others; none where the model has no
    repeat, or not so many.
    """
    repeat, layers = repeat_of(scenario), len(scenario.classes)
    length = len(repeat) * count
    if len(repeat) == layers or repeat.start + length > layers:
        return None
    run = range(repeat.start, repeat.start + length)
    return sampled(scenario, run, told_apart(scenario, length, 0))


def all_layers(scenario: Scenario, count: int) -> Sample:
    """The whole step, the layers of so many repeats differing from each other, and the first and
    the last ones from all others.
    """
    repeat, layers = repeat_of(scenario), len(scenario.classes)
    length = len(repeat) * count if len(repeat) < layers else 0
    return sampled(scenario, range(layers), told_apart(scenario, length, ENDS))


def repeat_of(scenario: Scenario) -> range:
    """The shortest run of layers that, repeated, is nearly the model; all layers where there is
    none, or where a barrier makes the first one differ.
    """
    classes = scenario.classes
    count = len(classes)
    if scenario.options.boundary == "barrier":
        return range(count)
    cached = [
        layer.kv_elements * scenario.cached_tokens(i)
        for i, layer in enumerate(scenario.model.layers)
    ]
    for length in range(1, min(LONGEST, count // 2) + 1):
        for begin in range(min(length, count - length) + 1):
            alike = [
                i for i, own in enumerate(classes) if own == classes[begin + (i - begin) % length]
            ]
            run = range(begin, begin + length)
            all_run = sum(cached[i] for i in run) * count / length
            if (
                len(alike) >= NEARLY * count
                and sum(cached[i] for i in alike) >= NEARLY * sum(cached) >= NEARLY**2 * all_run
            ):
                return run
    return range(count)


def told_apart(scenario: Scenario, length: int, ends: int) -> tuple[int, ...]:
    """Kinds of layers by their place in a run of that length, those at both ends being different;
    where there is no such run (0), by their place among equal ones, or where few cache tokens, each
    of these.
    """
    classes, found = scenario.classes, dict[tuple[object, ...], int]()
    count = len(classes)
    caching = [layer for layer in range(count) if scenario.cached_tokens(layer)]
    kinds, since = [], 0
    for layer, each in enumerate(classes):
        since = since + 1 if layer and each == classes[layer - 1] else 0
        key: tuple[object, ...] = (each, layer % length if length else min(since, LONGEST))
        if not ends <= layer < count - ends or (not length and len(caching) <= FEW):
            key = ("apart", layer)
        kinds.append(found.setdefault(key, len(found)))
    return tuple(kinds)


def sampled(scenario: Scenario, layers: range, kinds: tuple[int, ...]) -> Sample:
    """A sample of some layers. What is not in it has the layout of one that is and may use the same
    paths.
    """
    seen = dict.fromkeys(kinds[layer] for layer in layers)
    paths = [scenario.paths[scenario.model.layers[layer]] for layer in firsts(kinds)]
    leaders = tuple(
        each if each in seen else next((s for s in seen if paths[s] == paths[each]), each)
        for each in range(len(paths))
    )
    return Sample(layers, kinds, leaders)


def period_of(kinds: Sequence[int]) -> int:
    """Layers after which numbers repeat, the last run being a part of one, maybe.

    >>> period_of((0, 0, 1, 0, 0, 1, 0))
    3
    """
    count = len(kinds)
    return next(
        (p for p in range(1, count) if all(kinds[i] == kinds[i % p] for i in range(count))), count
    )


def firsts(kinds: Sequence[int]) -> list[int]:
    """The first layer of each kind, by number of the kind.

    >>> firsts((0, 1, 0, 2))
    [0, 1, 3]
    """
    return [kinds.index(each) for each in range(max(kinds) + 1)]
