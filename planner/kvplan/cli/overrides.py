"""Figures of the machine that were typed in place of the profile's."""

from __future__ import annotations

from kvplan.units import parse_flops, parse_rate

READERS = {
    "h2d_bytes_per_s": ("h2d", parse_rate),
    "flop_per_s": ("flops", parse_flops),
    "hbm_bytes_per_s": ("hbm_bandwidth", parse_rate),
    "host_attention_bytes_per_s": ("host_attention", parse_rate),
    "disk_bytes_per_s": ("disk_bandwidth", parse_rate),
    "pageable_bytes_per_s": ("pageable_bandwidth", parse_rate),
}
"""Figure, as `hardware.override` takes it, to the field of a request and how its text is read."""


def overrides_of(request: object) -> dict[str, float]:
    """Figures that a request changes; one that has no such option changes none.

    Raises:
        InputError: a text that is no rate.
    """
    typed = {name: getattr(request, field, None) for name, (field, _) in READERS.items()}
    return {
        name: READERS[name][1](text, f"--{READERS[name][0].replace('_', '-')}")
        for name, text in typed.items()
        if text is not None
    }
