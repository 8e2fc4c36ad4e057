"""The runtimes that plans are exported to."""

from __future__ import annotations

from kvplan.export import lmcache, vllm
from kvplan.export.exporter import Exporter
from kvplan.names import resolve

REGISTRY: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (
        vllm.EXPORTER,
        lmcache.EXPORTER,
    )
}  # fmt: skip


def find(name: str) -> Exporter:
    """The exporter of a runtime, its name spelled forgivingly.

    Raises:
        InputError: no such runtime.

    >>> find("vLLM").name, find("lm-cache").name
    ('vllm', 'lmcache')
    """
    names = {known: exporter.aliases for known, exporter in REGISTRY.items()}
    return REGISTRY[resolve(name, names, "--to")]
