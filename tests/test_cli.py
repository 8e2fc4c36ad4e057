from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cli_runner import Result, run

import kvplan
from kvplan.cli import solve as solve_command
from kvplan.layer_groups import layer_groups, layer_names
from kvplan.plan import LayerDecision
from kvplan.wording import percent

SMALL = ("--model", "opt-125m", "--gpu", "l4", "--batch", "64", "--hbm", "3GiB", "--stages", "4")
TOO_SMALL = ("--paths", "fetch", "--dram", "1GiB")
FITTING = ("--model", "opt-125m", "--gpu", "a100", "--batch", "8")
GROUPED = ("--model", "llama-3.2-1b", "--gpu", "l4", "--context", "16k", "--stages", "4")
COMMANDS = (
    "solve", "compare", "simulate", "restore", "fit", "host", "transfer", "models", "gpus",
    "export", "schema",
)  # fmt: skip


def program(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, from another folder's point of view."""
    root = str(Path(kvplan.__file__).parents[1])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        env=os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"} | environment,
    )


@pytest.fixture(scope="module")
def solved() -> Result:
    return run("solve", *SMALL, "--json")


@pytest.fixture
def plan_file(tmp_path: Path, solved: Result) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(solved.out, encoding="utf-8")
    return file


def without_time(text: str) -> str:
    document = json.loads(text)
    document["provenance"]["time"] = ""
    return json.dumps(document)


def test_the_program_is_written_for_other_solvers(tmp_path: Path) -> None:
    """A .lp and a .mps of the chosen schedule; another ending is refused and nothing written."""
    asked = ("solve", "--model", "opt-6.7b", "--gpu", "a100", "--context", "2048")
    for name in ("p.lp", "p.mps"):
        assert run(*asked, "--program", str(tmp_path / name)).code == 0
        assert "precedence" in (tmp_path / name).read_text()
    refused = run(*asked, "--program", str(tmp_path / "p.txt"))
    assert refused.code == 2
    assert ".lp or .mps" in refused.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.lp", "p.mps"]


def test_json_is_one_document_with_the_contract_keys(solved: Result) -> None:
    assert (solved.code, solved.err) == (0, "")
    plan = json.loads(solved.out)
    assert {"axis", "stages", "queue_depth", "layers"} <= set(plan["decision"])
    assert {"tokens", "recompute_ratio"} <= set(plan["decision"]["layers"][0])
    assert {
        "step_s", "tokens_per_s", "bound_s", "gap", "bottleneck", "busy_s", "memory_bytes",
    } <= set(plan["prediction"])  # fmt: skip


def test_compare_json_is_the_plan_with_every_baseline(solved: Result) -> None:
    compared = run("compare", *SMALL, "--json")
    assert without_time(compared.out) == without_time(solved.out)
    baselines = json.loads(compared.out)["baselines"]
    assert {"synchronous_fetch", "overlapped_fetch", "kvpr_serial"} <= set(baselines)
    for baseline in baselines.values():
        assert (baseline["step_s"] is None) == bool(baseline["reason"])


def test_same_inputs_give_the_same_bytes_apart_from_the_time(solved: Result) -> None:
    again = run("solve", *SMALL, "--json")
    times = [json.loads(text)["provenance"]["time"] for text in (again.out, solved.out)]
    assert again.out.replace(times[0], "") == solved.out.replace(times[1], "")


def test_solve_answers_first(solved: Result) -> None:
    shown = run("solve", *SMALL)
    assert (shown.code, shown.err) == (0, "")
    first = shown.out.splitlines()[0]
    assert "in HBM" in first
    for label in ("workload", "machine", "decision", "pipeline", "step", "speed-up", "limit",
                  "bound", "memory", "confidence"):  # fmt: skip
        assert f"\n{label} " in shown.out
    assert "as fast as overlapped fetch" in shown.out
    assert re.search(r"^decision    layers 0–\d+: ", shown.out, re.MULTILINE)
    assert "NVIDIA L4" in shown.out
    assert "spec sheet" in shown.out


def test_output_for_nobody_has_no_escapes_and_100_columns() -> None:
    shown = run("compare", *SMALL)
    assert "\x1b" not in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= 100
    assert all(line == line.rstrip() for line in shown.out.splitlines())


def test_everything_fits() -> None:
    shown = run("solve", *FITTING)
    assert shown.out.startswith("Everything fits in HBM, no offload is planned: ")


