"""What each kind of layer takes in one step: curves, bytes and legs, each worked out once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from kvplan import cost
from kvplan.curve import Curve, affine, latest
from kvplan.dtypes import element_bytes
from kvplan.hardware import HardwareProfile
from kvplan.model import LayerSpec, ModelSpec
from kvplan.paths import REGISTRY, Leg, Path
from kvplan.schedule import Schedule
from kvplan.workload import Workload


class LayerCosts:
    """Costs of the layers of a model on a machine; equal layers share them.

    Args:
        model: the model.
        hardware: the machine.
        workload: the batch.
        schedule: how the step is pipelined.
        repeat: layers of the model that a described one stands for, in bytes.
    """

    def __init__(
        self,
        model: ModelSpec,
        hardware: HardwareProfile,
        workload: Workload,
        schedule: Schedule,
        repeat: float,
    ) -> None:
        """Nothing is worked out before it is asked for."""
        self.model, self.hardware, self.workload = model, hardware, workload
        self.schedule, self.repeat = schedule, repeat
        numbers: dict[LayerSpec, int] = {}
        self.kind = [numbers.setdefault(spec, len(numbers)) for spec in model.layers]
        self._curves: dict[tuple[str, int], Curve] = {}
        self._legs: dict[tuple[int, str], tuple[Leg, ...]] = {}
        self._staged: dict[tuple[int, str], float] = {}
        self._stored: dict[tuple[int, str], dict[str, float]] = {}
        self._ordered: dict[tuple[int, tuple[str, ...]], list[Path]] = {}

    def stored_bytes(self, layer: int, path: Path) -> dict[str, float]:
        """What a token of all sequences takes in each tier on a path."""
        key = (self.kind[layer], path.name)
        if key not in self._stored:
            sequences = self.workload.batch * self.repeat
            stored = path.stored(self.model.layers[layer], self.workload.kv_dtype)
            self._stored[key] = {tier: size * sequences for tier, size in stored.items()}
        return self._stored[key]

    def most_tokens(self, layer: int, *, staged: bool) -> float:
        """Tokens that a stage, or the rest of a layer, can have of the layer's."""
        tokens = self.model.layers[layer].cached_tokens(self.workload.tokens)
        if staged and self.schedule.axis == "token":
            return min(tokens, tokens / self.schedule.stages + self.workload.block)
        return tokens

    def legs(self, layer: int, path: Path) -> tuple[Leg, ...]:
        """Legs of a path with curves over tokens of a micro-batch."""
        key = (self.kind[layer], path.name)
        if key not in self._legs:
            dtype, sequences = self.workload.kv_dtype, self.workload.micro_batch
            spec = self.model.layers[layer]
            scaled = []
            for leg in path.legs(self.hardware, spec, dtype, self.model.weight_dtype):
                assert leg.curve is not None, f"{path.name} cannot run on {self.hardware.name}"
                size = leg.per_token * sequences
                scaled.append(
                    dataclasses.replace(leg, per_token=size, curve=leg.curve.scaled(size))
                )
            self._legs[key] = tuple(scaled)
        return self._legs[key]

    def staging_bytes(self, layer: int, path: Path) -> float:
        """What a token of a micro-batch takes in a staging buffer on a path."""
        key = (self.kind[layer], path.name)
        if key not in self._staged:
            size = path.staging_bytes(self.model.layers[layer], self.workload.kv_dtype)
            self._staged[key] = size * self.workload.micro_batch
        return self._staged[key]

    def in_turn(self, layer: int, paths: Sequence[Path]) -> Sequence[Path]:
        """Paths of a stage, those with most legs first, then as they are registered: so a step does
        not depend on the order in which a plan lists them.
        """
        key = (self.kind[layer], tuple([path.name for path in paths]))
        if key not in self._ordered:
            rank = {name: number for number, name in enumerate(REGISTRY)}
            self._ordered[key] = sorted(
                paths, key=lambda p: (-len(self.legs(layer, p)), rank.get(p.name, len(rank)))
            )
        return self._ordered[key]

    def project(self, layer: int) -> Curve:
        """Seconds of projecting, and of what the layer reads that no path places."""
        return self._constant("project", layer, self._project_s)

    def finish(self, layer: int) -> Curve:
        """Seconds of the new tokens' attention to each other and of all behind it."""
        return self._constant("finish", layer, self._finish_s)

    def write_back(self, layer: int) -> Curve:
        """Seconds of sending the new tokens' K and V to host memory."""
        return self._constant("write_back", layer, self._write_back_s)

    def attention(self, layer: int, *, staged: bool) -> Curve:
        """Seconds over tokens of one partial attention of a micro-batch."""
        attend = cost.attend_staged if staged else cost.attend
        key = (attend.__name__, self.kind[layer])
        if key not in self._curves:
            spec, sequences = self.model.layers[layer], self.workload.micro_batch
            most = self.most_tokens(layer, staged=staged)
            size = spec.kv_bytes(element_bytes(self.workload.kv_dtype)) * sequences
            dtype, new = self.workload.kv_dtype, self.workload.new_tokens
            curve = attend(self.hardware, spec, dtype, sequences, most)
            if new > 1:
                curve = latest(curve, cost.attend_work(self.hardware, spec, dtype, new))
            self._curves[key] = curve.scaled(size)
        return self._curves[key]

    def _constant(self, name: str, layer: int, seconds: Callable[[LayerSpec], float]) -> Curve:
        key = (name, self.kind[layer])
        if key not in self._curves:
            self._curves[key] = affine(seconds(self.model.layers[layer]), 0.0)
        return self._curves[key]

    def _project_s(self, spec: LayerSpec) -> float:
        sequences, size = self.workload.micro_batch, element_bytes(self.workload.kv_dtype)
        tokens, source = self.workload.tokens, self.workload.source_tokens or 0
        held = spec.held_bytes(tokens, size, source) * sequences
        borrowed = spec.borrowed_bytes(tokens, size) * sequences
        return cost.project_s(
            self.hardware, spec, self.model.weight_dtype, self.workload.rows
        ) + cost.held_s(self.hardware, spec, held, borrowed)

    def _finish_s(self, spec: LayerSpec) -> float:
        load = self.workload
        return cost.finish_s(
            self.hardware, spec, self.model.weight_dtype, load.rows
        ) + cost.attend_new_s(self.hardware, spec, load.kv_dtype, load.micro_batch, load.new_tokens)

    def _write_back_s(self, spec: LayerSpec) -> float:
        size = spec.kv_bytes(element_bytes(self.workload.kv_dtype)) * self.workload.rows
        return cost.copy_to_host(self.hardware).seconds(size)
