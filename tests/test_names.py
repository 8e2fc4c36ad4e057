from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.names import resolve

NAMES = {
    "meta-llama/Llama-2-7b-hf": ("llama2-7b",),
    "meta-llama/Meta-Llama-3-8B": ("llama-3-8b",),
    "meta-llama/Meta-Llama-3.1-8B": ("llama-3.1-8b",),
    "Qwen/Qwen2.5-7B-Instruct": (),
    "facebook/opt-1.3b": (),
    "facebook/opt-13b": (),
    "one/twin-7b": (),
    "two/twin-7b": (),
    "half-7b-hf": (),
    "half-7b-instruct": (),
}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
        ("META-LLAMA/llama-2-7B-HF", "meta-llama/Llama-2-7b-hf"),
        ("Llama 2 7B", "meta-llama/Llama-2-7b-hf"),
        ("llama_2_7b", "meta-llama/Llama-2-7b-hf"),
        ("  llama2-7b ", "meta-llama/Llama-2-7b-hf"),
        ("llama-2-7b-instruct", "meta-llama/Llama-2-7b-hf"),
        ("elsewhere/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
        ("llama3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama3.1:8b", "meta-llama/Meta-Llama-3.1-8B"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
        ("opt-1.3b", "facebook/opt-1.3b"),
        ("opt_1_3b", "facebook/opt-1.3b"),
        ("opt13b", "facebook/opt-13b"),
        ("one/twin-7b", "one/twin-7b"),
        ("TWO/Twin_7B", "two/twin-7b"),
        ("half-7b-hf", "half-7b-hf"),
    ],
)
def test_forgiving(text: str, canonical: str) -> None:
    assert resolve(text, NAMES, "model") == canonical


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("twin-7b", ("one/twin-7b", "two/twin-7b")),
        ("three/twin-7b", ("one/twin-7b", "two/twin-7b")),
        ("half-7b", ("half-7b-hf", "half-7b-instruct")),
    ],
)
def test_ambiguous_names_list_the_candidates(text: str, candidates: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        resolve(text, NAMES, "model")
    for candidate in candidates:
        assert candidate in str(caught.value)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("lama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("llama-2-8b", "meta-llama/Llama-2-7b-hf"),
        ("llama-38b", "meta-llama/Meta-Llama-3-8B"),
        ("opt-12b", "facebook/opt-13b"),
        ("qwen25-7b", "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_near_misses_are_suggested(text: str, near: str) -> None:
    with pytest.raises(InputError, match="did you mean") as caught:
        resolve(text, NAMES, "model")
    assert near in str(caught.value)
    assert "kvplan models" in str(caught.value)
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["", " - ", "/", "zzzz", "日本", "llama-2-7b日本", "x" * 10**6])
def test_misses_say_how_to_list_all(text: str) -> None:
    with pytest.raises(InputError, match="`kvplan gpus` lists all names"):
        resolve(text, NAMES, "--gpu")


def test_other_fields_list_the_names() -> None:
    with pytest.raises(InputError, match="one of a, b"):
        resolve("zzzz", {"a": (), "b": ()}, "runtime")


@given(st.text())
def test_any_text_gives_a_name_or_one_line(text: str) -> None:
    try:
        outcome = resolve(text, NAMES, "model")
    except InputError as error:
        outcome = str(error)
    assert outcome in NAMES or (outcome.startswith("model: ") and "\n" not in outcome)
