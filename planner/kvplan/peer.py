"""How the GPUs of a machine reach each other."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.hardware_parts import positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """The link between GPUs.

    Args:
        bytes_per_s: usable rate of one GPU in one direction.
        latency_s: of one collective, whatever its size.
    """

    bytes_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        """Check every field."""
        positive("bandwidth", self.bytes_per_s)
        positive("latency", self.latency_s)

    def faster(self, rate: float) -> Peer:
        """The same with its rate multiplied and its latency divided."""
        return Peer(bytes_per_s=self.bytes_per_s * rate, latency_s=self.latency_s / rate)
