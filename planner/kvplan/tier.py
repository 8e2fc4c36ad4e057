"""A what-if tier: memory that a machine could have beside HBM and host memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.errors import InputError
from kvplan.hardware_parts import positive, whole

ATTENDED_BY = ("gpu", "tier", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """Memory that may hold K and V, and what can be done with them there.

    Args:
        name: for people, such as ``SRAM``.
        capacity_bytes: K and V it may hold.
        bytes_per_s: rate at which what attends reads it, or at which it can be read out.
        latency_s: one way, of a query or a partial result; 0 where the GPU attends.
        attended_by: ``gpu``: the GPU reads it in place, at the tier's rate; ``tier``: it attends
            by itself, query and partial result travel; ``none``: it is only read out, over a link
            of its own.
    """

    name: str
    capacity_bytes: int
    bytes_per_s: float
    latency_s: float
    attended_by: str

    def __post_init__(self) -> None:
        """Check every field."""
        whole("capacity", self.capacity_bytes)
        positive("bandwidth", self.bytes_per_s)
        positive("latency", self.latency_s)
        if self.attended_by not in ATTENDED_BY:
            raise InputError("attended_by", self.attended_by, " or ".join(ATTENDED_BY))

    def faster(self, rate: float) -> Tier:
        """The same with its rate multiplied and its latency divided."""
        return replace(self, bytes_per_s=self.bytes_per_s * rate, latency_s=self.latency_s / rate)
