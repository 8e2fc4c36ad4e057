"""Buffers that are reused in turn, while a step graph is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tenant:
    """One use of a buffer.

    Args:
        enters: operations that fill it.
        leaves: operations after which it is free.
        held: variables in it and their bytes per unit.
    """

    enters: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    held: dict[int, float] = field(default_factory=dict)

    def moved(self, operations: int, variables: int) -> Tenant:
        """The same so many operations and variables later.

        >>> Tenant([1], [2], {0: 8.0}).moved(10, 3)
        Tenant(enters=[11], leaves=[12], held={3: 8.0})
        """
        return Tenant(
            [index + operations for index in self.enters],
            [index + operations for index in self.leaves],
            {variable + variables: size for variable, size in self.held.items()},
        )


@dataclass(slots=True)
class Ring:
    """Buffers reused in turn: tenant k may enter when tenant k - depth has left."""

    depth: int
    tenants: list[Tenant] = field(default_factory=list)

    def tenant(self) -> Tenant:
        """The next tenant, empty."""
        self.tenants.append(Tenant())
        return self.tenants[-1]

    def edges(self) -> list[tuple[int, int, int]]:
        """(operation, operation it waits for, lag in steps).

        >>> Ring(1, [Tenant([0], [1]), Tenant([2], [3])]).edges()
        [(0, 3, 1), (2, 1, 0)]
        """
        enters = [tenant.enters for tenant in self.tenants]
        return waits(enters, [tenant.leaves for tenant in self.tenants], self.depth)


def waits(
    enters: Sequence[Sequence[int]], leaves: Sequence[Sequence[int]], depth: int
) -> list[tuple[int, int, int]]:
    """What tenants of a ring wait for: (operation, operation it waits for, lag in steps).

    Args:
        enters: for each tenant in turn, operations that fill its buffer.
        leaves: for each tenant, operations after which it is free.
        depth: buffers.
    """
    count = len(enters)
    found = []
    for k, own in enumerate(enters):
        lag, before = -((k - depth) // count), (k - depth) % count
        found += [(enter, leave, lag) for enter in own for leave in leaves[before]]
    return found
