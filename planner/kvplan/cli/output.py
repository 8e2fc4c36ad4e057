"""Where words go: data and answers to stdout, talk to stderr; and which files may be written."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, cast

import typer

from kvplan.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

LONGEST_LINE = 800

Json = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel="Output")
]


def one_line(text: str) -> str:
    r"""A text on one line, without control characters, and not endless.

    >>> one_line("two\nlines \x1b[31m")
    'two lines \\x1b[31m'
    """
    words = " ".join(text.split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    return shown if len(shown) <= LONGEST_LINE else shown[: LONGEST_LINE - 3] + "..."


def say(kind: str, text: str) -> None:
    """Write one line to stderr.

    Args:
        kind: ``error``, ``warning`` or ``note``.
        text: the sentence.
    """
    print(f"kvplan: {kind}: {one_line(text)}", file=sys.stderr)


def print_json(document: object) -> None:
    """Write one JSON document to stdout."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def console() -> Console:
    """The console of stdout: 100 columns and no colours where nobody looks at it."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    return Console(
        file=cast(IO[str], _Trimmed()), width=100, force_terminal=False, color_system=None,
        highlight=False, markup=False, emoji=False,
    )  # fmt: skip


class _Trimmed(io.TextIOBase):
    """Stdout without the spaces that tables leave at the end of lines."""

    def write(self, text: str) -> int:
        return sys.stdout.write("\n".join(line.rstrip() for line in text.split("\n")))

    def flush(self) -> None:
        sys.stdout.flush()


def check_writable(path: str | None, field: str) -> None:
    """Refuse a file that cannot be written, before any work is done.

    Args:
        path: the file; None or ``-`` is nothing to check.
        field: the option to name.

    Raises:
        InputError: its folder is missing, or it is a folder.
    """
    if path is None or path == "-":
        return
    if not path or "\0" in path or Path(path).is_dir():
        raise InputError(field, path, "a file to write to")
    folder = Path(path).parent
    if not folder.is_dir():
        raise InputError(field, path, f"a file in a folder that exists; {folder} does not")
    if not os.access(folder, os.W_OK):
        raise InputError(field, path, f"a file in a folder that can be written; {folder} cannot")
