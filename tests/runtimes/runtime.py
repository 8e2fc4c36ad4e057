"""Runtimes whose own parsers judge exports; they are installed by ``.ci/exports`` alone."""

from __future__ import annotations

import importlib
import os
from importlib import metadata
from typing import Any

import pytest

from kvplan.export.registry import REGISTRY

INSTALLED = os.environ.get("KVPLAN_RUNTIMES", "").split()
"""Runtimes that are there: a test of one of these may not be skipped."""


def module(runtime: str, name: str) -> Any:
    """A module of a runtime, in the version that the exporter writes for; or a skip.

    Args:
        runtime: name of the exporter.
        name: dotted name of the module.
    """
    if runtime not in INSTALLED:
        pytest.skip(f"{runtime} is not installed; .ci/exports does")
    return importlib.import_module(name)


def same_version(runtime: str, distribution: str) -> None:
    """Check that what is installed is what the exporter says it writes for."""
    module(runtime, distribution.split("-")[0])
    assert metadata.version(distribution) == REGISTRY[runtime].version
