"""transformers' own config classes take what is exported."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from exported import demand
from runtime import module, same_version

from kvplan.export import transformers
from kvplan.export.deployment import Deployment

ROOMY = Deployment(host_bytes=2**42)
KINDS = ["fetch", "recompute", "packed", "host", "disk", "grouped", "latent", "resident"]


def test_the_version_is_the_one_written_for() -> None:
    same_version("transformers", "transformers")


@pytest.mark.parametrize("kind", KINDS)
def test_the_generation_config_takes_every_key(tmp_path: Path, kind: str) -> None:
    config = module("transformers", "transformers").GenerationConfig
    file = tmp_path / "generation_config.json"
    made = transformers.export(demand(kind), ROOMY, str(file))
    file.write_text(made.text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, unused = config.from_pretrained(str(tmp_path), file.name, return_unused_kwargs=True)
        found.validate(strict=True)
    assert not unused
    defaults = config()
    for name, value in transformers.parse(made.text).items():
        assert hasattr(defaults, name), name
        assert getattr(found, name) == value


def test_an_unknown_cache_is_refused(tmp_path: Path) -> None:
    """The check above can fail."""
    config = module("transformers", "transformers").GenerationConfig
    with pytest.raises(ValueError, match="cache_implementation"):
        config(cache_implementation="offload").validate(strict=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "resident"])
def test_continuous_batching_takes_the_other_line(kind: str) -> None:
    config = module("transformers", "transformers").ContinuousBatchingConfig
    made = transformers.export(demand(kind), ROOMY, "generation_config.json")
    ((_, line),) = made.others
    found = eval(line, {"ContinuousBatchingConfig": config})
    size = int(found.cpu_offload_space * 1024**3)  # as offloading_manager.py does
    each = found.page_size * demand(kind).token_bytes
    assert 0 <= size - demand(kind).place_bytes["host"] <= each
