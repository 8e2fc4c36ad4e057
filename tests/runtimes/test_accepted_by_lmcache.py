"""LMCache's own config class and server parser take what is exported."""

from __future__ import annotations

import argparse
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exported import demand
from runtime import module, same_version

from kvplan.export import flat_yaml, lmcache
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42, disk_path="/kv")
KINDS = ["fetch", "recompute", "packed", "host", "disk", "grouped", "latent"]


class Heard(logging.Handler):
    """Messages of at least a warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def loaded(file: Path) -> tuple[Any, list[str]]:
    """The config of a file, and what LMCache complained of."""
    config = module("lmcache", "lmcache.v1.config")
    base = module("lmcache", "lmcache.v1.config_base")
    heard = Heard()
    loggers = [m.logger for m in (config, base)]
    for logger in loggers:
        logger.addHandler(heard)
    try:
        found = config.LMCacheEngineConfig.from_file(str(file))
        found.validate()
    finally:
        for logger in loggers:
            logger.removeHandler(heard)
    return found, heard.messages


def test_the_version_is_the_one_written_for() -> None:
    same_version("lmcache", "lmcache")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_config_takes_every_key(tmp_path: Path, kind: str, ranks: int) -> None:
    """Unknown keys only warn there, and values that do not convert become None."""
    file = tmp_path / "lmcache.yaml"
    deployment = replace(ROOMY, ranks=ranks)
    made = lmcache.export(demand(kind), deployment, str(file))
    file.write_text(made.text, encoding="utf-8")
    found, complaints = loaded(file)
    assert complaints == []
    values = flat_yaml.read(made.text)
    known = module("lmcache", "lmcache.v1.config")._CONFIG_DEFINITIONS
    assert values.keys() <= known.keys()
    for name, value in values.items():
        got = getattr(found, name)
        assert got is not None
        assert got == value or name == "local_disk"
    assert made.pool is not None
    assert int(found.max_local_cpu_size * 1024**3) == made.pool.rank_bytes


def test_a_misspelt_key_is_heard(tmp_path: Path) -> None:
    """The check above can fail."""
    file = tmp_path / "lmcache.yaml"
    file.write_text("chunk_sise: 64\n", encoding="utf-8")
    assert loaded(file)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_takes_its_flags(kind: str) -> None:
    made = lmcache.export(demand(kind), ROOMY, "lmcache.yaml")
    assert made.pool is not None
    words = shlex.split(lmcache.server_command(made.pool))
    storage = module("lmcache", "lmcache.v1.distributed.config")
    parser = argparse.ArgumentParser(exit_on_error=False)
    module("lmcache", "lmcache.v1.multiprocess.config").add_mp_server_args(parser)
    storage.add_storage_manager_args(parser)
    found = parser.parse_args(words[2:])
    config = storage.parse_args_to_config(found)
    assert config.l1_manager_config.memory_config.size_in_bytes == made.pool.total_bytes
    assert config.eviction_config.trigger_watermark == lmcache.WATERMARK
    assert found.chunk_size == made.pool.chunk_tokens
