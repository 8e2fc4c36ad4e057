"""Hardware documents as TOML text: numbers inline, curves and rows of curves as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_text(document: Mapping[str, Any]) -> str:
    """The text of a hardware document.

    >>> print(toml_text({"a": 1, "b": {"c": {"value": 2.5, "unit": "us"}}, "d": [{"e": "x"}]}))
    a = 1
    <BLANKLINE>
    [b]
    c = { value = 2.5, unit = "us" }
    <BLANKLINE>
    [[d]]
    e = "x"
    <BLANKLINE>
    """
    return "\n".join(_table(document, "")) + "\n"


def _table(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Lines of a table: plain values first, then the tables inside."""
    for key, value in table.items():
        if not _is_section(value):
            yield f"{key} = {_value(value)}"
    for key, value in table.items():
        if _is_section(value):
            name = f"{path}.{key}" if path else key
            many = isinstance(value, list)
            for inner in value if many else [value]:
                yield f"\n[[{name}]]" if many else f"\n[{name}]"
                yield from _table(inner, name)


def _is_section(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], dict)
    return isinstance(value, dict) and "value" not in value


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        if value and isinstance(value[0], list):
            rows = "".join(f"    {_value(row)},\n" for row in value)
            return f"[\n{rows}]"
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
