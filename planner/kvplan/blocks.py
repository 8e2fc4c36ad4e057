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

    @staticmethod
    def alike(block: int) -> Blocks:
        """The same size for all paths."""
        return Blocks(block, block)

    def of(self, path: str) -> int:
        """Those of a path."""
        return self.rebuilt if path in REGISTRY and REGISTRY[path].tiled else self.moved

    def filled(self, graph: StepGraph) -> StepGraph:
        """A graph with the tokens of each layer filled up to whole blocks of its paths."""
        least = {
            layer: min((self.of(v.path) for v in graph.variables if v.layer == layer), default=1)
            for layer in graph.tokens
        }
        return graph.in_blocks(least)
