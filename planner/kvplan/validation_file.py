"""Validation results as JSON files: predicted beside measured steps, and what kind each is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from kvplan.errors import InputError

LARGEST_FILE = 256 * 2**20


class _Result(msgspec.Struct):
    """What every result must hold to be shown; there is more in the file."""

    case: dict[str, Any]
    predicted_s: float | None = None
    measured_s: float | None = None
    error: float | None = None
    busy_s: dict[str, float] = {}
    decision: dict[str, Any] = {}


class _Document(msgspec.Struct):
    kvplan_validation: str
    provenance: dict[str, Any]
    results: list[_Result]


def read_results(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what ``kvplan validate -o`` wrote.

    Args:
        path: the file.

    Returns:
        The document: ``provenance``, ``results``.

    Raises:
        InputError: no such file, or not validation results.
    """
    file = Path(path)
    try:
        if file.is_file() and file.stat().st_size > LARGEST_FILE:
            raise InputError("results", str(path), "a results file below 256 MiB")
        raw = file.read_bytes()
    except OSError as error:
        raise InputError("results", str(path), f"a results file ({error.strerror})") from None
    return decode_results(raw, str(path))


def decode_results(raw: bytes, name: str = "results") -> dict[str, Any]:
    """Read validation results from JSON text.

    Args:
        raw: the text.
        name: what to call it in errors.

    Raises:
        InputError: not validation results.
    """
    try:
        msgspec.json.decode(raw, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            name,
            raw[:40].decode(errors="replace"),
            f"results that `kvplan validate -o` wrote ({error})",
        ) from None
    document: dict[str, Any] = msgspec.json.decode(raw)
    return document


def group_of(result: dict[str, Any]) -> str:
    """What limits or distinguishes a case, in a reader's words.

    >>> group_of({"case": {"mode": "eager"}, "decision": {}, "busy_s": {}, "predicted_s": 1.0})
    'launched eagerly'
    """
    shares, busy = result["decision"].get("shares", {}), result["busy_s"]
    if result["case"].get("mode") == "eager":
        return "launched eagerly"
    if "attend_host" in shares:
        return "attention on the host beside the link"
    if shares.get("resident", 0.0) == 1.0:
        return "everything resident"
    if busy.get("h2d", 0.0) >= 0.95 * result["predicted_s"]:
        return "limited by the link"
    return "limited by the GPU, or short"
