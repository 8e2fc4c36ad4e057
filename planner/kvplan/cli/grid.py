"""Lists and ranges in the options of a sweep: one `Request` for every combination."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from kvplan.cli.options import Request
from kvplan.cli.values import whole_numbers
from kvplan.errors import InputError
from kvplan.sweep_file import value_of
from kvplan.units import parse_bytes, parse_flops, parse_rate, parse_seconds, parse_tokens

MOST = 1_000_000
"""Most scenarios of one sweep."""

LISTS = ("allow", "paths", "axis", "flexgen")
"""Options whose one value may hold commas: alternatives stand between semicolons."""

CHOSEN = ("batch", "micro_batches", "schedule")
"""Options that are ranges to choose from where throughput is sought; then like `LISTS`."""

COUNTS = {"stages": 64, "queue_depth": 16}
"""Options whose ranges hold every whole number, and the most each takes."""

_RANGE = re.compile(
    r"([\d.]+)\s*([a-zA-Z/]*)\.\.([\d.]+)\s*([a-zA-Z/]*)(?::([\d.]+)\s*([a-zA-Z/]*))?"
)


def requests(given: Request) -> list[Request]:
    """Every combination of the values that options list, the last option varying fastest.

    Args:
        given: options as typed, each of them a value, a list or a range.

    Raises:
        InputError: a range that is not accepted, or too many scenarios.

    >>> asked = requests(Request(model="opt-125m", gpu="l4,t4", batch="1,4..16", context="1k:2k"))
    Traceback (most recent call last):
    kvplan.errors.InputError: --context: '1k:2k' is not accepted: values between commas, or a \
