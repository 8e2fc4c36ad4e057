"""Sharper bounds hold for every plan: layers that differ, stages left empty or without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import msgspec
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import (
    LARGE,
    allocations,
    examples,
    full_graph,
    ideal,
    layer,
    magnitudes,
    model,
    profile,
    scenarios,
    schedules,
)

from kvplan import certificate, fluid, mixture
from kvplan.allocation import Segment
from kvplan.candidates import filled_groups, unit_layers
from kvplan.evaluate import Evaluation, evaluate
from kvplan.highs import Related
from kvplan.mixture_layers import Layers
from kvplan.mixture_statement import Mixture
from kvplan.mixture_windows import define_windows
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.staging import Staging, staging_bytes
from kvplan.statement import Statement
from kvplan.step import StepGraph
from kvplan.tier import Tier
from kvplan.workload import Workload

EXACT = 1e-9


@st.composite
def alike(draw: st.DrawFn) -> Scenario:
    """Equal layers on a machine whose link and GPU take about as long."""
    spec = layer(hidden=64, intermediate=draw(st.sampled_from((64, 512, 4096))))
    link = draw(magnitudes(1e6, 1e8))
    hardware = ideal(link=link, flop=link * draw(magnitudes(30, 1000)),
                     hbm=link * draw(magnitudes(3, 100)),
                     copy_s=draw(st.sampled_from((0.0, 1e-4, 1e-3))))  # fmt: skip
    workload = Workload(batch=draw(st.integers(1, 4)), context=draw(st.integers(8, 600)), block=1)
    return Scenario(model=model([spec] * draw(st.integers(2, 5))), hardware=hardware,
                    workload=workload)  # fmt: skip


@st.composite
def plans_of(draw: st.DrawFn, scenario: Scenario, schedule: Schedule) -> Evaluation:
    """A random plan of a schedule."""
    allocation = draw(allocations(scenario, schedule))
    share = st.sampled_from((0.0, 0.25, 1.0))
    shares = [draw(share) for _ in allocation] if schedule.stream_weights else None
    return evaluate(scenario, schedule, allocation, shares)


@st.composite
def plans(draw: st.DrawFn, streamed: bool | None = None) -> tuple[Scenario, Evaluation]:
    """A random plan; stages within a token of even where a layer has any."""
    scenario = draw(alike() | scenarios(3))
    schedule = draw(schedules(len(scenario.model.layers)))
    if streamed is not None:
        schedule = Schedule(stages=draw(st.integers(1, 6)), queue_depth=draw(st.integers(1, 4)),
                            stream_weights=streamed)  # fmt: skip
    return scenario, draw(plans_of(scenario, schedule))


@st.composite
def waiting_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """Weights take about as long to load as a layer to compute, so a step is a chain of waits;
    layers rebuild in every stage, or keep activations for some or the last of them, or everything.
    """
    count, stages, tokens = draw(st.integers(2, 6)), draw(st.integers(2, 6)), 12
    spec = layer(intermediate=draw(st.sampled_from((256, 1024, 4096))))
    link = 1e9
    weights_s = spec.params * 2 / link
    rebuild = 4.0 * spec.hidden * spec.kv_elements / 2 * stages * tokens
    hardware = ideal(link=link, flop=rebuild / weights_s / draw(magnitudes(0.3, 3.0)))
    scenario = Scenario(model=model([spec] * count), hardware=hardware,
                        workload=Workload(batch=1, context=stages * tokens, block=1))  # fmt: skip
    schedule = Schedule(stages=stages, queue_depth=draw(st.integers(1, 3)), stream_weights=True)
    some = st.lists(st.booleans(), min_size=stages, max_size=stages)
    last = st.integers(0, stages).map(lambda kept: [j >= stages - kept for j in range(stages)])
    allocation = []
    for _ in range(count):
        kept = draw(st.just([False] * stages) | last | some)
        segments = [
            Segment(tokens * j, tokens * (j + 1), "recompute_resident" if here else "recompute", j)
            for j, here in enumerate(kept)
        ]
        everything = (Segment(0, stages * tokens, "resident", None),)
        allocation.append(everything if all(kept) else tuple(segments))
    return scenario, evaluate(scenario, schedule, tuple(allocation), [1.0] * count)


@st.composite
def mixed_stage_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """Layers that copy some stages, keep activations for others and both for some; copying takes
    about as long as rebuilding.
    """
    stages, tokens = draw(st.integers(2, 7)), draw(st.sampled_from((4, 12)))
    spec = layer(intermediate=draw(st.sampled_from((8, 256))))
    token_s, copy_s = 256e-6, draw(st.sampled_from((0.0, 3e-4, 3e-3)))
    hardware = ideal(
        link=1e6, copy_s=copy_s, hbm=1e6 * draw(magnitudes(1, 1000)),
        flop=4.0 * spec.hidden**2 / token_s * draw(magnitudes(0.3, 3.0)),
    )  # fmt: skip
    scenario = Scenario(model=model([spec] * draw(st.integers(1, 5))), hardware=hardware,
                        workload=Workload(batch=1, context=stages * tokens, block=1))  # fmt: skip
    schedule = Schedule(stages=stages, queue_depth=draw(st.integers(1, min(stages, 4))))
    most = st.sampled_from((0, 0, tokens, tokens)) | st.integers(0, tokens)
    names = st.sampled_from(("fetch", "fetch", "recompute"))
    allocation = []
    for _ in scenario.model.layers:
        segments = []
        for j in range(stages):
            begin, copied, end = tokens * j, tokens * j + draw(most), tokens * (j + 1)
            segments += [Segment(begin, copied, draw(names), j)] if begin < copied else []
            segments += [Segment(copied, end, "recompute_resident", j)] if copied < end else []
        allocation.append(tuple(segments))
    return scenario, evaluate(scenario, schedule, tuple(allocation))


@st.composite
def sparse_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """One or two layers of many stage tokens; the others compute, for about as long in all."""
    spec = layer(intermediate=draw(st.sampled_from((64, 1024))))
    without = {"query_heads": 0, "kv_heads": 0, "head_dim_k": 0, "head_dim_v": 0}
    idle = msgspec.structs.replace(spec, **without, attention_params=0, intermediate=4096)
    count, stages, tokens = draw(st.integers(3, 8)), draw(st.integers(2, 5)), 12
    staging = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=2))
    copied_s = len(staging) * stages * tokens * 256 / 1e6
    flop = 4.0 * spec.hidden * 4096 * count / copied_s * draw(magnitudes(0.2, 5.0))
    scenario = Scenario(
        model=model([spec if i in staging else idle for i in range(count)]),
        hardware=ideal(link=1e6, flop=flop, copy_s=draw(st.sampled_from((0.0, 1e-3)))),
        workload=Workload(batch=1, context=stages * tokens, block=1),
    )
    streams = draw(st.booleans())
    schedule = Schedule(stages=stages, queue_depth=draw(st.integers(1, stages)),
                        stream_weights=streams)  # fmt: skip
    whole = (Segment(0, stages * tokens, "resident", None),)
    staged = tuple(Segment(tokens * j, tokens * (j + 1), "fetch", j) for j in range(stages))
    allocation = [
        draw(st.sampled_from((whole, staged, staged))) if i in staging else () for i in range(count)
    ]
    shares = [draw(st.sampled_from((0.0, 0.1, 1.0))) for _ in allocation] if streams else None
    return scenario, evaluate(scenario, schedule, tuple(allocation), shares)


@st.composite
def tiered_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """A random plan on a machine with a tier beside host memory, copied over a link of its own or
    attended there; the head takes long beside the copies.
    """
    scenario = draw(alike())
    layers, own, links = scenario.model.layers, scenario.hardware, scenario.hardware.links
    assert links is not None
    tier = Tier(name="far", capacity_bytes=2**62, latency_s=1e-6,
                bytes_per_s=links.h2d.raw_bytes_per_s * draw(magnitudes(0.2, 5.0)),
                attended_by=draw(st.sampled_from(("none", "none", "tier"))))  # fmt: skip
    question = replace(
        scenario,
        model=model(layers, vocab=draw(st.sampled_from((100, 10_000, 1_000_000)))),
        hardware=profile(own.gpu, links.h2d, links.d2h, own.host, own.disk, tier),
    )
    schedule = Schedule(stages=draw(st.integers(1, 4)), queue_depth=draw(st.integers(1, 3)))
    return question, draw(plans_of(question, schedule))


def partly_staged(
    stages: int,
    depth: int,
    block: int,
    held: Sequence[Sequence[int]],
    hbm: float,
    copy: float = 0.0,
) -> tuple[Scenario, Evaluation]:
    """Layers that fetch a block in each of the stages they hold and keep the rest.

    Args:
        stages: how many a layer may have.
        depth: staging buffers.
        block: tokens.
        held: stages of each layer.
        hbm: bytes per second that the GPU reads, as a multiple of the link's.
        copy: fixed time of a copy, as a multiple of a block's.
    """
    scenario = Scenario(
        model=model([layer(intermediate=8)] * len(held)),
        hardware=ideal(link=1e6, hbm=1e6 * hbm, copy_s=block * 256e-6 * copy),
        workload=Workload(batch=1, context=stages * block, block=block),
    )
    allocation = []
    for own in held:
        segments = [Segment(block * i, block * (i + 1), "fetch", j) for i, j in enumerate(own)]
        if len(own) < stages:
            segments.append(Segment(block * len(own), block * stages, "resident", None))
        allocation.append(tuple(segments))
    schedule = Schedule(stages=stages, queue_depth=depth)
    return scenario, evaluate(scenario, schedule, tuple(allocation))


@st.composite
def partly_staged_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """A copy takes about as long as an attend."""
    stages = draw(st.integers(2, 7))
    every = list(range(stages))
    some = st.lists(st.sampled_from(every), min_size=1, unique=True).map(sorted)
    held = st.just(every) | st.just(every[:-1]) | some
    return partly_staged(
        stages, draw(st.integers(1, min(stages, 4))), draw(st.sampled_from((400, 2000, 10_000))),
        [draw(held) for _ in range(draw(st.sampled_from((2, 2, 5))))],
        draw(magnitudes(0.5, 2.0)), draw(st.sampled_from((0.0, 0.1, 1.0))),
    )  # fmt: skip


def graphs_of(
    scenario: Scenario, plan: Evaluation, schedule: Schedule | None = None
) -> list[StepGraph]:
    """Graphs with every path of the plan, of its schedule if of no other: of the whole model, and
    of a unit if it has one.
    """
    names, schedule = {v.path for v in plan.graph.variables}, schedule or plan.schedule
    found = [full_graph(scenario, schedule, sorted(names))]
    unit = unit_layers(scenario.model, schedule)
    if unit is not None:
        found.append(full_graph(scenario, schedule, sorted(names), unit))
    return [graph for graph in found if len(graph.operations) < 400]


def totals(scenario: Scenario, plan: Evaluation) -> dict[tuple[int, str], float]:
    """The plan's tokens of every class and path, summed over layers."""
    total: dict[tuple[int, str], float] = {}
    for variable, value in zip(plan.graph.variables, plan.values, strict=True):
        key = (scenario.classes[variable.layer], variable.path)
        total[key] = total.get(key, 0.0) + value
    return total


