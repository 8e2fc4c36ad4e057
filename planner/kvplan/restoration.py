"""One question about a prefix: the model, the machine, the prefix; and what each part costs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from kvplan import cost, prefill
from kvplan.curve import Curve, Piece, affine, latest, total
from kvplan.dtypes import element_bytes
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile, peak_rate
from kvplan.model import LayerSpec, ModelSpec
from kvplan.paths import FETCH, RECOMPUTE, Leg, Path, fetch_quantised, from_disk
from kvplan.prefix import Prefix
from kvplan.workload import Budgets

STAGING = 8
"""Staging buffers for activations or packed K and V in flight, one layer each."""


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """A model on a machine, and the prefix to bring back.

    Args:
        model: the model, or one rank's part of it.
        hardware: the machine.
        prefix: what is to be restored.
        budgets: memory that may be used.
        ranks: ranks of which this is one; model, machine and budgets are its part.

    Raises:
        InputError: the machine has no figures for the disk or for memory that is not pinned.
    """

    model: ModelSpec
    hardware: HardwareProfile
    prefix: Prefix
    budgets: Budgets = field(default_factory=Budgets)
    ranks: int = 1

    def __post_init__(self) -> None:
        """Check that the machine has the figures that are needed."""
        self.hardware.linked()
        if self.prefix.source == "disk" and self.hardware.disk is None:
            accepted = f"dram: {self.hardware.name} has no figures for a disk"
            raise InputError("from", self.prefix.source, accepted)
        if not self.prefix.pinned and self.hardware.h2d.pageable_bytes_per_s is None:
            accepted = f"a rate such as 8GB/s: {self.hardware.name} has no figure for such copies"
            raise InputError("pageable_bandwidth", None, accepted)

    # -- tokens --------------------------------------------------------------------------------

    @cached_property
    def cached(self) -> tuple[int, ...]:
        """Tokens of the prefix that every layer keeps, per sequence."""
        return tuple(layer.cached_tokens(self.prefix.tokens) for layer in self.model.layers)

    def held(self, layer: int) -> float:
        """Bytes that a layer keeps of a sequence beside its tokens: a state, a source."""
        return self.model.layers[layer].held_bytes(
            self.prefix.tokens, element_bytes(self.prefix.kv_dtype), self.model.source_tokens or 0
        )

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Where chunks of the prefix begin and end: whole chunks, cut where a window begins."""
        tokens = self.prefix.tokens
        cuts = {*range(0, tokens, self.prefix.chunk), tokens}
        cuts |= {tokens - kept for kept in self.cached if kept}
        return tuple(sorted(cuts))

    def behind(self, layer: int, front: int) -> int:
        """Tokens a layer still needs when the first ``front`` have been computed."""
        return min(self.cached[layer], self.prefix.tokens - front)

    # -- memory --------------------------------------------------------------------------------

    @property
    def hbm_bytes(self) -> float:
        """Bytes of HBM that may be used."""
        budgets = self.budgets
        hbm = self.hardware.gpu.memory_bytes * budgets.utilisation
        if budgets.hbm_bytes is not None:
            hbm = min(hbm, budgets.hbm_bytes)
        return max(hbm - budgets.reserve_bytes, 0.0)

    @property
    def dram_bytes(self) -> float:
        """Bytes of host memory for the store."""
        given = self.budgets.dram_bytes
        return float(self.hardware.host.dram_bytes if given is None else given)

    @property
    def store_capacity_bytes(self) -> float:
        """Bytes of the tier that the prefix waits in."""
        disk = self.hardware.disk
        if self.prefix.source == "disk" and disk is not None:
            return float(disk.capacity_bytes)
        return self.dram_bytes

    # -- the GPU -------------------------------------------------------------------------------

    @cached_property
    def pace(self) -> float:
        """Factor on what computing tokens takes: the measured rate over the predicted one."""
        rate = self.prefix.prefill_tokens_per_s
        if rate is None:
            return 1.0
        return self.prefix.tokens / rate / self._prefill_s(len(self.model.layers))

    def _prefill_s(self, depth: int) -> float:
        return sum(self._chunk_s(a, b - a, depth) for a, b in pairwise(self.edges))

    @cached_property
    def slower(self) -> float:
        """Factor on the GPU's times where others use it too."""
        return 1.0 / (1.0 - self.prefix.gpu_busy)

    @cached_property
    def attention_rate(self) -> float:
        """FLOP/s of prefill attention."""
        return self.prefix.attention_flop_per_s or prefill.attention_rate(self.hardware)

    @cached_property
    def _per_token(self) -> dict[LayerSpec, Curve]:
        """Seconds of all but attention, by kind of layer, over tokens."""
        dtype = self.model.weight_dtype
        return {
            layer: total(
                prefill.products(self.hardware, layer, dtype),
                prefill.elementwise(self.hardware, layer, dtype),
            )
            for layer in dict.fromkeys(self.model.layers)
        }

    def _launches_s(self, layer: LayerSpec) -> float:
        eager = self.prefix.mode == "eager"
        return prefill.kernels(layer) * self.hardware.gpu.launch_s if eager else 0.0

    def _layer_s(self, layer: LayerSpec, begin: int, tokens: int) -> float:
        attending_s = prefill.attention_s(
            self.hardware, layer, self.prefix.kv_dtype, begin, tokens, self.attention_rate
        )
        return max(self._per_token[layer].seconds(tokens) + attending_s, self._launches_s(layer))

    def _chunk_s(self, begin: int, tokens: int, depth: int) -> float:
        classes = Counter(self.model.layers[:depth])
        return sum(n * self._layer_s(layer, begin, tokens) for layer, n in classes.items())

    def layer_s(self, layer: LayerSpec, begin: int, tokens: int) -> float:
        """Seconds of one layer over a chunk that begins behind ``begin`` tokens."""
        return self._layer_s(layer, begin, tokens) * self.pace * self.slower

    def chunk_s(self, begin: int, tokens: int, depth: int) -> float:
        """Seconds of the first ``depth`` layers over a chunk."""
        return self._chunk_s(begin, tokens, depth) * self.pace * self.slower

    def prefix_s(self, depth: int) -> float:
        """Seconds of the first ``depth`` layers over the whole prefix."""
        return self._prefill_s(depth) * self.pace * self.slower

    def chunk(self, begin: int, most: int, depth: int) -> Curve:
        """Seconds of the first ``depth`` layers over a chunk; the volume is its tokens."""
        parts = []
        for layer, count in Counter(self.model.layers[:depth]).items():
            attending = prefill.attention(
                self.hardware, layer, self.prefix.kv_dtype, begin, most, self.attention_rate,
                self.prefix.block,
            )  # fmt: skip
            launching = affine(self._launches_s(layer), 0.0)
            parts.append(latest(total(self._per_token[layer], attending), launching).times(count))
        return total(*parts).times(self.pace * self.slower)

    def head_s(self) -> float:
        """Seconds from the last layer of the last token to the first new token."""
        return cost.head_s(self.hardware, self.model, 1) * self.slower

    # -- ways to bring stored tokens back ------------------------------------------------------

    def from_store(self, path: Path) -> Path:
        """The path from where the prefix waits."""
        return from_disk(path) if self.prefix.source == "disk" else path

    @cached_property
    def load(self) -> Path:
        """Bring K and V back as they were, or unpack them from the stored format."""
        stored = self.prefix.stored_dtype
        return self.from_store(fetch_quantised(stored) if stored else FETCH)

    @cached_property
    def rebuild(self) -> Path:
        """Bring activations back and rebuild K and V."""
        return self.from_store(RECOMPUTE)

    def rebuild_helps(self, layer: LayerSpec) -> bool:
        """Whether a rebuild takes less of the disk, the link or the GPU than a load."""
        if not layer.cached_tokens(self.prefix.tokens):
            return False
        bills = []
        for path in (self.rebuild, self.load):
            bill: dict[str, tuple[float, float]] = {}
            for leg in self.legs(path, layer):
                assert leg.curve is not None
                own = (leg.curve.seconds(0.0), 1.0 / peak_rate(leg.curve))
                before = bill.get(leg.resource, (0.0, 0.0))
                bill[leg.resource] = (before[0] + own[0], before[1] + own[1])
            bills.append(bill)
        rebuilding, loading = bills
        nothing = (0.0, 0.0)
        return any(
            mine < other
            for name in rebuilding.keys() | loading.keys()
            for mine, other in zip(
                rebuilding.get(name, nothing), loading.get(name, nothing), strict=True
            )
        )

    @cached_property
    def _known(self) -> dict[tuple[str, LayerSpec], tuple[Leg, ...]]:
        return {}

    def legs(self, path: Path, layer: LayerSpec) -> tuple[Leg, ...]:
        """Legs of a path with curves over the tokens of one request."""
        key = (path.name, layer)
        if key not in self._known:
            self._known[key] = self._legs(path, layer)
        return self._known[key]

    def _legs(self, path: Path, layer: LayerSpec) -> tuple[Leg, ...]:
        found = []
        for leg in path.legs(self.hardware, layer, self.prefix.kv_dtype, self.model.weight_dtype):
            assert leg.curve is not None, f"{path.name} cannot run on {self.hardware.name}"
            if leg.resource == "h2d":
                curve = self.copies(layer, leg.per_token)
            else:
                curve = leg.curve.scaled(leg.per_token)
                if leg.resource == "gpu":
                    curve = curve.times(self.slower)
            found.append(dataclasses.replace(leg, curve=curve))
        return tuple(found)

    @cached_property
    def one_copy(self) -> Curve:
        """Seconds of one copy to the GPU over its bytes."""
        link = self.hardware.h2d
        curve = link.copy
        if not self.prefix.pinned:
            rate = link.pageable_bytes_per_s
            assert rate is not None
            curve = affine(max(curve.seconds(0.0), 0.0), 1.0 / rate)
        return curve.times(1.0 / (1.0 - self.prefix.link_busy))

    def copy_bytes(self, layer: LayerSpec, per_token: float) -> float | None:
        """Bytes of one copy as the store is cut; None where a layer's tokens are one copy."""
        block = self.prefix.block
        if self.prefix.granularity == "layer":
            return None
        if self.prefix.granularity == "split-block":
            return block * per_token / 2
        if self.prefix.granularity == "block":
            return block * per_token
        size = element_bytes(self.prefix.stored_dtype or self.prefix.kv_dtype)
        return block * sum(
            count * kind.kv_bytes(size) for kind, count, _ in self.model.layer_classes
        )

    def copies(self, layer: LayerSpec, per_token: float) -> Curve:
        """Seconds of copying tokens of one layer as the store is cut; the volume is tokens.

        So many copies of the same size, each with its fixed cost.
        """
        whole = self.one_copy.scaled(per_token)
        size = self.copy_bytes(layer, per_token)
        if size is None or size <= 0:
            return whole
        return latest(affine(0.0, self.one_copy.seconds(size) / size * per_token), _last(whole))


def _last(curve: Curve) -> Curve:
    """The curve without its fixed cost where that is spread over copies already."""
    return Curve(tuple(Piece(min(p.fixed_s, 0.0), p.s_per_unit) for p in curve.pieces))
