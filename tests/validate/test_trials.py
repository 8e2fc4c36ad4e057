"""Trials: every one runs on stand-ins; verdicts follow the figures; what cannot run is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_gpu import FakeTorch

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from plugin_cli import run  # noqa: E402
from test_runtime import small_model  # noqa: E402

from kvplan.hardware_library import load_hardware  # noqa: E402
from kvplan_validate import harness, pool  # noqa: E402
from kvplan_validate.harness import Bench  # noqa: E402
from kvplan_validate.measure import Machine, pinned, timing  # noqa: E402
from kvplan_validate.trials import (  # noqa: E402  # noqa: E402
    REGISTRY,
    Finding,
    Place,
    Trial,
    copies,
    pinning,
    run_trials,
    steps,
    table,
)

KIB = 1024


STEPS = (steps.RecomputeCurve, steps.SerialOrOverlapped)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time."""
    monkeypatch.setattr(timing, "WARM_WIDTH", 16)
    monkeypatch.setattr(pinned, "STEP", 1 << 20)
    monkeypatch.setattr(pinned, "MOST", 4 << 20)
    monkeypatch.setattr(copies.CopyRamp, "sizes", (8 * KIB, 64 * KIB, 512 * KIB))
    monkeypatch.setattr(copies.MemoryKinds, "size", 1 << 20)
    monkeypatch.setattr(copies.SmallCopies, "count", 8)
    monkeypatch.setattr(pinning.AllocatorRounding, "requests", (3 << 20,))
    monkeypatch.setattr(pinning.PinSpeed, "size", 1 << 20)
    monkeypatch.setattr(Machine, "free_dram_bytes", lambda machine: 64 << 20)
    monkeypatch.setattr(steps, "load_model", lambda name: small_model(grouped=False, rope=False))
    monkeypatch.setattr(steps, "copy_s", lambda place, size: size / 55e9)
    monkeypatch.setattr(steps.SerialOrOverlapped, "depths", (256,))
    monkeypatch.setattr(steps.RecomputeCurve, "context", 256)
    monkeypatch.setattr(steps.RecomputeCurve, "batch", 2)
    monkeypatch.setattr(steps.RecomputeCurve, "reported_s", {0: 30.0, 128: 20.0, 256: 25.0})
    monkeypatch.setattr(steps.RecomputeCurve, "judged", (0, 256))
    for trial in REGISTRY:
        monkeypatch.setattr(type(trial), "dram_bytes", 1 << 20)
    monkeypatch.setattr(harness, "SMALL_POOL", 1 << 20)


def place(torch_module: Any, folder: Path) -> Place:
    bench = Bench(64 << 20, device=torch.device("cpu"))
    machine = Machine(torch_module, True, folder)
    return Place(machine=machine, bench=bench, hardware=load_hardware("h200"))


def checked(trial: Trial, where: Place) -> Finding:
    assert trial.can_run(where) is None
    found = trial.run(where)
    where.bench.close()
    assert found.here
    json.dumps(dict(found.figures), allow_nan=False)
    return found


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "trial", [t for t in REGISTRY if not isinstance(t, STEPS)], ids=lambda trial: trial.name
)
def test_trials_of_memory_run_on_a_stand_in(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTorch(torch)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor, *_: True)
    monkeypatch.setattr(pinning, "clear_cuda_error", lambda: None)
    monkeypatch.setattr(pool, "clear_cuda_error", lambda: None)
    monkeypatch.setattr(pool, "_cudart", lambda: fake.cuda.cudart())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    checked(trial, place(fake, tmp_path))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "trial", [t for t in REGISTRY if isinstance(t, STEPS)], ids=lambda trial: trial.name
)
def test_trials_of_steps_run_on_the_cpu(trial: Trial, tmp_path: Path) -> None:
    found = checked(trial, place(torch, tmp_path))
    assert all(row["tokens"] in (0, 128, 256) for row in found.figures["rows"])


def test_trials_say_what_was_claimed_and_by_whom() -> None:
    assert len({trial.name for trial in REGISTRY}) == len(REGISTRY) == 9
    for trial in REGISTRY:
        assert trial.title
        assert "#" in trial.source or "data set" in trial.source
        assert any(c.isdigit() for c in trial.claim) or "limit" in trial.claim


class Said(Trial):
    """Says what it is told."""

    title, source, claim = "Title", "somewhere#1", "1 + 1"

    def __init__(self, name: str, event: Finding | Exception | str) -> None:
        self.name, self.event = name, event  # type: ignore[misc]

    def can_run(self, place: Place) -> str | None:
        return self.event if isinstance(self.event, str) else None

    def run(self, place: Place) -> Finding:
        if isinstance(self.event, Exception):
            raise self.event
        assert isinstance(self.event, Finding)
        return self.event


def test_verdicts_are_kept_after_every_trial(tmp_path: Path) -> None:
    output, place = tmp_path / "t.json", SimpleNamespace()
    lengths: list[int] = []

    def show(text: str) -> None:
        lengths.append(len(json.loads(output.read_text())["trials"]))

    trials = [
        Said("first", Finding(here="two", holds=True, figures={"sum": 2})),
        Said("second", Finding(here="three", holds=False)),
        Said("third", "no CUDA device"),
        Said("fourth", MemoryError()),
    ]
    document = run_trials(trials, place, {}, output=output, show=show)  # type: ignore[arg-type]
    found = {name: entry["verdict"] for name, entry in document["trials"].items()}
    assert list(found.values()) == ["holds", "differs", "skipped", "failed"]
    assert document["trials"]["fourth"]["here"].startswith("cannot run here: dram")
    assert lengths == [1, 2, 3, 4]
    assert json.loads(output.read_text()) == document


def test_a_repeated_copy_changes_no_result() -> None:
    done: list[int] = []
    steps.repeated(lambda: done.append(1), 5)()
    assert len(done) == 5


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_every_trial_is_skipped(tmp_path: Path) -> None:
    output = tmp_path / "t.json"
    result = run("validate", "--trials", "--gpu", "h200", "--device", "cpu", "-o", str(output))
    assert result.code == 0, result.err
    entries = json.loads(output.read_text())["trials"].values()
    assert {entry["verdict"] for entry in entries} == {"skipped"}
    assert result.out.count("skipped: no CUDA device") == len(REGISTRY)


@pytest.mark.parametrize("more", [(), ("--grid", "grid.json")])
def test_what_to_run_must_be_clear(more: tuple[str, ...]) -> None:
    result = run("validate", *(["--trials"] if more else []), *more)
    assert result.code == 2
    assert "PLAN, --grid, --trials or --again" in result.err


def test_the_table_shows_every_trial() -> None:
    entry = {"title": "Sums", "source": "a#1", "claim": "1 | 1", "here": "2", "verdict": "holds"}
    shown = table({"trials": {"sum": entry}})
    assert shown.splitlines()[-1] == "| Sums (a#1) | 1 / 1 | 2 | holds here |"
