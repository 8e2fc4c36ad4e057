"""The runtimes that plans are exported to."""

from __future__ import annotations

from kvplan.export import (
    dynamo,
    flexgen,
    kvpr,
    llamacpp,
    lmcache,
    mooncake,
    sglang,
    transformers,
    trtllm,
    vllm,
)
from kvplan.export.exporter import Exporter
from kvplan.names import resolve

REGISTRY: dict[str, Exporter] = {
    module.EXPORTER.name: module.EXPORTER
    for module in (
        vllm, lmcache, sglang, trtllm, dynamo, mooncake, transformers, flexgen, kvpr, llamacpp,
    )
}  # fmt: skip


def find(name: str) -> Exporter:
    """The exporter of a runtime, its name spelled forgivingly.

    Raises:
        InputError: no such runtime.

    >>> find("vLLM").name, find("lm-cache").name, find("llama.cpp").name
    ('vllm', 'lmcache', 'llamacpp')
    """
    names = {known: exporter.aliases for known, exporter in REGISTRY.items()}
    return REGISTRY[resolve(name, names, "--to")]
