"""The slot of a GPU: PCIe generation and lanes, and the rate they carry. SI, no IO."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvplan.errors import InputError

LANE_RATES = {
    1: (2.5, "8/10"),
    2: (5.0, "8/10"),
    3: (8.0, "128/130"),
    4: (16.0, "128/130"),
    5: (32.0, "128/130"),
    6: (64.0, "242/256"),
}
"""GT/s per lane and share of payload bits, by PCIe generation. Source: PCI-SIG, base specs."""

LANES = (1, 2, 4, 8, 16)
C2C = "NVLink-C2C"
FULL_SLOT = 16

_LINK = re.compile(r"(?:pcie?|gen)[ _-]?(?:gen[ _-]?)?(\d)(?:\.0)?(?:[ _-]*x[ ]?(\d{1,2}))?", re.I)


def pcie_raw_bytes_per_s(generation: int, lanes: int) -> float:
    """Encoded one-way rate of a PCIe slot, bytes per second.

    Raises:
        InputError: no such generation or width.

    >>> [round(pcie_raw_bytes_per_s(g, n) / 1e9, 2) for g, n in ((3, 16), (4, 16), (4, 8), (5, 16))]
    [15.75, 31.51, 15.75, 63.02]
    """
    if generation not in LANE_RATES:
        raise InputError("link_generation", generation, "a PCIe generation from 1 to 6")
    if lanes not in LANES:
        raise InputError("link_lanes", lanes, f"one of {', '.join(map(str, LANES))} lanes")
    per_lane, coding = LANE_RATES[generation]
    over, under = coding.split("/")
    return per_lane * 1e9 * lanes * int(over) / int(under) / 8


def parse_link(text: str, field: str = "--link") -> tuple[int, int]:
    """PCIe generation and lanes of a slot, as people write it; 16 lanes where none are named.

    Raises:
        InputError: not a slot.

    >>> [parse_link(text) for text in ("pcie4x8", "PCIe 5.0 x16", "gen3-x4", "pcie4")]
    [(4, 8), (5, 16), (3, 4), (4, 16)]
    """
    match = _LINK.fullmatch(text.strip())
    if match is not None:
        generation, lanes = int(match[1]), int(match[2] or FULL_SLOT)
        if generation in LANE_RATES and lanes in LANES:
            return generation, lanes
    raise InputError(field, text, "a PCIe slot such as pcie4x16, pcie4x8 or gen5x16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """What kind of link it is.

    Args:
        generation: of PCIe; None for another link.
        lanes: of PCIe; None for another link.
    """

    generation: int | None = None
    lanes: int | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        if (self.generation is None) != (self.lanes is None):
            raise InputError("lanes", self.lanes, "lanes for PCIe, and for nothing else")
        if self.generation is not None and self.lanes is not None:
            pcie_raw_bytes_per_s(self.generation, self.lanes)

    @property
    def raw_bytes_per_s(self) -> float | None:
        """Encoded one-way rate; None where lanes do not tell it."""
        if self.generation is None or self.lanes is None:
            return None
        return pcie_raw_bytes_per_s(self.generation, self.lanes)

    def __str__(self) -> str:
        """As people write it.

        >>> str(Slot(generation=4, lanes=8)), str(Slot())
        ('PCIe 4.0 x8', 'NVLink-C2C')
        """
        return C2C if self.generation is None else f"PCIe {self.generation}.0 x{self.lanes}"
