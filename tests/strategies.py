"""Hypothesis strategies for models, machines, workloads, schedules and allocations; and builders
of machines on which everything is free that is not named, so that a number can be checked by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kvplan.allocation import Allocation, Segment
from kvplan.curve import Curve, affine, latest, through
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import (
    Disk,
    GemmCurve,
    Gpu,
    HardwareProfile,
    Host,
    Link,
    Links,
    Provenance,
    number_paths,
    override,
    peak_rate,
    scaled,
)
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.model import Experts, Latent, LayerSpec, ModelSpec, State
from kvplan.paths import REGISTRY, Path
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import Operation, StepGraph, Variable, build_step, group_of
from kvplan.tier import Tier
from kvplan.workload import Workload

FREE_S = 1e-30
"""A time that is nothing beside any other; profiles refuse 0."""

FREE_RATE = 1e30
LARGE = dict.fromkeys(("hbm", "dram", "pinned", "disk"), 1e30)

LINKED = [name for name in hardware_names() if not load_hardware(name).unified]
"""Machines that have host memory to offload to."""


def examples(count: int) -> settings:
    """So many examples, the same ones on every run in CI; none is too slow to count."""
    return settings(
        max_examples=count, deadline=None, derandomize="CI" in os.environ,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip


# -- builders ----------------------------------------------------------------------------------


def layer(
    hidden: int = 64, query_heads: int = 4, kv_heads: int | None = None, head_dim: int = 16,
    window: int | None = None, intermediate: int = 128, gated_mlp: bool = True, rope: bool = False,
) -> LayerSpec:  # fmt: skip
    """A layer without biases and norms, multi-head unless told otherwise."""
    kv_heads = query_heads if kv_heads is None else kv_heads
    projections = 2 * query_heads + 2 * kv_heads
    return LayerSpec(
        hidden=hidden, query_heads=query_heads, kv_heads=kv_heads, head_dim_k=head_dim,
        head_dim_v=head_dim, window=window, intermediate=intermediate, gated_mlp=gated_mlp,
        rope=rope, attention_params=hidden * head_dim * projections,
        mlp_params=hidden * intermediate * (3 if gated_mlp else 2),
    )  # fmt: skip


def model(layers: Sequence[LayerSpec], vocab: int = 100) -> ModelSpec:
    """A model around some layers."""
    hidden = layers[0].hidden
    return ModelSpec(
        name="small", family="test", hidden=hidden, vocab=vocab, embedding_width=hidden,
        weight_dtype="fp16", layers=tuple(layers), embedding_params=vocab * hidden,
        head_params=vocab * hidden, tied=False, source="test",
    )  # fmt: skip


def profile(
    gpu: Gpu, h2d: Link, d2h: Link, host: Host, disk: Disk | None = None, tier: Tier | None = None
) -> HardwareProfile:
    """A machine of these parts."""
    links = Links(h2d=h2d, d2h=d2h)
    parts: Any = SimpleNamespace(gpu=gpu, links=links, host=host, disk=disk, peer=None, tier=tier)
    mark = Provenance(kind="measured", source="test")
    return HardwareProfile(
        name="test", title="test machine", aliases=(), kind="measured", gpu=gpu, links=links,
        host=host, disk=disk, tier=tier, residuals={}, digest="0" * 64, date="2026-01-01",
        provenance=dict.fromkeys(number_paths(parts), mark),
    )  # fmt: skip


def ideal(
    link: float = FREE_RATE, flop: float = FREE_RATE, hbm: float = FREE_RATE,
    host: float | None = None, disk: float | None = None, copy_s: float = 0.0,
    dequantise: float = FREE_RATE, memory: int = 2**62,
) -> HardwareProfile:  # fmt: skip
    """A machine on which everything is free that is not given.

    Args:
        link: bytes per second from host to GPU.
        flop: FLOP/s of matrix products.
        hbm: bytes per second of GPU memory.
        host: bytes per second of attention on the CPU; None: it cannot.
        disk: bytes per second of the disk; None: there is none.
        copy_s: fixed time of one copy to the GPU.
        dequantise: bytes per second written by unpacking.
        memory: bytes of GPU memory.
    """
    rates = {} if host is None else {"fp16": host}
    return profile(
        Gpu(name="ideal", memory_bytes=memory, hbm_bytes_per_s=hbm, flop_per_s={"fp16": flop},
            gemm=(), attention=None, kernel_s=FREE_S, launch_s=FREE_S,
            dequantise_bytes_per_s={"int8": dequantise, "int4": dequantise}),
        Link(raw_bytes_per_s=link, copy=affine(copy_s, 1 / link), latency_s=FREE_S),
        Link(raw_bytes_per_s=FREE_RATE, copy=affine(0.0, 1 / FREE_RATE), latency_s=FREE_S),
        Host(dram_bytes=2**62, attention_bytes_per_s=rates, attention_gqa_bytes_per_s=rates,
             attention_latency_s=FREE_S),
        None if disk is None else Disk(read=affine(0.0, 1 / disk), capacity_bytes=2**62),
    )  # fmt: skip


def usable_paths(scenario: Scenario, index: int) -> tuple[Path, ...]:
    """Every path of the registry that the machine can run for a layer, none without tokens."""
    spec, dtype = scenario.model.layers[index], scenario.workload.kv_dtype
    if not scenario.cached_tokens(index):
        return ()
    return tuple(p for p in REGISTRY.values() if p.available(scenario.hardware, spec, dtype))


def full_graph(
    scenario: Scenario, schedule: Schedule, names: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
) -> StepGraph:  # fmt: skip
    """The step graph with every usable path (or those named) in every layer and stage."""
    count = len(scenario.model.layers)
    structure: dict[tuple[int, int | None], list[Path]] = {}
    for index in range(count) if layers is None else layers:
        paths = [p for p in usable_paths(scenario, index) if names is None or p.name in names]
        structure[index, None] = [p for p in paths if p.attends != "stage"]
        stages: Sequence[int] = range(schedule.stages)
        if schedule.axis == "layer":
            stages = (group_of(index, count, schedule.stages),)
        for stage in stages:
            structure[index, stage] = [p for p in paths if p.attends == "stage"]
    return build_step(
        scenario.model, scenario.hardware, scenario.workload, schedule, structure, layers
    )


def split(count: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Whole parts of a count in proportion to shares, the last part taking what is left."""
    total = sum(shares.values())
    parts: dict[str, int] = {}
    for name, share in shares.items():
        parts[name] = min(int(count * share / total + 0.5), count - sum(parts.values()))
    parts[name] += count - sum(parts.values())
    return {n: k for n, k in parts.items() if k}


