"""Commands of ``kvplan_validate`` in this process, whether or not the package is installed."""

from __future__ import annotations

from importlib import metadata
from typing import Any
from unittest import mock

import cli_runner

WHERE = {
    "profile": "kvplan_validate.commands:profile",
    "validate": "kvplan_validate.validate_command:validate",
}


_REAL = metadata.entry_points


def _entry_points(**wanted: str) -> Any:
    """Those of kvplan as in pyproject.toml; those of others as installed."""
    if wanted.get("group") != "kvplan.commands":
        return _REAL(**wanted)
    name = wanted["name"]
    return [metadata.EntryPoint(name, WHERE[name], "kvplan.commands")] if name in WHERE else []


def run(*argv: str, **options: Any) -> cli_runner.Result:
    """Run ``kvplan ARGV``."""
    with mock.patch("importlib.metadata.entry_points", _entry_points):
        return cli_runner.run(*argv, **options)
