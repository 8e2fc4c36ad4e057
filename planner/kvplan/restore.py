"""How a prefix comes back fastest: load it, recompute it, rebuild it, or split it.

Each way is a graph (`restore_graph`) judged by the simulator. A split is found by the program: for
each number of whole chunks at the front, the tokens of the next chunk and of every layer's tail are
its variables; the least optimum over all of them bounds every plan of this kind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvplan import program
from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError, InputError
from kvplan.graph import StepGraph
from kvplan.hardware import peak_rate
from kvplan.paths import Path
from kvplan.restoration import Restoration
from kvplan.restore_graph import Shape, build_restore, held_bytes
from kvplan.simulate import Simulation, simulate
from kvplan.units import format_bytes

WAYS = {
    "load": "load K and V",
    "recompute": "recompute from tokens",
    "rebuild": "rebuild from activations",
    "split": "split, front recomputed",
}
"""Ways that are compared, and what they are."""

MOST_MOVES, GOOD_ENOUGH, FEW_BLOCKS = 8, 1.01, 64
"""Blocks moved after rounding at most; the ratio to the bound at which none is, and the blocks in a
prefix from which a single one matters too little.
"""

WORTH_IT = 1.01
"""How much faster than the best plain way a split must be to be chosen."""

SPREADS = (0.0, 0.5, 0.75, 0.9, 1.0)
"""Shares of the layers between whose arrivals the front is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where every token's K and V come from.

    Args:
        front: tokens that are recomputed from tokens, first of the prefix.
        depth: layers through which they are.
        rebuilt: tokens of each layer, behind the front, that are rebuilt from activations; the
            rest is loaded.
        spread: layers between whose arrivals the front is computed, see `restore_graph.Shape`.
    """

    front: int
    depth: int
    rebuilt: tuple[int, ...]
    spread: int = 0


@dataclass(frozen=True)
class Restored:
    """A judged split.

    Args:
        restoration: the question.
        split: what was judged.
        graph: its graph.
        values: values of the graph's variables.
    """

    restoration: Restoration
    split: Split
    graph: StepGraph
    values: tuple[float, ...]

    @cached_property
    def simulation(self) -> Simulation:
        """The run of the graph."""
        return simulate(self.graph, self.values)

    @property
    def ttft_s(self) -> float:
        """Seconds until the last request has its first new token."""
        return self.simulation.step_s

    @cached_property
    def ttfts(self) -> tuple[float, ...]:
        """Seconds until each request has its first new token."""
        run = self.simulation
        return tuple(
            run.start_s[index] + run.duration_s[index]
            for index, operation in enumerate(self.graph.operations)
            if operation.operation == "head"
        )

    @property
    def fits(self) -> bool:
        """Whether HBM holds weights, workspace, the cache and the staging buffers."""
        return self.graph.memory_bytes(self.values)["hbm"] <= self.restoration.hbm_bytes

    def loaded(self, layer: int) -> int:
        """Tokens of a layer that are loaded as K and V."""
        behind = self.restoration.behind(layer, self.split.front if layer < self.split.depth else 0)
        return behind - self.split.rebuilt[layer]


def judge(restoration: Restoration, split: Split) -> Restored:
    """Run one split.

    Args:
        restoration: the question.
        split: where every token comes from; ``rebuilt`` at most the tokens behind the front.
    """
    given, layers = restoration, range(len(restoration.model.layers))
    full = max(i for i, edge in enumerate(given.edges) if edge <= split.front)
    rest = split.front - given.edges[full]
    paths: list[tuple[Path, ...]] = []
    tokens: dict[tuple[int, str], int] = {}
    for layer in layers:
        behind = given.behind(layer, split.front if layer < split.depth else 0)
        counts = {given.rebuild: split.rebuilt[layer], given.load: behind - split.rebuilt[layer]}
        assert min(counts.values()) >= 0, f"layer {layer} rebuilds more than it needs"
        paths.append(tuple(path for path, count in counts.items() if count))
        tokens |= {(layer, path.name): count for path, count in counts.items()}
    shape = Shape(
        full=full, meeting=rest > 0, depth=split.depth, paths=tuple(paths), spread=split.spread
    )
    graph = build_restore(given, shape)
    values = tuple(
        float(rest) if v.path == "prefill" else float(tokens[v.layer, v.path])
        for v in graph.variables
    )
    return Restored(given, split, graph, values)


def resident(restoration: Restoration) -> Restored:
    """Nothing is brought back: the prefix is still in HBM."""
    paths: tuple[tuple[Path, ...], ...] = ((),) * len(restoration.model.layers)
    graph = build_restore(
        restoration, Shape(full=0, meeting=False, depth=0, paths=paths, resident=True)
    )
    split = Split(front=0, depth=0, rebuilt=none_rebuilt(restoration))
    return Restored(restoration, split, graph, ())


def none_rebuilt(restoration: Restoration) -> tuple[int, ...]:
    """No tokens of any layer."""
    return (0,) * len(restoration.model.layers)


def load(restoration: Restoration) -> Restored:
    """Everything is loaded."""
    return judge(restoration, Split(front=0, depth=0, rebuilt=none_rebuilt(restoration)))


def recompute(restoration: Restoration) -> Restored:
    """Everything is recomputed from tokens."""
    depth = len(restoration.model.layers)
    split = Split(front=restoration.prefix.tokens, depth=depth, rebuilt=none_rebuilt(restoration))
    return judge(restoration, split)


def rebuild(restoration: Restoration) -> Restored:
    """Everything is rebuilt from activations."""
    return judge(restoration, Split(front=0, depth=0, rebuilt=restoration.cached))


# -- the split -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """The best split found, and a bound on all of them, seconds."""

    restored: Restored
    bound_s: float

    @property
    def gap(self) -> float:
        """How much longer it takes than the bound, relative; never negative but by rounding."""
        return max(self.restored.ttft_s / self.bound_s - 1, 0.0) if self.bound_s > 0 else 0.0


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


# -- all ways ------------------------------------------------------------------------------------


def refuse_overflow(restoration: Restoration) -> None:
    """Refuse a prefix that HBM cannot hold beside the weights, or the store cannot hold.

    Raises:
        InfeasibleError: naming the budget and the smallest change.
    """
    prefix = restoration.prefix
    what = f"{prefix.requests} x {prefix.tokens + prefix.suffix} tokens"
    budget, needed = restoration.hbm_bytes, held_bytes(restoration)
    if needed > budget:
        raise InfeasibleError(
            "hbm",
            f"weights, workspace and the K and V of {what} need {format_bytes(needed)}, "
            f"{format_bytes(needed - budget)} more than its budget of {format_bytes(budget)}",
            f"an HBM budget of {format_bytes(needed)} fits, or a shorter --prefix, fewer requests, "
            "--kv-dtype fp8 or more ranks (--tp)",
        )
    budget, needed = restoration.store_capacity_bytes, store_bytes(load(restoration))
    if needed > budget:
        raise InfeasibleError(
            prefix.source,
            f"the K and V of {prefix.requests} x {prefix.tokens} tokens need "
            f"{format_bytes(needed)}, {format_bytes(needed - budget)} more than its budget of "
            f"{format_bytes(budget)}",
            f"a budget of {format_bytes(needed)} fits, or a shorter --prefix, fewer requests or "
            "--stored-as int8",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Every way, and the one to take.

    Args:
        ways: name of each way that may be used, and fits, to how it does.
        chosen: the one to take: a split only where it saves more than a hundredth.
        bound_s: no way that may be used takes less, seconds.
        recomputed_s: what recomputing everything takes, whether it may be used or not.
    """

    ways: dict[str, Restored]
    chosen: str
    bound_s: float
    recomputed_s: float


