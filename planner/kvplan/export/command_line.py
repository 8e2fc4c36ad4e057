"""Command lines that exports are written as: a script of one command, one option per line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from kvplan.errors import InputError


def join(program: str, options: Mapping[str, Any]) -> str:
    """One line.

    Args:
        program: what comes first, as it is typed.
        options: option to value; None is a flag without one, a tuple several values.

    >>> join("serve m", {"--fast": None, "--size": 4, "--name": "a b", "--both": (1, 2)})
    "serve m --fast --size 4 --name 'a b' --both 1 2"
    """
    return " ".join([program, *_words(options)])


def script(
    program: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None,
    comment: str = "",
) -> str:  # fmt: skip
    """A shell script; what it is given is added to the command."""
    lines = ["#!/bin/sh", *(f"# {line}" for line in comment.splitlines())]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
    parts = [f"exec {program}", *(f"  {words}" for words in _words(options)), '  "$@"']
    return "\n".join(lines) + "\n" + " \\\n".join(parts) + "\n"


def _words(options: Mapping[str, Any]) -> list[str]:
    words = []
    for name, value in options.items():
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        words.append(" ".join([name, *(shlex.quote(str(v)) for v in values)]))
    return words


def read_script(text: str) -> tuple[dict[str, str], list[str]]:
    """Environment and arguments (program included) of a script.

    Raises:
        InputError: a line that `script` does not write.
    """
    body = text.replace("\\\n", " ").splitlines()
    environment: dict[str, str] = {}
    words: list[str] = []
    for line in body:
        parts = shlex.split(line, comments=True)
        if not parts:
            continue
        if parts[0] == "export" and len(parts) == 2:
            name, _, value = parts[1].partition("=")
            environment[name] = value
        elif parts[0] == "exec" and parts[-1] == "$@" and not words:
            words = parts[1:-1]
        else:
            raise InputError("script", line, "export or one exec")
    return environment, words


def options_of(words: list[str]) -> dict[str, Any]:
    """Options of an argument list, values as numbers where they are numbers.

    >>> options_of(["serve", "m", "--fast", "--size", "4", "--both", "1", "2"])
    {'--fast': None, '--size': 4, '--both': (1, 2)}
    """
    options: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit():
            name = word
            options[name] = None
        elif name:
            before = options[name]
            value = _number(word)
            if before is None:
                options[name] = value
            else:
                options[name] = (*(before if isinstance(before, tuple) else (before,)), value)
    return options


def _number(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
