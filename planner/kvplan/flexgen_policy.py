"""FlexGen's cost model and its linear program over percentages.

The time of a run is prefill once, then a decode step per further token, each layer after layer.
Decode brings in a layer's weights (and the cache of sequences the GPU attends), then takes as long
as the longest of storing, the disk and the computing; prefill takes as long as the longest of all.

Source: FlexGen, arXiv 2303.06865, appendix A.3; FMInference/FlexLLMGen, the cost model script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan import cost
from kvplan.dtypes import element_bytes
from kvplan.flexgen import (
    Percentages,
    Shares,
    cache_shares,
    mean_weight_shares,
    rounded_percentages,
    shares_of,
)
from kvplan.hardware import HardwareProfile
from kvplan.highs import Rows, minimise
from kvplan.model import ModelSpec

BUFFERED_LAYERS = 2
"""Layers whose weights and cache are on the GPU at once: one in use, one arriving."""

TIE_S = 1e-3
"""Seconds that the whole cache or all weights on disk count as more, so that ties avoid it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the cost model knows of a machine, bytes/s and FLOP/s; None: it has no such part."""

    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    hbm_bytes_per_s: float
    flop_per_s: float
    host_attention_bytes_per_s: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None

    @classmethod
    def of(cls, hardware: HardwareProfile, model: ModelSpec, dtype: str) -> Rates:
        """Those of a profile; a disk is written as fast as it is read, where nothing is known."""
        attending = cost.attend_host(hardware, model.layers[0], dtype)
        disk = cost.read_disk(hardware)
        return cls(
            h2d_bytes_per_s=hardware.h2d.copy.rate(),
            d2h_bytes_per_s=hardware.d2h.copy.rate(),
            hbm_bytes_per_s=hardware.gpu.hbm_bytes_per_s,
            flop_per_s=cost.flop_per_s(hardware, model.weight_dtype),
            host_attention_bytes_per_s=attending.rate() if attending else None,
            disk_read_bytes_per_s=disk.rate() if disk else None,
            disk_write_bytes_per_s=disk.rate() if disk else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is generated: tokens of the prompt, tokens generated, and how a batch is cut.

    Args:
        prompt: tokens per sequence before generation.
        gen: tokens generated per sequence; the first comes out of prefill.
        gpu_batch: sequences computed together.
        gpu_batches: such batches that share a layer's weights.
        kv_dtype: format of the cache.
        cpu_attention: whether the CPU attends the cache it holds, which then never crosses.
    """

    prompt: int
    gen: int
    gpu_batch: int
    gpu_batches: int = 1
    kv_dtype: str = "fp16"
    cpu_attention: bool = False

    @property
    def batch(self) -> int:
        """All sequences."""
        return self.gpu_batch * self.gpu_batches

    @property
    def mean_tokens(self) -> float:
        """Tokens in the cache at a decode step, on average: steps 1 to gen - 1 after the prompt."""
        return self.prompt + self.gen / 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """What FlexGen's cost model says of a run.

    Args:
        prefill_s: until the first token.
        decode_s: for the other ``gen - 1``.
        tokens: generated in all.
        h2d_bytes: bytes that decoding sends to the GPU.
        cache_bytes: of all sequences at the end.
        memory_bytes: per tier, buffers and work space included.
    """

    prefill_s: float
    decode_s: float
    tokens: int
    h2d_bytes: float
    cache_bytes: float
    memory_bytes: Mapping[str, float]

    @property
    def total_s(self) -> float:
        """Prefill and decode."""
        return self.prefill_s + self.decode_s

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens over prefill and decode, as FlexGen counts."""
        return self.tokens / self.total_s


@dataclass(frozen=True, slots=True)
class _Means:
    """A model's mean layer under a task, bytes and FLOP."""

    layers: int
    weights_bytes: float
    kv_bytes: float
    prompt_kv_bytes: float
    prefill_flop: float
    decode_flop: float

    @classmethod
    def of(cls, model: ModelSpec, task: Task) -> _Means:
        layers, element = len(model.layers), element_bytes(task.kv_dtype)
        prompt = task.prompt

        def mean_kv(tokens: float) -> float:
            return sum(
                count * min(tokens, layer.window or tokens) * layer.kv_bytes(element)
                for layer, count, _ in model.layer_classes
            ) / layers * task.batch  # fmt: skip

        params = sum(layer.params for layer in model.layers) / layers
        heads = sum(y.query_heads * (y.head_dim_k + y.head_dim_v) for y in model.layers) / layers
        return cls(
            layers, params * element_bytes(model.weight_dtype), mean_kv(task.mean_tokens),
            mean_kv(prompt + 1), task.batch * (2 * prompt * params + 2 * prompt**2 * heads),
            2 * task.batch * params,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds as an affine function of the shares: a constant and a slope per column."""

    constant: float
    slopes: Mapping[str, float]

    def at(self, shares: Mapping[str, float]) -> float:
        return self.constant + sum(slope * shares[name] for name, slope in self.slopes.items())


COLUMNS = ("w_hbm", "w_dram", "w_disk", "c_hbm", "c_dram", "c_disk")


def _prefill(means: _Means, rates: Rates) -> list[_Line]:
    """Terms whose longest is a layer's prefill: weights in, cache out, disk, computing."""
    weights, kv = means.weights_bytes, means.prompt_kv_bytes
    away = weights / rates.h2d_bytes_per_s
    out = kv / rates.d2h_bytes_per_s
    terms = [
        _Line(0.0, {"w_dram": away, "w_disk": away}),
        _Line(0.0, {"c_dram": out, "c_disk": out}),
        _Line(means.prefill_flop / rates.flop_per_s, {}),
    ]
    if rates.disk_read_bytes_per_s and rates.disk_write_bytes_per_s:
        terms.append(_Line(0.0, {"w_disk": weights / rates.disk_read_bytes_per_s}))
        terms.append(_Line(0.0, {"c_disk": kv / rates.disk_write_bytes_per_s}))
    return terms


def _decode(means: _Means, rates: Rates, task: Task) -> tuple[_Line, list[_Line]]:
    """What a decode step of a layer waits for first, and terms whose longest comes after it."""
    weights, kv, new = means.weights_bytes, means.kv_bytes, means.prompt_kv_bytes / (
        task.prompt + 1)  # fmt: skip
    away = weights / rates.h2d_bytes_per_s
    load = {"w_dram": away, "w_disk": away}
    read = kv / rates.hbm_bytes_per_s
    matrices_s = max(
        means.decode_flop / rates.flop_per_s, task.gpu_batches * weights / rates.hbm_bytes_per_s
    )
    work = {"c_hbm": read}
    if task.cpu_attention and rates.host_attention_bytes_per_s:
        work |= dict.fromkeys(("c_dram", "c_disk"), kv / rates.host_attention_bytes_per_s)
    else:
        load |= dict.fromkeys(("c_dram", "c_disk"), kv / rates.h2d_bytes_per_s)
        work |= {"c_dram": read, "c_disk": read}
    out = new / rates.d2h_bytes_per_s
    terms = [_Line(matrices_s, work), _Line(0.0, {"c_dram": out, "c_disk": out})]
    if rates.disk_read_bytes_per_s and rates.disk_write_bytes_per_s:
        rate = rates.disk_read_bytes_per_s
        terms.append(_Line(0.0, {"w_disk": weights / rate, "c_disk": kv / rate}))
        terms.append(_Line(0.0, {"c_disk": new / rates.disk_write_bytes_per_s}))
    return _Line(0.0, load), terms


def _memory(model: ModelSpec, means: _Means, task: Task) -> dict[str, _Line]:
    """Bytes of each tier: what is placed there, buffers, and the work space of a GPU batch."""
    kv = means.layers * _full_kv(model, task) / len(model.layers)
    layer, buffered = means.weights_bytes, BUFFERED_LAYERS * means.weights_bytes
    work = cost.workspace_bytes(model, task.gpu_batch)
    hidden = task.batch * task.prompt * model.hidden * element_bytes(model.weight_dtype)
    scores = task.gpu_batch * task.prompt**2 * model.layers[0].query_heads * 2.0
    fetched = 0.0 if task.cpu_attention else BUFFERED_LAYERS * kv / means.layers / task.gpu_batches
    return {
        "hbm": _Line(
            cost.shared_weight_bytes(model) + work + hidden + scores,
            {
                "w_hbm": layer * means.layers, "w_dram": buffered, "w_disk": buffered,
                "c_hbm": kv, "c_dram": fetched, "c_disk": fetched,
            },
        ),
        "dram": _Line(0.0, {"w_dram": layer * means.layers, "c_dram": kv, "w_disk": buffered}),
        "disk": _Line(0.0, {"w_disk": layer * means.layers, "c_disk": kv}),
    }  # fmt: skip


def _full_kv(model: ModelSpec, task: Task) -> float:
    """Bytes of the cache at the end of the run."""
    return model.kv_bytes(task.prompt + task.gen, element_bytes(task.kv_dtype)) * task.batch


def _named(weights: Shares, cache: Shares) -> dict[str, float]:
    return dict(zip(COLUMNS, (*weights, *cache), strict=True))


def estimate(
    model: ModelSpec, rates: Rates, task: Task, percentages: Percentages, *, effective: bool = True
) -> Estimate:
    """Time and memory of a policy, with what the runtime makes of it or with what was asked.

    Args:
        model: the model.
        rates: the machine.
        task: what is generated.
        percentages: the policy.
        effective: whole sequences and whole matrices, as the runtime places them.
    """
    means = _Means.of(model, task)
    if effective:
        weights = mean_weight_shares(percentages, model)
        cache = cache_shares(percentages, task.gpu_batch)
    else:
        weights = _asked(percentages.weights_gpu, percentages.weights_cpu)
        cache = _asked(percentages.cache_gpu, percentages.cache_cpu)
    shares = _named(weights, cache)
    load, rest = _decode(means, rates, task)
    steps = (task.gen - 1) * means.layers
    moved = load.at(shares) * rates.h2d_bytes_per_s * steps
    return Estimate(
        prefill_s=max(term.at(shares) for term in _prefill(means, rates)) * means.layers,
        decode_s=(load.at(shares) + max(term.at(shares) for term in rest)) * steps,
        tokens=task.batch * task.gen,
        h2d_bytes=moved,
        cache_bytes=_full_kv(model, task),
        memory_bytes={tier: line.at(shares) for tier, line in _memory(model, means, task).items()},
    )


def _asked(gpu: int, cpu: int) -> Shares:
    """Shares on GPU, CPU and disk of whole percentages, none below zero by rounding."""
    return gpu / 100, cpu / 100, (100 - gpu - cpu) / 100


def search(
    model: ModelSpec, rates: Rates, task: Task, capacity: Mapping[str, float]
) -> Percentages | None:
    """The percentages that take least time, by FlexGen's linear program; None if nothing fits.

    Args:
        model: the model.
        rates: the machine.
        task: what is generated.
        capacity: bytes that ``hbm``, ``dram`` and ``disk`` may hold.
    """
    means = _Means.of(model, task)
    load, rest = _decode(means, rates, task)
    index = {name: i for i, name in enumerate((*COLUMNS, "prefill", "decode"))}
    rows = Rows()

    def add(slopes: Mapping[str, float], most: float) -> None:
        rows.add_scaled({index[n]: v for n, v in slopes.items()}, most, [1.0] * len(index))

    for term in _prefill(means, rates):
        add({**term.slopes, "prefill": -1.0}, -term.constant)
    for term in rest:
        slopes = dict(term.slopes)
        for name, slope in load.slopes.items():
            slopes[name] = slopes.get(name, 0.0) + slope
        add({**slopes, "decode": -1.0}, -term.constant - load.constant)
    for tier, line in _memory(model, means, task).items():
        add(line.slopes, capacity.get(tier, 0.0) - line.constant)
    rows.add(dict.fromkeys(range(3), 1.0), 1.0, equal=True)
    rows.add(dict.fromkeys(range(3, 6), 1.0), 1.0, equal=True)
    decodes = max(task.gen - 1, 1)
    aim = {
        "prefill": means.layers,
        "decode": means.layers * decodes,
        "w_disk": TIE_S,
        "c_disk": TIE_S,
    }
    largest = max(aim.values())
    limits: list[tuple[float, float | None]] = [(0.0, 1.0)] * 6 + [(0.0, None)] * 2
    if not rates.disk_read_bytes_per_s:
        for name in ("w_disk", "c_disk"):
            limits[index[name]] = (0.0, 0.0)
    found = minimise({index[n]: weight / largest for n, weight in aim.items()}, rows, limits)
    if found is None:
        return None
    weights, cache = shares_of(found.values[:3]), shares_of(found.values[3:6])
    return rounded_percentages((weights[0], weights[1], weights[2]), (cache[0], cache[1], cache[2]))
