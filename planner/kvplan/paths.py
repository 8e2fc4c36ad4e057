"""The ways a token's K and V can reach attention. Each path is one small object.

A path states, per token, layer and sequence: what is stored in which tier, and the legs (copy,
read, compute) that bring it where attention reads it. The step graph, the program, the memory
account and the pictures take paths from the registry here; adding one is adding an object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kvplan import cost
from kvplan.curve import Curve
from kvplan.dtypes import element_bytes
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.model import LayerSpec


@dataclass(frozen=True, slots=True)
class Leg:
    """One operation of a path: where it runs and what it costs.

    Args:
        operation: name of the operation, one of the step graph's words.
        resource: ``gpu``, ``h2d``, ``d2h``, ``host``, ``disk`` or a what-if resource.
        per_token: volume per token and sequence, in the unit of the curve.
        curve: seconds over volume; None where this machine cannot run it.
        kernels: kernels a GPU needs to launch for it.
        beside: takes time of its resource beside the other legs; nothing waits for it.
    """

    operation: str
    resource: str
    per_token: float
    curve: Curve | None
    kernels: int = 1
    beside: bool = False


Stored = Callable[[LayerSpec, str], Mapping[str, float]]
Legs = Callable[[HardwareProfile, LayerSpec, str, str], tuple[Leg, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A way to reach the K and V of a block.

    Args:
        name: the word used in plans, JSON and on the command line.
        summary: one line for people.
        stored: (layer, cache format) to bytes per token and sequence in each tier; ``pinned``
            counts the part of ``dram`` that a link copies from.
        legs: (machine, layer, cache format, weight format) to the operations, in order.
        attends: where attention reads it: ``resident`` (in HBM, outside the pipeline), ``stage``
            (in a staging buffer), ``away`` (where it lies; query and partial result travel).
        exact: whether attention sees the bits that were computed.
        precision: format of the stored copy where it is not the cache's own.
        latency: seconds of a query, and of a partial result, to where it is attended; None for
            those to the host.
        staging: extra bytes per token in a staging buffer beside K and V in the cache format.
        rebuilds: whether a matrix product makes K and V, which wants many rows at once.
    """

    name: str
    summary: str
    stored: Stored
    legs: Legs
    attends: str = "stage"
    exact: bool = True
    precision: str | None = None
    staging: Callable[[LayerSpec, str], float] = lambda layer, dtype: 0.0
    latency: Callable[[HardwareProfile], float | None] = lambda hardware: None
    rebuilds: bool = False

    def available(self, hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> bool:
        """Whether this machine can run every leg; with one memory for all, only inside it."""
        if hardware.unified and set(self.stored(layer, dtype)) - {"hbm"}:
            return False
        return all(leg.curve is not None for leg in self.legs(hardware, layer, dtype, dtype))

    def staging_bytes(self, layer: LayerSpec, dtype: str) -> float:
        """Bytes per token and sequence in a staging buffer; 0 for paths outside the pipeline."""
        if self.attends != "stage":
            return 0.0
        return layer.kv_bytes(element_bytes(dtype)) + self.staging(layer, dtype)


def _kv(layer: LayerSpec, dtype: str) -> float:
    return layer.kv_bytes(element_bytes(dtype))


def _activation(layer: LayerSpec, dtype: str) -> float:
    return layer.activation_elements * element_bytes(dtype)


def _rebuild(hardware: HardwareProfile, layer: LayerSpec, weights: str) -> Leg:
    curve = cost.rebuild(hardware, layer, weights)
    return Leg("rebuild", "gpu", 1.0, curve, kernels=3 if layer.rope else 2)


def _copy(operation: str, hardware: HardwareProfile, size: float) -> Leg:
    return Leg(operation, "h2d", size, cost.copy_to_gpu(hardware))


def _make_way(hardware: HardwareProfile, layer: LayerSpec, dtype: str) -> tuple[Leg, ...]:
    curve = cost.make_way(hardware, layer, dtype)
    return (Leg("make_way", "h2d", _kv(layer, dtype), curve, 0, beside=True),) if curve else ()


RESIDENT = Path(
    name="resident",
    summary="K and V stay in HBM",
    stored=lambda layer, dtype: {"hbm": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (),
    attends="resident",
)

FETCH = Path(
    name="fetch",
    summary="K and V wait in host memory and cross the link",
    stored=lambda layer, dtype: {"dram": _kv(layer, dtype), "pinned": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (_copy("copy_kv", hardware, _kv(layer, dtype)),),
)

RECOMPUTE = Path(
    name="recompute",
    summary="activations wait in host memory, cross the link, and K and V are rebuilt",
    stored=lambda layer, dtype: {
        "dram": _activation(layer, dtype),
        "pinned": _activation(layer, dtype),
    },
    legs=lambda hardware, layer, dtype, weights: (
        _copy("copy_activations", hardware, _activation(layer, dtype)),
        _rebuild(hardware, layer, weights),
    ),
    staging=_activation,
    rebuilds=True,
)

RECOMPUTE_RESIDENT = Path(
    name="recompute_resident",
    summary="activations stay in HBM and K and V are rebuilt",
    stored=lambda layer, dtype: {"hbm": _activation(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (_rebuild(hardware, layer, weights),),
    rebuilds=True,
)

ATTEND_HOST = Path(
    name="attend_host",
    summary="the CPU attends K and V in host memory; only query and partial result travel",
    stored=lambda layer, dtype: {"dram": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (
        Leg("attend_host", "host", _kv(layer, dtype), cost.attend_host(hardware, layer, dtype), 0),
        *_make_way(hardware, layer, dtype),
    ),
    attends="away",
)

FETCH_DISK = Path(
    name="fetch_disk",
    summary="K and V wait on disk, are read into host buffers and cross the link",
    stored=lambda layer, dtype: {"disk": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (
        Leg("read_disk", "disk", _kv(layer, dtype), cost.read_disk(hardware), 0),
        _copy("copy_kv", hardware, _kv(layer, dtype)),
    ),
)


def from_disk(path: Path) -> Path:
    """The same path, its stored bytes on disk: read into host buffers before they cross the link.

    >>> from_disk(FETCH).name, from_disk(RECOMPUTE).name
    ('fetch_disk', 'recompute_disk')
    """

    def legs(
        hardware: HardwareProfile, layer: LayerSpec, dtype: str, weights: str
    ) -> tuple[Leg, ...]:
        rest = path.legs(hardware, layer, dtype, weights)
        size = sum(leg.per_token for leg in rest if leg.resource == "h2d")
        return (Leg("read_disk", "disk", size, cost.read_disk(hardware), 0), *rest)

    return dataclasses.replace(
        path,
        name=f"{path.name}_disk",
        summary=f"{path.summary}, from disk",
        stored=lambda layer, dtype: {"disk": path.stored(layer, dtype).get("dram", 0.0)},
        legs=legs,
    )


ATTEND_TIER = Path(
    name="attend_tier",
    summary="K and V lie in the machine's what-if tier and are attended there",
    stored=lambda layer, dtype: {"tier": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (
        Leg(
            "attend_tier",
            "gpu" if hardware.tier and hardware.tier.attended_by == "gpu" else "tier",
            _kv(layer, dtype),
            cost.attend_tier(hardware),
        ),
    ),
    attends="away",
    latency=lambda hardware: hardware.tier.latency_s if hardware.tier else None,
)

FETCH_TIER = Path(
    name="fetch_tier",
    summary="K and V wait in the machine's what-if tier and cross a link of its own",
    stored=lambda layer, dtype: {"tier": _kv(layer, dtype)},
    legs=lambda hardware, layer, dtype, weights: (
        Leg("copy_kv", "tier", _kv(layer, dtype), cost.read_tier(hardware)),
    ),
)


def fetch_quantised(precision: str) -> Path:
    """A fetch of K and V stored in a smaller format and unpacked on arrival.

    >>> fetch_quantised("int4").name, fetch_quantised("int4").exact
    ('fetch_int4', False)
    """
    share = element_bytes(precision)

    def packed(layer: LayerSpec, dtype: str) -> float:
        return layer.kv_elements * share

    return Path(
        name=f"fetch_{precision}",
        summary=f"K and V wait in host memory as {precision}, cross the link and are unpacked",
        stored=lambda layer, dtype: {"dram": packed(layer, dtype), "pinned": packed(layer, dtype)},
        legs=lambda hardware, layer, dtype, weights: (
            _copy("copy_kv", hardware, packed(layer, dtype)),
            Leg(
                "dequantise", "gpu", _kv(layer, dtype), cost.dequantise(hardware, precision, dtype)
            ),
        ),
        exact=False,
        precision=precision,
        staging=packed,
    )


REGISTRY: dict[str, Path] = {
    path.name: path
    for path in (
        RESIDENT,
        FETCH,
        RECOMPUTE,
        RECOMPUTE_RESIDENT,
        ATTEND_HOST,
        FETCH_DISK,
        ATTEND_TIER,
        FETCH_TIER,
        fetch_quantised("int8"),
        fetch_quantised("int4"),
    )
}


def find(names: Iterable[str]) -> tuple[Path, ...]:
    """Paths by name, in registry order.

    Raises:
        InputError: a name that is not in the registry.

    >>> [p.name for p in find(["fetch", "resident"])]
    ['resident', 'fetch']
    """
    wanted = list(names)
    for name in wanted:
        if name not in REGISTRY:
            raise InputError("paths", name, f"some of {', '.join(REGISTRY)}")
    return tuple(path for path in REGISTRY.values() if path.name in wanted)


def undominated(
    paths: tuple[Path, ...], hardware: HardwareProfile, layer: LayerSpec, dtype: str, weights: str
) -> tuple[Path, ...]:
    """Leave out paths that another one beats or equals in every tier and on every resource.

    A recompute from host activations that are no smaller than the K and V they rebuild is such a
    path: it stores and sends at least as much as a fetch, and computes besides.

    Args:
        paths: candidates, the preferred one of equals first.
        hardware: the machine.
        layer: the layer whose tokens take the paths.
        dtype: cache format.
        weights: weight format.
    """
    kept: list[tuple[Path, dict[tuple[str, str], float]]] = []
    for path in paths:
        bill = _bill(path, hardware, layer, dtype, weights)
        if any((p.exact or not path.exact) and _covers(b, bill) for p, b in kept):
            continue
        kept = [
            (p, b) for p, b in kept if not ((path.exact or not p.exact) and _covers(bill, b))
        ] + [(path, bill)]
    return tuple(path for path, _ in kept)


def _bill(
    path: Path, hardware: HardwareProfile, layer: LayerSpec, dtype: str, weights: str
) -> dict[tuple[str, str], float]:
    """What one token of the path takes: bytes per tier, seconds per resource."""
    bill = {("stored", tier): size for tier, size in path.stored(layer, dtype).items()}
    bill["staged", "hbm"] = path.staging_bytes(layer, dtype)
    for leg in path.legs(hardware, layer, dtype, weights):
        if leg.curve is None:
            continue
        slope = max(p.s_per_unit for p in leg.curve.pieces) * leg.per_token
        fixed = max(p.fixed_s for p in leg.curve.pieces)
        for key, value in ((("busy", leg.resource), slope), (("fixed", leg.resource), fixed)):
            bill[key] = bill.get(key, 0.0) + value
    return bill


def _covers(bill: dict[tuple[str, str], float], other: dict[tuple[str, str], float]) -> bool:
    return all(value <= other.get(key, 0.0) * (1 + 1e-12) for key, value in bill.items())
