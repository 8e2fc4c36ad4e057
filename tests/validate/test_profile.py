"""The profiler: what it measures here, what it says where it cannot, and the profile it writes."""

from __future__ import annotations

import copy
import json
import statistics
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeTorch
from rich.console import Console

from kvplan import cost
from kvplan.curve import Curve
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile, number_paths, override, scaled
from kvplan.hardware_file import parse_hardware
from kvplan_validate.figures import spread_note
from kvplan_validate.hardware_document import default_name, fit, residuals, to_toml
from kvplan_validate.measure import REGISTRY, Machine, Measured, Measurement, Sampled
from kvplan_validate.measure.base import NO_TIME, Point
from kvplan_validate.profile import Step, run_profile, selected
from kvplan_validate.profile_tables import show_measurements

RAW: dict[str, Any] = json.loads((Path(__file__).parent / "raw_profile.json").read_text())
KEYS = [m.key for m in REGISTRY]


def torch_or_skip() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed")


def profile_of(raw: dict[str, Any]) -> HardwareProfile:
    return parse_hardware(to_toml(raw, "here", "Here", "raw.json"))


def cut(points: list[dict[str, Any]], **at: object) -> list[dict[str, Any]]:
    return [p for p in points if any(p["at"].get(k) != v for k, v in at.items())]


# -- the registry ------------------------------------------------------------------------------


def test_measurements_have_keys_and_sentences() -> None:
    assert len(set(KEYS)) == len(KEYS)
    for measurement in REGISTRY:
        module = type(measurement).__module__.rpartition(".")[2]
        assert measurement.key.startswith(f"{module}.")
        assert measurement.sentence.endswith(".")
        assert measurement.sentence.count(". ") == 0
        assert measurement.seconds > 0
        assert type(measurement).__doc__
    assert sum(m.seconds for m in REGISTRY) < 120


def test_selection_by_key_and_by_group() -> None:
    assert [m.key for m in selected(["host", "copies.duplex"])] == [
        "copies.duplex", "host.attention", "host.call", "host.hand_over",
    ]  # fmt: skip
    assert selected(None) == selected([""]) == list(REGISTRY)
    with pytest.raises(InputError, match="did you mean copies"):
        selected(["copys"])


# -- machines without something ----------------------------------------------------------------


def test_without_torch_everything_says_why(tmp_path: Path) -> None:
    machine = Machine(None, False, tmp_path)
    reasons = {m.key: m.can_run(machine) for m in REGISTRY}
    assert {why for key, why in reasons.items() if key != "disk.read"} == {"torch is not installed"}


def test_without_a_gpu_its_measurements_say_why(tmp_path: Path) -> None:
    machine = Machine(object(), False, tmp_path)
    for measurement in REGISTRY:
        expected = "no CUDA device" if measurement.needs == "cuda" else None
        if measurement.key != "disk.read":
            assert measurement.can_run(machine) == expected


def test_no_disk_says_why(tmp_path: Path) -> None:
    (disk,) = selected(["disk"])
    assert "No such file" in str(disk.can_run(Machine(None, False, tmp_path / "missing")))


def test_cpu_measurements_run_within_a_tiny_budget(tmp_path: Path) -> None:
    torch_or_skip()
    steps: list[Step] = []
    raw = run_profile(["host", "disk"], 4.0, steps.append, scratch=str(tmp_path))
    json.dumps(raw, allow_nan=False)
    entries = raw["measurements"]
    measured = [
        key for key in ("host.attention", "disk.read") if entries[key]["state"] != "skipped"
    ]
    assert "host.attention" in measured
    for key in measured:
        assert entries[key]["state"] == "measured", entries[key]["reason"]
        point = entries[key]["points"][0]
        assert point["median"] == statistics.median(point["samples"]) > 0
        assert point["spread"] >= 0
    assert [s.number for s in steps] == list(range(1, len(steps) + 1))
    assert list(tmp_path.iterdir()) == []
    profile = profile_of(raw)
    assert profile.host.attention_bytes_per_s
    assert profile.kind == "assumed"


