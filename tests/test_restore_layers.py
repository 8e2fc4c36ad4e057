"""Restores of layers that are not plain attention: latents, states, experts, sources, windows."""

from __future__ import annotations

import pytest

from kvplan import prefill
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.prefix import Prefix
from kvplan.ranks import rank_model
from kvplan.restoration import Restoration
from kvplan.restore_search import best
from kvplan.restored import load, rebuild, recompute, resident, store_bytes

KINDS = ("deepseek-v2-lite", "jamba-v0.1", "qwen3-30b-a3b", "gemma-2-2b", "gpt-oss-20b",
         "rwkv-5-world-3b", "bart-large-cnn", "deepseek-v3.2")  # fmt: skip


def restoration(name: str, tokens: int = 4096, source: str = "dram") -> Restoration:
    return Restoration(
        model=load_model(name), hardware=load_hardware("h200"),
        prefix=Prefix(tokens=tokens, source=source),
    )  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_load_brings_all_that_a_sequence_keeps(name: str) -> None:
    found = restoration(name)
    kept = found.model.kv_bytes(4096, 2)
    loaded = load(found)
    assert store_bytes(loaded) == pytest.approx(kept)
    assert loaded.graph.link_bytes(loaded.values)["h2d"] == pytest.approx(kept)
    assert loaded.ttft_s > resident(found).ttft_s
    assert recompute(found).graph.link_bytes(recompute(found).values).get("h2d", 0.0) == 0.0


@pytest.mark.parametrize("name", ["jamba-v0.1", "deepseek-v2-lite", "gemma-2-2b"])
def test_no_plain_way_beats_the_bound(name: str) -> None:
    for source in ("dram", "disk"):
        found = restoration(name, source=source)
        answer = best(found)
        assert answer.gap <= 0.05
        for way in (load, recompute, rebuild):
            assert answer.bound_s <= way(found).ttft_s


def test_states_come_whole_from_the_store() -> None:
    """A recurrent layer caches no tokens; its state behind the prefix crosses the link."""
    found = restoration("jamba-v0.1")
    recurrent = [i for i, kept in enumerate(found.cached) if not kept]
    assert recurrent
    moved = [o for o in load(found).graph.operations if o.operation == "copy_held"]
    assert [o.layer for o in moved] == recurrent
    assert sum(o.bytes_per_unit for o in moved) == sum(found.held(i) for i in recurrent)


def test_experts_work_on_what_a_token_meets() -> None:
    spec = load_model("qwen3-30b-a3b").layers[0]
    assert prefill.flop(spec, 0, 1) < 2 * spec.params
    assert prefill.flop(spec, 0, 1000) >= 2 * spec.active_params * 1000


def test_a_latent_is_attended_as_it_is_by_few_tokens_and_expanded_for_many() -> None:
    spec = load_model("deepseek-v3").layers[0]
    assert spec.latent is not None
    few = prefill.attention_flop(spec, 32768, 1)
    assert few == 2 * 128 * (576 + 512) * 32769
    many = prefill.attention_flop(spec, 0, 8192)
    pairs = 8192 * 8193 // 2
    assert many == 2 * 128 * (192 + 128) * pairs + 2 * 512 * 128 * 256 * 8192


@pytest.mark.parametrize("name", KINDS)
def test_ranks_hold_a_part(name: str) -> None:
    """Heads, states and experts are divided; latents and indices are whole on every rank."""
    model = load_model(name)
    one = model.kv_bytes(4096, 2)
    half = rank_model(model, 2).kv_bytes(4096, 2)
    whole = any(layer.latent for layer in model.layers)
    assert half == (one if whole else pytest.approx(one / 2, rel=1e-6))
    assert rank_model(model, 2).params < model.params
