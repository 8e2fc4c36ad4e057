"""Plan documents as JSON files: reading, writing, versions, the schema."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from kvplan.errors import InputError
from kvplan.plan import SCHEMA_VERSION, Plan

LARGEST_FILE = 256 * 2**20


class _Version(msgspec.Struct):
    kvplan_plan: str


def encode(plan: Plan) -> str:
    """The JSON text of a plan; equal plans give equal text."""
    return json.dumps(msgspec.to_builtins(plan), indent=1, ensure_ascii=False) + "\n"


def decode(text: str | bytes, name: str = "plan") -> Plan:
    """Read a plan from JSON text.

    Args:
        text: the document.
        name: what to call it in errors.

    Raises:
        InputError: not JSON, another major version, or a value that is not accepted.
    """
    raw = text.encode() if isinstance(text, str) else text
    try:
        version = msgspec.json.decode(raw, type=_Version).kvplan_plan
    except msgspec.ValidationError as error:
        raise _refused(raw, name, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(name, _start(raw), f"a kvplan plan in JSON ({error})") from None
    _check_version(version, name)
    try:
        return msgspec.json.decode(raw, type=Plan)
    except msgspec.ValidationError as error:
        raise _refused(raw, name, error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(name, _start(raw), f"a kvplan plan in JSON ({error})") from None


def _check_version(version: str, name: str) -> None:
    own_major, own_minor = (int(part) for part in SCHEMA_VERSION.split("."))
    major, _, minor = version.partition(".")
    if len(version) > 20 or not (major.isdecimal() and minor.isdecimal()):
        raise InputError(f"{name}: kvplan_plan", version, f"a version such as {SCHEMA_VERSION}")
    if int(major) != own_major or int(minor) > own_minor:
        raise InputError(
            f"{name}: kvplan_plan",
            version,
            f"version {own_major}.0 to {SCHEMA_VERSION}; this file needs another kvplan",
        )


def _start(raw: bytes) -> str:
    return raw[:40].decode(errors="replace")


def _refused(raw: bytes, name: str, error: msgspec.ValidationError) -> InputError:
    """A message with the key path, the value found there and what would be accepted."""
    text = str(error)
    accepted, _, where = text.partition(" - at `")
    where = where.removesuffix("`").removeprefix("$").removeprefix(".")
    field = f"{name}: {where}" if where else name
    return InputError(field, _value_at(raw, where), accepted[0].lower() + accepted[1:])


def _value_at(raw: bytes, where: str) -> object:
    try:
        value: Any = json.loads(raw)
        for part in where.replace("]", "").replace("[", ".").split("."):
            if part in ("", "..."):
                continue
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None
    if isinstance(value, (dict, list)):
        return f"{type(value).__name__} of {len(value)}"
    return value


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises:
        InputError: no such file, too large, or not a plan.
    """
    file = Path(path)
    try:
        if file.is_file() and file.stat().st_size > LARGEST_FILE:
            raise InputError("plan", str(path), "a plan file below 256 MiB")
        raw = file.read_bytes()
    except OSError as error:
        raise InputError("plan", str(path), f"a plan file ({error.strerror})") from None
    return decode(raw, str(path))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(
            "output", str(path), f"a file that can be written ({error.strerror})"
        ) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(
            "output", str(path), f"a file that can be written ({error.strerror})"
        ) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan file whole or not at all."""
    write_text(path, encode(plan))


def schema() -> dict[str, Any]:
    """The JSON Schema of plan documents."""
    document = msgspec.json.schema(Plan)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvplan plan {SCHEMA_VERSION}",
        **document,
    }