class Disturbed(Measurement):
    """Slow at the first visit for one size, at the second for the other."""

    key = "copies.disturbed"
    sentence = "What others slow down."
    needs = ""
    visits = 2

    def __init__(self, times: Iterator[tuple[float, float]]) -> None:
        self.times = times

    def run(self, machine: Machine) -> Measured:
        small, large = next(self.times)
        return Measured(points=(
            Point(at={"bytes": 4}, sampled=Sampled(samples=(small,), volume=4)),
            Point(at={"bytes": 8}, sampled=Sampled(samples=(large,), volume=8)),
        ))  # fmt: skip


def test_the_faster_of_two_visits_counts(capsys: pytest.CaptureFixture[str]) -> None:
    disturbed = Disturbed(iter([(1.0, 3.0), (1.02, 2.0)]))
    raw = run_profile(None, 5.0, registry=[disturbed])
    points = raw["measurements"]["copies.disturbed"]["points"]
    assert [p["median"] for p in points] == [1.0, 2.0]
    assert [p["visits"] for p in points] == [[1.0, 1.02], [3.0, 2.0]]
    assert "faster of two visits, up to 50.0% apart" in spread_note(points)
    show_measurements(Console(width=200), raw)
    assert "two visits differ by up to 50%" in capsys.readouterr().out


def test_a_spent_budget_skips() -> None:
    raw = run_profile(["host"], 0.0)
    assert {e["state"] for e in raw["measurements"].values()} == {"skipped"}


class Odd(Measurement):
    """Fails, or says nothing."""

    sentence, needs = "Fails.", ""

    def __init__(self, key: str, result: Measured | Exception) -> None:
        self.key, self.result = key, result  # type: ignore[misc]

    def run(self, machine: Machine) -> Measured:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_a_failing_measurement_does_not_stop_the_rest() -> None:
    from kvplan_validate.measure import Point

    good = Measured(points=(Point(at={"n": 1}, sampled=Sampled(samples=(2.0, 1.0, 3.0))),))
    partly = Measured(points=(Point(at={"n": 1}, error="odd"), *good.points))
    registry = [
        Odd("a.raises", RuntimeError("CUDA error: x\nmore")), Odd("a.empty", Measured(points=())),
        Odd("a.partly", partly), Odd("a.good", good),
    ]  # fmt: skip
    entries = run_profile(None, 5.0, registry=registry)["measurements"]
    assert [e["state"] for e in entries.values()] == ["failed", "failed", "measured", "measured"]
    assert entries["a.raises"]["reason"] == "RuntimeError: CUDA error: x"
    assert entries["a.good"]["points"][0]["median"] == 2.0
    assert entries["a.good"]["points"][0]["spread"] == 0.5
    assert entries["a.partly"]["points"][0]["error"] == "odd"


