"""A sharper lower bound: the layers of a step as a mixture of shapes.

The fluid program forgets the order of a step. Here each kind of layer keeps its operations in the
order of the step graph, and what the layers before it leave behind is a state: when each resource
is free, and when each of the next staging buffers is. What a layer may look like is cut into
shapes, by whether all, some or none of its stages hold tokens. The layers of any plan are such a
mixture, and their times, added up, obey the rows below.

On the layer axis a layer has one stage, and its order is that of a layer of one token range; what
its group waits for is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from kvplan import program
from kvplan.errors import KvplanError
from kvplan.highs import Related, least_whole
from kvplan.mixture_layers import Kind, Layers, shapes, tell_followed
from kvplan.mixture_statement import Mixture, Terms, add
from kvplan.mixture_windows import define_windows
from kvplan.staging import Staging, head_s, pause_of
from kvplan.step import StepGraph

MOST_KINDS = 24
"""Kinds of layers up to which the bound is worth its time."""

WHOLE_TOLERANCE = 1e-6
"""What the solver may be off by where columns are whole."""


def kinds(graph: StepGraph, classes: Sequence[int], *, apart: bool = False) -> list[Kind]:
    """Kinds of layers, or every layer apart; the head stands between the boundaries ``end`` and
    ``begin``.
    """
    first = {classes[layer]: layer for layer in sorted(graph.tokens, reverse=True)}
    labels: list[object] = ["begin", *pairwise(classes), "end"]
    if apart:
        labels[1:-1] = range(1, len(classes))
    found: dict[tuple[int, object, object], int] = {}
    for each, (before, behind) in zip(classes, pairwise(labels), strict=True):
        found[each, before, behind] = found.get((each, before, behind), 0) + 1
    return [Kind(first[each], n, before, behind) for (each, before, behind), n in found.items()]


def applies(graph: StepGraph, classes: Sequence[int], groups: int = 0) -> bool:
    """Whether the step's waits are those of the rows here: token ranges, one micro-batch, no
    barrier, copies that run ahead. Arguments as those of `state`.
    """
    schedule = graph.schedule
    return (
        schedule.axis == "token"
        and schedule.boundary == "overlap"
        and schedule.prefetch
        and (groups > 0 or schedule.queue_depth <= schedule.stages)
        and all(o.micro_batch == 0 for o in graph.operations)
        and graph.cycles * len(graph.tokens) == len(classes)
        and len(kinds(graph, classes)) <= MOST_KINDS
    )


def state(
    graph: StepGraph,
    classes: Sequence[int],
    capacity: Mapping[str, float],
    quality: Mapping[str, float],
    block: int,
    staging: Staging | None = None,
    *,
    fine: bool = False,
    groups: int = 0,
    apart: bool = False,
    following: bool = False,
    most_s: float = float("inf"),
) -> Mixture:
    """State the program whose optimum is the least step any plan of a graph can have.

    Args:
        graph: the step, with every path that may be used in its structure.
        classes: class number of every layer of the model; equal layers share one.
        capacity: bytes each tier may hold.
        quality: most share of all tokens that each inexact path may take.
        block: tokens of the largest block a plan may be made of.
        staging: only plans whose staging buffers are within these limits.
        fine: tell layers with some empty stages apart by how many hold tokens.
        groups: groups of layers that may stage tokens, on the layer axis; the graph is then that of
            one token range. 0: token axis.
        apart: tell every layer apart from all others.
        following: tell layers apart by whether the one behind has tokens in all its stages; on the
            token axis.
        most_s: only steps that take no longer matter; infinite: all.
    """
    mixture = Mixture(graph, classes, block, staging, fine, groups, apart, most_s)
    found = kinds(graph, classes, apart=apart)
    if following:
        tell_followed(mixture, found)
    for kind in found:
        define_kind(mixture, kind)
    define_head(mixture)
    define_boundaries(mixture)
    define_resources(mixture)
    define_capacity(mixture, capacity)
    define_quality(mixture, quality)
    return mixture


def define_kind(mixture: Mixture, kind: Kind) -> None:
    """For each kind: its layers are a mixture of shapes; buffers hold the mean tenant of each of
    its stages.
    """
    shares: list[int] = []
    tenants: dict[tuple[str, int | None], Terms] = {}
    for shape in shapes(mixture, kind):
        layers = Layers(mixture, kind, shape)
        shares.append(layers.share)
        mixture.shares.append(layers.share)
        layers.define_tokens()
        layers.define_even_stages()
        layers.define_tenants(tenants)
        layers.define_times()
        define_windows(layers)
        layers.define_neighbours()
    mixture.equal("shapes", dict.fromkeys(shares, 1.0), float(kind.count))
    for (holds, _), size in tenants.items():
        if holds not in mixture.sizes:
            mixture.sizes[holds] = mixture.column("buffer", 2.0**20)
        if holds == "stages" and mixture.groups:
            add(mixture.shared, size)
            continue
        mixture.row("buffer", add({mixture.sizes[holds]: -1.0}, size, 1.0 / kind.count))


def solve(mixture: Mixture, most_s: float = float("inf"), programs: Related | None = None) -> float:
    """Seconds of a step at the optimum, or that it is not below: 0 if the solver gives up.

    Args:
        mixture: the program.
        most_s: seconds above which more need not be known: where the optimum is above them, or
            nothing fits, it is these or more.
        programs: what solved programs of the same shapes before.
    """
    stated = mixture.program
    rows, _ = program.scaled_rows(stated)
    given = ({stated.period: 1.0}, rows, program.scaled_limits(stated))
    period_s = stated.scale[stated.period]
    try:
        found = (programs or Related()).minimise(*given, most_s / period_s)
    except KvplanError:
        return 0.0
    if found is None:
        return most_s
    return found.values[stated.period] * period_s


def solve_whole(mixture: Mixture, nodes: int) -> float:
    """The same where every layer has one shape, as its plans do: a bound that needs no more than so
    many nodes of branch and bound, at most ``most_s``.
    """
    stated, most_s = mixture.program, mixture.most_s
    rows, _ = program.scaled_rows(stated)
    limits, period_s = list(program.scaled_limits(stated)), stated.scale[stated.period]
    limits[stated.period] = (0.0, most_s / period_s)
    whole = [False] * len(limits)
    for column in mixture.shares:
        whole[column] = True
    found = least_whole({stated.period: 1.0}, rows, limits, whole, nodes)
    return min(max(found * period_s, 0.0) * (1 - WHOLE_TOLERANCE), most_s)


def define_head(mixture: Mixture) -> None:
    """Behind the last layer the GPU runs the head; all else is as it was. Then a step is over."""
    for state in mixture.states:
        column = mixture.column("in", mixture.time_s)
        mixture.inward["end", state] = {column: 1.0}
        mixture.outward["begin", state] = {column: 1.0, mixture.program.period: -1.0}


def define_boundaries(mixture: Mixture) -> None:
    """For each boundary and state: what layers leave there is no later than what those behind it
    find, both added up over all boundaries with that label. Where layers are told apart by what
    follows, as many of them end there as begin.
    """
    for (label, state), left in mixture.outward.items():
        most = -head_s(mixture.graph) if (label, state) == ("begin", "gpu") else 0.0
        mixture.row("boundary", add(dict(left), mixture.inward[label, state], -1.0), most)
    for label, each in mixture.followed.items():
        for full in each:
            mixture.equal("neighbours", mixture.neighbours[label, full])


def define_resources(mixture: Mixture) -> None:
    """For each resource: the durations of its operations add up to at most T; around the head links
    wait, or fill staging buffers and those of streamed weights.
    """
    graph, staging, period = mixture.graph, mixture.staging, mixture.program.period
    for resource, total in mixture.busy.items():
        most = -head_s(graph) if resource == "gpu" else 0.0
        mixture.row("resource", add({period: -1.0}, total), most)
    if mixture.groups or staging is None or not staging.per_token:
        return
    pause = pause_of(graph, mixture.classes, staging)
    columns = {link: mixture.column("filling", pause.behind_s or 1.0) for link in pause.s_per_byte}
    for link, column in columns.items():
        terms, most = _loads(mixture) if link == "h2d" else ({}, 0.0)
        add(terms, mixture.busy[link])
        mixture.row("filling", {column: 1.0}, pause.behind_s)
        mixture.row("idle_link", add(terms, {period: -1.0, column: -1.0}), most - pause.behind_s)
    if columns:
        filled, constant = pause.filling(columns)
        mixture.row("filling", filled, pause.most_bytes - constant)


def _loads(mixture: Mixture) -> tuple[Terms, float]:
    """Seconds less than nothing: filling every buffer of streamed weights, which is as large as the
    largest share of a layer; over its column, and what is fixed of it.
    """
    graph = mixture.graph
    loads = [o for o in graph.operations if o.operation == "load_weights"]
    if not loads:
        return {}, 0.0
    count = sum(b.count for b in graph.buffers if b.holds == "weights")
    pieces = [(p.fixed_s, p.s_per_unit / o.bytes_per_unit) for o in loads for p in o.curve.pieces]
    slope = max(per_byte for _, per_byte in pieces)
    fixed_s = max(fixed for fixed, _ in pieces)
    return {mixture.sizes["weights"]: -count * slope}, count * max(fixed_s, 0.0)


def define_capacity(mixture: Mixture, capacity: Mapping[str, float]) -> None:
    """For each tier: constant, stored and buffers fit; a buffer that groups of layers share is as
    large as what the mean group stages.
    """
    graph, staging = mixture.graph, mixture.staging
    if mixture.shared:
        size = {mixture.sizes["stages"]: -float(mixture.groups)}
        mixture.row("buffer", add(size, mixture.shared))
    for tier, limit in capacity.items():
        terms = dict(mixture.stored.get(tier, {}))
        for buffer in graph.buffers:
            if tier in buffer.tiers and buffer.holds in mixture.sizes:
                add(terms, {mixture.sizes[buffer.holds]: float(buffer.count)})
        mixture.row("capacity", terms, limit - graph.constant_bytes.get(tier, 0.0))
    if staging is not None:
        for holds, column in mixture.sizes.items():
            mixture.row("least", {column: -1.0}, -staging.least(holds))


def define_quality(mixture: Mixture, quality: Mapping[str, float]) -> None:
    """For each inexact path with a limit: its tokens are at most its share of all tokens."""
    graph = mixture.graph
    total = graph.cycles * sum(graph.tokens.values())
    for path, share in quality.items():
        taken: Terms = {}
        for (_, name), terms in mixture.tokens.items():
            if name == path:
                add(taken, terms)
        if taken and share < 1:
            mixture.row("quality", taken, share * total)