def test_a_baseline_that_is_as_good_is_named() -> None:
    staged = ("--paths", "resident,fetch", "--axis", "token", "--queue-depth", "3")
    shown = run("solve", *SMALL, *staged, "--h2d", "1GB/s")
    assert "is as good as anything the search found" in shown.out.splitlines()[0]
    assert "set by hand: link 1.0 GB/s" in shown.out


def test_recompute_that_cannot_help_is_explained() -> None:
    shown = run("solve", *GROUPED)
    assert "Activations are 2.0x the KV they rebuild: recompute from host memory cannot help." in (
        shown.out
    )
    assert "cannot help" not in run("solve", *FITTING).out


def test_baselines_that_are_not_possible_say_why() -> None:
    assert "no offload: not possible: needs " in run("compare", *SMALL).out


def test_ladder_ends_with_the_chosen_plan(solved: Result) -> None:
    lines = run("compare", *SMALL).out.splitlines()
    rows = [line for line in lines if " GiB" in line and " ms" in line and "fetch" in line]
    chosen = next(line for line in lines if line.startswith("chosen: "))
    assert lines.index(chosen) > max(lines.index(row) for row in rows if row in lines[:-3])
    assert f"{json.loads(solved.out)['prediction']['tokens_per_s']:.4g}" in chosen


def test_default_context_is_what_the_model_has_positions_for() -> None:
    plan = json.loads(run("solve", *FITTING, "--json").out)
    assert plan["inputs"]["workload"]["context"] == 2048
    plan = json.loads(run("solve", *FITTING, "--gen", "48", "--json").out)
    assert plan["inputs"]["workload"]["context"] == 2000


def test_context_beyond_the_positions_is_a_warning() -> None:
    result = run("solve", *FITTING, "--context", "4k", "--json")
    assert result.code == 0
    assert json.loads(result.out)["inputs"]["workload"]["context"] == 4096
    assert result.err.startswith("kvplan: warning: 4096 tokens are more than the 2048 positions")
    assert result.err.count("\n") == 1


def test_hbm_beyond_the_card_is_a_warning() -> None:
    result = run("solve", *FITTING, "--hbm", "1TiB")
    assert "kvplan: warning: --hbm 1TiB is more than the 34.8 GiB" in result.err