# -- the GPU's code on a stand-in --------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeTorch:
    torch = torch_or_skip()
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    from kvplan_validate.measure import (
        attention,
        copies,
        dequantise,
        host,
        launch,
        matmul,
        memory,
        pinned,
        timing,
    )  # fmt: skip

    fake = FakeTorch(torch)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor, *_: True)
    monkeypatch.setattr(Machine, "here", lambda scratch=None: Machine(fake, True, tmp_path))
    monkeypatch.setattr(timing, "WARM_WIDTH", 16)
    monkeypatch.setattr(copies, "BUFFER", 1 << 20)
    monkeypatch.setattr(launch, "LAUNCHES", 5)
    for copier in (copies.Registered, copies.Pinned, copies.Pageable, copies.Eager, copies.Duplex):
        monkeypatch.setattr(copier, "sizes", (4096, 65536))
    monkeypatch.setattr(attention.TokenMajor, "sizes", (1 << 20,))
    monkeypatch.setattr(attention.HeadMajor, "sizes", (1 << 20,))
    monkeypatch.setattr(matmul, "REBUILDS", ((64, 128), (128, 64)))
    monkeypatch.setattr(matmul, "TOKENS", (64, 128))
    monkeypatch.setattr(matmul, "LINEARS", ((64, 64), (64, 128)))
    monkeypatch.setattr(matmul.Formats, "shape", (64, 64, 64))
    monkeypatch.setattr(memory, "SIZE", 1 << 20)
    monkeypatch.setattr(host, "SIZE", 1 << 20)
    monkeypatch.setattr(pinned, "STEP", 1 << 20)
    monkeypatch.setattr(pinned, "MOST", 8 << 20)
    two = [{"dtype": dtype, "bytes": 1 << 16} for dtype in ("int8", "int4")]
    monkeypatch.setattr(dequantise.Runtime, "settings", lambda *_: iter(two))
    monkeypatch.setattr(pinned.Allocator, "settings", lambda *_: iter([{"bytes": 1 << 20}]))
    return fake


@pytest.mark.parametrize("key", [key for key in KEYS if key != "disk.read"])
def test_gpu_code_runs_on_a_stand_in(stand_in: FakeTorch, key: str) -> None:
    raw = run_profile([key], 5.0)
    entry = raw["measurements"][key]
    assert entry["state"] == "measured", entry["reason"]
    errors = {p["error"] for p in entry["points"] if "error" in p} - {NO_TIME}
    assert not errors or key == "matmul.formats"  # the CPU lacks some of the formats
    assert stand_in.registered == 0
    parse_hardware(to_toml(raw, default_name(raw), "Stand-in"))


def test_pinning_stops_at_the_refusal(stand_in: FakeTorch) -> None:
    stand_in.registers = 3
    raw = run_profile(["pinned.limit"], 20.0)
    limit = raw["measurements"]["pinned.limit"]["points"][-1]
    assert limit["median"] == 3 << 20
    assert limit["notes"]["refused"] == 1
    assert profile_of(raw).host.pinned_bytes == 3 << 20


# -- the profile -------------------------------------------------------------------------------


def test_canned_results_make_a_profile_that_reads_back() -> None:
    profile = profile_of(RAW)
    assert profile.name == "here"
    assert profile.kind == "measured"
    assert profile.host_attention_measured
    assert profile.gpu.memory_bytes == 143156 << 20
    assert profile.gpu.hbm_bytes_per_s == pytest.approx(3944.1e9, rel=1e-4)
    assert profile.h2d.raw_bytes_per_s == pytest.approx(63.0154e9)
    assert profile.h2d.copy.rate() == pytest.approx(55.27e9, rel=1e-3)
    assert profile.host.attention_bytes_per_s["bf16"] == pytest.approx(71.4454e9, rel=1e-4)
    assert profile.host.pinned_bytes is None  # 16 GiB worked; no limit is known
    assert profile.provenance["gpu.kernel"].kind == "assumed"  # its measurement failed
    assert profile.provenance["h2d.copy"].source == "raw.json, copies.registered"
    assert {p.date for p in profile.provenance.values() if p.kind == "measured"} == {"2026-11-29"}


def test_attention_shapes_and_linear_layers_have_their_place() -> None:
    profile = profile_of(RAW)
    shapes = [(a.sequences, a.kv_heads, a.group) for a in profile.gpu.attention_shapes]
    assert shapes == [(1, 32, 1), (32, 32, 1)]
    assert profile.gpu.linear is not None
    assert {"gpu.linear", "gpu.attention_points.1.time"} <= set(number_paths(profile))
    fast = scaled(profile, rate=2.0).gpu
    slow = override(profile, hbm_bytes_per_s=profile.gpu.hbm_bytes_per_s / 2)
    assert fast.linear is not None
    assert slow.gpu.linear is not None
    for size in (1e6, 1e9):
        assert fast.linear.seconds(size) == pytest.approx(profile.gpu.linear.seconds(size) / 2)
        shape, other = profile.gpu.attention_shapes[0], fast.attention_shapes[0]
        assert other.seconds.seconds(size) == pytest.approx(shape.seconds.seconds(size) / 2)
    assert slow.gpu.linear.rate() == pytest.approx(profile.gpu.linear.rate() / 2)
    assert slow.provenance["gpu.attention_points.0.time"].source == "command line"


