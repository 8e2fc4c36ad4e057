"""The models that come with kvplan, by name, and any other by its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

import msgspec

from kvplan.datafiles import data_dir
from kvplan.errors import InputError
from kvplan.hf import parse_json, read_cache, read_config, read_json, read_keys
from kvplan.model import ModelSpec
from kvplan.names import resolve
from kvplan.quantised_names import without_quantisation

MOST_KEPT = 256
"""Models by name that are kept once they were read."""


class ModelFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of ``models/``.

    Args:
        name: canonical name, as on the Hugging Face hub.
        aliases: other names for the same shape.
        grade: V, P, D or R: how well the configuration is known (see models/README.md).
        source: where the configuration comes from.
        config: the ``config.json``.
    """

    name: str
    aliases: tuple[str, ...] = ()
    grade: Literal["V", "P", "D", "R"]
    source: str
    config: dict[str, object]


class _Indexed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    aliases: tuple[str, ...] = ()


@cache
def _index() -> dict[str, _Indexed]:
    content = (data_dir("models") / "index.json").read_bytes()
    return msgspec.json.decode(content, type=dict[str, _Indexed])


def model_names() -> tuple[str, ...]:
    """Canonical names of the built-in models, in alphabetical order.

    >>> "meta-llama/Llama-2-7b-hf" in model_names()
    True
    """
    return tuple(sorted(_index()))


def model_file(name: str) -> ModelFile:
    """The file of a built-in model: its configuration, aliases, grade and source.

    Args:
        name: a name, forgiving (see ``kvplan.names.resolve``).

    Raises:
        InputError: no such model, or several.

    >>> model_file("llama-7b").name
    'huggyllama/llama-7b'
    """
    index = _index()
    entries = {canonical: indexed.aliases for canonical, indexed in index.items()}
    entry = index[resolve(name, entries, "model")]
    return _typed(read_json(data_dir("models") / entry.file), entry.file)


def load_model(name_or_path: str) -> ModelSpec:
    """Read a built-in model by name, or any model by its file.

    Args:
        name_or_path: a name such as ``llama-2-7b``; or a path to a ``config.json``, to a folder
            that holds one, to a GGUF file, or to a file in the format of ``models/``.

    Raises:
        InputError: no such name or file, or a configuration that cannot be used.

    >>> load_model("Qwen/Qwen3-8B").layers[0].kv_bytes(2)
    4096
    """
    return _read(name_or_path, read_config)


def load_cache(name_or_path: str) -> ModelSpec:
    """As `load_model`, for what is cached: figures that only weights need may be missing.

    Args:
        name_or_path: as for `load_model`; or the text of a JSON object.

    Raises:
        InputError: as `load_model`.

    >>> load_cache('{"n_layer": 2, "n_embd": 64, "n_head": 4, "multi_query": true}').kv_bytes(1, 2)
    128.0
    """
    if isinstance(name_or_path, str) and name_or_path.lstrip().startswith("{"):
        return read_cache(parse_json(name_or_path, "model"), name="model", source="command line")
    return _read(name_or_path, read_cache)


def _read(name_or_path: str, read: Callable[..., ModelSpec]) -> ModelSpec:
    if not isinstance(name_or_path, str) or not name_or_path.strip():
        raise InputError("model", name_or_path, "a model name or a path to a config.json")
    if not _is_path(name_or_path):
        return named(name_or_path, read)
    content = read_keys(name_or_path)
    if "config" not in content or "model_type" in content:
        return read(content, name=name_or_path, source=f"file {name_or_path}")
    file = _typed(content, name_or_path)
    return read(file.config, name=file.name, source=f"{file.source} (grade {file.grade})")


@lru_cache(MOST_KEPT)
def named(name: str, read: Callable[..., ModelSpec]) -> ModelSpec:
    """A built-in model, or one whose weights its name says to be quantised; its file is read once.

    A quantised model keeps the ending in its name, so that the name means it again.
    """
    try:
        file, ending = model_file(name), None
    except InputError as unknown:
        ending = without_quantisation(name)
        if ending is None:
            raise
        try:
            file = model_file(ending[0])
        except InputError:
            raise unknown from None
    model = read(file.config, name=file.name, source=f"{file.source} (grade {file.grade})")
    if ending is None:
        return model
    base, dtype = ending
    tail = name.strip()[len(base) :]
    if not dtype and read is read_config:
        accepted = "a model, or its quantisation to 16, 8 or 4 bits, such as -Q4_K_M or -FP8"
        raise InputError("model", name, accepted)
    changed = {"weight_dtype": dtype} if dtype else {}
    return msgspec.structs.replace(model, name=f"{model.name}{tail}", **changed)


def _is_path(text: str) -> bool:
    """Whether a text is a path; a folder without ``config.json`` does not hide a name."""
    if (
        text.lower().endswith((".json", ".gguf"))
        or text.startswith((".", "/"))
        or os.path.isfile(text)
    ):
        return True
    return os.path.isfile(os.path.join(text, "config.json"))


def _typed(content: dict[str, object], where: str) -> ModelFile:
    try:
        return msgspec.convert(content, type=ModelFile)
    except msgspec.ValidationError as error:
        raise InputError(where, "content", f"the format of models/README.md ({error})") from None
