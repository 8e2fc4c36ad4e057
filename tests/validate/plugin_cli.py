"""Commands of ``kvplan_validate`` in this process, whether or not the package is installed."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any
from unittest import mock

import cli_runner

WHERE = {
    "profile": "kvplan_validate.commands:profile",
    "validate": "kvplan_validate.validate_command:validate",
}


def _entry_points(group: str, name: str) -> list[EntryPoint]:
    return [EntryPoint(name, WHERE[name], group)] if name in WHERE else []


def run(*argv: str, **options: Any) -> cli_runner.Result:
    """Run ``kvplan ARGV``."""
    with mock.patch("importlib.metadata.entry_points", _entry_points):
        return cli_runner.run(*argv, **options)