def test_linear_layers_are_told_apart_by_tokens() -> None:
    raw = copy.deepcopy(RAW)
    points = raw["measurements"]["matmul.linear"]["points"]
    points += [
        {**point, "at": {**point["at"], "rows": 64}, "median": 2 * point["median"]}
        for point in points
    ]
    profile = profile_of(raw)
    few, many = profile.gpu.linear_shapes
    assert (few.tokens, many.tokens) == (8, 64)
    assert "gpu.linear_points.1.time" in number_paths(profile)
    size = 2 * 4096 * 8192
    assert many.seconds.seconds(size) == pytest.approx(2 * few.seconds.seconds(size))
    taken = [cost.linear(profile, 4096, 8192, "fp16", tokens) for tokens in (1, 8, 9, 65)]
    assert taken[0] == taken[1] == few.seconds.seconds(size)
    assert taken[2] == taken[3] == many.seconds.seconds(size)
    fast = scaled(profile, rate=2.0).gpu.linear_shapes[1]
    assert fast.seconds.seconds(size) == pytest.approx(many.seconds.seconds(size) / 2)
    falling = to_toml(raw, "here", "Here").replace("tokens = 8\n", "tokens = 80\n", 1)
    with pytest.raises(InputError, match=r"linear_points.*numbers of tokens that rise"):
        parse_hardware(falling)


def test_linear_layers_are_told_apart_by_shape() -> None:
    raw = copy.deepcopy(RAW)
    points = raw["measurements"]["matmul.linear"]["points"]
    points += [
        {
            **point,
            "at": {**at, "inputs": at["outputs"] * 2, "outputs": at["inputs"]},
            "median": 3 * point["median"],
        }
        for point in points
        if (at := point["at"])
    ]
    profile = profile_of(raw)
    assert [c.shape for c in profile.gpu.linear_shapes] == ["wide", "narrow"]
    up, down = (
        cost.linear(profile, *widths, "fp16", 8) for widths in ((4096, 16384), (16384, 4096))
    )
    assert down > up * 1.5
    text = to_toml(raw, "here", "Here")
    with pytest.raises(InputError, match=r"gpu\.linear_points\.0\.shape.*wide, narrow, any"):
        parse_hardware(text.replace('shape = "wide"', 'shape = "thin"'))


def test_linear_layers_follow_their_points() -> None:
    """Weights are no decision, so time need not be convex in their bytes."""
    raw = copy.deepcopy(RAW)
    point = raw["measurements"]["matmul.linear"]["points"][0]
    raw["measurements"]["matmul.linear"]["points"] = [
        {
            **point,
            "at": {**point["at"], "inputs": 4096, "outputs": outputs},
            "volume": 8192.0 * outputs,
            "median": seconds,
        }
        for outputs, seconds in ((8192, 2e-5), (16384, 6e-5), (32768, 8e-5))
    ]
    profile = profile_of(raw)
    hull = profile.gpu.linear_shapes[0].seconds
    for outputs, seconds in ((8192, 2e-5), (12288, 4e-5), (16384, 6e-5), (32768, 8e-5)):
        assert cost.linear(profile, 4096, outputs, "fp16", 8) == pytest.approx(seconds)
    assert hull.seconds(8192.0 * 16384) == pytest.approx(4e-5)