def pinned(statement: Statement, scenario: Scenario, plan: Evaluation) -> fluid.Fluid | None:
    """The optimum with the plan's tokens of every path, as means over equal layers."""
    total = totals(scenario, plan)
    for key, column in statement.of.items():
        mean = total.get(key, 0.0) / scenario.classes.count(key[0])
        # What is pinned to the last digit may be infeasible by rounding.
        slack = 1e-9 * statement.scale[column]
        statement.rows.append(({column: 1.0}, mean + slack, "pinned"))
        statement.rows.append(({column: -1.0}, slack - mean, "pinned"))
    return fluid.solve(statement)


def pin(stated: Mixture, scenario: Scenario, plan: Evaluation, slack: float = 1e-9) -> None:
    """Hold a mixture at the plan's tokens of every path; branch and bound needs some slack."""
    total = totals(scenario, plan)
    for key, terms in stated.tokens.items():
        sum_ = total.get(key, 0.0)
        by = slack * (1.0 + sum_)
        stated.row("pinned", terms, sum_ + by)
        stated.row("pinned", {c: -v for c, v in terms.items()}, by - sum_)


def largest_stage(plan: Evaluation, holds: str = "stages") -> float:
    """Bytes of the plan's largest stage, or of the largest part of a layer's streamed weights."""
    sizes = [
        sum(size * plan.values[v] for v, size in tenant.items())
        for buffer in plan.graph.buffers if buffer.holds == holds
        for tenant in buffer.tenants
    ]  # fmt: skip
    return max(sizes, default=0.0)


