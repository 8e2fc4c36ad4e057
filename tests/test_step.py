"""The step graph: layers that are copied are those that would have been described."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import (
    examples,
    ideal,
    layer,
    layers,
    model,
    profiles,
    schedules,
    unusual_layers,
    usable_paths,
    workloads,
)

from kvplan import step
from kvplan.paths import Path
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.step import Structure, build_step, group_of
from kvplan.workload import Workload


@st.composite
def runs(draw: st.DrawFn) -> tuple[Scenario, Schedule, Structure]:
    """Runs of equal layers, and stages that use some paths or others."""
    first = draw(layers())
    kinds = [first, replace(first, intermediate=first.intermediate + 1), draw(unusual_layers())]
    chosen = draw(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), min_size=1, max_size=4))
    if draw(st.booleans()):
        kinds = [replace(kinds[2], hidden=first.hidden), kinds[0]]
    built = model([kinds[number] for number, count in chosen for _ in range(count)])
    scenario = Scenario(model=built, hardware=draw(profiles()), workload=draw(workloads()))
    schedule = draw(schedules(len(built.layers)))
    structure: dict[tuple[int, int | None], list[Path]] = {}
    few = draw(st.lists(st.booleans(), min_size=3, max_size=3))
    none = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    for index in range(len(built.layers)):
        paths = usable_paths(scenario, index)
        structure[index, None] = [p for p in paths if p.attends != "stage"]
        stages = range(schedule.stages)
        if schedule.axis == "layer":
            group = group_of(index, len(built.layers), schedule.stages)
            stages = range(group, group + 1)
        for stage in stages:
            staged = [p for p in paths if p.attends == "stage"]
            if none[index % len(none)]:
                continue
            structure[index, stage] = staged[:1] if few[index % 3] and stage else staged
    return scenario, schedule, structure


@examples(200)
@given(runs())
def test_copied_layers_are_those_described(drawn: tuple[Scenario, Schedule, Structure]) -> None:
    scenario, schedule, structure = drawn
    given = (scenario.model, scenario.hardware, scenario.workload, schedule, structure)
    graph = build_step(*given)
    with patch.object(step._Builder, "key", lambda self, layer: None):
        described = build_step(*given)
    assert graph == described


def test_equal_layers_are_copied() -> None:
    """The first two are described, and each that differs."""
    with patch.object(step._Builder, "cell", autospec=True, side_effect=step._Builder.cell) as cell:
        built = model([layer()] * 6 + [layer(intermediate=7)] + [layer()])
        scenario = Scenario(model=built, hardware=ideal(), workload=Workload(batch=2, context=512))
        structure: Structure = {
            (index, stage): [p for p in usable_paths(scenario, index) if p.name == "fetch"]
            for index in range(8)
            for stage in range(4)
        }
        build_step(built, scenario.hardware, scenario.workload, Schedule(stages=4), structure)
    assert [call.args[1] for call in cell.call_args_list] == [0, 1, 6, 7]