def test_far_points_do_not_bend_what_a_step_can_reach() -> None:
    shape = profile_of(RAW).gpu.attention_shapes[0].seconds
    volumes = [volume for volume, _ in shape.points]
    for volume, seconds in shape.points[1:]:
        near = shape.within(volume)
        assert near.seconds(volume) == pytest.approx(seconds)
        for smaller in volumes:
            if smaller <= volume:
                assert near.seconds(smaller) >= shape.seconds(smaller) * (1 - 1e-12)
    assert shape.within(2 * volumes[-1]) is shape


def test_attention_points_are_checked() -> None:
    text = to_toml(RAW, "here", "Here").replace("sequences = 1\n", "sequences = 0\n", 1)
    with pytest.raises(InputError, match=r"gpu\.attention_points\.0\.sequences"):
        parse_hardware(text)


def curves(profile: HardwareProfile) -> list[Curve]:
    gpu = profile.gpu
    found = [row.seconds for row in gpu.gemm] + [row.seconds for row in gpu.attention_shapes]
    found += [row.seconds for row in gpu.linear_shapes]
    some = [gpu.attention, gpu.linear, profile.h2d.copy, profile.d2h.copy]
    return found + [curve for curve in some if curve]


def test_curves_are_convex_and_residuals_are_those_of_the_reader() -> None:
    profile = profile_of(RAW)
    for curve in curves(profile):
        slopes = [piece.s_per_unit for piece in curve.pieces]
        assert slopes == sorted(slopes)
        for low, high in pairwise(curve.pieces):
            assert low.fixed_s > high.fixed_s
    rows = residuals(RAW)
    assert {row["curve"]: row["residual"] for row in rows} == pytest.approx(profile.residuals)
    assert all(row["points"] >= 2 and row["pieces"] >= 1 for row in rows)


def test_a_line_has_no_residual() -> None:
    points = [(float(n), 1.0 + 2.0 * n) for n in (1, 10, 100)]
    assert fit(points).seconds(10.0) == pytest.approx(21.0)


def test_every_number_says_where_it_is_from() -> None:
    document = tomllib.loads(to_toml({**RAW, "measurements": {}}, "here", "Here"))
    assert document["kind"] == "assumed"
    profile = profile_of({**RAW, "measurements": {}})
    kinds = {path: p.kind for path, p in profile.provenance.items()}
    assert {path for path, kind in kinds.items() if kind == "measured"} == {
        "gpu.memory", "host.dram",
    }  # fmt: skip
    assert all(p.source for p in profile.provenance.values())


def test_results_of_something_else_are_refused() -> None:
    with pytest.raises(InputError, match="raw results, version 1"):
        to_toml({"kvplan_profile": 2, "measurements": {}}, "here", "Here")


# -- the command -------------------------------------------------------------------------------


@pytest.fixture
def command() -> Any:
    typer = pytest.importorskip("typer")
    from kvplan_validate.commands import profile

    app = typer.Typer()
    app.command()(profile)
    return lambda *argv: typer.main.get_command(app).main(argv, standalone_mode=False)


def test_command_reads_raw_results_and_prints_tables(
    command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, output = tmp_path / "raw.json", tmp_path / "my.toml"
    raw.write_text(json.dumps(RAW))
    command("--from", str(raw), "-o", str(output), "--name", "mine")
    shown = capsys.readouterr().out
    for expected in (*KEYS, "residual", "h2d.copy", "failed: RuntimeError", "GB/s", "TFLOP/s"):
        assert expected in shown
    assert parse_hardware(output.read_text()).name == "mine"
    assert "raw.json, copies.registered" in output.read_text()
    command("--from", str(raw), "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["residuals"][0]["curve"] == "gpu.attention"


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        (("--budget", "0"), "--budget"), (("--only", "gpu"), "--only"),
        (("--raw", "-"), "--raw"), (("--scratch", "/no/such"), "--scratch"),
        (("-o", "/no/such/my.toml"), "--output"), (("--from", "/no/such.json"), "--from"),
    ],
)  # fmt: skip
def test_command_refuses_before_it_measures(command: Any, argv: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        command(*argv)
    assert caught.value.field == field
