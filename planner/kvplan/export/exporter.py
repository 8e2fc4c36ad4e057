"""What an exporter is, and what it hands over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment
from kvplan.export.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Key:
    """One option of a runtime.

    Args:
        kind: Python type of its value.
        unit: unit and scope, for people.
        source: where the runtime defines it.
        least: smallest value accepted; None where that does not apply.
        most: largest value accepted.
        words: the only values accepted; empty where any will do.
    """

    kind: type | tuple[type, ...]
    unit: str
    source: str
    least: float | None = None
    most: float | None = None
    words: tuple[object, ...] = ()


@dataclass(frozen=True)
class Mapped:
    """An option that was set: its name, its value as written, and what that means."""

    option: str
    value: object
    meaning: str


@dataclass(frozen=True)
class Unexpressed:
    """Something that the plan says and the runtime has no field for."""

    what: str
    plan: str
    why: str


@dataclass(frozen=True)
class ReadBack:
    """What a runtime makes of an export, in bytes of one engine, all ranks together.

    Args:
        host_bytes: K and V that its host pool can hold.
        block_bytes: the smallest step it can take; host_bytes is within one of what was asked.
        hbm_bytes: K and V it keeps in HBM; None where the export does not say.
        disk_bytes: capacity of its disk tier; None where there is none or it has no limit.
    """

    host_bytes: float
    block_bytes: float
    hbm_bytes: float | None = None
    disk_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Export:
    """A plan for one runtime.

    Args:
        command: the command line that uses it.
        text: content of the file.
        mapped: what was set.
        unexpressed: what could not be.
        pool: the host pool; None where the runtime has none.
        warnings: what may surprise.
        others: other command lines that use it: what for, and the line.
    """

    command: str
    text: str
    mapped: tuple[Mapped, ...]
    unexpressed: tuple[Unexpressed, ...]
    pool: Pool | None = None
    warnings: tuple[str, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """One runtime.

    Args:
        name: the word on the command line.
        aliases: other words for it.
        title: what people call it.
        version: the version whose options are written.
        file: name of the file it writes.
        keys: every key that the file may hold.
        export: (demand, deployment, path of the file) to the export.
        parse: text of the file to its keys and values, refusing anything else.
        read_back: (text, demand, deployment) to bytes, with the runtime's own units and rounding.
    """

    name: str
    aliases: tuple[str, ...] = ()
    title: str
    version: str
    file: str
    keys: Mapping[str, Key] = field(repr=False)
    export: Callable[[CacheDemand, Deployment, str], Export] = field(repr=False)
    parse: Callable[[str], Mapping[str, Any]] = field(repr=False)
    read_back: Callable[[str, CacheDemand, Deployment], ReadBack] = field(repr=False)


def unmet(keys: Mapping[str, Key], values: Mapping[str, Any]) -> list[str]:
    """What is wrong with some values: unknown keys, None, types, ranges.

    >>> size = Key(kind=int, unit="bytes", source="example", least=0)
    >>> unmet({"size": size}, {"size": -1, "colour": None})
    ['size: -1 is below 0', 'colour: unknown']
    """
    wrong = []
    for name, value in values.items():
        key = keys.get(name)
        number = value if isinstance(value, (int, float)) else 0
        if key is None:
            wrong.append(f"{name}: unknown")
        elif not isinstance(value, key.kind) or (isinstance(value, bool) and key.kind is not bool):
            wrong.append(f"{name}: {value!r} is not {key.kind}")
        elif key.words and value not in key.words:
            wrong.append(f"{name}: {value!r} is not one of {key.words}")
        elif key.least is not None and number < key.least:
            wrong.append(f"{name}: {value!r} is below {key.least}")
        elif key.most is not None and number > key.most:
            wrong.append(f"{name}: {value!r} is above {key.most}")
    return wrong
