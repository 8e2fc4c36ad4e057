"""Where the data files are: the one place that computes a path to them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from kvplan.errors import KvplanError


def data_dir(kind: Literal["models", "hwprofiles"]) -> Path:
    """Folder of the data files that come with kvplan.

    Args:
        kind: ``models`` or ``hwprofiles``.

    Returns:
        The folder inside an installed package, else the one of the checkout.

    Raises:
        KvplanError: the installation has no such folder.

    >>> (data_dir("models") / "index.json").is_file()
    True
    """
    inside = Path(str(files("kvplan") / kind))
    beside = Path(__file__).parents[2] / kind
    for folder in (inside, beside):
        if folder.is_dir():
            return folder
    raise KvplanError(f"no {kind} folder at {inside} or {beside}: install kvplan again")
