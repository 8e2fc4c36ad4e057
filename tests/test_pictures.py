"""Pictures: what they show is what was simulated, and every axis says what it measures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run

from kvplan import pictures
from kvplan.errors import InputError
from kvplan.estimate import estimate
from kvplan.evaluate import Evaluation
from kvplan.forced import forced
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.pictures import heat, lane_spans, pareto, ratio, roof, shares, style, tiers
from kvplan.plan import Plan
from kvplan.plan_file import encode
from kvplan.planning import make_plan, replay
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import search
from kvplan.sweep_file import line
from kvplan.workload import Budgets, Workload

PLANS = ("mixed", "host", "layers", "resident")


@cache
def scenario(name: str) -> Scenario:
    """Plans of every kind: several paths, attention on the host, groups of layers, no offload."""
    options = {
        "mixed": Options(stages=(5,), queue_depths=(3,), axes=("token",)),
        "host": Options(stages=(4,), queue_depths=(2,), axes=("token",)),
        "layers": Options(stages=(4,), queue_depths=(2,), axes=("layer",)),
        "resident": Options(),
    }[name]
    host = name == "host"
    return Scenario(
        model=load_model("qwen3-0.6b" if host else "opt-125m"),
        hardware=load_hardware("h200" if host else "a100"),
        workload=Workload(batch=64, context=1536, gen=128 if name == "mixed" else 0),
        budgets=Budgets(hbm_bytes=None if name == "resident" else (2 if not host else 4) * 2**30),
        options=options,
    )


@cache
def plan(name: str) -> Plan:
    return make_plan(scenario(name), time="")


@cache
def judged(name: str) -> Evaluation:
    return replay(plan(name))[1]


RESULTS: dict[str, Any] = {
    "kvplan_validation": "1.0",
    "provenance": {"card": "a card", "profile": "its profile", "date": "2026-11-29"},
    "results": [
        {"case": {"model": "m", **more}, "predicted_s": 0.01 * k, "measured_s": 0.0101 * k,
         "error": -0.01, "busy_s": {"h2d": 0.01 * k}, "decision": {"shares": {"fetch": 1.0}}}
        for k in (1, 2, 30) for more in ({}, {"mode": "eager"})
    ] + [{"case": {"model": "m"}, "predicted_s": None, "measured_s": None, "error": None,
          "busy_s": {}, "decision": {}, "reason": "did not fit"}],
}  # fmt: skip


@cache
def swept() -> list[dict[str, Any]]:
    asked = ("--model", "opt-125m", "--gpu", "l4,t4", "--batch", "1..64", "--fast", "--json")
    found: list[dict[str, Any]] = json.loads(run("sweep", *asked).out)["rows"]
    return found


def document(kind: str, name: str) -> Any:
    reads = pictures.KINDS[kind].reads
    return {"plan": plan(name), "results": RESULTS, "rows": swept()}[reads]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("kind", pictures.KINDS)
def test_every_kind_draws_and_every_axis_has_a_meaning(kind: str, name: str) -> None:
    if pictures.KINDS[kind].reads != "plan" and name != "mixed":
        pytest.skip("drawn from results, whatever the plan")
    figure = pictures.KINDS[kind].draw(document(kind, name))
    assert figure.axes
    for ax in figure.axes:
        named_rows = any(c.isalpha() for t in ax.get_yticklabels() for c in t.get_text())
        assert ax.get_ylabel() or named_rows, kind
        shared = ax.get_shared_x_axes().get_siblings(ax)
        colour_bar = ax.get_label() == "<colorbar>"
        assert colour_bar or any(other.get_xlabel() for other in shared), kind
    title = figure.get_suptitle()
    assert title
    assert "nan" not in title


def test_units_are_on_axes_that_measure_something() -> None:
    units = ("(ms)", "(s)", "(µs)", "GiB", "GB/s", "TFLOP/s", "(%)", "tokens", "stages", "depth",
             "layer", "FLOP per byte", "sequences", "(tokens/s)", "measured")  # fmt: skip
    for kind in pictures.KINDS:
        for ax in pictures.KINDS[kind].draw(document(kind, "mixed")).axes:
            for label in (ax.get_xlabel(), ax.get_ylabel()):
                assert not label or any(unit in label for unit in units), (kind, label)


@pytest.mark.parametrize("ending", style.FORMATS)
def test_pictures_are_written_whole_and_the_same_each_time(tmp_path: Path, ending: str) -> None:
    first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    for file in (first, second):
        style.save(pictures.values(plan("mixed")), file)
    assert first.read_bytes() == second.read_bytes()
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert first.read_bytes().startswith(starts[ending])
    assert {f.name for f in tmp_path.iterdir()} == {first.name, second.name}


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.gif"):
        style.save(pictures.values(plan("mixed")), tmp_path / "a.gif")
    with pytest.raises(InputError, match="can be written"):
        style.save(pictures.values(plan("mixed")), tmp_path / "missing" / "a.png")
    assert not list(tmp_path.iterdir())


def test_the_style_does_not_stay(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    style.save(pictures.paths(plan("mixed")), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before


def test_drawing_never_loads_pyplot() -> None:
    code = (
        "import sys, json; from kvplan.plan_file import decode; from kvplan import pictures;"
        "assert 'matplotlib' not in sys.modules;"
        "pictures.values(decode(sys.stdin.read()));"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    folder = str(Path(pictures.__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", code], input=encode(plan("mixed")), text=True, check=True,
        env={"PYTHONPATH": folder, "PATH": "", "HOME": "/nonexistent", "MPLCONFIGDIR": "/tmp"},
    )  # fmt: skip


# -- timeline --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_a_step_of_the_timeline_is_as_busy_as_simulated(name: str) -> None:
    """Between two times one period apart each resource works as long as in one step."""
    found = judged(name)
    busy: dict[str, float] = defaultdict(float)
    for span in lane_spans.spans_of(found, 0.0, found.step_s):
        busy[span.lane] += min(span.end_s, found.step_s) - max(span.begin_s, 0.0)
    for resource, busy_s in found.simulation.busy_s.items():
        assert busy[resource] == pytest.approx(busy_s, rel=1e-6, abs=1e-12), resource


@pytest.mark.parametrize("name", ["mixed", "host", "layers"])
def test_a_buffer_has_one_holder_at_a_time(name: str) -> None:
    found = judged(name)
    held: dict[str, list[lane_spans.Span]] = defaultdict(list)
    for span in lane_spans.spans_of(found, 0.0, 2 * found.step_s):
        if span.lane.startswith("buffer"):
            held[span.lane].append(span)
    depth = found.schedule.queue_depth
    assert set(held) == {f"buffer {k}" for k in range(1, depth + 1)}
    for spans in held.values():
        for before, after in pairwise(spans):
            assert before.end_s <= after.begin_s + 1e-9 * found.step_s


def test_a_measured_step_is_drawn_under_the_predicted_one() -> None:
    trace: dict[str, Any] = {"traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "measured"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": {"name": "gpu"}},
        *({"ph": "X", "name": name, "pid": 2, "tid": 1, "ts": 100.0 + 10 * k, "dur": 9.0,
           "args": {"layer": k // 2, "stage": None, "path": None}}
          for k, name in enumerate(["project", "finish"] * 4)),
    ]}  # fmt: skip
    figure = pictures.timeline(plan("mixed"), trace)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [t.split(",")[0] for t in titles] == ["predicted", "measured", "predicted", "measured"]
    spans = lane_spans.measured_spans(trace)
    assert (spans[0].begin_s, spans[0].lane) == (0.0, "gpu")
    assert spans[-1].end_s == pytest.approx(79e-6)
    with pytest.raises(InputError, match="measured"):
        pictures.timeline(plan("mixed"), {"traceEvents": []})


# -- curves, maps, rooflines -----------------------------------------------------------------


def test_shares_of_each_layer_sum_to_one() -> None:
    for layer in shares.paths_data(plan("mixed"))["layers"]:
        assert sum(layer["shares"].values()) == pytest.approx(1.0)
        rebuilt = sum(s for p, s in layer["shares"].items() if p.startswith("recompute"))
        assert layer["recompute_ratio"] == pytest.approx(rebuilt)


@pytest.mark.parametrize("split", [0.0, 0.25, 1.0])
def test_points_of_the_ratio_curve_are_judged_like_plans(split: float) -> None:
    asked = scenario("mixed")
    schedule = Schedule(stages=4, queue_depth=3)
    mix = {p: s for p, s in {"recompute": split, "fetch": 1 - split}.items() if s}
    whole = forced(asked, schedule, mix, block=1)
    assert not isinstance(whole, str)
    assert ratio.step_at(asked, schedule, mix) == pytest.approx(whole.step_s, rel=0.02)


def test_grouped_heads_never_recompute() -> None:
    data = ratio.recompute_data(plan("host"))
    assert data["act_over_kv"] >= 0.5
    grouped = make_plan(Scenario(
        model=load_model("llama-3.1-8b"), hardware=load_hardware("a100"),
        workload=Workload(batch=32, context=4096),
        options=Options(stages=(4,), queue_depths=(2,), axes=("token",)),
    ))  # fmt: skip
    marks = {m["name"]: m for m in ratio.recompute_data(grouped)["marks"]}
    assert marks["optimum, all in host memory"]["ratio"] == 0.0
    assert "never pays" in " ".join(pictures.recompute(grouped).get_suptitle().split())


def test_the_maps_hold_the_plan_itself() -> None:
    data = heat.pipeline_data(plan("mixed"))
    depth, stages = data["chosen"]
    cell = data["cells"][data["rows"].index(depth)][data["columns"].index(stages)]
    assert cell["step_s"] == pytest.approx(plan("mixed").prediction.step_s, rel=0.03)
    data = heat.workload_data(plan("mixed"))
    assert data["chosen"] == [64, 1536]
    assert len({len(row) for row in data["cells"]}) == 1


def test_faster_machines_are_never_slower() -> None:
    cells = heat.machine_data(plan("mixed"))["cells"]
    steps = [[cell["step_s"] for cell in row] for row in cells]
    for row in steps:
        assert all(b <= a * 1.02 for a, b in pairwise(row))
    for column in zip(*steps, strict=True):
        assert all(b <= a * 1.02 for a, b in pairwise(column))


@pytest.mark.parametrize("name", ["mixed", "host", "resident"])
def test_nothing_is_above_its_roof(name: str) -> None:
    data = roof.roofline_data(plan(name))
    assert data["points"]
    for point in data["points"]:
        rate = data["hbm_bytes_per_s" if point["roof"] == "hbm" else "h2d_bytes_per_s"]
        if point["name"] != "new token":
            assert point["bytes"] / point["seconds"] <= rate * 1.001, point["name"]
        assert point["flop"] / point["seconds"] <= data["flop_per_s"] * 1.001, point["name"]


@pytest.mark.parametrize("name", ["mixed", "host", "layers"])
def test_memory_grows_to_what_the_plan_says(name: str) -> None:
    data = tiers.memory_data(plan(name))
    for tier, parts in data["points"][-1]["bytes"].items():
        told = plan(name).prediction.memory_bytes.get(tier, 0.0)
        assert sum(parts.values()) == pytest.approx(told, abs=2)
    totals = [sum(sum(parts.values()) for parts in p["bytes"].values()) for p in data["points"]]
    assert totals == sorted(totals)
    first = data["points"][0]["tokens"]
    assert first == (1536 if name == "mixed" else 64)


def test_the_front_is_what_nothing_beats() -> None:
    points = pareto.front_data(plan("mixed"))["points"]
    assert any(p["on_front"] for p in points)
    assert not all(p["on_front"] for p in points)
    fastest = max(points, key=lambda p: p["tokens_per_s"])
    assert fastest["on_front"]


def test_an_estimate_is_near_the_search_and_above_its_own_bound() -> None:
    for name in PLANS:
        found, searched = estimate(scenario(name)), search(scenario(name))
        assert found.bound_s <= found.step_s * (1 + 1e-9)
        assert found.step_s == pytest.approx(searched.best.step_s, rel=0.1)
        assert sum(found.shares.values()) == pytest.approx(1.0)


# -- command ---------------------------------------------------------------------------------


def test_the_command_writes_a_picture_and_prints_numbers(tmp_path: Path) -> None:
    file, out = tmp_path / "plan.json", tmp_path / "values.svg"
    file.write_text(encode(plan("mixed")), encoding="utf-8")
    result = run("plot", "values", str(file), "-o", str(out))
    assert (result.code, result.out) == (0, "")
    assert out.read_bytes().startswith(b"<?xml")
    numbers = json.loads(run("plot", "values", str(file), "--json").out)
    assert numbers["kind"] == "values"
    assert {v["what"] for v in numbers["values"]} == {
        v.what for v in plan("mixed").prediction.values
    }


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_numbers_of_every_kind_are_json(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file.json"
    given = document(kind, "mixed")
    if isinstance(given, list):
        file = tmp_path / "rows.csv"
        file.write_text("".join([line(given[0]), *(line(row.values()) for row in given)]))
    else:
        file.write_text(encode(given) if isinstance(given, Plan) else json.dumps(given))
    result = run("plot", kind, str(file), "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["kind"] == kind


def test_the_help_lists_every_kind() -> None:
    shown = run("plot", "--help").out
    assert all(f"\n    {kind} " in shown for kind in pictures.KINDS)
