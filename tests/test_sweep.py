"""Sweeps: every combination is a row, rows are what a search finds, and nothing is lost."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Result, run

from kvplan.cli import sweep as command
from kvplan.errors import InputError
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.pictures import rows as picture
from kvplan.scenario import Options, Scenario
from kvplan.solve import search
from kvplan.sweep import columns, parallel, row, rows
from kvplan.sweep_file import SweepFile, read_rows, text_of, value_of
from kvplan.workload import Budgets, Workload

ASKED = ("sweep", "--model", "opt-125m", "--gpu", "l4,t4", "--batch", "16,32..64", "--jobs", "1")
SMALL = (*ASKED, "--hbm", "2GiB", "--stages", "4", "--queue-depth", "2", "--axis", "token")


def swept(*more: str) -> list[dict[str, Any]]:
    result = run(*SMALL, *more, "--json")
    assert result.code == 0, result.err
    found: list[dict[str, Any]] = json.loads(result.out)["rows"]
    return found


def double(number: int) -> int:
    return 2 * number


# -- rows ------------------------------------------------------------------------------------


def scenario(batch: int, hbm_gib: float = 2.0) -> Scenario:
    return Scenario(
        model=load_model("opt-125m"), hardware=load_hardware("l4"),
        workload=Workload(batch=batch, context=2048),
        budgets=Budgets(hbm_bytes=round(hbm_gib * 2**30)),
        options=Options(axes=("token",), stages=(4,), queue_depths=(2,)),
    )  # fmt: skip


def test_a_row_is_what_the_search_finds() -> None:
    found, searched = row(scenario(64)), search(scenario(64))
    assert tuple(found) == columns()
    assert found["step_s"] == searched.best.step_s
    assert (found["bound_s"], found["gap"]) == (searched.bound_s, searched.gap)
    assert found["tokens_per_s"] == 64 / searched.best.step_s
    assert found["used_hbm_bytes"] == round(searched.best.memory_bytes["hbm"])
    assert sum(v for k, v in found.items() if k.startswith("share_")) == pytest.approx(1.0)


def test_what_does_not_fit_is_a_row_with_a_reason() -> None:
    found = row(scenario(64, hbm_gib=0.1))
    assert found["status"] == "infeasible"
    assert found["reason"].startswith("no feasible plan: hbm: ")
    assert found["step_s"] is None


def test_processes_find_the_same_in_the_same_order() -> None:
    asked = [scenario(batch) for batch in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)]
    alone = rows(asked, "estimate", jobs=1)
    assert rows(asked, "estimate", jobs=2) == alone  # scenarios that were used before, too


def test_parallel_hands_out_everything_once() -> None:
    for jobs in (1, 2):
        found = dict(parallel(double, list(range(37)), jobs))
        assert found == {n: 2 * n for n in range(37)}
    assert list(parallel(double, [], 2)) == []


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InputError, match="level"):
        row(scenario(1), "guess")


# -- command ---------------------------------------------------------------------------------


def test_every_combination_is_a_row_in_order() -> None:
    found = swept("--fast")
    assert [(r["gpu"], r["batch"]) for r in found] == [
        (gpu, batch) for gpu in ("l4", "t4") for batch in (16, 32, 64)
    ]
    assert {r["hbm_bytes"] for r in found} == {2 * 2**30}
    assert {r["level"] for r in found} == {"estimate"}


def test_rows_are_those_of_solve() -> None:
    solved = json.loads(run("solve", *SMALL[1:5], *SMALL[9:], "--gpu", "l4", "--batch", "64",
                            "--json").out)  # fmt: skip
    found = next(r for r in swept() if (r["gpu"], r["batch"]) == ("l4", 64))
    assert found["step_s"] == pytest.approx(solved["prediction"]["step_s"], rel=2e-3)
    assert found["plan_stages"] == 4


def test_values_that_only_some_combinations_accept_are_rows_too() -> None:
    found = swept("--fast", "--micro-batches", "1,5", "--batch", "20,32")
    status = {(r["batch"], r["micro_batches"]): r["status"] for r in found}
    assert status == {(20, 1): "ok", (20, 5): "ok", (32, 1): "ok", (32, 5): "refused"}
    refused = next(r for r in found if r["status"] == "refused")
    assert "--micro-batches" in refused["reason"]


def test_infeasible_rows_are_shown_with_their_reason() -> None:
    result = run(*ASKED, "--hbm", "100MiB,2GiB", "--fast")
    assert result.code == 0
    assert "no feasible plan: hbm" in result.out
    assert "6 fit, 6 do not" in result.err
    assert "estimates" in result.out


def test_csv_on_stdout() -> None:
    table = list(csv.DictReader(io.StringIO(run(*SMALL, "--fast", "-o", "-").out)))
    assert [r["batch"] for r in table] == ["16", "32", "64"] * 2


# -- files -----------------------------------------------------------------------------------


def written(file: Path, *more: str) -> Result:
    result = run(*SMALL, "--fast", "-o", str(file), *more)
    assert (result.code, result.out) == (0, ""), result.err
    return result


def test_an_interrupted_sweep_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    written(whole)
    solve = command._solve
    calls: list[Any] = []

    def interrupted(asked: Any) -> dict[str, Any]:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(asked)
        return solve(asked)

    monkeypatch.setattr(command, "_solve", interrupted)
    result = run(*SMALL, "--fast", "-o", str(cut))
    assert result.code == 130
    assert len(read_rows(cut)) == 4
    with cut.open("a") as stream:
        stream.write("opt-125m,t4,6")  # a line that was being written
    calls.clear()

    def counted(asked: Any) -> dict[str, Any]:
        calls.append(asked)
        return solve(asked)

    monkeypatch.setattr(command, "_solve", counted)
    assert "4 were there already" in written(cut).err
    assert len(calls) == 2
    assert cut.read_bytes() == whole.read_bytes()
    calls.clear()
    assert "6 were there already" in written(cut).err
    assert not calls


def test_other_rows_of_the_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    written(file)
    written(file, "--batch", "128")
    assert [r["batch"] for r in read_rows(file)] == [128, 128, 16, 32, 64, 16, 32, 64]


def test_estimates_do_not_stand_for_plans(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    written(file, "--batch", "16")
    result = run(*SMALL, "-o", str(file), "--batch", "16")
    assert "already" not in result.err
    assert [r["level"] for r in read_rows(file)] == ["plan", "plan", "estimate", "estimate"]


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for text, says in (("name,age\nx,3\n", "model, status"), ("", "model, status"),
                       ("model,status,step_s\na,ok,1\n", "same columns"),
                       ("model,status,step_s\na,ok\n", "line 2")):  # fmt: skip
        file.write_text(text)
        result = run(*SMALL, "--fast", "-o", str(file))
        assert result.code == 2
        assert says in result.err
        assert file.read_text() == text


def test_cells_come_back_as_they_were() -> None:
    for value in (None, 0, -3, 2**60, 0.1, 1e-300, 12345.678901234567, "a100", "4..8", "h,i\n"):
        assert value_of(text_of(value)) == value


def test_parquet_without_pyarrow_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(*SMALL, "--fast", "-o", str(tmp_path / "rows.parquet"))
    assert result.code == 2
    assert "an installed pyarrow: pip install" in result.err
    assert not list(tmp_path.iterdir())


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    written(tmp_path / "rows.csv")
    written(tmp_path / "rows.parquet")
    assert {f.name for f in tmp_path.iterdir()} == {"rows.csv", "rows.parquet"}
    lines, table = read_rows(tmp_path / "rows.csv"), read_rows(tmp_path / "rows.parquet")
    assert [{k: v for k, v in r.items() if v is not None} for r in table] == [
        {k: v for k, v in r.items() if v is not None} for r in lines
    ]
    assert "6 were there already" in written(tmp_path / "rows.parquet").err


def test_a_growing_parquet_file_waits_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path, names = tmp_path / "rows.parquet", ["model", "status", "step_s"]
    file = SweepFile(path, names, ["model"])
    file.add({"model": "a", "status": "ok", "step_s": 0.5})
    file.close()
    assert {f.name for f in tmp_path.iterdir()} == {"rows.parquet.part"}
    again = SweepFile(path, names, ["model"])
    assert again.done() == {("a",)}
    again.close({("a",): 0})
    assert read_rows(path) == [{"model": "a", "status": "ok", "step_s": 0.5}]


# -- pictures --------------------------------------------------------------------------------


def test_the_picture_has_a_line_for_what_else_varies(tmp_path: Path) -> None:
    found = swept("--fast")
    data = picture.sweep_data(found)
    assert (data["x"], data["y"], sorted(data["lines"])) == ("batch", "tokens_per_s", ["l4", "t4"])
    data = picture.sweep_data(found, x="gpu", y="step_s")
    assert len(data["lines"]) == 3
    with pytest.raises(InputError, match="--y"):
        picture.sweep_data(found, y="speed")
    out = tmp_path / "rows.svg"
    assert run(*SMALL, "--fast", "-o", str(tmp_path / "r.csv"), "--plot", str(out)).code == 0
    assert out.read_bytes().startswith(b"<?xml")
