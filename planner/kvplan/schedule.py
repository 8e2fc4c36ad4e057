"""How a decode step is pipelined: the choices of the search other than tokens per path."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.errors import InputError

AXES = ("token", "layer")
STAGES = range(4, 9)
QUEUE_DEPTHS = range(2, 5)
BOUNDARIES = ("overlap", "barrier")
MODES = ("graph", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One way to pipeline the step.

    Args:
        axis: ``token``: stages are token ranges inside each layer; ``layer``: groups of layers.
        stages: S, stages per layer (token axis) or per step (layer axis).
        queue_depth: Q, staging buffers in flight.
        boundary: ``overlap`` lets copies of the next step start during the tail of this one;
            ``barrier`` starts a step only when the last one has ended, as a replayed CUDA graph
            that holds the copies does.
        prefetch: whether copies run ahead of the layer they are for, as far as buffers allow;
            without it a layer's copies start when the layer has projected its query.
        mode: ``graph``: launches cost nothing; ``eager``: the launching thread is a resource.
        stream_weights: whether a share of each layer's weights may cross the link every step.
    """

    axis: str = "token"
    stages: int = 4
    queue_depth: int = 3
    boundary: str = "overlap"
    prefetch: bool = True
    mode: str = "graph"
    stream_weights: bool = False

    def __post_init__(self) -> None:
        """Check every field; the search stays in its ranges, forced plans may leave them."""
        for field, known in (("axis", AXES), ("boundary", BOUNDARIES), ("mode", MODES)):
            if getattr(self, field) not in known:
                raise InputError(field, getattr(self, field), " or ".join(known))
        for field, high in (("stages", 4096), ("queue_depth", 64)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise InputError(field, value, f"a whole number from 1 to {high}")