def around(size: float) -> tuple[float, float]:
    """Limits that a size is within, but for rounding."""
    return size * (1 - EXACT), size * (1 + EXACT) + 1e-6


@examples(80)
@given(
    plans()
    | plans(streamed=True)
    | waiting_plans()
    | tiered_plans()
    | sparse_plans()
    | mixed_stage_plans()
    | mixed_stage_plans(),
    st.booleans(),
    st.booleans(),
)
def test_mixtures_of_shapes_bound_every_plan(
    judged: tuple[Scenario, Evaluation], fine: bool, following: bool
) -> None:
    scenario, plan = judged
    largest = largest_stage(plan)
    for graph in graphs_of(scenario, plan):
        assume(mixture.applies(graph, scenario.classes))
        per_token = staging_bytes(graph)
        within = Staging(*around(largest), per_token, *around(largest_stage(plan, "weights")))
        for staging in (None, within):
            stated = mixture.state(
                graph, scenario.classes, LARGE, {}, 1, staging, fine=fine, following=following
            )
            pin(stated, scenario, plan)
            assert mixture.solve(stated) <= plan.step_s * (1 + 1e-6)


@examples(40)
@given(plans() | plans(streamed=True) | waiting_plans() | tiered_plans(), st.data())
def test_mixtures_are_solved_from_others_and_only_as_far_as_wanted(
    judged: tuple[Scenario, Evaluation], data: st.DataObject
) -> None:
    """What is known of a step is never above its optimum, and is it up to what is wanted."""
    scenario, plan = judged
    largest, programs = largest_stage(plan), Related()
    for graph in graphs_of(scenario, plan):
        assume(mixture.applies(graph, scenario.classes))
        for ratio in data.draw(st.lists(st.sampled_from((0.5, 0.999, 1.001, 2.0)), max_size=4)):
            staging = Staging(0.0, largest * ratio, staging_bytes(graph))
            stated = mixture.state(graph, scenario.classes, LARGE, {}, 1, staging)
            optimum_s = mixture.solve(stated)
            most_s = min(optimum_s, 1e9) * data.draw(st.sampled_from((0.5, 0.999, 1.001, 2.0)))
            found_s = mixture.solve(stated, most_s, programs)
            assert min(optimum_s, most_s) * (1 - 1e-6) <= found_s <= optimum_s * (1 + 1e-6)


