"""What a plan wants of a cache, in a runtime's terms: bytes per place, not a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvplan import cost
from kvplan.allocation import Allocation
from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError, InputError
from kvplan.layer_budget import budgeted_model
from kvplan.model import LayerSpec, ModelSpec
from kvplan.paths import REGISTRY as PATHS
from kvplan.plan import Plan
from kvplan.planning import allocation_of, model_of
from kvplan.units import format_bytes

PLACES = ("hbm", "host", "disk")
"""Where a runtime without paths would hold the K and V of a token."""


@dataclass(frozen=True, kw_only=True)
class CacheDemand:
    """The cache a plan needs, one sequence's token at a time.

    Args:
        plan: the document.
        model: its model.
        token_bytes: K and V of one token of one sequence, all layers, in the cache's format.
        place_bytes: K and V of the whole batch per place, in the cache's format: what a runtime
            would hold there that stores K and V only. A token that the plan rebuilds from
            activations, or keeps packed, counts as whole K and V in host memory.
        path_share: path to its share of the K and V bytes of the batch.
    """

    plan: Plan
    model: ModelSpec = field(repr=False)
    token_bytes: float
    place_bytes: Mapping[str, float]
    path_share: Mapping[str, float]

    @property
    def batch(self) -> int:
        """Sequences decoded together."""
        return self.plan.inputs.workload.batch

    @property
    def tokens(self) -> int:
        """Tokens per sequence that the plan is made for."""
        return self.plan.inputs.workload.context + self.plan.inputs.workload.gen

    @property
    def kv_dtype(self) -> str:
        """Format of the cache."""
        return self.plan.inputs.workload.kv_dtype

    def dtype_as(self, words: Mapping[str, str], engine: str) -> str:
        """An engine's word for the format of the cache.

        Args:
            words: formats that it has, to what it calls them.
            engine: its name.

        Raises:
            InputError: it has none for this format.
        """
        if self.kv_dtype not in words:
            *others, last = words
            accepted = f"{', '.join(others)} or {last} for {engine}"
            raise InputError("inputs.workload.kv_dtype", self.kv_dtype, accepted)
        return words[self.kv_dtype]

    @property
    def block(self) -> int:
        """Tokens of a block as asked for; a plan may cut its own smaller, to fit better."""
        return self.plan.inputs.workload.block

    @property
    def all_bytes(self) -> float:
        """K and V of the whole batch."""
        return sum(self.place_bytes.values())

    @property
    def away_share(self) -> float:
        """Share of K and V that the plan does not keep in HBM."""
        total = self.all_bytes
        return 1.0 - self.place_bytes["hbm"] / total if total else 0.0

    @property
    def host_capacity_bytes(self) -> float:
        """Host memory that the plan could use, all ranks together."""
        ranks = self.plan.inputs.workload.tp
        return self.plan.prediction.capacity_bytes.get("dram", 0.0) * ranks

    @property
    def streamed_weights(self) -> float:
        """Share of the layers' weights that waits in host memory."""
        layers = self.model.layers
        streamed = sum(
            decided.streamed_weights * cost.weight_bytes(self.model, layer)
            for decided, layer in zip(self.plan.decision.layers, layers, strict=True)
        )
        return streamed / sum(cost.weight_bytes(self.model, layer) for layer in layers)

    def rank_token_bytes(self, ranks: int) -> float:
        """K and V of one token on each tensor-parallel rank.

        Heads are divided among the ranks; where there are fewer heads than ranks each rank keeps
        a whole one, so that all ranks together hold copies.

        Args:
            ranks: tensor-parallel ranks.

        Raises:
            InputError: heads that the ranks cannot divide.
        """
        return sum(self._layer_bytes(layer) / _parts(layer, ranks) for layer in self.model.layers)

    def engine_token_bytes(self, ranks: int) -> float:
        """K and V of one token on all tensor-parallel ranks together, copies included."""
        return ranks * self.rank_token_bytes(ranks)

    @property
    def latent(self) -> bool:
        """Whether every layer that caches keeps one latent that all heads, and ranks, share."""
        cached = [layer for layer in self.model.layers if self._layer_bytes(layer)]
        return all(_latent(layer) for layer in cached)

    def hbm_kv_bytes(self, ranks: int) -> float:
        """HBM of all ranks that is left for K and V once all weights and a workspace are there.

        Raises:
            InfeasibleError: the weights alone do not fit.
        """
        model = self.model
        capacity = ranks * self.plan.prediction.capacity_bytes["hbm"]
        weights = sum(cost.weight_bytes(model, layer) for layer in model.layers)
        weights += cost.shared_weight_bytes(model)
        left = capacity - weights - ranks * cost.workspace_bytes(model, self.batch)
        if left <= 0:
            raise InfeasibleError(
                "hbm",
                f"the weights take {format_bytes(weights)} and this runtime does not stream them; "
                f"the plan may use {format_bytes(capacity)}",
                "more ranks (--tp), or a runtime that streams weights",
            )
        return left

    def _layer_bytes(self, layer: LayerSpec) -> float:
        return layer.kv_bytes(element_bytes(self.kv_dtype))


