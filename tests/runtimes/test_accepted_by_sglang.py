"""SGLang's own parser takes what is exported, and its rules rewrite nothing."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from exported import demand
from runtime import module, same_version

from kvplan.export import sglang
from kvplan.export.command_line import read_script
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42, disk_path="/kv")
KINDS = ["fetch", "recompute", "packed", "host", "disk", "grouped", "latent"]


def pools() -> Any:
    """Host pools; their package imports picture models, and those torchvision, for nothing here."""
    parsed('exec python -m sglang.launch_server --model-path m "$@"\n')
    stubs = {}
    for part in ("", ".transforms", ".transforms.functional"):
        stub = mock.MagicMock()
        stub.__spec__ = ModuleSpec(f"torchvision{part}", None)
        stubs[f"torchvision{part}"] = sys.modules.setdefault(f"torchvision{part}", stub)
    try:
        return module("sglang", "sglang.srt.mem_cache.pool_host.base")
    finally:
        for name in stubs:
            del sys.modules[name]


def parsed(text: str) -> Any:
    arguments = module("sglang", "sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser(exit_on_error=False)
    arguments.add_cli_args(parser)
    return parser.parse_args(read_script(text)[1][len(sglang.PROGRAM.split()) :])


def test_the_version_is_the_one_written_for() -> None:
    same_version("sglang", "sglang")


@pytest.mark.parametrize("kind", KINDS)
def test_the_parser_takes_every_option(kind: str) -> None:
    text = sglang.export(demand(kind), replace(ROOMY, ranks=2), "sglang.sh").text
    found = parsed(text)
    for name, value in sglang.parse(text).items():
        if name.startswith("--"):
            got = getattr(found, name[2:].replace("-", "_"))
            assert got == (True if value is None else value), name


def test_a_fraction_of_a_gigabyte_is_no_size() -> None:
    """Why sizes are whole: the check above can fail."""
    text = sglang.export(demand("fetch"), ROOMY, "sglang.sh").text
    whole = next(line for line in text.splitlines() if "--hicache-size" in line)
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parsed(text.replace(whole, "  --hicache-size 1.5 \\"))


@pytest.mark.parametrize("pool", ["plan", "all"])
def test_no_option_is_rewritten(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang changes pairs of layout and copy that do not go together, with a warning."""
    hook = module("sglang", "sglang.srt.arg_groups.hicache_hook")
    given = parsed(sglang.export(demand("fetch"), replace(ROOMY, pool=pool), "sglang.sh").text)
    rewritten: dict[str, Any] = {}

    def declare(arguments: Any, source: str, **fields: Any) -> None:
        rewritten.update(fields)

    monkeypatch.setattr(hook, "declare_resolution", declare)
    monkeypatch.setattr(hook, "resolving_view", lambda arguments: SimpleNamespace(**vars(given)))
    hook.resolve_layout_io_compatibility(given)
    hook.resolve_storage_layout_compatibility(given)
    hook.validate_hicache_host_memory_mode(given)
    assert rewritten == {}
    given.hicache_io_backend = "direct"
    hook.resolve_layout_io_compatibility(given)
    assert rewritten  # so that the check above can fail


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_pool_has_the_tokens_that_were_promised(kind: str, ranks: int) -> None:
    """The host pool itself, without its buffer."""
    base = pools()
    torch = module("sglang", "torch")
    deployment = replace(ROOMY, ranks=ranks)
    made = sglang.export(demand(kind), deployment, "sglang.sh")
    found = parsed(made.text)

    class Pool(base.HostKVCache):  # type: ignore[name-defined,misc]
        """Geometry alone."""

    Pool.__abstractmethods__ = frozenset()
    pool = Pool(
        dtype=torch.float16, device_capacity_tokens=1, start_layer=0, end_layer=1,
        size_per_token=int(demand(kind).rank_token_bytes(ranks)), host_to_device_ratio=2.0,
        host_size=found.hicache_size, page_size=found.page_size, layout=found.hicache_mem_layout,
        pin_memory=False, device="cpu", is_dummy=True,
    )  # fmt: skip
    assert made.pool is not None
    assert pool.size == made.pool.tokens
    assert pool.page_num == made.pool.chunks


def test_the_reserve_is_the_one_we_check() -> None:
    base = pools()
    assert base.HICACHE_HOST_MEMORY_RESERVE_BYTES == sglang.RESERVE_BYTES


def test_the_file_backend_reads_its_environment() -> None:
    text = sglang.export(demand("disk"), ROOMY, "sglang.sh").text
    environment, _ = read_script(text)
    known = Path(module("sglang", "sglang").__file__).parent / "srt/environ.py"
    for name in environment:
        assert f"    {name} = Env" in known.read_text("utf-8")
    evictor = module("sglang", "sglang.srt.mem_cache.storage.file.lru_file_evictor")
    size = environment["SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE"]
    assert evictor._parse_size_to_bytes(size) == int(size) > 0