def test_options_reach_the_plan() -> None:
    result = run(
        "solve", *SMALL, "--context", "1k", "--gen", "24", "--kv-dtype", "bf16", "--block", "32",
        "--micro-batches", "2", "--schedule", "row", "--utilisation", "0.8", "--reserve", "64MiB",
        "--dram", "100GiB", "--pinned", "90GiB", "--disk", "1GB", "--allow", "int8:0.5",
        "--paths", "resident,fetch,recompute", "--axis", "token", "--stages", "4-5",
        "--queue-depth", "2,3", "--boundary", "barrier", "--mode", "eager", "--weights",
        "resident", "--h2d", "10GB/s", "--flops", "50TFLOP/s", "--hbm-bandwidth", "200GB/s",
        "--host-attention", "20GB/s", "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    inputs = json.loads(result.out)["inputs"]
    assert inputs["workload"] == {
        "batch": 64, "context": 1024, "gen": 24, "kv_dtype": "bf16", "block": 32,
        "micro_batches": 2, "schedule": "row", "source_tokens": None, "tp": 1,
        "layer_tokens": None, "new_tokens": 1,
    }  # fmt: skip
    assert inputs["budgets"] == {
        "hbm_bytes": 3 * 2**30, "utilisation": 0.8, "reserve_bytes": 2**26,
        "dram_bytes": 100 * 2**30, "pinned_bytes": 90 * 2**30, "disk_bytes": 10**9,
        "uplink_bytes_per_s": None,
    }  # fmt: skip
    expected = {
        "paths": ["resident", "fetch", "recompute"], "allow": {"int8": 0.5}, "axes": ["token"],
        "stages": [4, 5], "queue_depths": [2, 3], "boundary": "barrier", "mode": "eager",
        "weights": "resident",
    }  # fmt: skip
    assert {key: inputs["options"][key] for key in expected} == expected
    assert inputs["hardware"]["overrides"] == {
        "flop_per_s": 5e13, "h2d_bytes_per_s": 1e10, "hbm_bytes_per_s": 2e11,
        "host_attention_bytes_per_s": 2e10,
    }  # fmt: skip
    assert "--host-attention changes nothing" in result.err


def test_a_plan_file_is_what_json_prints(tmp_path: Path, solved: Result) -> None:
    file = tmp_path / "plan.json"
    shown = run("solve", *SMALL, "-o", str(file))
    assert shown.out.endswith(f"Written to {file}\n")
    assert without_time(file.read_text(encoding="utf-8")) == without_time(solved.out)
    assert list(tmp_path.iterdir()) == [file]


def test_dash_is_stdout(solved: Result) -> None:
    assert without_time(run("solve", *SMALL, "-o", "-").out) == without_time(solved.out)


def test_nothing_is_written_without_o(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert run("solve", *SMALL).code == 0
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    with mock.patch("kvplan.planning.answer", side_effect=AssertionError):
        result = run("solve", *SMALL, "-o", str(tmp_path / "missing" / "plan.json"))
    assert (result.code, result.out) == (2, "")
    assert "missing does not" in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_failing_run_leaves_an_existing_plan_alone(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old", encoding="utf-8")
    assert run("solve", *SMALL, *TOO_SMALL, "-o", str(file)).code == 3
    assert run("solve", *SMALL, "--block", "0", "-o", str(file)).code == 2
    with mock.patch("os.replace", side_effect=OSError(28, "No space left on device")):
        assert run("solve", *SMALL, "-o", str(file)).code == 2
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_infeasible_names_the_budget_and_the_change() -> None:
    result = run("solve", *SMALL, *TOO_SMALL)
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("kvplan: error: no feasible plan: dram: ")


def test_replay_agrees_with_the_prediction(plan_file: Path, solved: Result) -> None:
    result = run("simulate", str(plan_file), "--json")
    assert (result.code, result.err) == (0, "")
    replayed = json.loads(result.out)
    predicted = json.loads(solved.out)["prediction"]
    assert replayed["difference"] == 0.0
    for key in ("step_s", "tokens_per_s", "busy_s", "memory_bytes", "bottleneck", "moved_bytes"):
        assert replayed["prediction"][key] == predicted[key]
    assert "the same as the plan's own prediction" in run("simulate", str(plan_file)).out


def test_replay_from_stdin(solved: Result) -> None:
    result = run("simulate", "-", stdin=solved.out.encode())
    assert result.code == 0
    assert "per step" in result.out


def test_replay_of_an_edited_plan_says_so(plan_file: Path, solved: Result) -> None:
    document = json.loads(solved.out)
    document["prediction"]["step_s"] *= 2
    plan_file.write_text(json.dumps(document), encoding="utf-8")
    result = run("simulate", str(plan_file))
    assert result.code == 0
    assert "-50.00 % on the" in result.out
    assert "differs from its replay" in result.err


@pytest.mark.parametrize("predicted_s", [0, 1e-320])
def test_replay_of_a_plan_without_a_usable_prediction(solved: Result, predicted_s: float) -> None:
    document = json.loads(solved.out)
    document["prediction"]["step_s"] = predicted_s
    given = json.dumps(document).encode()
    assert json.loads(run("simulate", "-", "--json", stdin=given).out)["difference"] is None
    assert "not comparable" in run("simulate", "-", stdin=given).out


def test_replay_on_another_machine(plan_file: Path, solved: Result) -> None:
    result = run("simulate", str(plan_file), "--gpu", "h100", "--json")
    replayed = json.loads(result.out)
    assert replayed["hardware"]["name"] == "h100-sxm-80gb"
    assert replayed["prediction"]["step_s"] < json.loads(solved.out)["prediction"]["step_s"]
    assert replayed["difference"] < 0
    assert result.err == ""


def test_replay_where_it_does_not_fit() -> None:
    plan = run("solve", "--model", "llama-7b", "--gpu", "a100", "--stages", "4", "--axis", "token",
               "--queue-depth", "2", "--json").out  # fmt: skip
    result = run("simulate", "-", "--gpu", "t4", stdin=plan.encode())
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("kvplan: error: no feasible plan: hbm: the plan needs ")


def test_trace_is_written(plan_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert run("simulate", str(plan_file), "--trace", str(file)).code == 0
    first = file.read_bytes()
    events = json.loads(first)["traceEvents"]
    assert {"gpu", "h2d"} <= {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert run("simulate", str(plan_file), "--trace", str(file), "--json").code == 0
    assert file.read_bytes() == first
    assert json.loads(run("simulate", str(plan_file), "--trace", "-").out)["traceEvents"] == events


def test_models_lists_and_shows() -> None:
    rows = json.loads(run("models", "--json").out)["models"]
    llama = next(row for row in rows if row["name"] == "meta-llama/Llama-2-7b-hf")
    assert llama["kv_bytes_per_token"] == 524288
    assert llama["act_over_kv"] == 0.5
    assert llama["grade"] == "V"
    listed = run("models").out
    assert all(sum(row["name"] in line for line in listed.splitlines()) for row in rows)
    assert len(listed.splitlines()) < len(rows) + 10  # a line each
    assert all(row["name"] in listed for row in rows)
    assert run("models", "list").out == listed


def test_models_shows_one_by_name_and_by_file(tmp_path: Path) -> None:
    shown = run("models", "llama-3.1-8b")
    assert shown.out == run("models", "show", "llama-3.1-8b").out
    assert "8 KV heads of 128" in shown.out
    row = json.loads(run("models", "show", "llama-3.1-8b", "--json").out)
    assert row["layer_kinds"][0]["count"] == 32
    config = {
        "model_type": "opt", "hidden_size": 768, "num_hidden_layers": 2, "ffn_dim": 3072,
        "num_attention_heads": 12, "vocab_size": 50272, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 768,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    row = json.loads(run("models", str(file), "--json").out)
    assert row["layers"] == 2
    assert "grade" not in row
    assert "none: a file" in run("models", str(file)).out


def test_gpus_lists_and_shows() -> None:
    rows = json.loads(run("gpus", "--json").out)["gpus"]
    a100 = next(row for row in rows if row["name"] == "a100-40gb-pcie")
    assert a100["h2d_bytes_per_s"] == pytest.approx(24.5e9)
    assert a100["kind"] == "datasheet"
    assert all(row["name"] in run("gpus").out for row in rows)
    detail = json.loads(run("gpus", "show", "a100", "--json").out)
    assert detail["numbers"]["gpu.memory"]["kind"] == "measured"
    assert all(number["source"] for number in detail["numbers"].values())
    shown = run("gpus", "a100").out
    assert all(path in shown for path in detail["numbers"])
    assert "points" in run("gpus", "h200").out


def test_a_profile_by_path_is_kept_by_path(tmp_path: Path) -> None:
    original = Path(kvplan.__file__).parents[2] / "hwprofiles" / "l4.toml"
    if not original.is_file():
        original = Path(kvplan.__file__).parent / "hwprofiles" / "l4.toml"
    file = tmp_path / "l4.toml"
    file.write_bytes(original.read_bytes())
    plan = run("solve", "--model", "opt-125m", "--gpu", str(file), "--json").out
    assert json.loads(plan)["inputs"]["hardware"]["file"] == str(file)
    assert run("simulate", "-", stdin=plan.encode()).code == 0
    assert "NVIDIA L4" in run("gpus", str(file)).out
    file.write_text(file.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert run("simulate", "-", stdin=plan.encode()).code == 0
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('kind = "assumed"', 'kind = "measured"', 1), encoding="utf-8")
    refused = run("simulate", "-", stdin=plan.encode())
    assert refused.code == 2
    assert "the profile has changed" in refused.err


def test_schema_is_json() -> None:
    assert json.loads(run("schema").out)["title"].startswith("kvplan plan ")
    assert run("schema", "--json").out == run("schema").out
    assert json.loads(run("schema", "restore").out)["title"].startswith("kvplan restore ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: kvplan {command}")
    assert result.out.count(f"  kvplan {command}") >= 2
    assert "--json" in result.out
    assert "\x1b" not in result.out


def test_help_and_version() -> None:
    assert run().out == run("--help").out
    assert all(f"\n  {command}" in run("-h").out for command in COMMANDS)
    assert run("--version") == Result(0, f"kvplan {kvplan.__version__}\n", "")


def test_examples_of_help_parse() -> None:
    with mock.patch.object(solve_command, "planned", side_effect=KeyboardInterrupt):
        for line in solve_command.EPILOG.splitlines():
            if line.startswith("  kvplan "):
                assert run(*line.split()[1:]).code == 130


def test_misspelt_options_suggest_the_nearest() -> None:
    assert "--model" in run("solve", "--modle", "x").err


def raises(error: BaseException) -> Callable[..., Any]:
    return mock.Mock(side_effect=error)


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ZeroDivisionError("division\nby zero"), 1, "internal error (ZeroDivisionError: division"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "internal error"),
        (kvplan.errors.KvplanError("no steady state"), 1, "no steady state"),
    ],
)
def test_faults_are_one_line(error: BaseException, code: int, says: str) -> None:
    with mock.patch("kvplan.planning.answer", raises(error)):
        result = run("solve", *SMALL)
        assert (result.code, result.out) == (code, "")
        assert result.err.startswith("kvplan: error: ")
        assert says in result.err
        assert result.err.count("\n") == 1


@pytest.mark.parametrize("place", [0, 1, 3])
def test_debug_shows_the_traceback_anywhere_on_the_line(place: int) -> None:
    argv = ["solve", "--model", "nonesuch", "--gpu", "a100"]
    argv.insert(place, "--debug")
    result = run(*argv)
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("kvplan: error: --model: 'nonesuch'")


def test_a_terminal_gets_colours_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvplan.cli.output import console

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for colours in (True, False):
        if not colours:
            monkeypatch.setenv("NO_COLOR", "1")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        console().print("answer", style="green")
        assert ("\x1b[32m" in terminal.getvalue()) == colours


def test_layers_within_a_block_are_one_group() -> None:
    counts = [{"fetch": 1024}, {"fetch": 960, "resident": 64}, {"fetch": 512, "resident": 512}] * 2
    layers = [
        LayerDecision(
            layer=i, tokens=tokens, recompute_ratio=0.0, ranges=[], streamed_weights=0.0
        )
        for i, tokens in enumerate(counts)
    ]  # fmt: skip
    groups = layer_groups(layers, 64)
    assert [layer_names(group) for group in groups] == ["layers 0–1, 3–4", "layers 2, 5"]
    assert len(layer_groups(layers, 63)) == 3


def test_shares_for_people() -> None:
    assert [percent(s) for s in (0, 0.0001, 0.0995, 0.5, 1)] == [
        "0 %", "< 0.1 %", "10 %", "50 %", "100 %",
    ]  # fmt: skip


# -- in a process of its own -----------------------------------------------------------------


def test_as_a_program(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    result = program("-m", "kvplan", "solve", *SMALL, "-o", str(file), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == file.read_text(encoding="utf-8")
    result = program("-m", "kvplan", "solve", "--gpu", "l4", "--model", "nonesuch")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


def test_help_is_quick_to_load() -> None:
    code = (
        "import sys; from kvplan.cli import main; "
        "main(['--help']); main(['solve', '--help']); "
        "print([m for m in ('numpy', 'highspy', 'torch', 'matplotlib', 'pulp') "
        "if m in sys.modules], file=sys.stderr)"
    )
    result = program("-c", code)
    assert (result.returncode, result.stderr) == (0, "[]\n")


def test_solve_never_loads_what_it_does_not_need() -> None:
    code = (
        f"import sys; from kvplan.cli import main; main(['solve', *{SMALL!r}]); "
        "print([m for m in ('scipy', 'torch', 'matplotlib', 'pulp') "
        "if m in sys.modules], file=sys.stderr)"
    )
    result = program("-c", code)
    assert (result.returncode, result.stderr) == (0, "[]\n")


@pytest.mark.skipif(os.name == "nt", reason="pipes break differently there")
def test_a_broken_pipe_is_silent() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    root = str(Path(kvplan.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "models", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=60,
        env=os.environ | {"PYTHONPATH": root},
    )
    os.close(writer)
    assert result.stderr == b""
    assert result.returncode not in (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("kvplan sol", "solve"),
        ("kvplan solve --mod", "--model"),
        ("kvplan solve --model llama-7", "llama-7b"),
        ("kvplan solve --gpu a100-80gb-p", "a100-80gb-pcie"),
        ("kvplan simulate x.json --gpu t", "t4"),
    ],
)
def test_shell_completion(words: str, expected: str) -> None:
    result = program(
        "-m", "kvplan", _KVPLAN_COMPLETE="complete_bash", COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )  # fmt: skip
    assert expected in result.stdout.split()
    assert result.stderr == ""


def test_odd_terminals_do_not_break_it() -> None:
    result = program("-m", "kvplan", "solve", *FITTING, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (result.returncode, result.stderr) == (0, "")
