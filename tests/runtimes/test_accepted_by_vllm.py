"""vLLM's own parser, config classes and offloading spec take what is exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from exported import demand
from runtime import module, same_version

from kvplan.export import flat_yaml, lmcache, vllm
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42, shm_bytes=2**42, disk_path="/kv")
KINDS = ["fetch", "recompute", "packed", "host", "disk", "grouped", "latent"]


def parsed(file: Path) -> Any:
    """Arguments of ``vllm serve --config FILE``; unknown options end the parser."""
    platforms = module("vllm", "vllm.platforms")
    platforms._current_platform = module("vllm", "vllm.platforms.cpu").CpuPlatform()
    arguments = module("vllm", "vllm.engine.arg_utils").EngineArgs
    parser = module("vllm", "vllm.utils.argparse_utils").FlexibleArgumentParser()
    parser.add_argument("--config")
    arguments.add_cli_args(parser)
    return parser.parse_args(["--config", str(file)])


def written(tmp_path: Path, kind: str, deployment: Deployment) -> tuple[Path, Any]:
    file = tmp_path / "vllm.yaml"
    made = vllm.export(demand(kind), deployment, str(file))
    file.write_text(made.text, encoding="utf-8")
    return file, made


def test_the_version_is_the_one_written_for() -> None:
    same_version("vllm", "vllm")


@pytest.mark.parametrize("kind", KINDS)
def test_the_parser_takes_every_option(tmp_path: Path, kind: str) -> None:
    file, made = written(tmp_path, kind, ROOMY)
    found = parsed(file)
    options = flat_yaml.read(made.text)
    for name, value in options.items():
        if name != "kv-transfer-config":
            assert getattr(found, name.replace("-", "_")) == value, name
    transfer = found.kv_transfer_config
    assert transfer.kv_connector == "OffloadingConnector"
    assert transfer.kv_role == "kv_both"
    extra = options["kv-transfer-config"]["kv_connector_extra_config"]
    assert transfer.kv_connector_extra_config == extra
    assert None not in extra.values()


def test_the_connector_is_registered() -> None:
    factory = module("vllm", "vllm.distributed.kv_transfer.kv_connector.factory")
    registered = factory.KVConnectorFactory._registry
    assert {"OffloadingConnector", "LMCacheConnectorV1", "LMCacheMPConnector"} <= registered.keys()


@pytest.mark.parametrize("name", vllm.EXTRA_KEYS)
def test_every_key_of_the_connector_is_read_somewhere(name: str) -> None:
    """vLLM takes any misspelt key silently, so look for it where it is read."""
    root = Path(module("vllm", "vllm").__file__).parent
    places = [root / "v1/kv_offload", root / "distributed/kv_transfer/kv_connector/v1"]
    sources = [f for place in places for f in place.rglob("*.py")]
    assert any(f'extra_config.get("{name}"' in f.read_text("utf-8").replace("\n", "").replace(
        "(                ", "(") for f in sources), name  # fmt: skip


def offloading(kind: str, ranks: int, extra: dict[str, Any]) -> Any:
    """The config that vLLM's scheduler builds for such a model."""
    config = module("vllm", "vllm.v1.kv_offload.config")
    block = vllm.GPU_BLOCK
    blocks = extra["block_size"] // block if "block_size" in extra else extra["blocks_per_chunk"]
    worker = demand(kind).rank_token_bytes(ranks) * block
    return config.OffloadingConfig(
        replicated_layout=kind == "latent" and ranks > 1,
        groups=(
            config.OffloadingGroupConfig(tokens_per_block=block, layer_names=("a",), group_id=0),
        ),
        worker_kv_bytes_per_block=int(worker),
        enable_kv_cache_events=False,
        extra_config=extra,
        engine_id="test",
        model=config.OffloadingModelConfig(name="test", dtype="float16"),
        cache=config.OffloadingCacheConfig(tokens_per_hash=block, blocks_per_chunk=blocks),
        parallel=config.OffloadingParallelConfig(
            rank=0, world_size=ranks, tp_size=ranks, pp_size=1, pcp_size=1, dcp_size=1,
            data_parallel_index=0, data_parallel_size=1, data_parallel_rank_local=None,
            is_parallelism_agnostic=False,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["fetch", "grouped", "latent"])
def test_the_spec_counts_the_chunks_that_were_promised(
    tmp_path: Path, kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "fetch" and ranks == 8:
        ranks = 3  # 12 heads
    deployment = replace(ROOMY, ranks=ranks)
    file, made = written(tmp_path, kind, deployment)
    extra = parsed(file).kv_transfer_config.kv_connector_extra_config
    factory = module("vllm", "vllm.v1.kv_offload.factory").OffloadingSpecFactory
    spec_class = module("vllm", "vllm.v1.kv_offload.cpu.spec").CPUOffloadingSpec
    monkeypatch.setattr(spec_class, "_uses_shared_region", lambda self: True)  # as on CUDA
    spec = factory.create_spec(offloading(kind, ranks, extra))
    assert spec.num_chunks == made.pool.chunks > 0
    assert spec.kv_bytes_per_chunk == made.pool.chunk_bytes
    back = vllm.read_back(made.text, demand(kind), deployment)
    assert back.host_bytes == spec.num_chunks * spec.kv_bytes_per_chunk
    assert spec.get_manager() is not None


def test_the_size_option_means_what_we_say() -> None:
    """``--kv-offloading-size`` is GiB of all ranks; LMCache ignores it."""
    module("vllm", "vllm.config.cache")
    text = Path(module("vllm", "vllm.config.vllm").__file__).read_text("utf-8")
    assert '"cpu_bytes_to_use": kv_offloading_size * (1 << 30)' in text


@pytest.mark.parametrize("connector", ["LMCacheConnectorV1", "LMCacheMPConnector"])
def test_the_engine_beside_lmcache_parses(connector: str, tmp_path: Path) -> None:
    import shlex

    made = lmcache.export(demand("grouped"), replace(ROOMY, ranks=2), "lmcache.yaml")
    lines = [made.command, *(line for _, line in made.others)]
    line = next(text for text in lines if connector in text)
    words = shlex.split(line)
    words = words[words.index("serve") + 1 :]
    file = tmp_path / "empty.yaml"
    file.write_text("seed: 0\n", encoding="utf-8")
    parsed(file)  # sets the platform
    parser = module("vllm", "vllm.utils.argparse_utils").FlexibleArgumentParser()
    module("vllm", "vllm.engine.arg_utils").EngineArgs.add_cli_args(parser)
    found = parser.parse_args(words[1:])
    assert found.kv_transfer_config.kv_connector == connector
    assert found.tensor_parallel_size == 2