def demand_of(plan: Plan) -> CacheDemand:
    """Read the cache demand of a plan.

    Args:
        plan: the document.

    Raises:
        InputError: the plan contradicts itself, or names a path that is not known.
    """
    model, workload = model_of(plan), plan.inputs.workload
    allocation = allocation_of(plan)
    if workload.layer_tokens is not None:
        model = budgeted_model(model, [kept + workload.gen for kept in workload.layer_tokens])
    _covered(allocation, model, workload.context + workload.gen)
    element = element_bytes(workload.kv_dtype)
    places = dict.fromkeys(PLACES, 0.0)
    paths: dict[str, float] = {}
    for decided, layer in zip(plan.decision.layers, model.layers, strict=True):
        for name, tokens in decided.tokens.items():
            size = workload.batch * tokens * layer.kv_bytes(element)
            places[_place(name, layer, workload.kv_dtype)] += size
            paths[name] = paths.get(name, 0.0) + size
    total = sum(paths.values())
    return CacheDemand(
        plan=plan,
        model=model,
        token_bytes=sum(layer.kv_bytes(element) for layer in model.layers),
        place_bytes=places,
        path_share={name: size / total for name, size in sorted(paths.items()) if size},
    )


def _covered(allocation: Allocation, model: ModelSpec, tokens: int) -> None:
    """Refuse layers whose ranges leave out tokens, or take them twice."""
    if len(allocation) != len(model.layers):
        raise InputError("decision.layers", len(allocation), f"{len(model.layers)} layers")
    for index, (segments, layer) in enumerate(zip(allocation, model.layers, strict=True)):
        where, reached = f"decision.layers[{index}]", 0
        for segment in segments:
            if segment.begin != reached or segment.end <= segment.begin:
                raise InputError(where, [segment.begin, segment.end], f"tokens from {reached} on")
            reached = segment.end
        if reached != layer.cached_tokens(tokens):
            raise InputError(where, reached, f"{layer.cached_tokens(tokens)} tokens")


def _place(name: str, layer: LayerSpec, dtype: str) -> str:
    """Where K and V of a path would lie without recompute and packing."""
    path = PATHS.get(name)
    if path is None:
        raise InputError("decision.layers.tokens", name, f"some of {', '.join(PATHS)}")
    if path.attends == "resident":
        return "hbm"
    return "disk" if path.stored(layer, dtype).get("disk") else "host"


def _latent(layer: LayerSpec) -> bool:
    return layer.latent is not None


def _parts(layer: LayerSpec, ranks: int) -> int:
    """Different parts that the ranks hold of a layer's cache."""
    if _latent(layer) or not layer.kv_heads:
        return 1
    if layer.kv_heads % ranks and ranks % layer.kv_heads:
        raise InputError("--tp", ranks, f"a divisor or a multiple of {layer.kv_heads} KV heads")
    return min(layer.kv_heads, ranks)
