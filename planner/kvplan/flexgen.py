"""FlexGen's percentages: what they ask for, what its runtime makes of them, and its own search.

A policy is six whole percentages (weights, cache and hidden states on GPU and CPU, the rest on
disk), a GPU batch and a number of GPU batches. Its runtime places whole sequences and whole
matrices, so what it does differs from what was asked: one sequence cannot be split, and a layer
has four attention and two or three MLP matrices.

Source: FlexGen, arXiv 2303.06865, cost model (appendix A.3) and FMInference/FlexLLMGen,
``init_cache_one_gpu_batch`` and ``init_weight_list``, for both roundings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.errors import InputError
from kvplan.model import LayerSpec, ModelSpec

SIX_PERCENTAGES = (
    "six whole percentages as FlexGen's --percent takes them: weights, cache and hidden states on "
    "GPU and CPU, such as 20,80,0,100,0,100"
)

Shares = tuple[float, float, float]
"""Of GPU, CPU and disk; each from 0 to 1, 1 together."""


def shares_of(values: Sequence[float]) -> tuple[float, ...]:
    """A solver's values as shares: none below 0, 1 together.

    Raises:
        InputError: nothing above 0.

    >>> shares_of([-7.92e-15, 1.0])
    (0.0, 1.0)
    """
    kept = [max(value, 0.0) for value in values]
    total = sum(kept)
    if not total > 0:
        raise InputError("shares", list(values), "at least one share above 0")
    return tuple(value / total for value in kept)


@dataclass(frozen=True, slots=True)
class Percentages:
    """What ``--percent`` takes: on the GPU and on the CPU; what is left goes to disk."""

    weights_gpu: int
    weights_cpu: int
    cache_gpu: int
    cache_cpu: int
    hidden_gpu: int = 100
    hidden_cpu: int = 0

    def __post_init__(self) -> None:
        """Check that each is whole and that none goes below 0 on disk."""
        for name in ("weights", "cache", "hidden"):
            gpu, cpu = getattr(self, f"{name}_gpu"), getattr(self, f"{name}_cpu")
            for part in (gpu, cpu):
                if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part <= 100:
                    raise InputError(f"flexgen {name}", part, "a whole number from 0 to 100")
            if gpu + cpu > 100:
                accepted = "at most 100 % on GPU and CPU together; the rest goes to disk"
                raise InputError(f"flexgen {name}", f"{gpu}+{cpu}", accepted)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The six numbers in FlexGen's order."""
        return (
            self.weights_gpu, self.weights_cpu, self.cache_gpu, self.cache_cpu,
            self.hidden_gpu, self.hidden_cpu,
        )  # fmt: skip


def rounded_percentages(weights: Shares, cache: Shares) -> Percentages:
    """Whole percentages nearest to shares; what is on the GPU is never rounded up, since it
    would not fit.

    >>> rounded_percentages((0.208, 0.792, 0.0), (0.0, 1.0, 0.0)).numbers
    (20, 80, 0, 100, 100, 0)
    """
    parts = []
    for gpu, _, disk in (weights, cache):
        on_gpu = int(100 * gpu + 1e-6)
        on_disk = min(round(100 * disk), 100 - on_gpu)
        parts += [on_gpu, 100 - on_gpu - on_disk]
    return Percentages(*parts)


def cache_sequences(percentages: Percentages, gpu_batch: int) -> tuple[int, int, int]:
    """Sequences of a GPU batch whose cache is on GPU, CPU and disk.

    Shares are rounded down to whole sequences; the CPU takes the rest, or the disk where it has
    a share.

    >>> cache_sequences(Percentages(100, 0, 90, 10), 1)  # 10 % asked: the one sequence moves
    (0, 1, 0)
    >>> cache_sequences(Percentages(100, 0, 50, 50), 2), cache_sequences(
    ...     Percentages(100, 0, 40, 60), 2)
    ((1, 1, 0), (0, 2, 0))
    """
    gpu = gpu_batch * percentages.cache_gpu // 100
    on_disk = 100 - percentages.cache_gpu - percentages.cache_cpu
    if not on_disk:
        return gpu, gpu_batch - gpu, 0
    cpu = gpu_batch * percentages.cache_cpu // 100
    return gpu, cpu, gpu_batch - gpu - cpu


def cache_shares(percentages: Percentages, gpu_batch: int) -> Shares:
    """The same as shares of the GPU batch."""
    gpu, cpu, disk = cache_sequences(percentages, gpu_batch)
    return gpu / gpu_batch, cpu / gpu_batch, disk / gpu_batch


def weight_shares(percentages: Percentages, layer: LayerSpec) -> Shares:
    """Share of a layer's matrices on GPU, CPU and disk.

    Attention and MLP are placed apart, matrix by matrix: each goes where the middle of its run of
    bytes falls, disk first, then CPU, then GPU.

    >>> from kvplan.model_library import load_model
    >>> weight_shares(Percentages(20, 80, 0, 100), load_model("opt-30b").layers[0])
    (0.0833..., 0.9166..., 0.0)
    """
    placed = [0.0, 0.0, 0.0]
    for sizes in _matrices(layer):
        whole, reached = sum(sizes), 0
        off_gpu = 100 - percentages.weights_gpu
        for size in sizes:
            middle = 100 * (reached + size / 2) / whole
            reached += size
            away = 2 if middle < off_gpu - percentages.weights_cpu else 1
            placed[away if middle < off_gpu else 0] += size
    total = sum(placed)
    return placed[0] / total, placed[1] / total, placed[2] / total


def _matrices(layer: LayerSpec) -> tuple[list[int], list[int]]:
    """Elements of the attention's and of the MLP's matrices, in the order FlexGen lists them."""
    hidden = layer.hidden
    keys, values = layer.kv_heads * layer.head_dim_k, layer.kv_heads * layer.head_dim_v
    attention = [
        hidden * layer.query_heads * layer.head_dim_k, hidden * keys, hidden * values,
        hidden * layer.query_heads * layer.head_dim_v,
    ]  # fmt: skip
    up = [hidden * layer.intermediate] * (2 if layer.gated_mlp else 1)
    return attention, [*up, hidden * layer.intermediate]


def mean_weight_shares(percentages: Percentages, model: ModelSpec) -> Shares:
    """Share of all layers' weights on GPU, CPU and disk."""
    total = [0.0, 0.0, 0.0]
    params = sum(layer.params for layer in model.layers)
    for layer, count, _ in model.layer_classes:
        for place, share in enumerate(weight_shares(percentages, layer)):
            total[place] += share * layer.params * count / params
    return total[0], total[1], total[2]
