"""The metadata in front of a GGUF file; its tensors are not read.

Source: the GGUF specification, ``docs/gguf.md`` of ggml-org/ggml, versions 2 and 3.
"""

from __future__ import annotations

import os
import struct
from typing import BinaryIO, NoReturn

from kvplan.errors import InputError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_KEYS, LONGEST_TEXT, LONGEST_LIST = 2**16, 2**26, 2**22
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _LIST = 8, 9


def is_gguf_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is there and begins like a GGUF file."""
    try:
        with open(path, "rb") as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def read_gguf_file(path: str | os.PathLike[str]) -> dict[str, object]:
    """The metadata of a GGUF file by key; of lists of texts only the length is kept.

    Raises:
        InputError: not readable, not GGUF of a known version, or cut off.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            return _metadata(_Reader(stream, name))
    except OSError as error:
        raise InputError("model", name, f"a readable GGUF file ({error.strerror})") from None


def _metadata(reader: _Reader) -> dict[str, object]:
    if reader.take(4) != MAGIC:
        reader.refuse("from its first byte on")
    version = reader.number("I")
    if version not in VERSIONS:
        reader.refuse(f"of version 2 or 3, in this machine's byte order; it says {version}")
    reader.number("Q")  # tensors
    count = reader.number("Q")
    if count > MOST_KEYS:
        reader.refuse(f"at most {MOST_KEYS} keys")
    found: dict[str, object] = {}
    for _ in range(int(count)):
        key = reader.text()
        found[key] = reader.value(int(reader.number("I")))
    return found


class _Reader:
    """Little-endian values in a row."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """Keep what is read from, and its name for errors."""
        self.stream, self.name = stream, name

    def refuse(self, accepted: str) -> NoReturn:
        """Raise the error that the file is not what is accepted."""
        raise InputError("model", self.name, f"a GGUF file {accepted}")

    def take(self, size: int) -> bytes:
        """So many bytes; fewer are an error."""
        content = self.stream.read(size)
        if len(content) < size:
            self.refuse("that is whole: its metadata are cut off")
        return content

    def number(self, kind: str) -> int | float | bool:
        """One number of a kind of `struct`."""
        value: int | float | bool = struct.unpack(f"<{kind}", self.take(struct.calcsize(kind)))[0]
        return value

    def text(self) -> str:
        """A length and so many bytes of UTF-8."""
        size = int(self.number("Q"))
        if size > LONGEST_TEXT:
            self.refuse(f"with texts of at most {LONGEST_TEXT} bytes")
        return self.take(size).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        """A number, a text or a list."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            self.refuse(f"with values of known types; one is of type {kind}")
        inner, count = int(self.number("I")), int(self.number("Q"))
        if count > LONGEST_LIST:
            self.refuse(f"with lists of at most {LONGEST_LIST} values")
        if inner == _TEXT:
            for _ in range(count):
                self.text()
            return [""] * count
        return [self.value(inner) for _ in range(count)]
