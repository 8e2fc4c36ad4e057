"""The link's part of a hardware document: its raw rate, copy curve, latency and shared rates."""

from __future__ import annotations

from typing import Any

from kvplan.slot import LANE_RATES, LANES, pcie_raw_bytes_per_s
from kvplan_validate.figures import Figures
from kvplan_validate.provenance import STAND_IN, assumed, best_rate, curve, median_time, short

_PROTOCOL = 1.15
"""Raw over best copy rate: headers, as for PCIe 3.0 to 5.0 with 256-byte payloads."""


def link(figures: Figures, direction: str) -> dict[str, Any]:
    """One direction of the link.

    Args:
        figures: raw results.
        direction: ``h2d`` or ``d2h``.
    """
    at = {"direction": direction}
    large = [
        rate
        for size in (64 << 20, 16 << 20)
        if (rate := best_rate(figures, "copies.duplex", "GB/s", bytes=size, **at))
    ]
    table: dict[str, Any] = {
        "latency": median_time(figures, "copies.latency", bytes=4096, **at)
        or assumed(15, "us", "a synchronised copy of 4 KiB, a round figure"),
        "duplex_bandwidth": large[0] if large else None,
        "pageable_bandwidth": best_rate(figures, "copies.pageable", "GB/s", **at),
        "copy": _copy(figures, direction),
    }
    seen = [table["duplex_bandwidth"], table["pageable_bandwidth"]]
    fastest = max([_fastest(table["copy"]), *(rate["value"] for rate in seen if rate)])
    table = {"raw_bandwidth": raw_bandwidth(figures, fastest)} | table
    return {key: value for key, value in table.items() if value}


def _copy(figures: Figures, direction: str) -> dict[str, Any]:
    """Seconds over bytes: of registered memory, else of the next best kind that was measured."""
    for key in ("copies.registered", "copies.pinned", "copies.eager"):
        points = figures.points(key, direction=direction)
        found = curve(figures, key, "bytes", points, "back-to-back copies")
        if found:
            return found
    return {
        "fixed": assumed(8, "us", "one copy in a queue, a round figure"),
        "rate": assumed(20, "GB/s", STAND_IN),
    }


def _fastest(copy: dict[str, Any]) -> float:
    """The best rate of a copy curve, GB/s."""
    if "points" in copy:
        return max(float(size / seconds) for size, seconds in copy["points"]) / 1e9
    return float(copy["rate"]["value"])


def raw_bandwidth(figures: Figures, fastest: float) -> dict[str, Any]:
    """One-way encoded rate of the slot.

    Args:
        figures: raw results; nvidia-smi names generation and width.
        fastest: the best rate that was measured, GB/s.
    """
    generation = figures.machine.get("link_generation")
    width = figures.machine.get("link_width")
    if generation in LANE_RATES and width in LANES:
        per_lane, coding = LANE_RATES[generation]
        rate = pcie_raw_bytes_per_s(generation, width) / 1e9
        if fastest <= rate:
            source = f"PCIe {generation}.0: {per_lane:g} GT/s x {width} lanes x {coding}"
            number = {"value": short(rate), "unit": "GB/s", "kind": "datasheet"}
            return number | {"source": source}
    rule = f"{_PROTOCOL} x the best copy rate, for headers; nvidia-smi names no slower link"
    return assumed(_PROTOCOL * fastest, "GB/s", rule)
