"""One question to the planner: a model, a machine, a workload, budgets and what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from kvplan.dtypes import QUANTISED_DTYPES
from kvplan.errors import InputError
from kvplan.flexgen import SIX_PERCENTAGES, Percentages
from kvplan.hardware import ONE_POOL, HardwareProfile
from kvplan.model import LayerSpec, ModelSpec
from kvplan.objective import Objective
from kvplan.paths import REGISTRY, Path, find, undominated
from kvplan.schedule import AXES, BOUNDARIES, MODES, QUEUE_DEPTHS, STAGES
from kvplan.workload import Budgets, Workload

HOST_RATE = "host_attention_bytes_per_s"
"""Override that gives grounds for attention on the host."""

GOOD_GAP = 1e-2
"""Proven distance from the optimum that a plan is to reach."""

WEIGHTS = ("auto", "resident", "streamed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the search may choose from.

    Args:
        paths: names of the paths that may be used; None takes every exact one the machine's
            profile has grounds for (attention on the host only where it was measured, disk only
            with a disk budget) and the formats in ``allow``.
        allow: inexact formats, and the most share of all tokens each may take.
        axes: stage axes to try.
        stages: stage counts to try.
        queue_depths: queue depths to try.
        boundary: see `Schedule`.
        mode: see `Schedule`.
        refine_blocks: whether blocks may be cut, to single tokens at last, where whole ones leave a
            gap that is not good enough.
        weights: ``resident``, ``streamed``, or ``auto``: streamed only where they do not fit.
        flexgen: FlexGen's six percentages for its baseline; None lets it search for its own.
        good_gap: proven distance from the optimum that is good enough, as a share: the search goes
            on with what takes longer only while the gap is above it. Where it is larger than
            `GOOD_GAP`, the first such plan ends the search.
    """

    paths: tuple[str, ...] | None = None
    allow: Mapping[str, float] = field(default_factory=dict)
    axes: tuple[str, ...] = AXES
    stages: tuple[int, ...] = tuple(STAGES)
    queue_depths: tuple[int, ...] = tuple(QUEUE_DEPTHS)
    boundary: str = "overlap"
    mode: str = "graph"
    refine_blocks: bool = True
    weights: str = "auto"
    flexgen: tuple[int, ...] | None = None
    good_gap: float = GOOD_GAP

    def __post_init__(self) -> None:
        """Check every field."""
        if self.paths is not None:
            find(self.paths)
        for name, share in self.allow.items():
            if name not in QUANTISED_DTYPES:
                raise InputError("allow", name, f"some of {', '.join(QUANTISED_DTYPES)}")
            if not 0 < share <= 1:
                raise InputError(f"allow {name}", share, "a share above 0 and at most 1")
        if not 0 < self.good_gap <= 1:
            raise InputError("good_gap", self.good_gap, "a share above 0 and at most 1")
        known = {"boundary": BOUNDARIES, "mode": MODES, "weights": WEIGHTS}
        for name, words in known.items():
            if getattr(self, name) not in words:
                raise InputError(name, getattr(self, name), " or ".join(words))
        for name in ("axes", "stages", "queue_depths"):
            if not getattr(self, name):
                raise InputError(name, getattr(self, name), "at least one")
        if self.flexgen is not None:
            if len(self.flexgen) != 6:
                raise InputError("flexgen", list(self.flexgen), SIX_PERCENTAGES)
            Percentages(*self.flexgen)
        for axis in self.axes:
            if axis not in AXES:
                raise InputError("axis", axis, " or ".join(AXES))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A model on a machine with a workload: everything a plan depends on.

    Args:
        model: the model.
        hardware: the machine, overrides applied.
        workload: the batch.
        budgets: memory that may be used.
        options: what the search may choose from.
        hardware_file: where the profile came from, if not from the library.
        overrides: figures of the profile changed by hand, as `hardware.override` takes them.
        whole: where this is one rank of several, or its layers keep less than they could, the
            scenario that was asked.
        objective: what to be best at; a search for throughput chooses the workload's batch.
    """

    model: ModelSpec
    hardware: HardwareProfile
    workload: Workload
    budgets: Budgets = field(default_factory=Budgets)
    options: Options = field(default_factory=Options)
    hardware_file: str | None = None
    overrides: Mapping[str, float] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)
    whole: Scenario | None = None

    def __post_init__(self) -> None:
        """Settle the source that cross-attention reads; refuse to offload to nothing.

        Raises:
            InputError: the model reads a source, and neither it nor the workload says how long; or
                memory beside HBM where CPU and GPU share one.
        """
        self._check_offload()
        if not self.model.cross_elements or self.workload.source_tokens is not None:
            return
        if self.model.source_tokens is None:
            accepted = f"the tokens of the source that cross-attention of {self.model.name} reads"
            raise InputError("source_tokens", None, accepted)
        workload = replace(self.workload, source_tokens=self.model.source_tokens)
        object.__setattr__(self, "workload", workload)

    def _check_offload(self) -> None:
        """Refuse to offload where there is nothing to offload to."""
        if not self.hardware.unified:
            return
        for name in ("dram_bytes", "pinned_bytes", "disk_bytes"):
            if getattr(self.budgets, name):
                raise InputError(name, getattr(self.budgets, name), f"0: {ONE_POOL}")
        if self.options.weights == "streamed":
            raise InputError("weights", "streamed", f"auto or resident: {ONE_POOL}")

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the fields, without what was worked out from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def capacity(self) -> dict[str, float]:
        """Bytes each tier may hold."""
        budgets, hardware = self.budgets, self.hardware
        hbm = hardware.gpu.memory_bytes * budgets.utilisation
        if budgets.hbm_bytes is not None:
            hbm = min(hbm, budgets.hbm_bytes)
        dram = budgets.dram_bytes if budgets.dram_bytes is not None else hardware.host.dram_bytes
        pinned = [dram]
        pinned += [b for b in (budgets.pinned_bytes, hardware.host.pinned_bytes) if b is not None]
        disk = budgets.disk_bytes if hardware.disk else 0
        return {
            "hbm": float(max(hbm - budgets.reserve_bytes, 0.0)),
            "dram": float(dram),
            "pinned": float(min(pinned)),
            "disk": float(disk),
            **({"tier": float(hardware.tier.capacity_bytes)} if hardware.tier else {}),
        }

    @cached_property
    def quality(self) -> dict[str, float]:
        """Most share of all tokens that each inexact path may take."""
        return {
            path.name: self.options.allow.get(path.precision or "", 1.0)
            for path in REGISTRY.values()
            if not path.exact
        }

    @cached_property
    def classes(self) -> tuple[int, ...]:
        """Class number of every layer; equal layers share one."""
        numbers: dict[LayerSpec, int] = {}
        return tuple(numbers.setdefault(layer, len(numbers)) for layer in self.model.layers)

    def cached_tokens(self, layer: int) -> int:
        """Tokens per sequence that a layer caches at the planned context."""
        return self.model.layers[layer].cached_tokens(self.workload.tokens)

    @cached_property
    def paths(self) -> dict[LayerSpec, tuple[Path, ...]]:
        """Paths each kind of layer may use on this machine, those that never pay left out; none
        where a layer caches no tokens.
        """
        dtype, weights = self.workload.kv_dtype, self.model.weight_dtype
        chosen = self._named() if self.options.paths is not None else self._default()
        found: dict[LayerSpec, tuple[Path, ...]] = {}
        for layer in dict.fromkeys(self.model.layers):
            if not layer.cached_tokens(self.workload.tokens):
                found[layer] = ()
                continue
            usable = tuple(p for p in chosen if p.available(self.hardware, layer, dtype))
            if self.options.paths is not None and len(usable) < len(chosen):
                missing = next(p.name for p in chosen if p not in usable)
                raise InputError("paths", missing, self._usable(layer))
            found[layer] = undominated(usable, self.hardware, layer, dtype, weights)
        return found

    @property
    def path_names(self) -> tuple[str, ...]:
        """Names of all paths that some kind of layer may use."""
        return tuple(dict.fromkeys(p.name for paths in self.paths.values() for p in paths))

    def _usable(self, layer: LayerSpec) -> str:
        """Which paths could be named, and why no others."""
        dtype = self.workload.kv_dtype
        usable = [p.name for p in REGISTRY.values() if p.available(self.hardware, layer, dtype)]
        names = ", ".join(usable)
        if self.hardware.unified:
            return f"one of {names}: {ONE_POOL}"
        return f"a path that {self.hardware.name} has figures for in {dtype}: {names}"

    def _named(self) -> tuple[Path, ...]:
        found = find(self.options.paths or ())
        for path in found:
            if path.attends == "away" and self.workload.new_tokens > 1:
                accepted = "paths that bring K and V to the GPU: others attend one new token"
                raise InputError("paths", path.name, accepted)
        return found

    def _default(self) -> tuple[Path, ...]:
        names = ["resident", "fetch", "recompute", "recompute_resident"]
        if self.hardware.host_attention_measured or HOST_RATE in self.overrides:
            names += ["attend_host"] * (self.workload.new_tokens == 1)
        if self.capacity["disk"] > 0:
            names.append("fetch_disk")
        tier = self.hardware.tier
        if tier is not None:
            alone = tier.attended_by == "none" or self.workload.new_tokens > 1
            names.append("fetch_tier" if alone else "attend_tier")
        names += [f"fetch_{precision}" for precision in self.options.allow]
        return find(names)
