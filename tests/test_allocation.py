"""Rounding: blocks conserved, layers covered once, stages even, nothing lost over layers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from kvplan.allocation import Segment, rounded, spread, stage_mixes, tokens_by_path
from kvplan.errors import InputError
from kvplan.paths import REGISTRY
from kvplan.step import group_of

PATTERNS = ("even", "grouped", "alternating")
names = st.sampled_from(sorted(REGISTRY))
weights = st.sampled_from((0.0, 1e-12, 0.1, 1.0, 2.5, 40.0))
mixes = st.dictionaries(names, weights, min_size=1, max_size=5).filter(
    lambda mix: sum(mix.values()) > 0.05
)


@given(mixes, st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_spread_conserves_and_forgets_nothing(mix: dict[str, float], counts: list[int]) -> None:
    """Parts add up to each count; over all calls no part is off by more than a few."""
    carry: dict[str, float] = {}
    total = dict.fromkeys(mix, 0)
    for count in counts:
        parts = spread(mix, count, carry)
        assert sum(parts.values()) == count
        assert min(parts.values()) >= 0
        for name, part in parts.items():
            total[name] += part
    whole = sum(mix.values())
    for name, share in mix.items():
        assert abs(total[name] - share / whole * sum(counts)) <= len(mix)


def test_spread_refuses_nothing_to_spread_over() -> None:
    with pytest.raises(InputError, match="shares"):
        spread({"fetch": 0.0}, 3, {})


@st.composite
def questions(draw: st.DrawFn) -> dict[str, object]:
    layers = draw(st.integers(1, 6))
    axis = draw(st.sampled_from(("token", "layer")))
    stages = draw(st.integers(1, 8 if axis == "token" else layers))
    targets = [draw(mixes) for _ in range(layers)]
    pattern: object = draw(st.sampled_from(PATTERNS))
    if axis == "token" and draw(st.booleans()):
        pattern = [draw(st.dictionaries(names, weights, max_size=4)) for _ in range(stages)]
    return {
        "tokens": [draw(st.integers(1, 500)) for _ in range(layers)], "targets": targets,
        "classes": [draw(st.integers(0, 1)) for _ in range(layers)], "axis": axis,
        "stages": stages, "block": draw(st.sampled_from((1, 7, 16, 64))), "pattern": pattern,
    }  # fmt: skip


@examples(400)
@given(questions())
def test_every_token_has_one_place(question: dict[str, object]) -> None:
    """Segments tile each layer, in whole blocks but for the last, on paths that were wanted."""
    allocation = rounded(**question)  # type: ignore[arg-type]
    tokens, block = question["tokens"], question["block"]
    targets, stages, axis = question["targets"], question["stages"], question["axis"]
    assert isinstance(tokens, list)
    assert isinstance(targets, list)
    assert isinstance(block, int)
    assert isinstance(stages, int)
    assert len(allocation) == len(tokens)
    for index, (segments, count) in enumerate(zip(allocation, tokens, strict=True)):
        reached = 0
        held: dict[int, int] = {}
        for segment in segments:
            assert segment.begin == reached < segment.end
            assert segment.begin % block == 0
            assert targets[index][segment.path] > 0
            reached = segment.end
            assert (segment.stage is None) == (REGISTRY[segment.path].attends != "stage")
            if segment.stage is not None:
                blocks = -(-segment.tokens // block)
                held[segment.stage] = held.get(segment.stage, 0) + blocks
        assert reached == count
        if axis == "layer":
            assert set(held) <= {group_of(index, len(tokens), stages)}
        else:
            sizes = [held.get(stage, 0) for stage in range(stages)]
            assert max(sizes) - min(sizes) <= 1
        keys = [(s.path, s.stage) for s in segments]
        assert len(keys) == len(set(keys))


@given(mixes, st.integers(2, 40), st.integers(1, 20), st.sampled_from(PATTERNS))
def test_equal_layers_keep_the_mean(
    mix: dict[str, float], layers: int, blocks: int, pattern: str
) -> None:
    """A layer that gets a block too few of a path is made up for by the next ones."""
    allocation = rounded([blocks * 16] * layers, [mix] * layers, [0] * layers, "token", 4, 16,
                         pattern)  # fmt: skip
    whole = sum(mix.values())
    for name, share in mix.items():
        given_tokens = sum(tokens_by_path(segments).get(name, 0) for segments in allocation)
        wanted = share / whole * blocks * 16 * layers
        assert abs(given_tokens - wanted) <= 16 * len(mix)


@given(mixes, st.integers(1, 8), st.sampled_from(PATTERNS))
def test_stage_mixes_are_even_and_conserve(
    mix: dict[str, float], stages: int, pattern: str
) -> None:
    found = stage_mixes(mix, stages, pattern)
    assert len(found) == stages
    total = sum(mix.values())
    for each in found:
        assert sum(each.values()) == pytest.approx(total / stages)
        assert min(each.values()) >= -1e-12 * total
    for name, share in mix.items():
        assert sum(each.get(name, 0.0) for each in found) == pytest.approx(share, abs=1e-9 * total)


def test_grouped_puts_rebuilds_first() -> None:
    """Rebuilds overlap the copies of the stages behind them."""
    (segments,) = rounded([256], [{"fetch": 1.0, "recompute": 1.0}], [0], "token", 4, 64, "grouped")
    assert segments == (
        Segment(0, 64, "recompute", 0), Segment(64, 128, "recompute", 1),
        Segment(128, 192, "fetch", 2), Segment(192, 256, "fetch", 3),
    )  # fmt: skip


def test_alternating_takes_turns() -> None:
    (segments,) = rounded([256], [{"fetch": 1.0, "recompute": 1.0}], [0], "token", 4, 64,
                          "alternating")  # fmt: skip
    paths = [segment.path for segment in segments]
    assert paths in (["recompute", "fetch"] * 2, ["fetch", "recompute"] * 2)


def test_resident_tokens_lie_behind_the_stages() -> None:
    """The newest tokens stay, so that the range of each stage does not move as they are added."""
    (segments,) = rounded([300], [{"resident": 1.0, "fetch": 2.0}], [0], "token", 1, 64)
    assert [(s.path, s.begin, s.end) for s in segments] == [("fetch", 0, 192),
                                                            ("resident", 192, 300)]  # fmt: skip
