"""Mooncake's own config class, and vLLM's reader of the same file, take what is exported."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exported import demand
from runtime import INSTALLED, module

from kvplan.export import mooncake
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42)
KINDS = ["fetch", "recompute", "packed", "host", "disk", "grouped", "latent"]


def reader(name: str) -> Any:
    """The class that reads the file, in Mooncake or in vLLM."""
    if name == "vllm":
        return module("vllm", "vllm.distributed.mooncake_store").MooncakeStoreConfig
    return module("mooncake", "mooncake.mooncake_config").MooncakeConfig


@pytest.mark.parametrize("name", ["mooncake", "vllm"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_config_takes_every_key(
    tmp_path: Path, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = reader(name)
    file = tmp_path / "mooncake.json"
    made = mooncake.export(demand(kind), replace(ROOMY, ranks=2), str(file))
    file.write_text(made.text, encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        found = config.from_file(str(file))
    assert not caplog.records
    values = mooncake.parse(made.text)
    known = {field.name for field in dataclasses.fields(config)}
    unknown = values.keys() - known
    assert unknown == ({"local_hostname"} if name == "vllm" else set())
    for key in values.keys() & known:
        assert getattr(found, key) == values[key]
    assert made.pool is not None
    assert 2 * found.global_segment_size >= made.pool.total_bytes


def test_ten_gb_would_be_gib() -> None:
    """Why sizes are written as numbers."""
    if "mooncake" not in INSTALLED:
        pytest.skip("mooncake is not installed; .ci/exports does")
    parse = importlib.import_module("mooncake.mooncake_config")._parse_segment_size
    assert parse("10GB") == 10 * 2**30
