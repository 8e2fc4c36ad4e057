"""Strict reading of one table of a hardware file: exact keys, units, ranges, provenance."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeVar

from kvplan.curve import Curve, affine, measured
from kvplan.errors import InputError
from kvplan.hardware_parts import DTYPES, KINDS, Provenance
from kvplan.units import parse_bytes, parse_flops, parse_rate, parse_seconds, parse_tokens

_MAX_POINTS = 1000
_MAX_TEXT = 2000
_Part = TypeVar("_Part")
_Choice = TypeVar("_Choice", bound=str)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Accepted units, the parser, and the range in SI units that catches a wrong unit."""

    units: tuple[str, ...]
    parse: Callable[[str, str], float]
    least: float
    most: float


SIZE = Quantity(("B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"), parse_bytes, 1, 1e18)
RATE = Quantity(("MB/s", "GB/s", "TB/s", "MiB/s", "GiB/s", "TiB/s"), parse_rate, 1e3, 1e16)
FLOP = Quantity(("GFLOP/s", "TFLOP/s", "PFLOP/s", "TOP/s"), parse_flops, 1e6, 1e20)
TIME = Quantity(("ns", "us", "ms", "s"), parse_seconds, 1e-10, 1e6)
SHARE = Quantity(("1",), lambda text, _: float(text.removesuffix(" 1")), 1e-3, 1)
DEPTH = Quantity((), parse_tokens, 1, 1e6)
TOKENS = Quantity(("tokens",), parse_tokens, 1, 1e12)


