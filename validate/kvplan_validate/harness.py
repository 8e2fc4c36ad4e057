"""Run cases and time their steps: predicted beside measured."""

from __future__ import annotations

import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.model import ModelSpec
from kvplan.scenario import Scenario
from kvplan.trace import trace
from kvplan_validate import kernels
from kvplan_validate.busy import busy_s
from kvplan_validate.decoder import ROPE_THETA, Decoder
from kvplan_validate.metrics import Metrics
from kvplan_validate.pool import PinnedPool, largest
from kvplan_validate.results import Timing
from kvplan_validate.runtime import Runtime
from kvplan_validate.state import State
from kvplan_validate.store import Store, layout, piece_bytes
from kvplan_validate.timeline import timed_step
from kvplan_validate.token_file import TokenFile, aligned
from kvplan_validate.work import Work

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
TILE = 64 * 2**20
"""Bytes of random numbers that fill a pool over and over."""

LONG_S = 0.15
"""Steps longer than this differ by little: three are timed."""

SMALL_POOL = 512 * 2**20
LEAST_POOL = 2**30
"""Bytes; a smaller pool might lie in the CPU's caches."""

PART_S = 0.5
"""Seconds between two looks at the metrics."""

LARGEST_FILE = 4 * 2**30
"""Bytes of tokens on disk; what is beyond shares them, which direct reads do not notice."""


def _unheard(text: str) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Bench:
    """What cases share: one registered pool, one set of weights at a time.

    Args:
        pool_bytes: most host memory to register for cached tokens.
        notice: takes a sentence about what is not as asked for.
        disk_folder: where tokens on disk lie.
    """

    pool_bytes: int
    notice: Callable[[str], None] = _unheard
    device: torch.device = field(
        default_factory=lambda: torch.device("cuda" if torch.cuda.is_available() else "cpu")
    )
    disk_folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    pool: PinnedPool | None = None
    small: PinnedPool | None = None
    file: TokenFile | None = None
    _model: ModelSpec | None = None
    _decoder: Decoder | None = None

    def open(self) -> tuple[PinnedPool, PinnedPool]:
        """The large pool, filled with random numbers, and a small one for what steps write."""
        if self.pool is None or self.small is None:
            tile = torch.randn(TILE // 2, dtype=torch.float32).to(torch.float16)
            self.small = self.small or PinnedPool(SMALL_POOL)
            self.pool = largest(
                self.pool_bytes, LEAST_POOL, self.notice, wrap=True, tile=tile.view(torch.uint8)
            )
        return self.pool, self.small

    def decoder(self, model: ModelSpec, dtype: str, positions: int) -> Decoder:
        """Weights of a model; the last model's are kept."""
        if dtype not in DTYPES:
            raise InputError("kv_dtype", dtype, f"one that the runtime has: {', '.join(DTYPES)}")
        if self._decoder is None or self._model != model or self._decoder.dtype != DTYPES[dtype]:
            self._decoder = None
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._decoder = Decoder(model, self.device, DTYPES[dtype], positions=positions)
            self._model = model
        if self._decoder.rotary.shape[0] < positions:
            dim = model.layers[0].head_dim_k
            self._decoder.rotary = kernels.rotary_table(positions, dim, ROPE_THETA, self.device)
        return self._decoder

    def token_file(self, size: int) -> TokenFile:
        """A file of at least a size on the disk; a larger one than before is made anew."""
        if self.file is None or self.file.size < size:
            if self.file is not None:
                self.file.close()
                self.file = None
            pool, _ = self.open()
            tile = memoryview(pool.memory[: min(TILE, pool.size)].numpy())
            self.file = TokenFile.create(self.disk_folder, size, tile, self.notice)
        return self.file

    def drop_weights(self) -> None:
        """Forget the weights; streaming takes rows out of them."""
        self._model = self._decoder = None

    def close(self) -> None:
        """Give everything back."""
        for pool in (self.pool, self.small):
            if pool is not None:
                pool.close()
        self.pool = self.small = None
        if self.file is not None:
            self.file.close()
            self.file = None
        self.drop_weights()


def timing_store(
    scenario: Scenario, evaluation: Evaluation, pool: PinnedPool, bench: Bench, dtype: torch.dtype
) -> Store:
    """Pieces full of random numbers: right for time, meaningless as text.

    Tokens on disk go round in a file of at most `LARGEST_FILE` bytes.
    """
    store = Store(layout(evaluation.allocation, scenario.workload.micro_batches))
    device, end, most = bench.device, 0, 0
    item = torch.empty(0, dtype=dtype).element_size()
    batch = scenario.workload.micro_batch
    for (layer, _, path, _), piece in store.pieces.items():
        spec = scenario.model.layers[layer]
        size = piece_bytes(path, spec, piece.count, batch, item)
        if path in ("resident", "recompute_resident"):
            shape: tuple[int, ...] = (piece.count, batch, spec.hidden)
            if path == "resident":
                shape = (piece.count, batch, 2, spec.kv_heads, spec.head_dim_k)
            piece.data = _random(shape, device, dtype)
        elif path == "attend_host":
            shape = (2, batch, spec.kv_heads, piece.count, spec.head_dim_k)
            piece.data = pool.take(size).view(dtype).view(shape)
        elif path == "fetch_disk":
            piece.offset = end if end + aligned(size) <= LARGEST_FILE else 0
            end = piece.offset + aligned(size)
            most = max(most, end)
        else:
            piece.data = pool.take(size)
    if most:
        store.file = bench.token_file(most)
    return store


def _random(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, device=device, dtype=dtype).normal_()


def ready(
    bench: Bench, scenario: Scenario, evaluation: Evaluation, work: type[Work] = Work
) -> Runtime:
    """A runtime of a plan over random tokens."""
    pool, small = bench.open()
    pool.reset()
    small.reset()
    dtype = scenario.workload.kv_dtype
    decoder = bench.decoder(scenario.model, dtype, scenario.workload.tokens + 2)
    store = timing_store(scenario, evaluation, pool, bench, DTYPES[dtype])
    return Runtime(State(scenario, evaluation, decoder, store, small), work)


@contextmanager
def running(
    bench: Bench, scenario: Scenario, evaluation: Evaluation, work: type[Work] = Work
) -> Iterator[Runtime]:
    """A runtime whose memory is free again at the end, whatever happens."""
    try:
        runtime = ready(bench, scenario, evaluation, work)
        try:
            yield runtime
        finally:
            runtime.close()
            del runtime
    finally:
        if evaluation.schedule.stream_weights:
            bench.drop_weights()
        # Actions hold the runtime that holds them; graphs hold memory until both are gone.
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()


def run(
    bench: Bench,
    scenario: Scenario,
    evaluation: Evaluation,
    *,
    steps: int = 0,
    metrics: Metrics | None = None,
) -> Timing:
    """Time a plan's steps on this machine.

    Args:
        bench: pool and weights.
        scenario: the question.
        evaluation: the plan.
        steps: how many; 0 picks as many as take half a second, 3 to 30.
        metrics: told about twice a second; steps then come in parts, each warmed up again.
    """
    with running(bench, scenario, evaluation) as runtime:
        if evaluation.schedule.mode == "graph":
            runtime.capture()
        least = 3 if evaluation.step_s > LONG_S else 5
        count = steps or max(least, min(30, int(0.5 / max(evaluation.step_s, 1e-6))))
        warm = 1 if evaluation.step_s > LONG_S else 3
        if metrics is None:
            samples = timed(runtime, count, warm)
            return Timing(samples, measured_busy_s(runtime))
        metrics.occupied(measured_busy_s(runtime))
        part = max(1, int(PART_S / max(evaluation.step_s, 1e-6)))
        samples = []
        while len(samples) < count:
            some = timed(runtime, min(part, count - len(samples)), warm)
            samples += some
            metrics.ran(some)
        return Timing(samples, dict(metrics.busy_s))


def measured_busy_s(runtime: Runtime) -> dict[str, float]:
    """Seconds each resource works in one step; empty where an eager step finds no room."""
    try:
        return busy_s(timed_step(runtime))
    except torch.OutOfMemoryError:
        return {}


def timed(runtime: Runtime, count: int, warm: int = 3) -> list[float]:
    """Seconds between the ends of consecutive steps."""
    if not runtime.state.cuda:
        marks = []
        for _ in range(count + 1):
            runtime.step()
            marks.append(time.perf_counter())
        return [b - a for a, b in pairwise(marks)]
    stream: Any = runtime.state.streams["gpu"]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    with torch.cuda.stream(stream):
        for _ in range(warm):
            runtime.step()
        events[0].record(stream)
        for event in events[1:]:
            runtime.step()
            event.record(stream)
    runtime.synchronise()
    return [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)]


