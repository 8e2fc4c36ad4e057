"""FlexGen's own parser, policy and cache allocation take what is exported."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest
from exported import demand
from runtime import module, same_version

from kvplan.export import flexgen, kvpr
from kvplan.export.command_line import read_script
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42, disk_path="/kv")
KINDS = ["fetch", "recompute", "packed", "host", "disk", "resident"]


def parsed(text: str, program: str) -> Any:
    parser = argparse.ArgumentParser(exit_on_error=False)
    module("flexgen", "flexgen.flex_opt").add_parser_arguments(parser)
    words = read_script(text)[1][len(program.split()) :]
    if program == kvpr.PROGRAM:  # what KVPR's copy of the parser has beside FlexGen's
        parser.add_argument("--recompute-len", type=int, default=0)
    return parser.parse_args(words)


def test_the_version_is_the_one_written_for() -> None:
    same_version("flexgen", "flexgen")


@pytest.mark.parametrize("kind", KINDS)
def test_the_parser_takes_every_option(kind: str) -> None:
    text = flexgen.export(demand(kind), ROOMY, "flexgen.sh").text
    found = parsed(text, flexgen.PROGRAM)
    assert found.percent == list(flexgen.parse(text)["--percent"])
    assert len(found.percent) == 6
    assert found.overlap is True
    assert found.gpu_batch_size * found.num_gpu_batches == demand(kind).batch
    assert found.prompt_len + found.gen_len == demand(kind).tokens
    assert found.cpu_cache_compute == (kind == "host")


@pytest.mark.parametrize("kind", KINDS)
def test_kvpr_has_flexgens_options(kind: str) -> None:
    text = kvpr.export(demand(kind), ROOMY, "kvpr.sh").text
    found = parsed(text, kvpr.PROGRAM)
    lengths = [layer.tokens.get("recompute", 0) for layer in demand(kind).plan.decision.layers]
    assert min(lengths) <= found.recompute_len <= max(lengths)
    assert found.percent[2:] == [0, 100, 0, 100]


@pytest.mark.parametrize("kind", ["fetch", "recompute", "packed", "host", "disk"])
def test_the_mixed_device_places_what_was_promised(kind: str) -> None:
    """Its own rounding, with nothing allocated."""
    backend = module("flexgen", "flexgen.pytorch_backend")
    options = flexgen.export(demand(kind), ROOMY, "flexgen.sh")
    found = parsed(options.text, flexgen.PROGRAM)
    placed: list[list[int]] = []

    class Mixed(backend.TorchMixedDevice):  # type: ignore[name-defined,misc]
        def allocate(self, shape: Any, dtype: Any, seg_lengths: list[int], **more: Any) -> None:
            placed.append([shape[backend.SEG_DIM], *seg_lengths])

    layer = demand(kind).model.layers[0]
    on_gpu, on_cpu = found.percent[2:4]
    Mixed([]).init_cache_one_gpu_batch(
        SimpleNamespace(n_head=layer.query_heads, input_dim=layer.hidden),
        SimpleNamespace(prompt_len=found.prompt_len, gen_len=found.gen_len),
        SimpleNamespace(
            gpu_batch_size=found.gpu_batch_size, cache_gpu_percent=on_gpu,
            cache_cpu_percent=on_cpu, cache_disk_percent=100 - on_gpu - on_cpu,
        ),
    )  # fmt: skip
    whole, gpu, cpu, disk = placed[0]
    back = flexgen.read_back(options.text, demand(kind), ROOMY)
    total = demand(kind).all_bytes
    assert back.hbm_bytes == pytest.approx(total * gpu / whole)
    assert back.host_bytes == pytest.approx(total * cpu / whole)
    assert back.disk_bytes == pytest.approx(total * disk / whole)