# -- strategies --------------------------------------------------------------------------------


def magnitudes(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats from low to high, every order of magnitude as likely."""
    steps = 10_000
    return st.integers(0, steps).map(lambda n: float(low * (high / low) ** (n / steps)))


@st.composite
def layers(draw: st.DrawFn) -> LayerSpec:
    """A small layer: multi-head or grouped, windowed or not, gated or not, with RoPE or not."""
    kv_heads = draw(st.sampled_from((1, 2, 4)))
    return layer(
        hidden=draw(st.sampled_from((8, 32, 64, 256))),
        query_heads=kv_heads * draw(st.sampled_from((1, 2, 4))), kv_heads=kv_heads,
        head_dim=draw(st.sampled_from((4, 16, 32))),
        window=draw(st.none() | st.integers(1, 600)),
        intermediate=draw(st.sampled_from((16, 128, 512))),
        gated_mlp=draw(st.booleans()), rope=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def unusual_layers(draw: st.DrawFn) -> LayerSpec:
    """A layer of another kind: latent, compressed, sparse, state, cross, shared, expert or none."""
    base = draw(layers())
    width = draw(st.sampled_from((4, 24)))
    without = {"query_heads": 0, "kv_heads": 0, "head_dim_k": 0, "head_dim_v": 0}
    state = State(conv=3 * width, recurrent=16 * width, heads=width)
    expert = 3 * base.hidden * base.intermediate
    changes: dict[str, dict[str, Any]] = {
        "latent": {"latent": Latent(rank=width, rope=8), "index": draw(st.sampled_from((0, 4)))},
        "compressed": {"latent": Latent(rank=width, rope=0), "window": 8,
                       "compression": draw(st.sampled_from((4, 128)))},
        "fixed formats": {"dtype_k": "fp32", "dtype_v": "bf16"},
        "cross beside": {"cross": 2 * (base.head_dim_k + base.head_dim_v)},
        "cross alone": {"cross": base.head_dim_k + base.head_dim_v, "kv_heads": 0},
        "shared": {"shared": True},
        "state": {**without, "state": state},
        "state alone": {**without, "state": state, "intermediate": 0, "mlp_params": 0},
        "no attention": {**without, "attention_params": 0},
        "experts": {"experts": Experts(count=8, active=2, params=expert), "mlp_params": 8 * expert},
    }  # fmt: skip
    return msgspec.structs.replace(base, **changes[draw(st.sampled_from(sorted(changes)))])


@st.composite
def models(draw: st.DrawFn, most_layers: int = 4) -> ModelSpec:
    """Layers that are all alike, alternate, or differ; one width of the residual stream."""
    kinds = draw(st.lists(layers() | unusual_layers(), min_size=1, max_size=3))
    count = draw(st.integers(1, most_layers))
    chosen = [kinds[i % len(kinds)] for i in range(count)]
    return model(chosen, vocab=draw(st.sampled_from((1, 100, 5000))))


@st.composite
def curves(draw: st.DrawFn, rates: st.SearchStrategy[float], most_fixed_s: float = 1e-5) -> Curve:
    """A convex curve of one to four pieces, over bytes."""
    rate = draw(rates)
    fixed_s = draw(st.just(0.0) | magnitudes(1e-8, most_fixed_s))
    if draw(st.booleans()):
        return affine(fixed_s, 1 / rate)
    sizes = sorted(draw(st.sets(st.sampled_from((2**8, 2**12, 2**14, 2**16, 2**20)), min_size=2)))
    slower = draw(st.lists(magnitudes(1.0, 20.0), min_size=len(sizes), max_size=len(sizes)))
    points = [(float(size), fixed_s + size / rate * slow)
              for size, slow in zip(sizes, sorted(slower), strict=True)]  # fmt: skip
    return latest(affine(0.0, 1 / rate), through(points))


@st.composite
def links(draw: st.DrawFn, low: float = 1e8, high: float = 1e11) -> Link:
    """A link: its curve, latency, and a raw rate that the curve respects."""
    curve = draw(curves(magnitudes(low, high)))
    raw = peak_rate(curve) * draw(st.sampled_from((1.0, 1.3)))
    return Link(raw_bytes_per_s=raw, copy=curve, latency_s=draw(magnitudes(1e-7, 1e-4)))


@st.composite
def built_profiles(draw: st.DrawFn) -> HardwareProfile:
    """A machine of random parts; without disk or CPU attention now and then."""
    attention = draw(st.none() | curves(magnitudes(1e9, 3e12)))
    measured = st.builds(
        GemmCurve, inputs=st.just(64), outputs=st.just(128), dtype=st.just("fp16"),
        seconds=curves(magnitudes(1e4, 1e9)))  # fmt: skip
    gpu = Gpu(
        name="random", memory_bytes=2**40, hbm_bytes_per_s=draw(magnitudes(1e9, 3e12)),
        flop_per_s={"fp16": draw(magnitudes(1e9, 1e14))},
        gemm=tuple(draw(st.lists(measured, max_size=1))), attention=attention,
        kernel_s=draw(magnitudes(1e-8, 1e-5)), launch_s=draw(magnitudes(1e-8, 2e-5)),
        dequantise_bytes_per_s=draw(st.sampled_from(({}, {"int8": 1e10}))),
        edge_s=draw(st.none() | magnitudes(1e-7, 1e-4)),
        wait_s=draw(st.none() | magnitudes(1e-8, 1e-5)),
    )  # fmt: skip
    rates = {"fp16": draw(magnitudes(1e8, 1e11))} if draw(st.booleans()) else {}
    host = Host(dram_bytes=2**42, attention_bytes_per_s=rates, attention_gqa_bytes_per_s=rates,
                attention_latency_s=draw(magnitudes(1e-7, 1e-4)))  # fmt: skip
    disk = None
    if draw(st.booleans()):
        disk = Disk(read=draw(curves(magnitudes(1e8, 1e10))), capacity_bytes=2**42)
    return profile(gpu, draw(links()), draw(links()), host, disk)


@st.composite
def changed_profiles(draw: st.DrawFn) -> HardwareProfile:
    """A built-in machine, slower throughout or with a slower link."""
    machine = scaled(load_hardware(draw(st.sampled_from(LINKED))),
                     rate=draw(magnitudes(0.01, 1.0)))  # fmt: skip
    slower = draw(magnitudes(0.05, 1.0))
    return override(machine, h2d_bytes_per_s=slower * machine.h2d.copy.rate())


def profiles() -> st.SearchStrategy[HardwareProfile]:
    """Random machines, and built-in ones changed."""
    return built_profiles() | changed_profiles()


@st.composite
def workloads(draw: st.DrawFn, most_context: int = 2000) -> Workload:
    """A batch in one or more micro-batches, by columns or rows."""
    micro_batches = draw(st.sampled_from((1, 1, 1, 2, 3)))
    return Workload(
        batch=micro_batches * draw(st.integers(1, 8)), context=draw(st.integers(1, most_context)),
        gen=draw(st.sampled_from((0, 0, 16))), block=draw(st.sampled_from((1, 16, 64))),
        micro_batches=micro_batches, schedule=draw(st.sampled_from(("column", "row"))),
        source_tokens=draw(st.sampled_from((0, 32))),
        new_tokens=draw(st.sampled_from((1, 1, 1, 7))),
    )  # fmt: skip


@st.composite
def schedules(draw: st.DrawFn, layers: int) -> Schedule:
    """Any schedule for a model of some layers, those of simple plans included."""
    axis = draw(st.sampled_from(("token", "token", "layer")))
    most = 8 if axis == "token" else layers
    return Schedule(
        axis=axis, stages=draw(st.integers(1, most)), queue_depth=draw(st.integers(1, 4)),
        boundary=draw(st.sampled_from(("overlap", "barrier"))), prefetch=draw(st.booleans()),
        mode=draw(st.sampled_from(("graph", "eager"))), stream_weights=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def scenarios(draw: st.DrawFn, most_layers: int = 4) -> Scenario:
    """A small question."""
    return Scenario(model=draw(models(most_layers)), hardware=draw(profiles()),
                    workload=draw(workloads()))  # fmt: skip


@st.composite
def allocations(
    draw: st.DrawFn, scenario: Scenario, schedule: Schedule, least_staged: float = 0.0
) -> Allocation:
    """Tokens of every layer over random paths; stages of a layer within one token of even.

    Args:
        draw: as Hypothesis passes it.
        scenario: model, machine, workload.
        schedule: axis and stages.
        least_staged: share of each layer's tokens that goes through stages at least.
    """
    result: list[tuple[Segment, ...]] = []
    count = len(scenario.model.layers)
    weights = st.sampled_from((0.0, 0.1, 1.0, 3.0))
    for index in range(count):
        tokens = scenario.cached_tokens(index)
        if not tokens:
            result.append(())
            continue
        paths = usable_paths(scenario, index)
        staged = [p.name for p in paths if p.attends == "stage"]
        outside = [p.name for p in paths if p.attends != "stage"]
        inside = draw(st.sampled_from((0.0, 0.3, 0.7, 1.0)))
        whole = split(tokens, {"stage": max(inside, least_staged, 1e-9),
                               "outside": 1.0 - max(inside, least_staged)})  # fmt: skip
        parts: list[tuple[str, int | None, int]] = []
        stages: Sequence[int] = range(schedule.stages)
        if schedule.axis == "layer":
            stages = (group_of(index, count, schedule.stages),)
        for position, stage in enumerate(stages):
            size, larger = divmod(whole.get("stage", 0), len(stages))
            chosen = draw(st.lists(st.sampled_from(staged), min_size=1, max_size=3, unique=True))
            shares = {name: 0.05 + draw(weights) for name in chosen}
            for name, part in split(size + (position < larger), shares).items():
                parts.append((name, stage, part))
        shares = {name: 1e-9 + draw(weights) for name in outside}
        parts += [(n, None, k) for n, k in split(whole.get("outside", 0), shares).items()]
        segments, begin = [], 0
        for name, at, part in parts:
            segments.append(Segment(begin, begin + part, name, at))
            begin += part
        result.append(tuple(segments))
    return tuple(result)


@st.composite
def evaluations(draw: st.DrawFn, most_layers: int = 4) -> tuple[Scenario, Evaluation]:
    """A random plan, judged: any paths, any schedule, any share of streamed weights."""
    scenario = draw(scenarios(most_layers))
    schedule = draw(schedules(len(scenario.model.layers)))
    allocation = draw(allocations(scenario, schedule))
    share = st.sampled_from((0.0, 0.25, 1.0))
    streamed = [draw(share) for _ in allocation] if schedule.stream_weights else None
    return scenario, evaluate(scenario, schedule, allocation, streamed)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[StepGraph, list[float]]:
    """A cyclic graph of random operations, and values of its variables: no model behind it."""
    ceilings = draw(st.lists(magnitudes(1.0, 1e4), max_size=3))
    values = [c * draw(st.sampled_from((0.0, 0.3, 1.0))) for c in ceilings]
    variables = [Variable(0, None, "fetch", c, {}) for c in ceilings]
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    operations: list[Operation] = []
    count = draw(st.integers(1, 12))
    for index in range(count):
        resource = draw(st.sampled_from(("gpu", "gpu", "h2d", "disk", None))) if index else "gpu"
        curve = draw(curves(magnitudes(1e6, 1e9), most_fixed_s=1e-3))
        used = draw(st.sets(st.sampled_from(range(len(ceilings))))) if ceilings else ()
        operation = Operation("work", resource, curve, tuple(sorted(used)),
                              ceiling=sum(ceilings[v] for v in used))  # fmt: skip
        if index:
            before = draw(st.sets(st.integers(0, index - 1), max_size=3))
            operation.after += [(b, 0) for b in sorted(before)]
        if resource is not None:
            operation.after += [(last[resource], 0)] if resource in last else []
            first.setdefault(resource, index)
            last[resource] = index
        operations.append(operation)
    for resource, index in first.items():
        operations[index].after.append((last[resource], 1))
    for _ in range(draw(st.integers(0, 6))):
        one, other = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        operations[one].after.append((other, draw(st.integers(1, 3))))
    between = st.sampled_from((("h2d", "gpu"), ("gpu", "h2d"), ("disk", "h2d")))
    edge_s = draw(st.dictionaries(between, magnitudes(1e-6, 1e-2), max_size=2))
    cycles = draw(st.integers(1, 3))
    graph = StepGraph(operations, variables, [], {}, {}, Schedule(), cycles, edge_s=edge_s)
    return graph, values


def resident_bytes(graph: StepGraph) -> float:
    """Bytes of HBM if all tokens were resident."""
    return sum(v.stored["hbm"] * v.ceiling for v in graph.variables if v.path == "resident")


def tight(graph: StepGraph, share: float) -> dict[str, float]:
    """Budgets that hold weights, full staging buffers and a share of K and V in HBM."""
    buffers = sum(
        b.count * max(sum(s * graph.variables[v].ceiling for v, s in t.items()) for t in b.tenants)
        for b in graph.buffers if "hbm" in b.tiers
    )  # fmt: skip
    return LARGE | {"hbm": graph.constant_bytes["hbm"] + buffers + share * resident_bytes(graph)}