@dataclass(slots=True)
class Table:
    """One table of a hardware file.

    Args:
        file: name of the file, for errors.
        path: key path of the table; empty for the whole document.
        raw: its content.
        provenance: filled with the provenance of every number that is read.
        residuals: filled with the residual of every curve of points that is read.
    """

    file: str
    path: str
    raw: dict[str, Any]
    provenance: dict[str, Provenance]
    residuals: dict[str, float]

    def at(self, key: str) -> str:
        """Key path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, value: object, accepted: str) -> InputError:
        """The error for a key, with file and key path."""
        return InputError(f"{self.file}: {self.at(key)}", value, accepted)

    def keys(self, needed: str, optional: str = "") -> None:
        """Raise InputError unless all needed keys are there and no unknown one."""
        must = needed.split()
        may = [*must, *optional.split()]
        for key in self.raw:
            if key not in may:
                near = difflib.get_close_matches(key[:80], may, n=1)
                hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(may)}"
                raise self.error(key[:80], "this key", f"unknown; {hint}")
        for key in must:
            if key not in self.raw:
                raise self.error(key, None, "missing; it is needed")

    def inner(self, key: str, raw: object, needed: str, optional: str = "") -> Table:
        """A table inside this one, its keys checked."""
        if not isinstance(raw, dict):
            raise self.error(key, raw, f"a table with {', '.join(needed.split())}")
        table = Table(self.file, self.at(key), raw, self.provenance, self.residuals)
        table.keys(needed, optional)
        return table

    def table(self, key: str, needed: str, optional: str = "") -> Table:
        """The table under a key."""
        return self.inner(key, self.raw[key], needed, optional)

    def text(self, key: str) -> str:
        """One line of text, not empty."""
        text = self.raw[key]
        if not isinstance(text, str) or not text.strip() or not text.isprintable():
            raise self.error(key, text, "one line of text, not empty")
        if len(text) > _MAX_TEXT:
            raise self.error(key, text, f"at most {_MAX_TEXT} characters")
        return text

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty where the key is missing."""
        texts = self.raw.get(key, [])
        if not isinstance(texts, list) or not all(
            isinstance(text, str) and text.strip() and text.isprintable() for text in texts
        ):
            raise self.error(key, texts, "a list of names")
        return texts

    def choice(self, key: str, choices: Sequence[_Choice]) -> _Choice:
        """One of a few words."""
        for choice in choices:
            if self.raw[key] == choice:
                return choice
        raise self.error(key, self.raw[key], f"one of {', '.join(choices)}")

    def date(self, key: str) -> str:
        """A date in quotes."""
        accepted = 'a date in quotes such as "2026-01-31"'
        text = self.raw[key]
        try:
            if isinstance(text, str) and date.fromisoformat(text).isoformat() == text:
                return text
        except ValueError:
            pass
        raise self.error(key, text, accepted)

    def whole(self, key: str) -> int:
        """A bare whole number from 1 to 2^31 (a width, not a measurement)."""
        number = self.raw[key]
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number < 2**31:
            raise self.error(key, number, "a whole number, 1 or more, below 2^31")
        return number

    def number(self, key: str, quantity: Quantity) -> float:
        """A number with unit and provenance, in SI units."""
        table = self.table(key, "value unit kind source", "note date")
        value, unit = table.raw["value"], table.raw["unit"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise table.error("value", value, "a finite number above 0")
        if unit not in quantity.units:
            raise table.error("unit", unit, f"one of {', '.join(quantity.units)}")
        number = table.in_range("value", f"{value!r} {unit}", quantity)
        self.provenance[table.path] = table.origin()
        return number

    def optional(self, key: str, quantity: Quantity) -> float | None:
        """As `number`; None where the key is missing."""
        return self.number(key, quantity) if key in self.raw else None

    def size(self, key: str) -> int:
        """A number of bytes with unit and provenance."""
        return int(self.number(key, SIZE))

    def per_dtype(self, key: str, quantity: Quantity) -> dict[str, float]:
        """A table of numbers by dtype; empty where the key is missing."""
        if key not in self.raw:
            return {}
        table = self.table(key, "", " ".join(DTYPES))
        return {dtype: table.number(dtype, quantity) for dtype in table.raw}

    def curve(self, key: str) -> Curve:
        """A curve over bytes: measured points, or a fixed time and a rate."""
        raw = self.raw[key]
        if isinstance(raw, dict) and "points" in raw:
            return self.table(key, "points kind source", "note date").points(SIZE)
        table = self.table(key, "fixed rate")
        return affine(table.number("fixed", TIME), 1 / table.number("rate", RATE))

    def points(self, volume: Quantity) -> Curve:
        """The curve of this table's points (`measured`). Records the residual."""
        points = list(self.pairs(volume, TIME))
        curve = measured(points)
        self.residuals[self.path] = max(0.0, *(1 - curve.seconds(x) / y for x, y in points))
        return curve

    def pairs(self, first: Quantity, second: Quantity) -> list[tuple[float, float]]:
        """The pairs under ``points``, the first of each rising; with one provenance for all."""
        rows = self.raw["points"]
        if not isinstance(rows, list) or not 2 <= len(rows) <= _MAX_POINTS:
            raise self.error("points", rows, f"2 to {_MAX_POINTS} pairs of numbers")
        points: list[tuple[float, float]] = []
        for index, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != 2:
                raise self.error(f"points.{index}", row, "a pair of numbers")
            x = self._bare_or_text(f"points.{index}.0", row[0], first)
            y = self._bare_or_text(f"points.{index}.1", row[1], second)
            if points and x <= points[-1][0]:
                raise self.error(f"points.{index}.0", row[0], "numbers that rise")
            points.append((x, y))
        self.provenance[self.path] = self.origin()
        return points

    def bare(self, key: str, quantity: Quantity) -> float:
        """A bare number in SI units, or a text with a unit; without provenance of its own."""
        return self._bare_or_text(key, self.raw[key], quantity)

    def _bare_or_text(self, key: str, value: object, quantity: Quantity) -> float:
        """A bare number in SI units, or a text with a unit."""
        bare = isinstance(value, int | float) and not isinstance(value, bool)
        if bare and not 0 < value < 1e30:  # type: ignore[operator]
            raise self.error(key, value, "a finite number above 0")
        if not bare and not isinstance(value, str):
            raise self.error(key, value, "a number, or a text with a unit")
        return self.in_range(key, repr(value) if bare else str(value), quantity)

    def in_range(self, key: str, text: str, quantity: Quantity) -> float:
        """Parse a number with a unit and check its range."""
        number = quantity.parse(text, f"{self.file}: {self.at(key)}")
        if not quantity.least <= number <= quantity.most:
            limits = f"from {quantity.least:g} to {quantity.most:g} in base units"
            raise self.error(key, text, limits)
        return number

    def origin(self) -> Provenance:
        """The provenance that stands in this table."""
        return Provenance(
            kind=self.choice("kind", KINDS),
            source=self.text("source"),
            note=self.text("note") if "note" in self.raw else "",
            date=self.date("date") if "date" in self.raw else None,
        )

    def build(self, part: Callable[..., _Part], **fields: Any) -> _Part:
        """Make a part of this table's numbers; its errors get file and key path."""
        try:
            return part(**fields)
        except InputError as error:
            raise self.error(error.field, error.value, error.accepted) from None
