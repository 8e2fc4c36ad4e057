"""The search for the fastest split of a prefix, and a bound on all of them.

For each number of whole chunks at the front, the tokens of the next chunk and of every layer's tail
are variables of the program; the least optimum over all of them bounds every plan of this kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan import program
from kvplan.gap import gap
from kvplan.graph import StepGraph
from kvplan.hardware import peak_rate
from kvplan.paths import Path
from kvplan.restoration import Restoration
from kvplan.restore_graph import Shape, build_restore
from kvplan.restored import Restored, Split, judge, load, rebuild, recompute

MOST_MOVES, GOOD_ENOUGH, FEW_BLOCKS = 8, 1.01, 64
"""Blocks moved after rounding at most; the ratio to the bound at which none is, and the blocks in a
prefix from which a single one matters too little.
"""

SPREADS = (0.0, 0.5, 0.75, 0.9, 1.0)
"""Shares of the layers between whose arrivals the front is tried."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best split found, and a bound on all of them, seconds."""

    restored: Restored
    bound_s: float

    @property
    def gap(self) -> float:
        """How much longer it takes than the bound, relative."""
        return gap(self.restored.ttft_s, self.bound_s)


def best(restoration: Restoration, *, activations: bool = True) -> Best:
    """Search fronts of every length through all layers, and whole prefixes through some of them.

    Args:
        restoration: the question.
        activations: whether activations are stored too.
    """
    shapes = list(_shapes(restoration, activations))
    floors = sorted((_floor_s(restoration, shape), i) for i, shape in enumerate(shapes))
    bound_s = float("inf")
    found = [load(restoration), recompute(restoration)]
    if activations:
        found.append(rebuild(restoration))
    for floor_s, index in floors:
        if floor_s >= bound_s:
            break
        shape = shapes[index]
        graph = build_restore(restoration, shape)
        solution = program.solve(program.state(graph, {}, relaxed=True))
        if solution is None:
            continue
        bound_s = min(bound_s, solution.step_s)
        if solution.step_s < min(restored.ttft_s for restored in found):
            splits = dict.fromkeys(_rounded(restoration, shape, graph, solution))
            found += [judge(restoration, split) for split in splits]
    fitting = [restored for restored in found if restored.fits] or found
    winner = min(fitting, key=lambda restored: restored.ttft_s)
    if activations:
        winner = _polished(winner, bound_s)
    return Best(winner, min(bound_s, winner.ttft_s))


def _shapes(restoration: Restoration, activations: bool) -> Iterator[Shape]:
    """Every number of whole chunks through all layers; all chunks through the first layers."""
    layers = restoration.model.layers
    paths = tuple(
        (restoration.rebuild, restoration.load)
        if activations and restoration.rebuild_helps(layer)
        else (restoration.load,)
        for layer in layers
    )
    chunks = len(restoration.edges) - 1
    for full in range(chunks):
        for meeting in (False, True):
            yield Shape(full=full, meeting=meeting, depth=len(layers), paths=paths, loose=True)
    for depth in range(1, len(layers) + 1):
        yield Shape(full=chunks, meeting=False, depth=depth, paths=paths, loose=True)


def _floor_s(restoration: Restoration, shape: Shape) -> float:
    """Seconds that no plan of a shape can beat: the GPU's least work, the link's least bytes."""
    given, depth = restoration, len(restoration.model.layers)
    requests = given.prefix.requests
    front_s = sum(
        given.chunk_s(a, b - a, shape.depth)
        for a, b in zip(given.edges[: shape.full], given.edges[1 : shape.full + 1], strict=True)
    )
    most = given.edges[shape.full + 1 if shape.meeting else shape.full]
    link_s = sum(
        min(_link_s_per_token(given, path, layer) for path in shape.paths[layer])
        * given.behind(layer, most if layer < shape.depth else 0)
        for layer in range(depth)
        if given.cached[layer]
    )
    return max(front_s, link_s) * requests


def _link_s_per_token(restoration: Restoration, path: Path, layer: int) -> float:
    """Least seconds of the link per token of a path, at any number of tokens."""
    legs = restoration.legs(path, restoration.model.layers[layer])
    return sum(1 / peak_rate(g.curve) for g in legs if g.resource == "h2d" and g.curve is not None)


