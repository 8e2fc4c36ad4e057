"""What goes wrong on a machine ends in one line, frees what was held and keeps what was done."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from plugin_cli import run  # noqa: E402

from kvplan.errors import InfeasibleError, InputError, KvplanError, ResourceError  # noqa: E402
from kvplan_validate import faults, host_memory, pool, profile, validation  # noqa: E402
from kvplan_validate.harness import Bench  # noqa: E402
from kvplan_validate.measure import Measured, Measurement, Point, Sampled  # noqa: E402
from kvplan_validate.results import Timing  # noqa: E402

FULL = OSError(errno.ENOSPC, "No space left on device", "/cache/tokens.bin")

FAULTS: list[tuple[BaseException, str]] = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "hbm"),
    (RuntimeError("CUDA error: out of memory\nmore"), "hbm"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x"), "hbm"),
    (MemoryError(), "dram"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "dram"),
    (FULL, "disk"),
    (RuntimeError("CUDA error: unspecified launch failure"), "gpu"),
    (ResourceError("pinned", "refused", "lower --pool"), "pinned"),
]


@pytest.mark.parametrize(("error", "resource"), FAULTS, ids=lambda v: str(v)[:30])
def test_a_fault_names_its_resource(error: BaseException, resource: str) -> None:
    found = faults.fault(error)
    assert isinstance(found, ResourceError)
    assert found.resource == resource
    assert found.exit_code == 3
    assert "\n" not in str(found)


@pytest.mark.parametrize("error", [KeyError("layer"), RuntimeError("shape mismatch"), OSError(5)])
def test_what_is_kvplans_own_fault_is_called_so(error: Exception) -> None:
    assert faults.fault(error) is None
    assert faults.described(error).startswith(faults.INTERNAL)


# -- host memory -----------------------------------------------------------------------------


def test_memory_is_refused_before_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 10**6)
    with pytest.raises(ResourceError, match=r"dram: 1\.0 MiB of host memory") as found:
        pool.PinnedPool(2**20)
    assert "lower --pool" in str(found.value)


def test_the_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"max": f"{4 << 30}\n", "current": f"{3 << 30}\n", "stat": f"inactive_file {2 << 30}\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 << 20} kB\n")
    monkeypatch.setattr(host_memory, "_MEMINFO", tmp_path / "meminfo")
    files = tuple(str(tmp_path / name) for name in texts)
    monkeypatch.setattr(host_memory, "_CGROUPS", (files,))
    assert host_memory.available_bytes() == (3 << 30) - host_memory.MARGIN
    (tmp_path / "max").write_text("max\n")
    assert host_memory.available_bytes() == (64 << 30) - host_memory.MARGIN


class Registrations:
    """CUDA's registration of host memory, up to a limit."""

    def __init__(self, most: int) -> None:
        self.most, self.held, self.cleared = most, dict[int, int](), 0

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        if size > self.most:
            return 2
        self.held[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer: int) -> int:
        del self.held[pointer]
        return 0