range such as 1k..8k (doubling) or 1k..8k:1k (in steps)
    >>> asked = requests(Request(model="opt-125m", gpu="l4,t4", batch="1,4..16"))
    >>> [(r.gpu, r.batch) for r in asked]
    [('l4', '1'), ('l4', '4'), ('l4', '8'), ('l4', '16'), ('t4', '1'), ('t4', '4'), ('t4', '8'), \
('t4', '16')]
    """
    fields = [field.name for field in dataclasses.fields(Request)]
    every = choices_of(given)
    choices = [every[name] for name in fields]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST:
        raise InputError("scenarios", count, f"at most {MOST} in one sweep")
    return [Request(**_named(fields, values)) for values in itertools.product(*choices)]


def _named(fields: Sequence[str], values: Sequence[str | None]) -> dict[str, Any]:
    return dict(zip(fields, values, strict=True))


def varied(given: Request) -> list[str]:
    """Options that take more than one value."""
    return [name for name, values in choices_of(given).items() if len(values) > 1]


def choices_of(given: Request) -> dict[str, list[str | None]]:
    """Every option with its values."""
    chosen = CHOSEN if "throughput" in given.objective else ()
    return {
        field.name: alternatives(field.name, getattr(given, field.name), field.name in chosen)
        for field in dataclasses.fields(Request)
    }


def alternatives(name: str, text: str | None, whole: bool = False) -> list[str | None]:
    """The values of one option, each once, in the order given.

    Args:
        name: of the option, as in `Request`.
        text: what was typed.
        whole: whether commas and ranges belong to one value, as in `LISTS`.

    >>> alternatives("allow", "none;int8;int8,int4"), alternatives("stages", "4..6")
    ([None, 'int8', 'int8,int4'], ['4', '5', '6'])
    >>> alternatives("h2d", "10GB/s..40GB/s"), alternatives("hbm", "8GiB..16GiB:4GiB")
    (['10GB/s', '20GB/s', '40GB/s'], ['8GiB', '12GiB', '16GiB'])
    """
    if text is None:
        return [None]
    option = "--" + name.replace("_", "-")
    if name in LISTS or whole:
        return _lists(name, option, text)
    if name in COUNTS:
        if text == _default(name):
            return [text]
        return [str(n) for n in whole_numbers(text, option, COUNTS[name])]
    found: list[str | None] = []
    for part in text.split(","):
        word = part.strip()
        if not word:
            raise InputError(option, text, "values between commas")
        found += [None] if word == "none" and _default(name) is None else _range(option, name, word)
    return list(dict.fromkeys(found))


def _default(name: str) -> Any:
    return Request.__dataclass_fields__[name].default


def _lists(name: str, option: str, text: str) -> list[str | None]:
    if text == _default(name):
        return [text]
    words = [part.strip() for part in text.split(";")]
    if "" in words:
        raise InputError(option, text, "values between semicolons, such as 'none;int8;int8,int4'")
    return list(dict.fromkeys(None if w == "none" and name != "axis" else w for w in words))


def _range(option: str, name: str, word: str) -> list[str]:
    """The values of ``a..b`` (doubling) or ``a..b:step``; a word that is no range is itself."""
    read = READERS.get(name)
    if read is None or (".." not in word and ":" not in word):
        return [word]
    accepted = "values between commas, or a range such as 1k..8k (doubling) or 1k..8k:1k (in steps)"
    match = _RANGE.fullmatch(word)
    if match is None or match[2] != match[4] or match[6] not in (None, match[2]):
        raise InputError(
            option,
            word,
            accepted
            if match is None
            else "a range with the same unit at every number, such as 8GiB..64GiB",
        )
    low, high, unit = match[1], match[3], match[2]
    for number in (low, high, match[5] or low):
        read(number + unit, option)
    begin, end = float(low), float(high)
    step = float(match[5]) if match[5] else None
    if not 0 < begin <= end or step == 0:
        raise InputError(option, word, "a range that rises, from a number above 0")
    if step is not None and (end - begin) / step > MOST:
        raise InputError(option, word, f"at most {MOST} values")
    numbers = [begin]
    while True:
        following = begin + len(numbers) * step if step is not None else numbers[-1] * 2
        if following > end * (1 + 1e-9):
            return [f"{n:.12g}{unit}" for n in numbers]
        numbers.append(following)


def _plain(text: str, field: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(field, text, "a number") from None


READERS: dict[str, Callable[[str, str], float]] = {
    "batch": _plain,
    "micro_batches": _plain,
    "utilisation": _plain,
    "context": parse_tokens,
    "gen": parse_tokens,
    "block": parse_tokens,
    "hbm": parse_bytes,
    "reserve": parse_bytes,
    "dram": parse_bytes,
    "pinned": parse_bytes,
    "disk": parse_bytes,
    "h2d": parse_rate,
    "hbm_bandwidth": parse_rate,
    "host_attention": parse_rate,
    "flops": parse_flops,
    "max_step_latency": parse_seconds,
}
"""Options of numbers, and what reads each."""

UNITS = {
    **dict.fromkeys(("hbm", "reserve", "dram", "pinned", "disk"), "_bytes"),
    **dict.fromkeys(("h2d", "hbm_bandwidth", "host_attention"), "_bytes_per_s"),
    "flops": "_flop_per_s",
    "max_step_latency": "_s",
}
"""What is put behind an option's name to say the unit of its column."""


def column(name: str) -> str:
    """Name of an option's column.

    >>> column("hbm"), column("batch"), column("flops")
    ('hbm_bytes', 'batch', 'flop_per_s')
    """
    return name.removesuffix("s") + "_per_s" if name == "flops" else name + UNITS.get(name, "")


def cells(request: Request) -> dict[str, Any]:
    """The columns of a request: numbers in SI units where its options are numbers."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Request):
        text, read = getattr(request, field.name), READERS.get(field.name)
        value: Any = None if text is None else value_of(text)
        if text is not None and read is not None:
            with contextlib.suppress(InputError):  # auto, or a range to choose from
                value = read(text, "--" + field.name.replace("_", "-"))
                value = int(value) if float(value).is_integer() else value
        found[column(field.name)] = value
    return found


def one_of_each(given: Request) -> Sequence[Request]:
    """One request for every value of every option, the other options at their first value."""
    names = [field.name for field in dataclasses.fields(Request)]
    every = choices_of(given)
    first = Request(**_named(names, [every[name][0] for name in names]))
    return [first] + [
        dataclasses.replace(first, **_named([name], [value]))
        for name, values in every.items()
        for value in values[1:]
    ]
