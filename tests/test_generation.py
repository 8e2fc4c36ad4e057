"""A generation in segments: their times, what passes between them, and the document."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st

from kvplan import generation, solve
from kvplan.allocation import Segment, tokens_by_path
from kvplan.errors import InputError
from kvplan.evaluate import evaluate
from kvplan.generation import Generation, at, cuts, shrink
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.moves import exchanged, moves, shrunk
from kvplan.objective import Objective
from kvplan.plan import Plan
from kvplan.plan_file import decode, encode
from kvplan.planning import make_plan, replay, segment_plan
from kvplan.scenario import Options, Scenario
from kvplan.workload import Budgets, Workload

PATHS = ("resident", "fetch", "recompute", "recompute_resident", "attend_host")


def scenario(hbm_mib: int = 448, gen: int = 512, **more: object) -> Scenario:
    return Scenario(
        model=load_model("opt-125m"),
        hardware=load_hardware("l4"),
        workload=Workload(batch=16, context=128, gen=gen, block=16),
        budgets=Budgets(hbm_bytes=hbm_mib * 2**20),
        options=Options(stages=(4,), queue_depths=(2,), axes=("token",)),
        **more,  # type: ignore[arg-type]
    )


@cache
def planned(count: int, hbm_mib: int = 448) -> Generation:
    asked = scenario(hbm_mib)
    found = solve.search(asked)
    return generation.generate(asked, found.best, found.bound_s, found.block, count)


@given(gen=st.integers(1, 2000), count=st.integers(1, 64), block=st.sampled_from([1, 16, 64]))
def test_cuts_cover_the_generation(gen: int, count: int, block: int) -> None:
    ends = cuts(gen, count, block)
    assert ends == sorted(set(ends))
    assert ends[-1] == gen
    assert 1 <= len(ends) <= count
    assert ends[0] > 0


COUNTS = st.dictionaries(st.sampled_from(PATHS), st.integers(0, 50), min_size=1)


@given(old=COUNTS, new=COUNTS)
def test_as_few_tokens_as_the_counts_allow_change_their_path(
    old: dict[str, int], new: dict[str, int]
) -> None:
    missing = sum(old.values()) - sum(new.values())
    new = {**new, "fetch": new.get("fetch", 0) + max(missing, 0)}
    old = {**old, "fetch": old.get("fetch", 0) + max(-missing, 0)}
    after = dict(old)
    for source, target, tokens in exchanged(old, new):
        assert tokens > 0
        after[source] -= tokens
        after[target] = after.get(target, 0) + tokens
    assert {p: n for p, n in after.items() if n} == {p: n for p, n in new.items() if n}
    moved = sum(tokens for _, _, tokens in exchanged(old, new))
    assert moved == sum(max(n - new.get(p, 0), 0) for p, n in old.items())


@given(
    sizes=st.lists(st.integers(1, 40), min_size=4, max_size=4), share=st.floats(0, 1),
)  # fmt: skip
def test_a_shrunk_layer_is_covered_and_grows_back(sizes: list[int], share: float) -> None:
    names = (("fetch", 0), ("recompute", 1), ("attend_host", None), ("resident", None))
    segments, begin = [], 0
    for size, (name, stage) in zip(sizes, names, strict=True):
        segments.append(Segment(begin, begin + size, name, stage))
        begin += size
    count = int(begin * share)
    small = shrunk(segments, count)
    assert sum(s.tokens for s in small) == count
    assert [s.begin for s in small] == [0, *(s.end for s in small[:-1])][: len(small)]
    whole, less = tokens_by_path(segments), tokens_by_path(small)
    assert all(less.get(path, 0) <= whole[path] for path in whole)
    assert tuple(shrunk(segments, begin)) == tuple(segments)


def test_moves_are_counted_by_hand() -> None:
    """16 sequences, one layer of 768 wide K and V: 3072 bytes of KV, 1536 of activations."""
    asked = dataclasses.replace(scenario(), model=load_model("opt-125m"))
    layers = len(asked.model.layers)
    before = ((Segment(0, 100, "resident", None),),) * layers
    after = (
        (Segment(0, 30, "fetch", 0), Segment(30, 50, "recompute_resident", 1),
         Segment(50, 100, "resident", None)),
    ) * layers  # fmt: skip
    found = moves(asked, before, after)
    assert found.bytes_moved == {
        "d2h": layers * 30 * 16 * 3072.0, "h2d": layers * 20 * 16 * 1536.0
    }  # fmt: skip
    assert found.kept_bytes == layers * 20 * 16 * 1536.0
    assert found.rebuild_s == 0
    back = moves(asked, after, before)
    assert back.bytes_moved == {"h2d": layers * 30 * 16 * 3072.0}
    assert back.rebuild_s > 0
    assert back.kept_bytes == 0
    assert moves(asked, before, before).seconds(asked) == 0


def test_the_time_of_a_segment_is_that_of_its_steps() -> None:
    """Every eighth step of one segment, played on its own; the mean of the ends is no less."""
    part = planned(4).parts[-1]
    played = []
    for step in range(part.begin, part.end, 8):
        then = at(part.scenario, step)
        allocations = [
            shrink(then, part.evaluation.allocation, order) for order in generation.FILLED_LAST
        ]
        played.append(min(
            evaluate(then, part.evaluation.schedule, a, part.evaluation.streamed).step_s
            for a in allocations
        ))  # fmt: skip
    mean_s = sum(played) / len(played)
    assert part.steps_s / part.steps == pytest.approx(mean_s, rel=0.05)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_segments_fit_and_are_no_slower(count: int) -> None:
    found = planned(count)
    assert found.least_s <= found.total_s <= found.uniform_s * (1 + 1e-9)
    assert [part.begin for part in found.parts] == [0, *(p.end for p in found.parts[:-1])]
    assert found.parts[-1].end == 512
    for index, part in enumerate(found.parts):
        held = dict(part.evaluation.memory_bytes)
        held["dram"] = held.get("dram", 0.0) + found.kept_bytes(index)
        assert all(held.get(t, 0.0) <= c for t, c in part.scenario.capacity.items())


def test_segments_pay_where_the_cache_outgrows_hbm() -> None:
    found = planned(4)
    assert len(found.parts) == 4
    assert found.total_s < found.uniform_s * 0.97
    assert set(tokens_by_path(found.parts[0].evaluation.allocation[0])) == {"resident"}


def test_one_plan_is_kept_where_it_serves_as_well() -> None:
    found = planned(4, 8192)
    assert len(found.parts) == 1
    assert found.total_s == found.uniform_s


@cache
def document() -> Plan:
    return make_plan(scenario(objective=Objective(segments=3)), time="then")


def test_a_document_with_segments_survives_text() -> None:
    plan = document()
    assert decode(encode(plan)) == plan
    whole = plan.generation
    assert whole is not None
    assert whole.steps == 512
    assert whole.segments[-1].decision == plan.decision
    total_s = sum(s.steps_s + s.moves_s for s in whole.segments)
    assert whole.total_s == pytest.approx(total_s)
    assert whole.tokens_per_s == pytest.approx(16 * 512 / whole.total_s)
    assert replay(plan)[1].step_s == plan.prediction.step_s


def test_each_segment_is_a_plan_of_its_own() -> None:
    plan = document()
    assert plan.generation is not None
    for number, segment in enumerate(plan.generation.segments, 1):
        one = segment_plan(plan, number)
        assert decode(encode(one)) == one
        asked, evaluation = replay(one)
        assert asked.workload.gen == segment.end
        assert evaluation.step_s == pytest.approx(segment.prediction.step_s, rel=1e-12)
    with pytest.raises(InputError, match="1 to 3"):
        segment_plan(plan, 4)
    with pytest.raises(InputError, match="--segments"):
        segment_plan(segment_plan(plan, 1), 1)


def test_the_command_line(tmp_path: Path) -> None:
    file, second = tmp_path / "plan.json", tmp_path / "second.json"
    file.write_text(encode(document()), encoding="utf-8")
    shown = run("segments", str(file))
    assert shown.code == 0, shown.err
    assert "3 segments take" in shown.out
    assert run("segments", str(file), "--take", "2", "-o", str(second)).code == 0
    played = run("simulate", str(second), "--json")
    assert json.loads(played.out)["difference"] == 0
    same = run("simulate", str(file), "--segment", "2", "--json")
    assert json.loads(same.out)["prediction"] == json.loads(played.out)["prediction"]
    assert len(json.loads(run("segments", str(file), "--json").out)["segments"]) == 3
    refused = run("segments", str(second))
    assert (refused.code, refused.out) == (2, "")
    assert "--segments" in refused.err
    assert run("segments", str(file), "--take", "4").code == 2
