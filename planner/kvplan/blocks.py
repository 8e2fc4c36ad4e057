"""Tokens per block of a plan, by path."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.graph import StepGraph
from kvplan.paths import REGISTRY


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens per block of a plan.

    Args:
        moved: where K and V are as they are stored.
        rebuilt: where a matrix product makes them; a multiple of the other.

    >>> Blocks(1, 4).of("fetch"), Blocks(1, 4).of("recompute")
    (1, 4)
    """

    moved: int
    rebuilt: int

    def of(self, path: str) -> int:
        """Those of a path."""
        return self.rebuilt if path in REGISTRY and REGISTRY[path].rebuilds else self.moved

    def filled(self, graph: StepGraph) -> StepGraph:
        """A graph with the tokens of each layer filled up to whole blocks of its paths."""
        sizes = dict.fromkeys(graph.tokens, self.rebuilt)
        for variable in graph.variables:
            if variable.path in REGISTRY and variable.layer in sizes:
                sizes[variable.layer] = min(sizes[variable.layer], self.of(variable.path))
        return graph.in_blocks(sizes)