def _rounded(
    restoration: Restoration, shape: Shape, graph: StepGraph, solution: program.Solution
) -> Iterator[Split]:
    """Whole blocks near an optimum of the program."""
    given, block = restoration, restoration.prefix.block
    begin = given.edges[shape.full]
    value = dict(zip(((v.layer, v.path) for v in graph.variables), solution.values, strict=True))
    part = next((x for (_, path), x in value.items() if path == "prefill"), 0.0)
    size = given.edges[shape.full + 1] - begin if shape.meeting else 0
    fronts = {min(begin + size, begin + int(part // block) * block),
              min(begin + size, begin + -int(-part // block) * block)}  # fmt: skip
    wanted = [value.get((i, given.rebuild.name), 0.0) for i in range(len(given.model.layers))]
    for front in sorted(fronts):
        for tokens in (wanted, _evened(given, wanted)):
            rebuilt = _blocks(given, shape, front, tokens)
            spreads = SPREADS if front and any(rebuilt) else (0.0,)
            for spread in (int(share * len(wanted)) for share in spreads):
                yield Split(front=front, depth=shape.depth, rebuilt=rebuilt, spread=spread)


def _evened(restoration: Restoration, wanted: Sequence[float]) -> list[float]:
    """The same tokens in all equal layers that the program treats unevenly for no gain."""
    members: dict[object, list[int]] = {}
    for index, layer in enumerate(restoration.model.layers):
        members.setdefault(layer, []).append(index)
    even = list(wanted)
    for own in members.values():
        for index in own:
            even[index] = sum(wanted[i] for i in own) / len(own)
    return even


def _blocks(
    restoration: Restoration, shape: Shape, front: int, wanted: Sequence[float]
) -> tuple[int, ...]:
    """Tokens to rebuild in whole blocks; what rounding leaves is made up in the next layer."""
    block, owed, found = restoration.prefix.block, 0.0, []
    for layer, tokens in enumerate(wanted):
        behind = restoration.behind(layer, front if layer < shape.depth else 0)
        count = min(max(round((tokens + owed) / block) * block, 0), behind)
        if tokens >= behind:
            count = behind
        owed += tokens - count
        found.append(count if restoration.rebuild in shape.paths[layer] else 0)
    return tuple(found)


def _polished(restored: Restored, bound_s: float) -> Restored:
    """Move single blocks between ways as long as that helps and the bound is not reached."""
    prefix = restored.restoration.prefix
    for _ in range(MOST_MOVES if prefix.tokens < FEW_BLOCKS * prefix.block else 0):
        if restored.ttft_s <= bound_s * GOOD_ENOUGH:
            return restored
        better = min(
            (judge(restored.restoration, split) for split in dict.fromkeys(_moves(restored))),
            key=lambda moved: moved.ttft_s,
            default=restored,
        )
        if better.ttft_s >= restored.ttft_s * (1 - 1e-9):
            return restored
        restored = better
    return restored


def _moves(restored: Restored) -> Iterator[Split]:
    """Splits one block away: another front, or more or less rebuilt in one layer."""
    given, split = restored.restoration, restored.split
    block, count = given.prefix.block, len(given.model.layers)
    most = [given.behind(i, split.front if i < split.depth else 0) for i in range(count)]
    for layer, spec in enumerate(given.model.layers):
        for change in (-block, block) if given.rebuild_helps(spec) else ():
            tokens = min(max(split.rebuilt[layer] + change, 0), most[layer])
            if tokens != split.rebuilt[layer]:
                rebuilt = (*split.rebuilt[:layer], tokens, *split.rebuilt[layer + 1 :])
                yield dataclasses.replace(split, rebuilt=rebuilt)
    if split.depth < count:
        return
    for change in (-block, block):
        front = min(max(split.front + change, 0), given.prefix.tokens)
        rebuilt = tuple(min(k, given.behind(i, front)) for i, k in enumerate(split.rebuilt))
        yield dataclasses.replace(split, front=front, rebuilt=rebuilt)
