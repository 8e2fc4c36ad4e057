"""The machines that come with kvplan, by name, and any other by its file."""

from __future__ import annotations

import os
import tomllib
from functools import cache

from kvplan.datafiles import data_dir
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.hardware_file import read_hardware_file
from kvplan.names import resolve

_INDEX = "index.toml"


@cache
def hardware_aliases() -> dict[str, tuple[str, ...]]:
    """Canonical name of every built-in machine to its other names, in alphabetical order.

    Names are those of the files; ``hwprofiles/index.toml`` repeats their aliases, so that a
    name is found without reading every file.

    >>> hardware_aliases()["a100-40gb-pcie"]
    ('a100', 'a100-40gb', 'NVIDIA A100-PCIE-40GB')
    """
    folder = data_dir("hwprofiles")
    index = tomllib.loads((folder / _INDEX).read_text(encoding="utf-8"))
    names = sorted(path.stem for path in folder.glob("*.toml") if path.name != _INDEX)
    return {name: tuple(index.get(name, ())) for name in names}


def hardware_names() -> tuple[str, ...]:
    """Canonical names of the built-in machines, in alphabetical order.

    >>> "a100-40gb-pcie" in hardware_names()
    True
    """
    return tuple(hardware_aliases())


def load_hardware(name_or_path: str) -> HardwareProfile:
    """Read a built-in machine by name, or any machine by its file.

    Args:
        name_or_path: a name, forgiving (see ``kvplan.names.resolve``); or a path to a ``.toml``
            file in the format of ``hwprofiles/README.md``.

    Raises:
        InputError: no such name or file, or a file that cannot be used.

    >>> load_hardware("A100").title
    'NVIDIA A100-PCIe-40GB, PCIe 4.0 x16'
    """
    if not isinstance(name_or_path, str) or not name_or_path.strip():
        raise InputError("gpu", name_or_path, "a hardware name or a path to a .toml file")
    if name_or_path.endswith(".toml") or os.sep in name_or_path:
        return read_hardware_file(name_or_path)
    return built_in(resolve(name_or_path, hardware_aliases(), "gpu", partial=True))


@cache
def built_in(name: str) -> HardwareProfile:
    """A built-in machine by its canonical name, its file read once."""
    return read_hardware_file(data_dir("hwprofiles") / f"{name}.toml")
