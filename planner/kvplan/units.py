"""Units at the edge: text in and out. Inside kvplan everything is bytes, seconds, FLOP, tokens."""

from __future__ import annotations

import math
import re

from kvplan.errors import InputError

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_PREFIX = {
    "": 1,
    "k": KB,
    "m": MB,
    "g": GB,
    "t": TB,
    "p": 10**15,
    "ki": KIB,
    "mi": MIB,
    "gi": GIB,
    "ti": TIB,
}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-zµμ/]*)\s*", re.I)
_SIZE = re.compile(r"(?:(?P<prefix>[kmgtp]i?)?(?P<unit>b(?:ytes?)?)?)", re.I)
GROUPED = re.compile(r"\s*\d{1,3}(?:,\d{3})+\s*")
"""A number as engines print it: 131,072."""

LEAST_BARE_BYTES = KIB
"""A smaller size without a unit is taken for one whose unit was forgotten."""

_PER_SECOND = re.compile(r"(?:/s|ps|/sec)$", re.I)
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}


def _split(text: str, field: str, accepted: str) -> tuple[float, str]:
    """A finite number that is not negative, and the unit behind it."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise InputError(field, text, accepted)
    number = float(match[1].replace("_", ""))
    if not math.isfinite(number) or number < 0:
        raise InputError(field, text, accepted)
    return number, match[2]


def _byte_scale(unit: str) -> int | None:
    """Bytes per unit: ``GB``, ``gb``, ``G``, ``GiB``, ``Gi``; None for bits and other units."""
    match = _SIZE.fullmatch(unit)
    if match is None:
        return None
    prefix, byte = match["prefix"] or "", match["unit"] or ""
    if byte == "b" and prefix[:1].isupper():
        return None  # "Gb" is a number of bits
    return _PREFIX[prefix.lower()]


def parse_bytes(text: str | int | float, field: str = "size") -> int:
    """Read a size such as ``40GiB``, ``40GB``, ``512 MiB`` or ``0``.

    Args:
        text: the size; a bare number is bytes.
        field: the option or key to name in the error.

    Returns:
        Whole bytes.

    Raises:
        InputError: negative, not finite, an unknown unit, or a few bytes without one.

    >>> parse_bytes("40GiB"), parse_bytes("40GB"), parse_bytes("1.5 KiB"), parse_bytes(0)
    (42949672960, 40000000000, 1536, 0)
    """
    accepted = "a size in bytes such as 40GiB, 40GB or 512MiB, not negative, below 4 EiB"
    number, unit = _split(str(text), field, accepted)
    scale = _byte_scale(unit)
    if scale is None or number * scale >= 2**62:
        raise InputError(field, text, accepted)
    if not unit and 0 < number < LEAST_BARE_BYTES:
        raise InputError(field, text, f"a size with its unit, such as {number:g}GiB")
    return round(number * scale)


def parse_tokens(text: str | int, field: str = "tokens") -> int:
    """Read a token count such as ``4096``, ``131,072``, ``32k`` (32 × 1024) or ``1M`` (1024²).

    >>> parse_tokens("4096"), parse_tokens("32k"), parse_tokens("1M"), parse_tokens("0.5k")
    (4096, 32768, 1048576, 512)
    >>> parse_tokens("131,072")
    131072
    """
    accepted = "a whole number of tokens such as 4096, 32k or 1M"
    if isinstance(text, str) and GROUPED.fullmatch(text):
        text = text.replace(",", "")
    number, unit = _split(str(text), field, accepted)
    scale = {"": 1, "k": KIB, "ki": KIB, "m": MIB, "mi": MIB}.get(unit.lower())
    if scale is None or number * scale != int(number * scale) or number * scale >= 2**40:
        raise InputError(field, text, accepted)
    return int(number * scale)


def parse_rate(text: str | float, field: str = "rate") -> float:
    """Read bytes per second such as ``25GB/s`` or ``50 GiB/s``; a bare number is bytes/s.

    >>> parse_rate("25GB/s"), parse_rate("1GiB/s"), parse_rate(25e9)
    (25000000000.0, 1073741824.0, 25000000000.0)
    """
    accepted = "a rate in bytes above 0 such as 25GB/s or 1.555TB/s"
    number, unit = _split(str(text), field, accepted)
    scale = _byte_scale(_PER_SECOND.sub("", unit))
    if scale is None or number <= 0 or (unit and not _PER_SECOND.search(unit)):
        raise InputError(field, text, accepted)
    return number * scale


def parse_token_rate(text: str | float, field: str = "rate") -> float:
    """Read tokens per second such as ``37239``, ``37k`` (37,000) or ``37239 tokens/s``.

    >>> parse_token_rate("37239"), parse_token_rate("37k"), parse_token_rate("12.5 tok/s")
    (37239.0, 37000.0, 12.5)
    """
    accepted = "a rate in tokens per second above 0 such as 37239, 37k or 37239tokens/s"
    number, unit = _split(str(text), field, accepted)
    match = re.fullmatch(r"(k?)(?:tok(?:en)?s?)?(?:/s(?:ec)?)?", unit, re.I)
    if match is None or number <= 0:
        raise InputError(field, text, accepted)
    return number * (KB if match[1] else 1)


def parse_flops(text: str | float, field: str = "flops") -> float:
    """Read FLOP per second such as ``312TFLOP/s``, ``312TFLOPS`` or ``312e12``.

    >>> parse_flops("312 TFLOP/s") == parse_flops("312tflops") == parse_flops(312e12)
    True
    """
    accepted = "a rate above 0 such as 312TFLOP/s"
    number, unit = _split(str(text), field, accepted)
    lowered = unit.lower()
    for suffix in ("flop/s", "flops/s", "flops", "op/s", "ops"):
        if lowered.endswith(suffix):
            lowered = lowered.removesuffix(suffix)
            break
    else:
        if lowered:
            raise InputError(field, text, accepted)
    if lowered not in _PREFIX or lowered.endswith("i") or number <= 0:
        raise InputError(field, text, accepted)
    return number * _PREFIX[lowered]


def parse_seconds(text: str | float, field: str = "time") -> float:
    """Read a time such as ``17us``, ``2.5 ms`` or ``0.1``; a bare number is seconds.

    >>> parse_seconds("17us"), parse_seconds("2.5 ms")
    (1.7e-05, 0.0025)
    """
    accepted = "a time such as 17us, 2.5ms or 0.1s"
    number, unit = _split(str(text), field, accepted)
    if unit and unit.lower() not in _TIME:
        raise InputError(field, text, accepted)
    if unit.lower() in ("us", "µs", "μs"):
        return number / 1e6
    return number * _TIME[unit.lower() or "s"]


def format_bytes(size: float) -> str:
    """Write a size in the binary unit that keeps it short.

    >>> format_bytes(0), format_bytes(1536), format_bytes(42949672960)
    ('0 B', '1.5 KiB', '40.0 GiB')
    """
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def format_rate(rate: float) -> str:
    """Write bytes per second, decimal.

    >>> format_rate(24.5e9), format_rate(1.3995e12)
    ('24.5 GB/s', '1.40 TB/s')
    """
    return f"{rate / TB:.2f} TB/s" if rate >= TB else f"{rate / GB:.1f} GB/s"


def format_seconds(seconds: float) -> str:
    """Write a time with three or four significant digits.

    >>> format_seconds(1.5), format_seconds(0.0123), format_seconds(4.2e-5), format_seconds(0)
    ('1.50 s', '12.3 ms', '42.0 µs', '0 s')
    """
    if seconds == 0:
        return "0 s"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= unit or name == "µs":
            value = seconds / unit
            digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else 2
            return f"{value:.{digits}f} {name}"
    raise AssertionError("unreachable")
