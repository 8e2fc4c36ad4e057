"""The runtime against float64: every path, mixed, ragged, over many steps."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from kvplan.allocation import Segment  # noqa: E402
from kvplan.evaluate import evaluate  # noqa: E402
from kvplan.hardware_library import load_hardware  # noqa: E402
from kvplan.model import LayerSpec, ModelSpec  # noqa: E402
from kvplan.paths import REGISTRY  # noqa: E402
from kvplan.scenario import Scenario  # noqa: E402
from kvplan.schedule import Schedule  # noqa: E402
from kvplan.workload import Budgets, Workload  # noqa: E402
from kvplan_validate.decoder import Decoder  # noqa: E402
from kvplan_validate.pool import PinnedPool  # noqa: E402
from kvplan_validate.reference import History, Reference  # noqa: E402
from kvplan_validate.runtime import Runtime  # noqa: E402
from kvplan_validate.state import State  # noqa: E402
from kvplan_validate.store import Store, fill, layout  # noqa: E402
from kvplan_validate.token_file import TokenFile, aligned  # noqa: E402

WHAT_IF = ("fetch_tier", "attend_tier")
EXACT = [name for name, path in REGISTRY.items() if path.exact and name not in WHAT_IF]
"""Paths that a real machine has; a tier that could be cannot be run."""


def small_model(*, grouped: bool, rope: bool, layers: int = 3) -> ModelSpec:
    hidden, heads, dim, inner = 64, 4, 16, 96
    kv = 2 if grouped else 4
    layer = LayerSpec(
        hidden=hidden,
        query_heads=heads,
        kv_heads=kv,
        head_dim_k=dim,
        head_dim_v=dim,
        intermediate=inner,
        gated_mlp=rope,
        rope=rope,
        attention_params=hidden * dim * (2 * heads + 2 * kv) + hidden,
        mlp_params=hidden * inner * (3 if rope else 2) + hidden,
    )
    return ModelSpec(
        name="small",
        family="llama",
        hidden=hidden,
        vocab=50,
        embedding_width=hidden,
        weight_dtype="fp16",
        layers=(layer,) * layers,
        embedding_params=50 * hidden,
        head_params=50 * hidden + hidden,
        tied=True,
        source="test",
    )


def random_allocation(
    rng: random.Random, tokens: int, layers: int, schedule: Schedule, paths: list[str]
) -> tuple[tuple[Segment, ...], ...]:
    """Random runs of tokens on random paths; stages ragged, some empty."""
    result = []
    for layer in range(layers):
        places: list[tuple[str, int | None]] = []
        for path in paths:
            if REGISTRY[path].attends != "stage":
                places.append((path, None))
            elif schedule.axis == "token":
                places += [(path, stage) for stage in range(schedule.stages)]
            else:
                places.append((path, layer * schedule.stages // layers))
        chosen = rng.sample(places, k=rng.randint(1, len(places)))
        chosen.sort(key=lambda p: (p[1] is None, p[1] or 0, p[0]))
        cuts = sorted(rng.sample(range(1, tokens), k=len(chosen) - 1))
        bounds = [0, *cuts, tokens]
        result.append(
            tuple(
                Segment(bounds[i], bounds[i + 1], path, stage)
                for i, (path, stage) in enumerate(chosen)
            )
        )
    return tuple(result)


@dataclass
class Prepared:
    """A runtime of a random plan, what it should compute, and what must be closed."""

    runtime: Runtime
    reference: Reference
    tokens: int
    store: Store
    pool: PinnedPool

    def close(self) -> None:
        self.store.close()
        self.pool.close()


def prepared(
    seed: int, tmp_path: Path, *, grouped: bool, rope: bool, axis: str, micro_batches: int,
    stream: bool, paths: list[str], steps: int = 3, dtype: Any = torch.float32,
    device_name: str = "cpu",
) -> Prepared:  # fmt: skip
    """A random plan over random tokens, ready to step."""
    rng = random.Random(seed)
    model = small_model(grouped=grouped, rope=rope)
    tokens, batch = rng.randint(20, 60), micro_batches * rng.randint(1, 3)
    scenario = Scenario(
        model=model,
        hardware=load_hardware("h200"),
        workload=Workload(
            batch=batch,
            context=tokens,
            micro_batches=micro_batches,
            block=4,
            schedule=rng.choice(["row", "column"]),
        ),
        budgets=Budgets(disk_bytes=10**9),
    )
    schedule = Schedule(
        axis=axis, stages=rng.randint(1, 3), queue_depth=rng.randint(1, 4), stream_weights=stream
    )
    allocation = random_allocation(rng, tokens, len(model.layers), schedule, paths)
    evaluation = evaluate(scenario, schedule, allocation, [rng.random() for _ in model.layers])
    device = torch.device(device_name)
    decoder = Decoder(model, device, dtype, seed=seed, positions=tokens + steps + 1)
    history = History(
        decoder, [tokens] * len(model.layers), batch // micro_batches, micro_batches, seed
    )
    reference = Reference(decoder, history)
    pool = PinnedPool(64 * 2**20)
    store = Store(layout(allocation, micro_batches))
    fill(store.pieces, model.layers, pool.take, device, history.source())
    to_disk(store, tmp_path)
    runtime = Runtime(State(scenario, evaluation, decoder, store, pool, tail=steps))
    return Prepared(runtime, reference, tokens, store, pool)


def run_case(
    seed: int, tmp_path: Path, *, steps: int = 3, capture: bool = False, **plan: Any
) -> float:
    """Largest relative error of the residual over steps of a random plan (see `prepared`)."""
    made = prepared(seed, tmp_path, steps=steps, **plan)
    runtime = made.runtime
    if capture:
        runtime.capture()
    worst = 0.0
    for step in range(steps):
        starts = [b.start.clone() for b in runtime.state.batches]
        runtime.state.staging.poison()
        runtime.synchronise()
        runtime.step()
        runtime.synchronise()
        for index, start in enumerate(starts):
            wanted = made.reference.step(start, index, made.tokens + step)
            got = runtime.state.batches[index].hidden.double().cpu()
            worst = max(worst, float((got - wanted).norm() / wanted.norm()))
        runtime.advance()
    made.close()
    return worst


def to_disk(store: Store, folder: Path) -> None:
    """Move the pieces that a plan keeps on disk into a file."""
    content = bytearray()
    for key, piece in store.pieces.items():
        if key[2] == "fetch_disk":
            assert piece.data is not None
            piece.offset = len(content)
            content += piece.data.numpy().tobytes()
            content += bytes(aligned(len(content)) - len(content))
            piece.data = None
    if content:
        store.file = TokenFile.create(folder, len(content), memoryview(content), print)


@pytest.mark.parametrize("seed", range(24))
def test_random_exact_plans_equal_float64(seed: int, tmp_path: Path) -> None:
    """All exact paths mixed, both head layouts, axes, schedules; fp32 arithmetic."""
    error = run_case(
        seed,
        tmp_path,
        grouped=bool(seed & 1),
        rope=bool(seed & 2),
        axis="token" if seed % 3 else "layer",
        micro_batches=1 + (seed % 4 == 3),
        stream=seed % 5 == 4,
        paths=EXACT,
    )
    assert error < 2e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_formats_stay_within_their_rounding(dtype: Any, tmp_path: Path) -> None:
    error = run_case(
        3,
        tmp_path,
        grouped=True,
        rope=True,
        axis="token",
        micro_batches=1,
        stream=False,
        paths=EXACT,
        dtype=dtype,
    )
    assert error < (3e-2 if dtype == torch.bfloat16 else 4e-3)


def quantised_error(path: str, tmp_path: Path, **device: Any) -> float:
    """Error of one step in which some tokens are resident and the rest take a quantised path."""
    return run_case(
        5,
        tmp_path,
        grouped=False,
        rope=True,
        axis="token",
        micro_batches=1,
        stream=False,
        paths=["resident", path],
        steps=1,
        **device,
    )


@pytest.mark.parametrize(("path", "bound"), [("fetch_int8", 0.02), ("fetch_int4", 0.3)])
def test_quantised_paths_are_near(path: str, bound: float, tmp_path: Path) -> None:
    error = quantised_error(path, tmp_path)
    assert 0 < error < bound


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("capture", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("seed", range(24))
def test_random_exact_plans_on_a_gpu(seed: int, capture: bool, tmp_path: Path) -> None:
    """Streams, events, host functions and kernels; fp16 rounding over three layers."""
    error = run_case(
        seed,
        tmp_path,
        grouped=bool(seed & 1),
        rope=bool(seed & 2),
        axis="token" if seed % 3 else "layer",
        micro_batches=1 + (seed % 4 == 3),
        stream=seed % 5 == 4,
        paths=EXACT,
        dtype=torch.float16,
        device_name="cuda",
        steps=1 if capture else 3,
        capture=capture,
    )
    assert error < 4e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("path", "bound"), [("fetch_int8", 0.02), ("fetch_int4", 0.3)])
def test_quantised_paths_on_a_gpu(path: str, bound: float, tmp_path: Path) -> None:
    error = quantised_error(path, tmp_path, dtype=torch.float16, device_name="cuda")
    assert 0 < error < bound