def answer(restoration: Restoration, ways: Sequence[str] = tuple(WAYS)) -> Answer:
    """Judge every way and choose.

    Args:
        restoration: the question.
        ways: names from `WAYS`; a split uses no activations where ``rebuild`` is left out.

    Raises:
        InputError: a way that is not known, or none.
        InfeasibleError: HBM cannot hold the prefix, or the store cannot.
    """
    for way in ways:
        if way not in WAYS:
            raise InputError("ways", way, f"some of {', '.join(WAYS)}")
    if not ways:
        raise InputError("ways", "", f"some of {', '.join(WAYS)}")
    refuse_overflow(restoration)
    whole = recompute(restoration)
    runs: dict[str, Callable[[], Restored]] = {
        "load": lambda: load(restoration),
        "recompute": lambda: whole,
        "rebuild": lambda: rebuild(restoration),
    }
    judged = {way: runs[way]() for way in WAYS if way in ways and way in runs}
    found = {way: restored for way, restored in judged.items() if restored.fits}
    chosen = min(found, key=lambda way: found[way].ttft_s) if found else "split"
    bound_s = min((r.ttft_s for r in found.values()), default=float("inf"))
    if "split" in ways:
        split = best(restoration, activations="rebuild" in ways)
        found["split"] = split.restored
        if not runs.keys() & found.keys() or split.restored.ttft_s * WORTH_IT < bound_s:
            chosen = "split"
        bound_s = min(split.bound_s, bound_s)
    if not found:
        needed = min(r.graph.memory_bytes(r.values)["hbm"] for r in judged.values())
        raise InfeasibleError(
            "hbm",
            f"{' and '.join(judged)} with staging buffers need {format_bytes(needed)}, more than "
            f"the budget of {format_bytes(restoration.hbm_bytes)}",
            f"an HBM budget of {format_bytes(needed)} fits, or allow more --ways",
        )
    return Answer(ways=found, chosen=chosen, bound_s=bound_s, recomputed_s=whole.ttft_s)


def store_bytes(restored: Restored) -> float:
    """Bytes that all requests' prefixes take in the store: tokens, and what crosses beside them."""
    pairs = zip(restored.graph.variables, restored.values, strict=True)
    tier = restored.restoration.prefix.source
    tokens = sum(variable.stored.get(tier, 0.0) * value for variable, value in pairs)
    operations = restored.graph.operations
    return tokens + sum(o.bytes_per_unit for o in operations if o.operation == "copy_held")


def spare_tokens(restoration: Restoration) -> tuple[float, float]:
    """Tokens of K and V that HBM can keep beside weights and workspace, and that the store can."""
    prefix = restoration.prefix
    cache = restoration.model.kv_bytes(
        prefix.tokens + prefix.suffix, element_bytes(prefix.kv_dtype)
    )
    fixed = held_bytes(restoration) - cache * prefix.requests
    own = cache / (prefix.tokens + prefix.suffix)
    stored = store_bytes(load(restoration)) / prefix.requests / prefix.tokens
    if not own or not stored:
        return float("inf"), float("inf")
    spare = max(restoration.hbm_bytes - fixed, 0.0)
    return spare / own, restoration.store_capacity_bytes / stored
