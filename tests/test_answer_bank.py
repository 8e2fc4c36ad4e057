"""Tiny problems with the optimum and the dual worked out by hand.

Every layer here has 4 heads of 16 and hidden width 64, so K and V of a token take 256 bytes in
fp16, its activation 128, and a rebuild 16384 FLOP. The link moves 256 kB/s, one token's K and V
per millisecond; what a problem does not name is free. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from strategies import LARGE, full_graph, ideal, layer, model

from kvplan import fluid, program
from kvplan.curve import Curve, Piece
from kvplan.hardware import HardwareProfile, Link
from kvplan.model import LayerSpec
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import StepGraph
from kvplan.workload import Workload

TOKEN = 256
LINK = 256e3
MS = 1e-3
N = 1000

LAYER_BYTES = 2 * (64 * 64 * 4 + 64 * 128 * 3)
PROJECT_BYTES = 2 * 64 * (64 + 128)
STREAMED_BYTES = LAYER_BYTES - 2 * 64 * 128
"""All of a layer but its K and V projections, which rebuilds need."""
HEAD_BYTES = 2 * 64


@dataclass
class Answer:
    """Optimum, duals and tokens of the exact program; duals of resources from the fluid one."""

    ms: float
    fluid_ms: float
    tokens: dict[str, float]
    ms_per_token: dict[str, float]
    resource: dict[str, float]


def ask(
    hardware: HardwareProfile, paths: Sequence[str], *, layers: Sequence[LayerSpec] = (layer(),),
    stages: int = 1, queue_depth: int = 2, room: Mapping[str, float] | None = None,
    batch: int = 1, micro_batches: int = 1, order: str = "column", boundary: str = "overlap",
    stream: bool = False, quality: Mapping[str, float] | None = None,
) -> Answer:  # fmt: skip
    """Solve. ``room`` is in tokens of 256 bytes beyond what the weights take."""
    scenario = Scenario(
        model=model(layers, vocab=1), hardware=hardware,
        workload=Workload(batch=batch, context=N, micro_batches=micro_batches, schedule=order),
    )  # fmt: skip
    schedule = Schedule(stages=stages, queue_depth=queue_depth, boundary=boundary,
                        stream_weights=stream)  # fmt: skip
    graph = full_graph(scenario, schedule, paths)
    capacity = LARGE | {
        tier: graph.constant_bytes.get(tier, 0.0) + tokens * TOKEN
        for tier, tokens in (room or {}).items()
    }
    exact = program.solve(program.state(graph, capacity, quality=quality))
    flow = fluid.bound(graph, scenario.classes, capacity, quality)
    assert exact is not None
    assert flow is not None
    return Answer(
        exact.step_s / MS, flow.step_s / MS, totals(graph, exact.values),
        {tier: dual * TOKEN / MS for tier, dual in exact.capacity_s_per_byte.items()},
        flow.resource_weight,
    )  # fmt: skip


def totals(graph: StepGraph, values: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for variable, value in zip(graph.variables, values, strict=True):
        found[variable.path] = found.get(variable.path, 0.0) + value
    return found


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_fetch_only(stages: int) -> None:
    """One layer, everything fetched in S copies of 5 ms fixed time each.

    T = S t0 + bytes / BW = 5 S + 1000. The link is all that matters: its dual is 1.
    """
    answer = ask(ideal(link=LINK, copy_s=5 * MS), ["fetch"], stages=stages)
    assert answer.ms == near(5 * stages + 1000)
    assert answer.resource["h2d"] == near(1)
    assert answer.ms_per_token["hbm"] == near(0)


def test_resident_and_fetch() -> None:
    """HBM has room for 600 tokens; the rest, F, is fetched in S = 4 stages through Q = 2 buffers.

    The buffers hold 2 F/4 tokens: (1000 - F) + F/2 = 600, so F = 800 and T = 800. A token more
    of HBM takes 1/(1 - Q/S) = 2 tokens off the link: dT/dHBM = 2 ms per token. Without buffers it
    would be 1/BW.
    """
    answer = ask(ideal(link=LINK), ["resident", "fetch"], stages=4, room={"hbm": 600})
    assert answer.ms == near(800)
    assert answer.tokens == {"resident": near(200), "fetch": near(800)}
    assert answer.ms_per_token["hbm"] == near(2)


@pytest.mark.parametrize("r", [0.5, 1.0, 2.0, 4.0])
def test_recompute_and_fetch(r: float) -> None:
    """Send a token's K and V: 1 ms; its activation: 1/2; rebuild: r. R tokens are rebuilt.

    The layer and the head at one new token cost the GPU as much as o = 5.0078125 rebuilds.
    T = max(1000 - R/2, r (R + o)) is least where both are equal, R = 2 (1000 - o r) / (1 + 2 r):
    KVPR's 2 / (1 + 2 r) of all tokens where o is nothing.
    Duals: l of the link, g of the GPU, l + g = 1 and l/2 = g r, so l = 2 r / (1 + 2 r).
    """
    own = 2 * (LAYER_BYTES + HEAD_BYTES) / 2 / 16384
    assert own == 5.0078125
    answer = ask(ideal(link=LINK, flop=16384 / (r * MS)), ["fetch", "recompute"])
    rebuilt = 2 * (1000 - own * r) / (1 + 2 * r)
    assert answer.tokens["recompute"] == near(rebuilt)
    assert answer.ms == near(1000 - rebuilt / 2)
    assert answer.resource["h2d"] == near(2 * r / (1 + 2 * r))
    assert answer.resource["gpu"] == near(1 / (1 + 2 * r))


def test_recompute_without_a_balance() -> None:
    """A rebuild of 0.25 ms never catches up with half a millisecond of sending: R = 1000.

    T = 1000 / 2; the link's dual is 1, the GPU's 0.
    """
    answer = ask(ideal(link=LINK, flop=16384 / (0.25 * MS)), ["fetch", "recompute"])
    assert answer.ms == near(500)
    assert answer.resource == {"h2d": near(1), "gpu": near(0), "d2h": near(0)}


def test_grouped_heads_are_never_recomputed() -> None:
    """One KV head of four: K and V take 64 bytes, the activation 128. Fetch all: T = 250."""
    answer = ask(ideal(link=LINK), ["fetch", "recompute"], layers=[layer(kv_heads=1)])
    assert answer.ms == near(250)
    assert answer.tokens["recompute"] == near(0)


def test_host_attention_beside_fetch() -> None:
    """The CPU attends 3 tokens per ms, the link brings 1; both at once.

    The partial result of 4 heads x (16 + 1) x 4 bytes takes 1.0625 ms on the link, as latency.
    F = (1000 - F)/3 + 1.0625, so T = F = 250 + 0.75 x 1.0625. The fluid program charges the
    latency in proportion, k = 1/3 + 1.0625/1000 ms per token, so T = F = 1000 k/(1 + k). Its
    duals: l + c = 1 and l = c k, so k/(1 + k) for the link; the rest is the chain of the layer's.
    """
    answer = ask(ideal(link=LINK, host=3 * LINK), ["fetch", "attend_host"])
    assert answer.ms == near(250 + 0.75 * 1.0625)
    assert answer.tokens["fetch"] == near(answer.ms)
    k = 1 / 3 + 1.0625 / 1000
    assert answer.fluid_ms == near(1000 * k / (1 + k))
    assert answer.resource["h2d"] == near(k / (1 + k))
    assert answer.resource["host"] == near(0)


def test_one_buffer_is_serial() -> None:
    """Attention reads a token in 0.6 ms. One buffer: copy, attend, copy, ...: T = 1000 + 600.

    Two buffers: the copies run beside everything else, T = max(1000, 600 + weights) = 1000.
    """
    hbm = TOKEN / (0.6 * MS)
    weights = (LAYER_BYTES + HEAD_BYTES) / hbm / MS
    assert 600 + weights < 1000
    assert ask(ideal(link=LINK, hbm=hbm), ["fetch"], queue_depth=1).ms == near(1600)
    assert ask(ideal(link=LINK, hbm=hbm), ["fetch"], queue_depth=2).ms == near(1000)


@pytest.mark.parametrize("stages", [1, 4])
def test_barrier_and_overlap(stages: int) -> None:
    """Attention reads a token in 0.6 ms. With overlap T = 1000, the link's time.

    With a barrier the first copy starts with the step; after the last copy, 1/S of the attention,
    the rest of the layer and the head remain: T = 1000 + 600/S + finish + head. The attention of
    the stages before and the projection are done by then.
    """
    hbm = TOKEN / (0.6 * MS)
    rest = (LAYER_BYTES - PROJECT_BYTES + HEAD_BYTES) / hbm / MS
    machine = ideal(link=LINK, hbm=hbm)
    assert ask(machine, ["fetch"], stages=stages).ms == near(1000)
    barrier = ask(machine, ["fetch"], stages=stages, boundary="barrier")
    assert barrier.ms == near(1000 + 600 / stages + rest)


def test_streamed_weights() -> None:
    """Four layers, W = 256 tokens' bytes of each may be streamed; HBM is 480 short of holding all.

    A share w of each layer is streamed: 4 w W leave HBM, two buffers of w W come back, so
    2 w W = 480. T = 4 w W / BW = 960. A token more of HBM saves 4/2 = 2 ms.
    """
    assert STREAMED_BYTES == 256 * TOKEN
    answer = ask(ideal(link=LINK), ["resident"], layers=[layer()] * 4, stream=True,
                 room={"hbm": 4 * N - 480})  # fmt: skip
    assert answer.ms == near(960)
    assert answer.tokens["stream_weights"] == near(4 * 480 / 512)
    assert answer.ms_per_token["hbm"] == near(2)


def test_streamed_weights_are_double_buffered() -> None:
    """Almost all of four layers is streamed, 255.5 ms each; the GPU reads each layer in 400 ms.

    Two buffers let the load of a layer run beside the layer before: T = 4 x max(255.5, 400),
    and attention, and the head. HBM is not what counts.
    """
    hbm = LAYER_BYTES / (400 * MS)
    rest = (4 * N * TOKEN + HEAD_BYTES) / hbm / MS
    answer = ask(ideal(link=LINK, hbm=hbm), ["resident"], layers=[layer()] * 4, stream=True,
                 room={"hbm": 4 * N - 511})  # fmt: skip
    assert answer.ms == near(4 * 400 + rest)
    assert answer.ms_per_token["hbm"] == near(0)


@pytest.mark.parametrize(("order", "loads"), [("column", 1), ("row", 2)])
def test_micro_batches_share_weights_by_columns(order: str, loads: int) -> None:
    """Two micro-batches; by columns a layer's weights serve both, by rows each loads its own.

    As above w = 480 / 512 of 4 x 256 tokens' bytes: 960 ms by columns, twice that by rows; a
    token more of HBM saves 2 ms by columns, 4 by rows.
    """
    answer = ask(ideal(link=LINK), ["resident"], layers=[layer()] * 4, stream=True, batch=2,
                 micro_batches=2, order=order, room={"hbm": 2 * 4 * N - 480})  # fmt: skip
    assert answer.ms == near(960 * loads)
    assert answer.ms_per_token["hbm"] == near(2 * loads)


def test_disk_slower_than_link() -> None:
    """The disk reads a token in 4 ms. Host memory has room for 750 tokens, S = 4, Q = 2.

    D tokens on disk pass two host buffers of D/4: (1000 - D) + D/2 = 750, so D = 500 and
    T = 4 x 500. A token more of host memory takes 2 off the disk: 8 ms.
    """
    answer = ask(ideal(link=LINK, disk=LINK / 4), ["fetch", "fetch_disk"], stages=4,
                 room={"dram": 750})  # fmt: skip
    assert answer.ms == near(2000)
    assert answer.tokens["fetch_disk"] == near(500)
    assert answer.ms_per_token["dram"] == near(8)


def test_disk_beside_enough_host_memory() -> None:
    """With room for 900 tokens D = 200, read in 800 ms: the link decides, T = 1000, dual 0."""
    answer = ask(ideal(link=LINK, disk=LINK / 4), ["fetch", "fetch_disk"], stages=4,
                 room={"dram": 900})  # fmt: skip
    assert answer.ms == near(1000)
    assert answer.ms_per_token["dram"] == near(0)
    assert answer.resource["h2d"] == near(1)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_int8_up_to_a_share(share: float) -> None:
    """A token in int8 takes 1.0625 of 2 bytes per element: T = 1000 (1 - share x 0.46875)."""
    answer = ask(ideal(link=LINK), ["fetch", "fetch_int8"], quality={"fetch_int8": share})
    assert answer.ms == near(1000 * (1 - share * 0.46875))
    assert answer.tokens["fetch_int8"] == near(1000 * share)


def test_int8_unpacked_slowly() -> None:
    """Unpacking writes a token in 1.5 ms: I tokens are int8 where 1000 - 0.46875 I = 1.5 I.

    l + g = 1 and 0.46875 l = 1.5 g.
    """
    machine = ideal(link=LINK, dequantise=TOKEN / (1.5 * MS))
    answer = ask(machine, ["fetch", "fetch_int8"])
    packed = 1000 / (1.5 + 0.46875)
    assert answer.tokens["fetch_int8"] == near(packed)
    assert answer.ms == near(1.5 * packed)
    assert answer.resource["gpu"] == near(0.46875 / 1.96875)


def test_windowed_layer() -> None:
    """A full layer and one with a window of 100; HBM has room for 700 tokens, S = 4, Q = 2.

    The buffers are as large as the full layer needs: 2 F/4. Keeping its tokens frees buffers, so
    they go first: (1000 - F) + F/2 = 700, F = 600. The windowed layer is fetched whole:
    T = 600 + 100, and a token more of HBM saves 2 ms.
    """
    answer = ask(ideal(link=LINK), ["resident", "fetch"], layers=[layer(), layer(window=100)],
                 stages=4, room={"hbm": 700})  # fmt: skip
    assert answer.ms == near(700)
    assert answer.tokens["fetch"] == near(700)
    assert answer.ms_per_token["hbm"] == near(2)


def test_curve_of_two_pieces() -> None:
    """A copy of v tokens takes max(v, 2 v - 300) ms; two stages of 500: T = 2 x 700.

    A curve is convex, so uneven stages would cost more.
    """
    machine = ideal(link=LINK)
    copy = Curve((Piece(0.0, 1 / LINK), Piece(-300 * MS, 2 / LINK)))
    link = Link(raw_bytes_per_s=LINK, copy=copy, latency_s=1e-30)
    machine = machine.with_link(h2d=link)
    assert ask(machine, ["fetch"], stages=2).ms == near(1400)
    assert ask(machine, ["fetch"], stages=1).ms == near(1700)
