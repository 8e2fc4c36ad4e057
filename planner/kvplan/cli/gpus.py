"""``kvplan gpus``: the machines that come with kvplan, or one with every number and its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.catalogue import show_catalogue
from kvplan.cli.completion import complete_gpu
from kvplan.cli.output import Json

if TYPE_CHECKING:
    from kvplan.hardware import HardwareProfile

EPILOG = """
Examples:

\b
  kvplan gpus
  kvplan gpus show h200
  kvplan gpus ./my-card.toml --json
"""

_MEANT = ("kind", "source", "note", "date")


def gpus(
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[show] [NAME|PATH]", autocompletion=complete_gpu,
                       help="One machine, or a .toml profile. [default: all]"),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """List the machines that come with kvplan, or show one with the source of every number."""
    show_catalogue("gpus", name, as_json, rows=_all, detail=_detail)


def _all() -> list[dict[str, Any]]:
    from kvplan.hardware_library import hardware_names, load_hardware

    return [_row(load_hardware(name)) for name in hardware_names()]


def _row(machine: HardwareProfile) -> dict[str, Any]:
    gpu = machine.gpu
    return {
        "name": machine.name,
        "title": machine.title,
        "aliases": list(machine.aliases),
        "kind": machine.kind,
        "date": machine.date,
        "memory_bytes": gpu.memory_bytes,
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "flop_per_s": dict(gpu.flop_per_s),
        "unified": machine.unified,
        "link": machine.links and machine.links.slot and str(machine.links.slot),
        **_rates(machine),
        "dram_bytes": machine.host.dram_bytes,
    }


def _rates(machine: HardwareProfile) -> dict[str, float | None]:
    """Bytes per second of the link, each way; null where there is none."""
    links = machine.links
    return {
        "h2d_bytes_per_s": None if links is None else links.h2d.copy.rate(),
        "d2h_bytes_per_s": None if links is None else links.d2h.copy.rate(),
    }


def _link_rates(machine: HardwareProfile) -> dict[str, Any] | None:
    """What the link does in each case that slows it, bytes per second; null where none is known."""
    links = machine.links
    if links is None:
        return None
    cases = {}
    for name in ("h2d", "d2h"):
        one = getattr(links, name)
        cases[name] = {
            "raw_bytes_per_s": one.raw_bytes_per_s,
            "pinned_bytes_per_s": one.copy.rate(),
            "both_directions_bytes_per_s": one.shared_bytes_per_s(),
            "pageable_bytes_per_s": one.pageable_bytes_per_s,
            "far_node_bytes_per_s": one.far_bytes_per_s,
            "all_gpus_bytes_per_s": links.uplink and links.rate(name, gpus=links.uplink.gpus),
        }
    return cases


def _detail(name: str) -> dict[str, Any]:
    import tomllib
    from pathlib import Path

    from kvplan.cli.question import is_profile_path
    from kvplan.datafiles import data_dir
    from kvplan.hardware_library import load_hardware

    machine = load_hardware(name)
    file = Path(name) if is_profile_path(name) else data_dir("hwprofiles") / f"{machine.name}.toml"
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    more = {"link_rates": _link_rates(machine), "digest": machine.digest}
    return _row(machine) | more | {"numbers": dict(numbers(content))}


def numbers(content: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every number of a hardware file under its key path, with where it is from.

    >>> dict(numbers({"gpu": {"memory": {"value": 40, "unit": "GiB", "kind": "assumed"}}}))
    {'gpu.memory': {'value': 40, 'unit': 'GiB', 'kind': 'assumed'}}
    """
    if isinstance(content, dict) and ("value" in content or "points" in content):
        yield path, {k: content[k] for k in ("value", "unit", "points", *_MEANT) if k in content}
        return
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, inside in items:
        if isinstance(inside, dict | list):
            yield from numbers(inside, f"{path}.{key}" if path else str(key))
