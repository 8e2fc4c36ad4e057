"""Shell completion of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def complete_model(incomplete: str) -> list[str]:
    """Built-in models whose name, or name without the organisation, starts so.

    >>> "llama-7b" in complete_model("llama-7")
    True
    """
    from kvplan.model_library import model_file, model_names

    return _started(incomplete, {name: model_file(name).aliases for name in model_names()})


def complete_gpu(incomplete: str) -> list[str]:
    """Built-in machines whose name or alias starts so.

    >>> complete_gpu("a100-80gb-p")
    ['a100-80gb-pcie']
    """
    from kvplan.hardware_library import hardware_aliases

    return _started(incomplete, hardware_aliases())


def _started(incomplete: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    start = incomplete.casefold()
    spelled = {
        spelling
        for name, aliases in names.items()
        for spelling in (name, name.rpartition("/")[2], *aliases)
    }
    return sorted(s for s in spelled if s.casefold().startswith(start))


def complete_runtime(incomplete: str) -> list[str]:
    """Runtimes that plans are exported to.

    >>> complete_runtime("vl")
    ['vllm']
    """
    from kvplan.export.registry import REGISTRY

    return _started(incomplete, {name: exporter.aliases for name, exporter in REGISTRY.items()})
