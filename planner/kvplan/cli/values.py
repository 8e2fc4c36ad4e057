"""Values in the text of an option: numbers, shares, words, and several of them in one text."""

from __future__ import annotations

import re

from kvplan.errors import InputError
from kvplan.units import parse_bytes

_RANGE = re.compile(r"(\d{1,9})(?:(?:\.\.|-)(\d{1,9}))?", re.ASCII)


def whole_number(text: str, field: str, high: int) -> int:
    """One whole number from 1 on.

    >>> whole_number("32", "--batch", 65536)
    32
    """
    if re.fullmatch(r" *\d{1,12} *", text, re.ASCII) is None or not 1 <= int(text) <= high:
        raise InputError(field, text, f"a whole number from 1 to {high}")
    return int(text)


def size(text: str | None, field: str) -> int | None:
    """Bytes; None where nothing was typed.

    >>> size("40GiB", "--hbm"), size(None, "--dram")
    (42949672960, None)
    """
    return None if text is None else parse_bytes(text, field)


def number_or_range(text: str, field: str, high: int) -> tuple[int | None, int]:
    """A largest number, or a range of them.

    >>> number_or_range("64", "--batch", 65536), number_or_range("8..64", "--batch", 65536)
    ((None, 64), (8, 64))
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InputError(field, text, f"a whole number from 1 to {high}, 8..64, or auto")
    low, top = int(match[1]), int(match[2] or match[1])
    if not 1 <= low <= top <= high:
        raise InputError(field, text, f"a range that rises within 1 to {high}")
    return (low, top) if match[2] else (None, top)


def percentages(text: str, field: str) -> tuple[int, ...]:
    """FlexGen's six numbers, between commas or spaces.

    >>> percentages("20,80,0,100,0,100", "--flexgen")
    (20, 80, 0, 100, 0, 100)
    """
    from kvplan.flexgen import SIX_PERCENTAGES

    parts = text.replace(",", " ").split()
    if len(parts) != 6 or not all(re.fullmatch(r"\d{1,3}", part, re.ASCII) for part in parts):
        raise InputError(field, text, SIX_PERCENTAGES)
    return tuple(int(part) for part in parts)


def share(text: str, field: str, such_as: str = "0.9") -> float:
    """A share above 0 and at most 1, or as much in percent.

    Args:
        text: what was typed.
        field: where.
        such_as: an example, for the error; a number of percent without the sign is its own.

    >>> share("0.9", "--utilisation"), share("90%", "--utilisation")
    (0.9, 0.9)
    """
    value = _fraction(text)
    if value is not None and 0 < value <= 1:
        return value
    if value is not None and 1 < value <= 100 and "%" not in text:
        such_as = f"{value / 100:g}"
    raise InputError(field, text, f"a share above 0 and at most 1, such as {such_as}")


def _fraction(text: str) -> float | None:
    """A number, divided by a hundred where a percent sign follows; None where it is none."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number)
    except ValueError:
        return None
    return None if rest else value / 100 if percent else value


def share_below_one(text: str, field: str) -> float:
    """A share from 0 to below 1, or as much in percent.

    >>> share_below_one("0.5", "--gpu-busy"), share_below_one("50%", "--gpu-busy")
    (0.5, 0.5)
    """
    value = _fraction(text)
    if value is None or not 0 <= value < 1:
        raise InputError(field, text, "a share from 0 to below 1, such as 0.5")
    return value


def words(text: str, field: str) -> tuple[str, ...]:
    """Words between commas, each once.

    >>> words("resident, fetch", "--paths")
    ('resident', 'fetch')
    """
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    if "" in found:
        raise InputError(field, text, "names between commas")
    return found


def shares(text: str, field: str) -> dict[str, float]:
    """Formats between commas, each with the largest share of the tokens it may take.

    >>> shares("int8,int4:0.5", "--allow")
    {'int8': 1.0, 'int4': 0.5}
    """
    found: dict[str, float] = {}
    for word in text.split(","):
        name, colon, part = (piece.strip() for piece in word.partition(":"))
        if not name or name in found:
            accepted = "formats between commas, each once: int8,int4, or int8:0.5 for a share"
            raise InputError(field, text, accepted)
        found[name] = share(part, f"{field} {name}") if colon else 1.0
    return found


def whole_numbers(text: str, field: str, high: int) -> tuple[int, ...]:
    """Whole numbers and ranges between commas, in rising order.

    >>> whole_numbers("4..6,8", "--stages", 64), whole_numbers("2-3", "--queue-depth", 16)
    ((4, 5, 6, 8), (2, 3))
    """
    accepted = f"whole numbers from 1 to {high}, such as 4, 4..8, 4-8 or 4,6"
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise InputError(field, text, accepted)
        low, top = int(match[1]), int(match[2] or match[1])
        if not 1 <= low <= top <= high:
            raise InputError(field, text, accepted)
        found.update(range(low, top + 1))
    return tuple(sorted(found))