@pytest.fixture
def registrations(monkeypatch: pytest.MonkeyPatch) -> Registrations:
    made = Registrations(3 << 20)
    monkeypatch.setattr(pool, "_cudart", lambda: made)
    monkeypatch.setattr(
        pool, "clear_cuda_error", lambda: setattr(made, "cleared", made.cleared + 1)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


def test_a_refused_pool_is_halved_until_it_is_registered(registrations: Registrations) -> None:
    heard: list[str] = []
    made = pool.largest(16 << 20, 1 << 20, heard.append, pin=True)
    assert made.size == 2 << 20
    assert list(registrations.held.values()) == [2 << 20]
    assert registrations.cleared == 3
    assert len(heard) == 1
    assert heard[0].startswith("2.0 MiB are used instead of 16.0 MiB of host memory: CUDA refuses")
    made.close()
    assert not registrations.held


def test_below_the_least_the_refusal_stands(registrations: Registrations) -> None:
    with pytest.raises(ResourceError, match=r"pinned: 8\.0 MiB of host memory"):
        pool.largest(16 << 20, 8 << 20, lambda text: None, pin=True)
    assert not registrations.held


def test_closing_survives_a_gpu_that_is_gone(
    registrations: Registrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    made = pool.PinnedPool(1 << 20, pin=True)
    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    made.close()
    assert not registrations.held


# -- grids -----------------------------------------------------------------------------------

TIMING = Timing([1e-3, 1.1e-3, 1.2e-3])


class Machine:
    """Stands for running a case: does what a list says, and counts what is open."""

    def __init__(self, events: list[Any]) -> None:
        self.events, self.runs, self.closed = events, 0, 0

    def run(self, *_: Any, **__: Any) -> Timing:
        event = self.events[self.runs]
        self.runs += 1
        if isinstance(event, BaseException):
            raise event
        if callable(event):
            event()
        return TIMING


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    cases = [
        {"model": "opt-125m", "batch": batch, "context": 256, "force": {"fetch": 1.0}}
        for batch in (1, 2, 3)
    ]
    file = tmp_path / "grid.json"
    file.write_text(json.dumps(cases))
    return file


Start = Callable[[list[Any]], Machine]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    def begin(events: list[Any]) -> Machine:
        made = Machine(events)

        def close(bench: Any) -> None:
            made.closed += 1

        monkeypatch.setattr(validation, "run", made.run)
        monkeypatch.setattr(Bench, "close", close)
        return made

    return begin


def asked(grid: Path, output: Path, *more: str) -> tuple[str, ...]:
    fixed = ("validate", "--grid", str(grid), "--gpu", "h200", "--device", "cpu")
    return (*fixed, "-o", str(output), *more)


def held(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(output.read_text())["results"]
    return found


def test_a_case_that_fails_keeps_its_reason_and_the_grid_goes_on(
    grid: Path, tmp_path: Path, start: Start
) -> None:
    machine = start([torch.OutOfMemoryError("CUDA out of memory."), FULL, None])
    result = run(*asked(grid, tmp_path / "r.json"))
    assert result.code == 0, result.err
    first, second, third = held(tmp_path / "r.json")
    assert first["reason"].startswith("cannot run here: hbm: ")
    assert second["reason"].startswith("cannot run here: disk: No space left")
    assert third["reason"] is None
    assert third["measured_s"] == 1.1e-3
    assert machine.closed == 1


def test_failed_cases_are_tried_again(grid: Path, tmp_path: Path, start: Start) -> None:
    start([FULL, None, None])
    run(*asked(grid, tmp_path / "r.json"))
    again = start([None])
    assert run(*asked(grid, tmp_path / "r.json")).code == 0
    assert again.runs == 1
    assert [r["case"]["batch"] for r in held(tmp_path / "r.json")] == [2, 3, 1]


def test_a_fault_of_kvplan_shows_in_the_exit_code(grid: Path, tmp_path: Path, start: Start) -> None:
    start([None, KeyError("layer"), None])
    result = run(*asked(grid, tmp_path / "r.json"))
    assert result.code == 1
    assert result.err == "kvplan: error: 1 of 3 cases: internal error (KeyError: 'layer')\n"
    assert len(held(tmp_path / "r.json")) == 3


def test_no_case_at_all_is_an_error(grid: Path, tmp_path: Path, start: Start) -> None:
    start([FULL] * 3)
    result = run(*asked(grid, tmp_path / "r.json"))
    assert result.code == 3
    assert "every case: 3 failed; the first: cannot run here: disk" in result.err


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    signal.sigtimedwait([], 1.0)  # the handler runs before this returns


@pytest.mark.parametrize(
    ("event", "code", "word"), [(interrupt, 130, "interrupted"), (terminate, 143, "terminated")]
)
def test_an_interrupt_keeps_results_and_the_run_goes_on_later(
    grid: Path, tmp_path: Path, start: Start, event: Callable[[], None], code: int, word: str
) -> None:
    output, before = tmp_path / "r.json", signal.getsignal(signal.SIGTERM)
    machine = start([None, event])
    result = run(*asked(grid, output))
    assert result.code == code
    assert result.err.startswith(f"kvplan: error: {word}; {output} keeps 1 measured cases; ")
    assert result.err.count("\n") == 1
    assert machine.closed == 1
    assert signal.getsignal(signal.SIGTERM) == before
    assert len(held(output)) == 1
    again = start([None, None])
    assert run(*asked(grid, output)).code == 0
    assert again.runs == 2
    assert len(held(output)) == 3


def test_a_full_disk_under_the_results_ends_the_run_and_keeps_those_before(
    grid: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "r.json"
    plain = os.replace
    written: list[Any] = []

    def replace(source: Any, target: Any) -> None:
        if written:
            raise FULL
        written.append(target)
        plain(source, target)

    monkeypatch.setattr("kvplan.plan_file.os.replace", replace)
    machine = start([None] * 3)
    result = run(*asked(grid, output))
    assert result.code == 2
    assert "No space left on device); it keeps the 1 results before this one" in result.err
    assert result.err.count("\n") == 1
    assert len(held(output)) == 1
    assert machine.closed == 1
    assert not list(tmp_path.glob(".r.json*"))


def test_a_gpu_that_no_longer_answers_ends_the_grid(
    grid: Path, tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = start([None, RuntimeError("CUDA error: unspecified launch failure"), None])
    monkeypatch.setattr(validation, "recover", lambda: "CUDA error: unspecified launch failure")
    result = run(*asked(grid, tmp_path / "r.json"))
    assert result.code == 3
    assert "cannot run here: gpu: " in result.err
    assert "keeps 1 measured cases; the same command goes on" in result.err
    assert machine.runs == 2
    assert machine.closed == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu_is_one_line(grid: Path) -> None:
    result = run("validate", "--grid", str(grid), "--gpu", "h200")
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("kvplan: error: cannot run here: gpu: torch sees no CUDA device")
    assert result.err.count("\n") == 1


def test_an_unknown_device_is_one_line(grid: Path) -> None:
    result = run("validate", "--grid", str(grid), "--gpu", "h200", "--device", "tpu")
    assert (result.code, result.out) == (2, "")
    assert "--device: 'tpu' is not accepted: cuda or cpu" in result.err


# -- profiles --------------------------------------------------------------------------------


class Quick(Measurement):
    """A measurement that takes no time."""

    sentence, needs = "Nothing.", ""

    def __init__(self, key: str, event: Callable[[], None] | None = None) -> None:
        self.key, self.event, self.runs = key, event, 0  # type: ignore[misc]

    def run(self, machine: Any) -> Measured:
        self.runs += 1
        if self.event is not None:
            self.event()
        return Measured(points=(Point(at={"bytes": 1}, sampled=Sampled(samples=(1e-6,))),))


def test_an_interrupted_profile_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, profiled = tmp_path / "raw.json", profile.run_profile
    first, second = Quick("copies.first"), Quick("copies.second", interrupt)
    monkeypatch.setattr(
        profile, "run_profile", lambda select, *args, **options: profiled(
            None, *args, **options, registry=(first, second)
        )
    )  # fmt: skip
    result = run("profile", "--raw", str(raw))
    assert result.code == 130
    assert f"interrupted; {raw} keeps 1 measurements; --resume goes on from there" in result.err
    second.event = None
    result = run("profile", "--raw", str(raw), "--resume", "--json")
    assert result.code == 0, result.err
    assert (first.runs, second.runs) == (1, 2)
    states = [entry["state"] for entry in json.loads(result.out)["measurements"].values()]
    assert states == ["measured", "measured"]


def test_a_profile_of_another_machine_is_not_resumed(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    raw.write_text(json.dumps({"machine": {"cpu": "abacus"}, "measurements": {}}))
    result = run("profile", "--raw", str(raw), "--resume", "--only", "disk")
    assert result.code == 2
    assert "--resume: " in result.err


def test_resuming_needs_a_file(tmp_path: Path) -> None:
    assert run("profile", "--resume").code == 2
    assert run("profile", "--resume", "--raw", str(tmp_path / "missing.json")).code == 2


def test_the_table_of_faults_holds_errors_of_the_tree() -> None:
    for error in (InputError("a", 1, "b"), InfeasibleError("hbm", "a", "b"), KvplanError("x")):
        assert faults.fault(error) is error
    assert faults.recover() is None or torch.cuda.is_available()