@examples(30)
@given(
    plans() | plans(streamed=True) | waiting_plans() | sparse_plans() | mixed_stage_plans(),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_whole_numbers_of_layers_bound_every_plan(
    judged: tuple[Scenario, Evaluation], fine: bool, apart: bool, following: bool
) -> None:
    """Each has one shape, and the lags of what runs beside the GPU are limited."""
    scenario, plan = judged
    most_s = plan.step_s * 1.001  # a bound of as much would say that there is no such plan
    for graph in graphs_of(scenario, plan):
        assume(mixture.applies(graph, scenario.classes))
        for pinning in (False, True):
            stated = mixture.state(
                graph, scenario.classes, LARGE, {}, 1, fine=fine and not apart, apart=apart,
                following=following, most_s=most_s,
            )  # fmt: skip
            if pinning:
                pin(stated, scenario, plan)
            assert mixture.solve_whole(stated, 200) <= plan.step_s * (1 + 1e-6)


def pin_stages(layers: Layers, scenario: Scenario, plan: Evaluation) -> None:
    """Hold layers of a kind at the plan's own: all of them full, with its tokens of every stage and
    path, and how many have any.
    """
    labels = ["begin", *pairwise(scenario.classes), "end"]
    sides = (layers.kind.before, layers.kind.behind)
    own = [i for i, around in enumerate(pairwise(labels)) if around == sides]
    full = layers.shape.stages == plan.schedule.stages and not layers.shape.few
    held: dict[tuple[int | None, str], list[float]] = {}
    for variable, value in zip(plan.graph.variables, plan.values, strict=True):
        if variable.layer in own:
            held.setdefault((variable.stage, variable.path), []).append(value)
    stated = layers.mixture
    stated.equal("pinned", {layers.share: 1.0}, float(len(own)) if full else 0.0)
    for index, column in layers.n.items():
        variable = stated.graph.variables[index]
        values = held.get((variable.stage, variable.path), []) if full else []
        stated.equal("pinned", {column: 1.0}, sum(values))
        if index in layers.present:
            stated.equal("pinned", layers.present[index], float(len(values)))


@examples(150)
@given(mixed_stage_plans())
def test_mixtures_bound_plans_whose_stages_they_have(judged: tuple[Scenario, Evaluation]) -> None:
    """With the plan's tokens of each stage, only its times are left to be chosen."""
    scenario, plan = judged
    for graph in graphs_of(scenario, plan):
        assume(mixture.applies(graph, scenario.classes))
        within = Staging(*around(largest_stage(plan)), staging_bytes(graph))

        def pin_and_define(layers: Layers) -> None:
            pin_stages(layers, scenario, plan)
            define_windows(layers)

        with patch.object(mixture, "define_windows", pin_and_define):
            stated = mixture.state(graph, scenario.classes, LARGE, {}, 1, within)
        assert mixture.solve(stated) <= plan.step_s * (1 + 1e-6)


OVERLAPPING = partly_staged(6, 3, 400, [range(6), range(5)], hbm=0.9, copy=1.0)
"""Five of six stages: all copies but the first run while one before is attended."""

UNEQUAL = partly_staged(2, 2, 2000, [(0, 1), (0,), (0, 1), (1,), (0,)], hbm=0.9, copy=1.0)
"""Of the three equal layers in the middle not all have one shape."""


@examples(60)
@given(partly_staged_plans())
@example(OVERLAPPING)
@example(UNEQUAL)
def test_layers_with_some_empty_stages_are_never_bounded_above_their_plan(
    judged: tuple[Scenario, Evaluation],
) -> None:
    """Their copies overlap with attends, however many stages one stands for."""
    scenario, plan = judged
    for graph in graphs_of(scenario, plan):
        assume(mixture.applies(graph, scenario.classes))
        within = Staging(*around(largest_stage(plan)), staging_bytes(graph))
        for fine, following in ((False, False), (False, True), (True, True)):
            stated = mixture.state(
                graph, scenario.classes, LARGE, {}, scenario.workload.block, within,
                fine=fine, following=following, most_s=plan.step_s * 1.2,
            )  # fmt: skip
            pin(stated, scenario, plan, slack=1e-5)
            assert mixture.solve(stated) <= plan.step_s * (1 + 1e-6)
            assert mixture.solve_whole(stated, 200) <= plan.step_s * (1 + 1e-6)


@st.composite
def grouped_plans(draw: st.DrawFn) -> tuple[Scenario, Evaluation]:
    """A random plan of groups of layers, often with streamed weights."""
    scenario = draw(alike() | scenarios(5))
    schedule = Schedule(axis="layer", stages=draw(st.integers(1, len(scenario.model.layers))),
                        queue_depth=draw(st.integers(1, 4)),
                        stream_weights=draw(st.booleans()))  # fmt: skip
    return scenario, draw(plans_of(scenario, schedule))


@examples(80)
@given(grouped_plans())
def test_mixtures_of_shapes_bound_plans_whose_layers_share_buffers(
    judged: tuple[Scenario, Evaluation],
) -> None:
    scenario, plan = judged
    groups = filled_groups(full_graph(scenario, plan.schedule), scenario.classes)
    capacity = {tier: size * (1 + EXACT) + 1.0 for tier, size in plan.memory_bytes.items()}
    ranges = replace(plan.schedule, axis="token", stages=1)
    for graph in graphs_of(scenario, plan, ranges):
        assume(mixture.applies(graph, scenario.classes, groups))
        stated = mixture.state(graph, scenario.classes, capacity, {}, 1, groups=groups)
        assert mixture.solve(stated) <= plan.step_s * (1 + 1e-6)
        pin(stated, scenario, plan)
        assert mixture.solve(stated) <= plan.step_s * (1 + 1e-6)


@examples(200)
@given(plans() | plans(streamed=True) | tiered_plans() | sparse_plans())
def test_the_size_of_the_largest_stage_bounds_every_plan(
    judged: tuple[Scenario, Evaluation],
) -> None:
    scenario, plan = judged
    schedule = replace(plan.schedule, boundary="overlap")
    plan = evaluate(scenario, schedule, plan.allocation, plan.streamed)
    largest, weights = largest_stage(plan), largest_stage(plan, "weights")
    for graph in graphs_of(scenario, plan):
        assume(staging_bytes(graph))
        for staging in (
            Staging(*around(largest), staging_bytes(graph), *around(weights)),
            Staging(*around(largest), staging_bytes(graph)),
            Staging(0.0, 2 * largest + 1.0, staging_bytes(graph)),
        ):
            statement = fluid.state(graph, scenario.classes, LARGE, staging=staging)
            found = pinned(statement, scenario, plan)
            assert found is not None
            assert found.step_s <= plan.step_s * (1 + 1e-6)


@examples(60)
@given(plans() | plans(streamed=True))
def test_branching_bounds_every_plan_that_fits(judged: tuple[Scenario, Evaluation]) -> None:
    scenario, plan = judged
    schedule = replace(plan.schedule, boundary="overlap")
    plan = evaluate(scenario, schedule, plan.allocation, plan.streamed)
    capacity = {tier: size * (1 + EXACT) + 1.0 for tier, size in plan.memory_bytes.items()}
    for graph in graphs_of(scenario, plan):
        mixtures = None
        if mixture.applies(graph, scenario.classes):
            mixtures = certificate.Mixtures(graph, scenario.classes, capacity, {}, 1)
        found = certificate.sharpened(
            graph, scenario.classes, capacity, {}, [1], plan.step_s * 2, mixtures
        )
        assert found <= plan.step_s * (1 + 1e-6)
