"""The YAML that exports are written in: one key per line, values in JSON, which YAML includes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kvplan.errors import InputError


def write(values: Mapping[str, Any], comment: str = "") -> str:
    r"""Write keys and values.

    Args:
        values: what to write; mappings stay on one line.
        comment: lines put in front.

    >>> write({"size": 4.5, "where": {"a": True}}, "of an example")
    '# of an example\nsize: 4.5\nwhere: {"a": true}\n'
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{key}: {json.dumps(value, allow_nan=False)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, Any]:
    r"""Read what `write` wrote.

    Raises:
        InputError: a line that is neither a comment nor a key with a JSON value, or a key twice.

    >>> read('# x\nsize: 4.5\n')
    {'size': 4.5}
    """
    values: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        key, colon, value = line.partition(": ")
        try:
            if not colon or key in values:
                raise ValueError
            values[key] = json.loads(value)
        except ValueError:
            raise InputError(f"line {number}", line, "a new key, a colon and a value") from None
    return values
