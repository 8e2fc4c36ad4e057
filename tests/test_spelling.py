"""Options and values as users of other programs type them."""

from __future__ import annotations

import json

import pytest
from cli_runner import run

from kvplan.cli.spelling import MEANINGS, SPELLINGS, respelled
from kvplan.errors import InputError


def total(*argv: str) -> int:
    """Bytes that ``kvplan kv-size`` answers for Llama-3.1-8B."""
    result = run("kv-size", "--model", "llama-3.1-8b", "--json", *argv)
    assert result.code == 0, result.err
    found: int = json.loads(result.out)["total_bytes"]
    return found


@pytest.mark.parametrize(
    "argv",
    [  # vLLM's, SGLang's and llama.cpp's option names and values for one question
        ("--max-model-len", "32768", "--max-num-seqs", "4", "--kv-cache-dtype", "fp8_e4m3"),
        ("--max_model_len=32,768", "--batch-size", "4", "--kv-cache-dtype", "fp8_e5m2"),
        ("--context-length", "32k", "--bs=4", "--kv-dtype", "float8_e5m2"),
        ("--ctx-size", "32K", "--batch", "4", "--kv_dtype", "fp8"),
    ],
)
def test_one_question_as_four_programs_spell_it(argv: tuple[str, ...]) -> None:
    assert total(*argv) == 4 * 32768 * 65536


@pytest.mark.parametrize(
    "argv",
    [
        ("--kv-dtype", "q8_0/q4_0"),
        ("--kv-dtype", "k=q8_0,v=q4_0"),
        ("-ctk", "q8_0", "-ctv", "q4_0"),
        ("--cache-type-k", "q8_0", "--cache-type-v", "q4_0"),
    ],
)
def test_k_and_v_in_formats_of_their_own(argv: tuple[str, ...]) -> None:
    assert total("--ctx", "2048", *argv) == 2048 * 32 * (1024 * 34 + 1024 * 18) // 32


def test_auto_is_what_engines_make_of_it() -> None:
    assert total("--kv-dtype", "auto") == total("--kv-dtype", "bf16")


def test_shares_in_percent_and_host_memory_in_gib() -> None:
    asked = ("--model", "llama-3.1-8b", "--gpu", "rtx-3090", "--max-model-len", "8k", "--json")
    percent = run("fit", *asked, "--gpu-memory-utilization", "90%")
    assert percent.code == 0, percent.err
    assert percent.out == run("fit", *asked, "--utilisation", "0.9").out
    assert respelled(["--kv-offloading-size", "4"], {"--dram"}) == ["--dram", "4GiB"]
    assert respelled(["--kv_offloading_size=4"], {"--dram"}) == ["--dram=4GiB"]


def test_flags_that_are_values_here() -> None:
    known = {"--memory", "--both", "--direction"}
    assert respelled(["--pageable", "--bidirectional"], known) == ["--memory=pageable", "--both"]
    plain = run("transfer", "--gpu", "a100", "--memory", "pageable", "--json")
    assert run("transfer", "--gpu", "a100", "--pageable", "--json").out == plain.out


def test_a_number_with_a_comma_is_not_taken_for_two_contexts() -> None:
    asked = ("fit", "--model", "opt-125m", "--gpu", "l4", "--json")
    refused = run(*asked, "--context", "1,024")
    assert refused.code == 2
    assert "1024 for one context, or '1, 024' for several" in refused.err
    assert run(*asked, "--context", "128, 256").code == 0


def test_a_model_without_its_option_is_told_of_it() -> None:
    result = run("kv-size", "llama-3.1-8b")
    assert result.code == 2
    assert "a model is given as --model NAME" in result.err


def test_ranks_of_a_host_are_its_tensor_parallel_group() -> None:
    asked = ("host", "--cache", "40GiB", "--available", "200GiB", "--json")
    assert run(*asked, "--tp", "4").out == run(*asked, "--ranks", "4").out


def test_a_slot_is_said_beside_the_cards_own() -> None:
    text = " ".join(run("transfer", "--gpu", "rtx-4090", "--link", "pcie4x4").out.split())
    assert "PCIe 4.0 x16; here PCIe 4.0 x4" in text
    assert "the profile's rate in proportion to PCIe 4.0 x4, --link" in text


def test_options_of_the_command_stay_as_they_are() -> None:
    known = {"--memory", "--context", "-c"}
    argv = ["--memory", "24GiB", "-c", "4k", "--", "--ctx"]
    assert respelled(argv, known) == argv
    assert respelled(["--nonesuch", "-3"], known) == ["--nonesuch", "-3"]


@pytest.mark.parametrize("word", MEANINGS)
def test_options_that_mean_something_else_are_explained(word: str) -> None:
    with pytest.raises(InputError, match="left out") as caught:
        respelled([f"--{word}", "10"], {"--context", "--hbm", "--model"})
    assert caught.value.value == "10"


def test_no_word_is_spelled_and_explained() -> None:
    spelled = {word for words in SPELLINGS.values() for word in words}
    assert not spelled & set(MEANINGS)
