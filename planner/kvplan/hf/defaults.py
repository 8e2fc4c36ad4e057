"""Defaults of the classes of transformers, for the keys that nested configurations leave out.

A nested ``text_config`` is saved without the values that equal its class's; a flat configuration is
saved whole. So defaults fill nested parts, and a flat file must say what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

SUFFIXES = ("_text_model", "_text")


@cache
def _table() -> dict[str, Any]:
    content = files("kvplan.hf").joinpath("class_defaults.json").read_bytes()
    table: dict[str, Any] = msgspec.json.decode(content)
    return table


def class_defaults(model_type: str | None) -> Mapping[str, object]:
    """Values of a class for the keys that matter here; empty where the class is not known.

    >>> class_defaults("llama")["num_hidden_layers"]
    32
    """
    found: Mapping[str, object] = _table()["classes"].get(model_type or "", {})
    return found


def class_default(model_type: str | None, key: str) -> object:
    """One value of a class; None where it has none."""
    return class_defaults(model_type).get(key)


def nested_type(model_type: str | None) -> str | None:
    """The class of the language part inside a composite class; None where it is not known.

    >>> nested_type("llava")
    'llama'
    """
    found: str | None = _table()["nested"].get(model_type or "")
    return found


def plain_type(model_type: str | None) -> str | None:
    """A model type without the suffix of a nested part.

    >>> plain_type("gemma3_text"), plain_type("mllama_text_model")
    ('gemma3', 'mllama')
    """
    for suffix in SUFFIXES:
        if model_type and model_type.endswith(suffix):
            return model_type.removesuffix(suffix)
    return model_type
