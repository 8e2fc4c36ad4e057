"""An operation of the step graph made ready to run, and the stream it runs on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvplan.graph import Operation

LANES = {"gpu": "gpu", "h2d": "h2d", "d2h": "d2h", "disk": "disk", "host": "host", None: "host"}
"""Resource to stream; queries and partial results travel on the stream of the host's work."""

IMPLIED = frozenset({"launch", "end_step", "make_way"})
"""Operations that need nothing to be done: they are there in any case."""


@dataclass(slots=True)
class Action:
    """An operation made ready to run.

    Args:
        operation: of the step graph.
        run: does it, on the current stream.
        lane: stream it runs on.
        waits: indices of operations of this step on other lanes that it waits for.
        reaches_back: indices of operations of the last step on other lanes that it waits for.
        records: whether another lane waits for it.
    """

    operation: Operation
    run: Callable[[], None]
    lane: str
    waits: list[int] = field(default_factory=list)
    reaches_back: list[int] = field(default_factory=list)
    records: bool = False

    @property
    def runs(self) -> bool:
        """Whether there is anything to do."""
        return self.run is not nothing


def nothing() -> None:
    """What `IMPLIED` operations do, and those whose work another one took over."""
