"""Configuration files: one JSON object, as Hugging Face writes them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kvplan.errors import InputError
from kvplan.hf.gguf_file import is_gguf_file, read_gguf_file
from kvplan.hf.read import read_config
from kvplan.limits import printable
from kvplan.model import ModelSpec

MAX_FILE_BYTES = 2**26


def load_config(path: str | os.PathLike[str]) -> ModelSpec:
    """Read a ``config.json``, or the one in a folder, or the metadata of a GGUF file.

    Args:
        path: such a file, or a folder that holds ``config.json``; becomes the model's name.

    Raises:
        InputError: the file cannot be read, or ``read_config`` refuses its content.
    """
    return read_config(read_keys(path), name=os.fspath(path), source=f"file {os.fspath(path)}")


def read_keys(path: str | os.PathLike[str]) -> dict[str, object]:
    """The keys of a JSON file, or the metadata of a GGUF file.

    Raises:
        InputError: as `read_json` and `read_gguf_file`.
    """
    return read_gguf_file(path) if is_gguf_file(path) else read_json(path)


def read_json(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read one JSON object; ``NaN`` and ``Infinity`` pass, as Hugging Face writes them.

    Args:
        path: a file, or a folder that holds ``config.json``.

    Raises:
        InputError: missing, unreadable, above 64 MiB, not UTF-8, not JSON or not an object.
    """
    name = os.fspath(path)
    file = Path(name, "config.json") if os.path.isdir(name) else Path(name)
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError("model", str(file), f"a readable JSON file ({reason})") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(name, f"over {MAX_FILE_BYTES} bytes", "a config.json, a few KiB")
    return parse_json(content, name)


def parse_json(content: bytes | str, name: str) -> dict[str, object]:
    """Read the text of one JSON object.

    Args:
        content: the text.
        name: what to call it in errors.

    Raises:
        InputError: not UTF-8, not JSON or not an object.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8-sig")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(name, content[:40], f"one JSON object in UTF-8 ({error})") from None
    if not isinstance(value, dict):
        raise InputError(name, printable(value), "one JSON object")
    return value