MEASURED_PID = 2
"""Process of the measured events; the predicted ones are `trace.PID`."""


def traced(bench: Bench, scenario: Scenario, evaluation: Evaluation) -> str:
    """Predicted and measured timelines of a plan as one Chrome trace.

    The measured step is launched eagerly, with an event before and after every operation.
    """
    with running(bench, scenario, evaluation) as runtime:
        for _ in range(2):
            runtime.step()
        spans = timed_step(runtime)
    document = trace(
        evaluation.graph, evaluation.values, evaluation.simulation, steps=1, name="predicted"
    )
    lanes = sorted({action.lane for action, _, _ in spans})
    own = {"ph": "M", "pid": MEASURED_PID, "ts": 0}
    events = document["traceEvents"]
    events.append({"name": "process_name", **own, "tid": 0, "args": {"name": "measured"}})
    for number, lane in enumerate(lanes, start=1):
        events.append({"name": "thread_name", **own, "tid": number, "args": {"name": lane}})
    for action, begin_s, end_s in spans:
        operation = action.operation
        events.append(
            {
                "ph": "X",
                "name": operation.operation,
                "pid": MEASURED_PID,
                "tid": lanes.index(action.lane) + 1,
                "ts": begin_s * 1e6,
                "dur": (end_s - begin_s) * 1e6,
                "args": {
                    "layer": operation.layer,
                    "stage": operation.stage,
                    "path": operation.path,
                },
            }
        )
    return json.dumps(document) + "\n"
