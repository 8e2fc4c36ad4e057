"""What waits cost where only some layers of a shape copy a stage.

The rows of a shape are sums over its layers, so that a stage which some of them copy and others
rebuild takes the mean of both times: no resource seems to wait. But a copy that is longer than what
the GPU has to do meanwhile leaves the GPU idle in its own layer, and where no stage with a free
buffer is copied the link idles. Both are stated here per stage, in proportion to how many layers
copy it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.mixture_layers import Layers
from kvplan.mixture_statement import Terms, add
from kvplan.step import Operation


def define_windows(layers: Layers) -> None:
    """State idle times of the GPU and the link in layers whose stages may be copied or not.

    Left out: layers of which one stage stands for several, or that share buffers with others, and
    streamed weights, which the link copies between stages.
    """
    mixture = layers.mixture
    schedule = mixture.graph.schedule
    if layers.shape.few or mixture.groups or schedule.stream_weights:
        return
    stages = [_Stage(layers, stage) for stage in range(layers.shape.stages)]
    if not all(stage.copies and stage.kept and stage.most > 0 for stage in stages):
        return
    for stage in stages:
        stage.define_copied()
    depth = schedule.queue_depth
    for number in range(depth, len(stages)):
        _define_gpu_idle(layers, stages[number - depth : number + 1])
    for number in range(1, len(stages) - depth + 1):
        _define_link_idle(layers, stages[number : number + depth])


class _Stage:
    """A stage of layers of one shape; ``copied`` is the column of how many of them copy it."""

    def __init__(self, layers: Layers, stage: int) -> None:
        variables = layers.mixture.graph.variables
        own = [o for o in layers.operations if o.stage == stage]
        self.layers = layers
        self.copies = [o for o in own if o.resource == "h2d"]
        self.on_gpu = [o for o in own if o.resource == "gpu"]
        self.attend = next(o for o in own if o.operation == "attend")
        self.kept = [
            v for v in layers.n if variables[v].stage == stage and v not in layers.crossing
        ]
        self.crossing = [
            v for v in layers.n if variables[v].stage == stage and v in layers.crossing
        ]
        self.most = max(layers.most(v) for v in self.attend.variables)

    def define_copied(self) -> None:
        """Layers that copy the stage: no more than there are, nor than take a path that is."""
        layers = self.layers
        self.copied = layers.mixture.column("copied", float(layers.kind.count))
        any_: Terms = {self.copied: 1.0}
        for operation in self.copies:
            add(any_, layers.present[operation.variables[0]], -1.0)
        layers.mixture.row("copied", any_)
        layers.mixture.row("copied", {self.copied: 1.0, layers.share: -1.0})

    def rebuilds(self) -> list[Operation]:
        """What the GPU runs for a stage before it is attended."""
        return [o for o in self.on_gpu if o is not self.attend]

    def rebuilding(self) -> tuple[float, float]:
        """Most seconds of rebuilding any mix of paths: fixed, and per token."""
        rebuilds, most = self.rebuilds(), self.most
        fixed_s = sum(o.curve.seconds(0.0) for o in rebuilds)
        chords = [(o.curve.seconds(most) - o.curve.seconds(0.0)) / most for o in rebuilds]
        return fixed_s, max(chords, default=0.0)


def _define_gpu_idle(layers: Layers, stages: Sequence[_Stage]) -> None:
    """From the end of an attend to that of the stage which fills its buffer next, the GPU runs that
    stage and those between. The copies start after the first attend and end before the last; the
    GPU idles for what it runs less meanwhile, in layers that copy the stage: stages between are as
    large as any, and of the stage itself it rebuilds at most what is not only copied.
    """
    mixture, (first, *between, last) = layers.mixture, stages
    idle = mixture.column("idle", mixture.time_s)
    window = add({idle: 1.0}, layers.ends[id(first.attend)])
    for stage in (*between, last):
        for operation in stage.on_gpu:
            add(window, layers.durations[id(operation)])
    mixture.row("window", add(window, layers.ends[id(last.attend)], -1.0))
    fixed_s, per_token_s = last.rebuilding()
    rebuild_s = fixed_s + per_token_s * last.most
    whole_s = rebuild_s + last.attend.curve.seconds(last.most)
    terms: Terms = {idle: -1.0, last.copied: -len(between) * whole_s - rebuild_s}
    for operation in last.copies:
        add(terms, layers.durations[id(operation)])
    rebuilt = {v for o in last.rebuilds() for v in o.variables}
    for index in last.crossing:
        if index not in rebuilt:
            add(terms, {layers.n[index]: per_token_s})
    mixture.row("idle", terms)


def _define_link_idle(layers: Layers, stages: Sequence[_Stage]) -> None:
    """From the end of an attend to the next one, the link copies the stage attended next and those
    behind it that have a buffer. Where none is copied it idles for as long as the GPU takes for the
    first of them, whose tokens then are all kept on the GPU.
    """
    mixture, stage = layers.mixture, stages[0]
    slopes: dict[int, float] = {}
    fixed_s: list[float] = []
    for index in stage.kept:
        pieces = [o.curve.pieces[-1] for o in stage.on_gpu if index in o.variables]
        slopes[index] = sum(p.s_per_unit for p in pieces)
        fixed_s.append(sum(p.fixed_s for p in pieces))
    fixed = min(min(fixed_s), sum(min(f, 0.0) for f in fixed_s))
    steepest, sizes = max(slopes.values()), mixture.staged_bytes
    most, least = max(layers.most(v) for v in slopes), min(sizes[v] for v in slopes)
    idle = mixture.column("idle", mixture.time_s)
    terms: Terms = {idle: -1.0, layers.share: fixed}
    for each in stages:
        terms[each.copied] = -max(fixed, 0.0) - steepest * most
    for index, slope in slopes.items():
        terms[layers.n[index]] = slope
    # In layers that copy the stage, what is copied is not kept: as many tokens, or as many bytes.
    staging = mixture.staging
    by_bytes = staging is not None and most >= staging.most_bytes / least
    for index in stage.crossing:
        terms[layers.n[index]] = steepest * (sizes[index] / least if by_bytes else 1.0)
    mixture.row("idle", terms)
    add(mixture.busy["h2d"], {idle: 1.0})
