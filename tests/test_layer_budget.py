"""Budgets of tokens per layer: the rules, files, and plans that keep to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.layer_budget import amount, budgeted_model, from_document, pyramid, scalekv
from kvplan.model_library import load_model
from kvplan.plan_file import decode
from kvplan.planning import replay, segment_plan


@given(
    mean=st.integers(64, 4000), tokens=st.integers(1, 100_000), layers=st.integers(1, 100),
)  # fmt: skip
def test_a_pyramid_keeps_its_mean(mean: int, tokens: int, layers: int) -> None:
    kept = pyramid(mean, tokens, layers)
    assert len(kept) == layers
    assert kept == sorted(kept, reverse=True)
    assert all(1 <= count <= tokens for count in kept)
    if tokens < mean:
        assert kept == [tokens] * layers
    elif layers > 1:  # whole steps lose less than one token per layer
        assert abs(sum(kept) / layers - mean) <= layers / 2 + 1


# Before each scale of Infinity at 1024 x 1024: tokens there are, drafter and refiner budgets.
# Source: the budget files of StargazerX0/ScaleKV eb0615a1 (arXiv 2505.19602).
SCALES = [921, 1497, 2521, 4121, 6425]
INFINITY_2B = [(920, 632, (0, 23)), (1490, 594, (0, 23)), (2510, 526, (0, 23)),
               (4100, 420, (0, 23)), (6385, 465, (0,))]  # fmt: skip
INFINITY_8B = [(909, 629, (0, 1, 2)), (1464, 584, (0, 1, 2)), (2463, 503, (0, 1, 2)),
               (4054, 374, (0, 1, 2)), (6200, 200, (0, 1, 2))]  # fmt: skip


@pytest.mark.parametrize(("layers", "budgets"), [(32, INFINITY_2B), (40, INFINITY_8B)])
def test_scalekvs_own_budgets_are_reproduced(
    layers: int, budgets: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    """A mean of 650 tokens, 10.1 % of the last scale's 6425, at every scale."""
    for tokens, (most, least, drafters) in zip(SCALES, budgets, strict=True):
        kept = scalekv(650, tokens, layers, drafters, most)
        assert {kept[layer] for layer in drafters} == {most}
        assert {k for layer, k in enumerate(kept) if layer not in drafters} == {least}
        assert sum(kept) == layers * 650
        assert most < tokens
    assert amount(0.1012, 6425, "share") == 650
    assert scalekv(650, 521, layers, (0,), 521) == [521] * layers  # nothing to evict yet


@pytest.mark.parametrize(("width", "layers", "whole", "shares"), [
    (2048, 32, 38550.0, {265: 1590, 650: 3900, 1300: 7800}),
    (3584, 40, 84328.125, {265: 3478, 650: 8531, 1300: 17062}),
])  # fmt: skip
def test_scalekvs_memory_figures(
    width: int, layers: int, whole: float, shares: dict[int, int]
) -> None:
    """MiB at batch 8, doubled by guidance, K in fp32, V in bf16: the paper's, rounded down."""

    def mib(tokens: float) -> float:
        return 8 * 2 * tokens * layers * width * (4 + 2) / 2**20

    assert mib(6425) == whole
    assert {tokens: int(mib(tokens)) for tokens in shares} == shares


def test_infinitys_own_layers_weigh_as_much() -> None:
    """The same figures from the model of the library: 6425 tokens, and 650 per layer."""
    model = load_model("infinity-2b")
    sequences = 8 * model.sequences_per_sample
    assert sum(model.scales[:-1]) == 6425
    assert model.kv_bytes(6425, 2) * sequences / 2**20 == 38550.0
    kept = budgeted_model(model, scalekv(650, 6425, len(model.layers), [0], 6385))
    assert kept.kv_bytes(6425, 2) * sequences / 2**20 == 3900.0


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "{}",
        '{"0": 1}',
        "null",
        "[0, 1, 2]",
        "[1.5, 2, 3]",
        "[true, 1, 2]",
        '["a", 1, 2]',
        "[1, 2, NaN]",
        "",
        "[[1],2,3]",
    ],
)
def test_files_that_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--layer-budget"):
        from_document(text.encode(), 3, 100, "--layer-budget")


def test_files_that_are_read() -> None:
    for text in ("[10, 50, 100]", '{"layers": [0.1, 0.5, 100]}', '{"0": 10, "2": 1.0, "1": 50}'):
        assert from_document(text.encode(), 3, 100, "") == [10, 50, 100]


def test_windows_and_budgets_both_count() -> None:
    model = load_model("mistral-7b")
    layers = len(model.layers)
    kept = budgeted_model(model, [1000] * layers)
    assert kept.layers[0].cached_tokens(32768) == 1000
    wide = budgeted_model(model, [20_000] * layers)
    assert wide.layers[0].cached_tokens(32768) == model.layers[0].cached_tokens(32768) or (
        model.layers[0].window is None
    )


ASKED = ("--model", "opt-125m", "--gpu", "l4", "--batch", "64", "--context", "2k", "--gen", "64",
         "--hbm", "1GiB", "--stages", "4", "--queue-depth", "2", "--axis", "token")  # fmt: skip


def test_a_plan_keeps_to_its_budgets(tmp_path: Path) -> None:
    file = tmp_path / "budget.json"
    file.write_text(json.dumps([1024, *[256] * 11]), encoding="utf-8")
    found = run("solve", *ASKED, "--layer-budget", str(file), "--json")
    assert found.code == 0, found.err
    document = json.loads(found.out)
    tokens = [sum(layer["tokens"].values()) for layer in document["decision"]["layers"]]
    assert tokens == [1024 + 64, *[256 + 64] * 11]
    assert document["inputs"]["workload"]["layer_tokens"] == [1024, *[256] * 11]
    whole = json.loads(run("solve", *ASKED, "--json").out)
    assert document["prediction"]["step_s"] < whole["prediction"]["step_s"]
    plan = decode(found.out)
    assert replay(plan)[1].step_s == plan.prediction.step_s
    shown = run("solve", *ASKED, "--layer-budget", "pyramid:0.25")
    assert "layers keep 25 % of the context (not exact)" in " ".join(shown.out.split())


def test_segments_and_ranks_go_with_budgets() -> None:
    found = run("solve", *ASKED, "--layer-budget", "pyramid:512", "--segments", "2", "--tp", "2",
                "--json")  # fmt: skip
    assert found.code == 0, found.err
    plan = decode(found.out)
    assert replay(plan)[1].step_s == plan.prediction.step_s
    assert plan.generation is not None
    for number, segment in enumerate(plan.generation.segments, 1):
        evaluation = replay(segment_plan(plan, number))[1]
        assert evaluation.step_s == pytest.approx(segment.prediction.step_s, rel=1e-12)
