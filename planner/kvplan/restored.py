"""A prefix brought back: where every token's K and V come from, and how long that takes.

Each way is a graph (`restore_graph`) judged by the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvplan.graph import StepGraph
from kvplan.paths import Path
from kvplan.restoration import Restoration
from kvplan.restore_graph import Shape, build_restore
from kvplan.simulate import Simulation, simulate


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
    def hbm_bytes(self) -> float:
        """HBM of weights, workspace, the cache and the staging buffers."""
        return self.graph.memory_bytes(self.values)["hbm"]

    @property
    def fits(self) -> bool:
        """Whether HBM holds it."""
        return self.hbm_bytes <= self.restoration.hbm_bytes

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


def store_bytes(restored: Restored) -> float:
    """Bytes that all requests' prefixes take in the store: tokens, and what crosses beside them."""
    pairs = zip(restored.graph.variables, restored.values, strict=True)
    tier = restored.restoration.prefix.source
    tokens = sum(variable.stored.get(tier, 0.0) * value for variable, value in pairs)
    operations = restored.graph.operations
    return tokens + sum(o.bytes_per_unit for o in operations if o.operation == "copy_held")
