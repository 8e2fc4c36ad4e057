"""Pools, blocks and contexts against counting; and the changes that are named are enough."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import msgspec
import pytest
import strategies as our
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.fit import Fit
from kvplan.fit_change import Change, changes
from kvplan.model_library import load_model
from kvplan.prefill_peak import Chunking, activation_peak_bytes
from kvplan.units import GIB
from kvplan.weights import FORMATS, weight_bytes

SMALL = our.model([our.layer(), our.layer(window=40), our.layer(kv_heads=2)], vocab=100)
LLAMA = load_model("llama-3.1-8b")
KEYS = {
    "model", "gpu", "tp", "pp", "context", "batch", "fits", "limit", "memory_bytes", "pool_bytes",
    "kv_dtype", "block_tokens", "block_bytes", "blocks", "tokens", "bytes_per_token",
    "bytes_per_sequence", "max_concurrency", "reserved", "max_context", "max_batch",
    "contexts_that_fit", "table", "host", "changes", "assumed",
}  # fmt: skip


def small(spare: int, **changed: Any) -> Fit:
    """A fit of the small model with so many bytes beside its weights."""
    weights = int(weight_bytes(SMALL))
    return Fit(**{
        "model": SMALL, "memory_bytes": weights + spare, "utilisation": 1.0, "outside_bytes": 0,
        "block": 4, **changed,
    })  # fmt: skip


@our.examples(60)
@given(
    spare=st.integers(1, 400_000), batch=st.integers(1, 4), chunk=st.none() | st.integers(1, 150),
    above=st.integers(0, 150), peak=st.none() | st.integers(0, 100_000),
)  # fmt: skip
def test_contexts_and_batches_are_those_that_counting_finds(
    spare: int, batch: int, chunk: int | None, above: int, peak: int | None
) -> None:
    fit = small(spare, chunking=Chunking(tokens=chunk, above=above), peak_bytes=peak)
    most = 300
    fitting = [c for c in range(1, most + 1) if fit.fits(c, batch)]
    listed = [c for low, high in fit.contexts(batch, most) for c in range(low, high + 1)]
    assert listed == fitting
    assert fit.most_context(batch, most) == (fitting[-1] if fitting else 0)
    for context in (1, 40, 200):
        counted = [b for b in range(1, 200) if fit.fits(context, b)]
        assert min(fit.most_batch(context), 199) == (counted[-1] if counted else 0)


def test_the_account_adds_up() -> None:
    fit = Fit(model=LLAMA, memory_bytes=80 * GIB, utilisation=0.9, reserve_bytes=GIB)
    parts = fit.rank_weights_bytes + fit.outside_bytes + fit.peak(4096) + fit.pool_bytes(4096)
    assert parts + GIB == pytest.approx(72 * GIB)
    assert fit.block_bytes == 16 * 131_072
    assert fit.blocks(4096) == fit.pool_bytes(4096) // fit.block_bytes
    assert fit.sequence_bytes(17) == 32 * 131_072


def test_ranks_hold_their_part() -> None:
    whole = Fit(model=LLAMA, memory_bytes=80 * GIB)
    for tp in (2, 4, 8):
        rank = dataclasses.replace(whole, tp=tp)
        assert rank.block_bytes * tp == whole.block_bytes
        assert rank.rank_weights_bytes * tp == pytest.approx(whole.rank_weights_bytes)
        assert rank.peak(4096) < whole.peak(4096)
    repeated = dataclasses.replace(whole, tp=32)  # 8 KV heads, each four times
    assert repeated.block_bytes * 8 == whole.block_bytes
    assert dataclasses.replace(whole, pp=2).block_bytes * 2 == whole.block_bytes
    for tp, pp in ((3, 1), (64, 1), (1, 33)):
        with pytest.raises(InputError):
            dataclasses.replace(whole, tp=tp, pp=pp)


def test_caches_that_are_not_heads_of_every_token() -> None:
    """A latent is whole on every rank; a state does not grow; a source must be known."""
    latent = Fit(model=load_model("deepseek-v3"), memory_bytes=140 * GIB)
    assert dataclasses.replace(latent, tp=8).block_bytes == latent.block_bytes
    state = Fit(model=load_model("mamba-2.8b"), memory_bytes=24 * GIB)
    assert (state.block_bytes, state.blocks(4096)) == (0, 0)
    assert state.sequence_bytes(1) == state.sequence_bytes(100_000) > 0
    shown = run("fit", "--model", "mamba-2.8b", "--gpu", "l4")
    assert "A sequence of any length fits" in shown.out
    whisper = load_model("whisper-large-v3")
    without = msgspec.structs.replace(whisper, source_tokens=None)
    with pytest.raises(InputError, match="source_tokens"):
        Fit(model=without, memory_bytes=24 * GIB)
    assert Fit(model=without, memory_bytes=24 * GIB, source_tokens=1500).sequence_bytes(1) > 0


def test_block_formats_of_the_cache() -> None:
    whole = Fit(model=LLAMA, memory_bytes=24 * GIB)
    assert dataclasses.replace(whole, kv_dtype="q8_0").block_bytes == whole.block_bytes * 34 / 64


def test_a_window_stops_growing() -> None:
    """Layers of 4096, 40-token and 2-head caches: only two of three grow beyond the window."""
    fit = small(10**9)
    assert fit.sequence_bytes(40) - fit.sequence_bytes(36) == 4 * (256 + 256 + 128)
    assert fit.sequence_bytes(84) - fit.sequence_bytes(80) == 4 * (256 + 128)


def test_logits_of_many_sequences_can_be_the_peak() -> None:
    assert activation_peak_bytes(LLAMA, 1, sequences=256) == 256 * 128_256 * 4


def test_smaller_formats_weigh_less() -> None:
    sizes = {name: weight_bytes(LLAMA, name) for name in FORMATS}
    assert sizes["fp32"] == 2 * sizes["bf16"] == 4 * LLAMA.params
    assert sizes["bf16"] > sizes["fp8"] > sizes["fp4"] > sizes["gptq"] == sizes["awq"]
    assert sizes["gptq"] > sizes["nf4"] > sizes["fp32"] / 8


def applied(fit: Fit, change: Change, context: int, batch: int) -> bool:
    """Whether the question fits once the change is made."""
    value: Any = change.value
    made: dict[str, Any] = {
        "--utilisation": {"utilisation": value}, "--kv-dtype": {"kv_dtype": value},
        "--weights-dtype": {"weights_dtype": value}, "--tp": {"tp": value},
        "--chunk": {"chunking": Chunking(tokens=value if change.option == "--chunk" else None)},
    }.get(change.option, {})  # fmt: skip
    context = value if change.option == "--context" else context
    batch = value if change.option == "--batch" else batch
    return dataclasses.replace(fit, **made).fits(context, batch)


@pytest.mark.parametrize("memory", [15, 17, 20, 24, 40])
@pytest.mark.parametrize(("context", "batch"), [(8192, 4), (29_000, 1), (100_000, 2)])
def test_every_change_that_is_named_is_enough(memory: int, context: int, batch: int) -> None:
    fit = Fit(model=LLAMA, memory_bytes=memory * GIB, chunking=Chunking(tokens=512, above=32_768))
    if fit.fits(context, batch):
        return
    for change in changes(fit, context, batch):
        if change.option == "offload":
            missing = batch * fit.sequence_bytes(context) - fit.pool_bytes(context, batch)
            assert missing <= float(change.value) * GIB <= missing + 0.11 * GIB
        else:
            assert applied(fit, change, context, batch), change


def test_the_smallest_change_is_smallest() -> None:
    fit = Fit(model=LLAMA, memory_bytes=23 * GIB)
    options = {c.option: c.value for c in changes(fit, 26_000, 1)}
    assert not fit.fits(int(options["--context"]) + 1, 1)
    higher = float(options["--utilisation"])
    assert not dataclasses.replace(fit, utilisation=higher - 0.01).fits(26_000, 1)


# -- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [(), ("--batch", "2"), ("--context", "8k"), ("--context", "4k,8k"),
     ("--context", "8k", "--batch", "2"), ("--tp", "2", "--pp", "2", "--host-cache", "64GiB")],
)  # fmt: skip
def test_json_keys_are_stable(options: tuple[str, ...]) -> None:
    found = run("fit", "--model", "llama-3.1-8b", "--gpu", "l4", *options, "--json")
    assert found.code == 0, found.err
    document = json.loads(found.out)
    assert document.keys() == KEYS
    assert document["fits"] is True
    assert document["memory_bytes"].keys() == {
        "total", "budget", "weights", "activation_peak", "non_torch", "reserve", "pool", "needed",
    }  # fmt: skip
    shown = run("fit", "--model", "llama-3.1-8b", "--gpu", "l4", *options)
    assert (shown.code, shown.out.splitlines()[0][-1]) == (0, ".")


def test_json_of_what_does_not_fit_is_printed_beside_the_error() -> None:
    found = run("fit", "--model", "llama-3.1-8b", "--gpu", "l4", "--context", "128k", "--batch",
                "2", "--json")  # fmt: skip
    document = json.loads(found.out)
    assert (found.code, document["fits"], document["limit"]) == (3, False, "kv")
    assert document["changes"]
    assert found.err.count("\n") == 1
    for change in document["changes"]:
        assert change["words"] in found.err


def test_the_answer_to_each_question() -> None:
    card = ("fit", "--model", "llama-3.1-8b", "--gpu", "rtx-3090")
    longest = json.loads(run(*card, "--batch", "2", "--json").out)["max_context"]
    assert run(*card, "--batch", "2", "--context", str(longest)).code == 0
    assert run(*card, "--batch", "2", "--context", str(longest + 1)).code == 3
    most = json.loads(run(*card, "--context", "4k", "--json").out)["max_batch"]
    assert run(*card, "--context", "4k", "--batch", str(most)).code == 0
    assert run(*card, "--context", "4k", "--batch", str(most + 1)).code == 3
    short = run("fit", "--model", "opt-125m", "--gpu", "h100")
    assert "limit       positions" in short.out


def test_a_host_cache_holds_the_tokens_of_its_ranks() -> None:
    """10 GiB hold 81,920 tokens of Llama-3.1-8B; 10 GiB of each of two ranks hold twice as many."""
    card = ("fit", "--model", "llama-3.1-8b", "--gpu", "h100", "--host-cache", "10GiB", "--json")
    assert json.loads(run(*card).out)["host"]["tokens"] == 81_920
    assert json.loads(run(*card, "--tp", "2").out)["host"]["tokens"] == 81_920
    assert json.loads(run(*card, "--tp", "2", "--per-rank").out)["host"]["tokens"] == 163_840


def test_the_concurrency_that_an_engine_prints_for_windows() -> None:
    """Gemma 4 31B on one H200: 64.68 GiB of pool, 626949 tokens at 262144 each.

    Source: redhat-performance/configiq issue 112, observed.
    """
    asked = ("fit", "--model", "gemma-4-31b", "--gpu", "h200", "--weights-dtype", "bf16")
    result = run(*asked, "--context", "262144", "--json")
    found = json.loads(result.out)
    assert found["pool_bytes"] / GIB == pytest.approx(64.68, rel=0.05)
    assert found["reserved"]["tokens"] == pytest.approx(626_949, rel=0.05)
    text = " ".join(run(*asked, "--context", "262144").out.split())
    assert "set aside per sequence" in text
    assert "weights of the language model alone, without its vision encoder" in text
