"""Plans from the program in whole blocks, and single blocks moved off the critical cycle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import LARGE, allocations, examples, ideal, layer, model, scenarios

from kvplan import block_program
from kvplan.allocation import Place, placed, tokens_by_path
from kvplan.block_program import Goal
from kvplan.block_size import block_sizes, blocks_in, finest
from kvplan.blocks import Blocks
from kvplan.candidates import unit_graph
from kvplan.evaluate import evaluate
from kvplan.exchange import exchanged
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import search
from kvplan.workload import Budgets, Workload

EQUAL = Blocks(16, 16)
NO_GOAL = Goal(least_s=0.0, most_s=1e9, near=1e-6)


def scenario(context: int = 256, block: int = 16) -> Scenario:
    """Two equal layers; a copy costs a millisecond beside 256 bytes a token at 1 MB/s."""
    return Scenario(
        model=model([layer()] * 2), hardware=ideal(link=1e6, copy_s=1e-3),
        workload=Workload(batch=1, context=context, block=block),
        options=Options(paths=("resident", "fetch")),
    )  # fmt: skip


@pytest.mark.parametrize("context", [256, 250])
@pytest.mark.parametrize("free", [None, (3, "fetch")])
def test_blocks_are_whole_but_for_the_free_place(context: int, free: Place | None) -> None:
    question = scenario(context)
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    room = graph.constant_bytes["hbm"] + 2 * 200 * 256
    values = block_program.solve(graph, LARGE | {"hbm": room}, {}, EQUAL, 16, free, NO_GOAL)
    assert values is not None
    assert graph.memory_bytes(values)["hbm"] <= room * (1 + 1e-9)
    for variable, value in zip(graph.variables, values, strict=True):
        if variable.stage is not None and (variable.stage, variable.path) != free:
            assert value % 16 == 0
    assert sum(values) == pytest.approx(256)
    wanted = {(v.stage, v.path): n for v, n in zip(graph.variables, values, strict=True)}
    for segments in placed([context] * 2, [wanted], 16, free):
        assert sum(tokens_by_path(segments).values()) == context


def test_an_absent_path_has_no_fixed_time() -> None:
    """All tokens are rebuilt from activations in HBM: no stage pays for the copy of a fetch."""
    question = replace(
        scenario(), hardware=ideal(link=1e6, copy_s=1.0),
        options=Options(paths=("fetch", "recompute_resident")),
    )  # fmt: skip
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    statement, whole = block_program.state(graph, LARGE, {}, EQUAL, 16, None)
    assert sum(whole) == 2 * 2 * 4  # tokens and presence of two paths in four stages
    values = block_program.solve(graph, LARGE, {}, EQUAL, 16, None, NO_GOAL)
    assert values is not None
    paths = {v.path for v, n in zip(graph.variables, values, strict=True) if n > 0}
    assert paths == {"recompute_resident"}
    assert statement.period >= 0


@pytest.mark.parametrize(
    ("batch", "block", "sizes"),
    [(32, 64, [64, 32, 16, 8, 4, 2, 1]), (8, 64, [64, 32, 16, 8, 4]), (1, 64, [64, 32]),
     (1, 16, [16]), (32, 48, [48, 24, 12, 6, 3]), (3, 64, [64, 32])],
)  # fmt: skip
def test_products_have_many_rows(batch: int, block: int, sizes: list[int]) -> None:
    asked = replace(scenario(), workload=Workload(batch=batch, context=256, block=block))
    assert block_sizes(asked) == sizes
    assert blocks_in(asked, finest(asked)) == Blocks(1, sizes[-1])
    assert blocks_in(asked, block) == Blocks(block, block)
    fixed = replace(asked, options=replace(asked.options, refine_blocks=False))
    assert block_sizes(fixed) == [block]
    assert finest(fixed) == block


@pytest.mark.parametrize("moved", [1, 16])
def test_what_is_rebuilt_has_larger_blocks(moved: int) -> None:
    """Fetches of single tokens fill what rebuilding in whole blocks leaves of 250 tokens."""
    question = replace(
        scenario(250), hardware=ideal(link=1e6, copy_s=1e-3, flop=1e7),
        options=Options(paths=("fetch", "recompute_resident")),
    )  # fmt: skip
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    blocks = Blocks(moved, 16)
    values = block_program.solve(graph, LARGE, {}, blocks, 16, None, NO_GOAL)
    assert values is not None
    assert sum(values) == pytest.approx(-(-250 // moved) * moved)
    for variable, value in zip(graph.variables, values, strict=True):
        assert value % blocks.of(variable.path) == 0
    rebuilt = [n for v, n in zip(graph.variables, values, strict=True) if v.path != "fetch"]
    assert sum(rebuilt) > 0


def test_a_layer_of_rebuilt_tokens_alone_is_filled_up() -> None:
    question = replace(scenario(250), options=Options(paths=("recompute_resident",)))
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    assert set(Blocks(1, 16).filled(graph).tokens.values()) == {256}


@examples(60)
@given(st.data())
def test_exchanged_blocks_only_help(data: st.DataObject) -> None:
    drawn = data.draw(scenarios(3))
    schedule = Schedule(stages=data.draw(st.integers(1, 4)), queue_depth=2)
    plan = evaluate(drawn, schedule, data.draw(allocations(drawn, schedule)))
    held = plan.memory_bytes
    budgets = Budgets(hbm_bytes=int(held["hbm"]) + 1, utilisation=1.0,
                      dram_bytes=int(held["dram"]) + 1)  # fmt: skip
    tight = replace(drawn, budgets=budgets)
    if plan.overflow(tight.capacity) is not None:
        return
    better = exchanged(tight, plan, 0.0, 1)
    assert better.step_s <= plan.step_s
    assert better.overflow(tight.capacity) is None
    assert better.schedule == plan.schedule


def test_a_late_block_is_moved() -> None:
    """One layer fetches a block that fits in HBM."""
    question = scenario()
    graph = unit_graph(question, Schedule(stages=4, queue_depth=2))
    even: dict[Place, float] = {(c, "fetch"): 32.0 for c in range(4)} | {(None, "resident"): 128.0}
    allocation = placed([256] * 2, [even], 16, None)
    plan = evaluate(question, graph.schedule, allocation)
    room = Budgets(hbm_bytes=int(plan.memory_bytes["hbm"]) + 16 * 256 + 1, utilisation=1.0)
    better = exchanged(replace(question, budgets=room), plan, 0.0, 16)
    assert plan.step_s - better.step_s == pytest.approx(16 * 256 / 1e6)


def test_groups_of_layers_stage_in_their_own_group() -> None:
    """A model whose polished candidates have stages that are groups of layers."""
    asked = Scenario(
        model=load_model("gemma-7b"), hardware=load_hardware("a100-80gb-sxm"), workload=Workload()
    )
    best = search(asked).best
    assert best.overflow(asked.capacity) is None
    for index, segments in enumerate(best.allocation):
        assert sum(s.tokens for s in segments) == asked.cached_tokens(index)
