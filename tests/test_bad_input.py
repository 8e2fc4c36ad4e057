"""Bad input of every kind: the right exit code, one line on stderr, nothing on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli_runner import Result, run

from kvplan.datafiles import data_dir

CONFIG: dict[str, object] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000,
    "max_position_embeddings": 4096, "torch_dtype": "float16",
}  # fmt: skip

ASKED = ("solve", "--model", "opt-125m", "--gpu", "l4")


def part_of_name(value: object) -> str:
    """What a row shows in the name of its test: the same in every run."""
    return "made" if callable(value) else str(value)[:30]


def refused(result: Result, code: int, says: str, given: str = "") -> None:
    """Check the contract of a refusal."""
    assert result.code == code, result.err
    assert result.out == ""
    assert result.err.startswith("kvplan: error: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert result.err.endswith("\n")
    assert says in result.err, result.err
    assert "Traceback" not in result.err
    assert "internal error" not in result.err
    assert len(result.err) < 1000
    if "nan" not in given.lower():
        assert "nan" not in result.err.lower(), result.err


# -- options ---------------------------------------------------------------------------------

OPTIONS: list[tuple[str, str, str]] = [
    ("--model", "nonesuch-7b", "--model: 'nonesuch-7b'"),
    ("--model", "", "--model: ''"),
    ("--model", "llama-7", "--model"),
    ("--model", "./missing/config.json", "missing"),
    ("--gpu", "a101", "--gpu: 'a101'"),
    ("--gpu", "", "--gpu: ''"),
    ("--gpu", "missing.toml", "missing.toml"),
    ("--gpu", "\x1b[31mred", "\\x1b"),
    ("--source-tokens", "-1", "--source-tokens: '-1'"),
    ("--batch", "0", "--batch: '0'"),
    ("--batch", "-1", "--batch: '-1'"),
    ("--batch", "many", "--batch: 'many'"),
    ("--batch", "1.5", "--batch: '1.5'"),
    ("--batch", "9" * 5000, "--batch: '999"),
    ("--batch", "65537", "from 1 to 65536"),
    ("--context", "0", "--context: 0"),
    ("--context", "-5", "--context: '-5'"),
    ("--context", "4096.5", "--context: '4096.5'"),
    ("--context", "4GB", "--context: '4GB'"),
    ("--context", "1e400", "--context: '1e400'"),
    ("--gen", "some", "--gen: 'some'"),
    ("--new-tokens", "0", "--new-tokens: '0'"),
    ("--new-tokens", "some", "--new-tokens: 'some'"),
    ("--scale", "3", "does not decode scale by scale"),
    ("--kv-dtype", "int8", "--kv-dtype: 'int8'"),
    ("--block", "0", "--block: 0"),
    ("--micro-batches", "5", "--micro-batches: 5"),
    ("--micro-batches", "64", "--micro-batches: 64"),
    ("--schedule", "diagonal", "--schedule: 'diagonal'"),
    ("--hbm", "40 apples", "--hbm: '40 apples'"),
    ("--hbm", "-1GiB", "--hbm: '-1GiB'"),
    ("--hbm", "40Gb", "--hbm: '40Gb'"),
    ("--hbm", "1e30GiB", "--hbm"),
    ("--hbm", "24", "--hbm: '24' is not accepted: a size with its unit, such as 24GiB"),
    ("--kv-dtype", "q8_0", "--allow int8 stores blocks so"),
    ("--utilisation", "90", "such as 0.9"),
    ("--good-gap", "0", "such as 0.01 or 5%"),
    ("--good-gap", "150%", "such as 0.01 or 5%"),
    ("--good-gap", "2", "such as 0.02"),
    ("--cpu-offload-gb", "10", "it moves weights, not KV"),
    ("--hbm", "", "--hbm: ''"),
    ("--utilisation", "0", "--utilisation: '0'"),
    ("--utilisation", "1.01", "--utilisation: '1.01'"),
    ("--utilisation", "nan", "--utilisation: 'nan'"),
    ("--utilisation", "most", "--utilisation: 'most'"),
    ("--reserve", "lots", "--reserve: 'lots'"),
    ("--dram", "infinite", "--dram: 'infinite'"),
    ("--pinned", "-1", "--pinned: '-1'"),
    ("--disk", "1XB", "--disk: '1XB'"),
    ("--allow", "int3", "--allow"),
    ("--allow", "int8:2", "--allow int8: '2'"),
    ("--allow", "int8:nan", "--allow int8"),
    ("--allow", "int8,int8", "--allow: 'int8,int8'"),
    ("--allow", "", "--allow: ''"),
    ("--paths", "resident,teleport", "--paths: 'teleport'"),
    ("--paths", "", "--paths: ''"),
    ("--paths", "attend_host", "--paths: 'attend_host'"),
    ("--axis", "sequence", "--axis: 'sequence'"),
    ("--stages", "8..4", "--stages: '8..4'"),
    ("--stages", "0", "--stages: '0'"),
    ("--stages", "4,", "--stages: '4,'"),
    ("--stages", "1..1000000000", "--stages"),
    ("--stages", "٤", "--stages"),
    ("--queue-depth", "two", "--queue-depth: 'two'"),
    ("--queue-depth", "17", "--queue-depth: '17'"),
    ("--boundary", "soft", "--boundary: 'soft'"),
    ("--mode", "jit", "--mode: 'jit'"),
    ("--weights", "floating", "--weights: 'floating'"),
    ("--objective", "joy", "--objective: 'joy' is not accepted: latency or throughput"),
    ("--batch", "auto", "auto goes with --objective throughput"),
    ("--batch", "8..64", "--batch: '8..64'"),
    ("--micro-batches", "auto", "auto goes with --objective throughput"),
    ("--schedule", "auto", "auto goes with --objective throughput"),
    ("--segments", "4", "a generation: give --gen"),
    ("--layer-budget", "pyramid", "a JSON file of tokens"),
    ("--layer-budget", "pyramid:0", "--layer-budget: 'pyramid:0'"),
    ("--layer-budget", "pyramid:nan", "--layer-budget: 'pyramid:nan'"),
    ("--layer-budget", "pyramid:2048:4096", "a window below the mean"),
    ("--layer-budget", "pyramid:100.5", "whole tokens"),
    ("--layer-budget", "scalekv:0.1", "the layers that draft"),
    ("--layer-budget", "scalekv:0.1:99", "layers from 0 to 11"),
    ("--layer-budget", "scalekv:0.1:0,1,2,3", "a mean that leaves tokens"),
    ("--layer-budget", "snapkv:0.1", "pyramid:MEAN"),
    ("--layer-budget", "missing.json", "a file that can be read"),
    ("--flexgen", "20,80", "--flexgen: '20,80' is not accepted: six whole percentages"),
    ("--flexgen", "60,60,0,0,0,0", "flexgen weights: '60+60'"),
    ("--flexgen", "1.5,0,0,0,0,0", "--flexgen: '1.5,0,0,0,0,0'"),
    ("--flexgen", "101,0,0,0,0,0", "flexgen weights: 101"),
    ("--max-step-latency", "0", "--max-step-latency: 0"),
    ("--max-step-latency", "soon", "--max-step-latency: 'soon'"),
    ("--slo", "-1ms", "--max-step-latency: '-1ms'"),
    ("--link", "pcie9x16", "--link: 'pcie9x16'"),
    ("--link", "", "--link: ''"),
    ("--h2d", "fast", "--h2d: 'fast'"),
    ("--h2d", "0", "--h2d: '0'"),
    ("--h2d", "", "--h2d: ''"),
    ("--h2d", "500GB/s", "--h2d"),
    ("--flops", "-1TFLOP/s", "--flops: '-1TFLOP/s'"),
    ("--flops", "312TB/s", "--flops: '312TB/s'"),
    ("--hbm-bandwidth", "0TB/s", "--hbm-bandwidth: '0TB/s'"),
    ("--host-attention", "some", "--host-attention: 'some'"),
    ("-o", "/nonexistent/folder/plan.json", "-o: "),
    ("-o", "", "-o: ''"),
    ("-o", ".", "-o: '.'"),
]


@pytest.mark.parametrize("command", ["solve", "compare"])
@pytest.mark.parametrize(("option", "value", "says"), OPTIONS)
def test_an_option(command: str, option: str, value: str, says: str) -> None:
    argv = [command, *ASKED[1:], option, value]
    refused(run(*argv), 2, says, given=value)


RESTORE = ("restore", "--model", "opt-125m", "--gpu", "t4", "--prefix", "1k")

RESTORES: list[tuple[str, str, str]] = [
    ("--prefix", "0", "--prefix: 0"),
    ("--prefix", "some", "--prefix: 'some'"),
    ("--suffix", "0", "--suffix: 0"),
    ("--concurrency", "0", "--concurrency: '0'"),
    ("--batch", "1e9", "--concurrency: '1e9'"),
    ("--prefixes", "none", "--prefixes: 'none'"),
    ("--from", "tape", "--from: 'tape'"),
    ("--ways", "fly", "--ways: 'fly'"),
    ("--ways", "", "--ways: ''"),
    ("--kv-dtype", "int3", "--kv-dtype: 'int3'"),
    ("--stored-as", "fp16", "--stored-as: 'fp16'"),
    ("--block", "0", "--block: 0"),
    ("--chunk", "0", "--chunk: 0"),
    ("--granularity", "page", "--granularity: 'page'"),
    ("--mode", "fast", "--mode: 'fast'"),
    ("--gpu-busy", "1", "--gpu-busy: '1'"),
    ("--gpu-busy", "nan", "--gpu-busy: 'nan'"),
    ("--link-busy", "-0.5", "--link-busy: '-0.5'"),
    ("--tp", "5", "a divisor of 12 query heads"),
    ("--tp", "many", "--tp: 'many'"),
    ("--h2d", "500GB/s", "--h2d"),
    ("--disk-bandwidth", "0GB/s", "--disk-bandwidth"),
    ("--pageable-bandwidth", "900GB/s", "--pageable-bandwidth"),
    ("--attention-flops", "fast", "--attention-flops: 'fast'"),
    ("--prefill-rate", "0", "--prefill-rate: '0'"),
    ("--prefill-rate", "9GB/s", "--prefill-rate: '9GB/s'"),
    ("--utilisation", "2", "--utilisation: '2'"),
    ("-o", "/nonexistent/folder/plan.json", "-o: "),
    ("--trace", "/nonexistent/folder/trace.json", "--trace: "),
    ("--trace", "-", "--trace: '-'"),
]


@pytest.mark.parametrize(("option", "value", "says"), RESTORES)
def test_an_option_of_restore(option: str, value: str, says: str) -> None:
    refused(run(*RESTORE, option, value), 2, says, given=value)


def test_pageable_copies_need_a_figure(tmp_path: Path) -> None:
    text = (data_dir("hwprofiles") / "t4.toml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith("pageable_bandwidth")]
    file = tmp_path / "plain.toml"
    file.write_text("\n".join(kept), encoding="utf-8")
    asked = [str(file) if word == "t4" else word for word in RESTORE]
    assert str(file) in asked
    refused(run(*asked, "--pageable"), 2, "--pageable-bandwidth")


@pytest.mark.parametrize(
    ("more", "says"),
    [(("--hbm", "100MiB"), "hbm: "), (("--dram", "1MiB"), "dram: "), (("--prefix", "8M"), "hbm: ")],
)
def test_a_prefix_that_does_not_fit(more: tuple[str, ...], says: str) -> None:
    refused(run(*RESTORE, *more), 3, f"no feasible plan: {says}")


USAGE: list[tuple[tuple[str, ...], str]] = [
    ((*ASKED, "--gen", "64", "--segments", "0"), "--segments: '0'"),
    ((*ASKED, "--gen", "64", "--segments", "65"), "from 1 to 64"),
    ((*ASKED, "--gen", "64", "--segments", "some"), "--segments: 'some'"),
    (("segments", "missing.json"), "missing.json"),
    (("segments", "-", "-o", "x.json"), "--take"),
    ((*ASKED, "--objective", "throughput", "--batch", "9..3"), "--batch: '9..3'"),
    ((*ASKED, "--objective", "throughput", "--batch", "0"), "--batch: '0'"),
    ((*ASKED, "--objective", "throughput", "--micro-batches", "1.5"), "--micro-batches: '1.5'"),
    ((*ASKED, "--objective", "throughput", "--schedule", "diagonal"), "--schedule"),
    (
        (*ASKED, "--objective", "throughput", "--batch", "7..7", "--micro-batches", "2"),
        "divisors of batch 7",
    ),
    (("solv",), "solv"),
    (("solve",), "--model"),
    (("restore", "--model", "opt-125m", "--gpu", "t4"), "--prefix"),
    (("schema", "house"), "plan or restore"),
    (("solve", "--model", "opt-125m"), "--gpu"),
    ((*ASKED, "--batches", "3"), "--batch"),
    ((*ASKED, "--batch"), "--batch"),
    ((*ASKED, "surplus"), "surplus"),
    (("simulate",), "PLAN"),
    (("--colour",), "--colour"),
    (("models", "one", "two"), "one name or path"),
    (("models", "show"), "one name or path"),
    (("models", "nonesuch-7b"), "kvplan models"),
    (("gpus", "show"), "one name or path"),
    (("gpus", "nonesuch"), "kvplan gpus"),
    (("gpus", "./nonesuch.toml"), "nonesuch.toml"),
    (("simulate", "missing.json"), "missing.json"),
    (("simulate", "."), "plan"),
    (("simulate", "-", "--trace", "/nonexistent/folder/trace.json"), "--trace"),
    (("simulate", "-", "--trace", "-", "--json"), "--trace"),
    (("export",), "PLAN"),
    (("export", "-"), "--to"),
    (("export", "missing.json", "--to", "vllm"), "missing.json"),
    (("sweep", "--gpu", "l4"), "--model"),
    (("sweep", *ASKED[1:], "--batch", "1,,2"), "--batch: '1,,2'"),
    (("sweep", *ASKED[1:], "--batch", "8..4"), "--batch: '8..4'"),
    (("sweep", *ASKED[1:], "--batch", "0..4"), "--batch: '0..4'"),
    (("sweep", *ASKED[1:], "--batch", "1..65536:1", "--context", "1..65536:1"), "scenarios: "),
    (("sweep", *ASKED[1:], "--batch", "1..4:0"), "--batch: '1..4:0'"),
    (("sweep", *ASKED[1:], "--batch", "4,many"), "--batch: 'many'"),
    (("sweep", *ASKED[1:], "--context", "1k..64"), "same unit"),
    (("sweep", *ASKED[1:], "--hbm", "1GiB..2apples"), "--hbm"),
    (("sweep", *ASKED[1:], "--hbm", "1apple..2apple"), "--hbm: '1apple'"),
    (("sweep", *ASKED[1:], "--allow", "int8;"), "--allow: 'int8;'"),
    (("sweep", *ASKED[1:], "--allow", "none;int3"), "--allow: 'int3'"),
    (("sweep", *ASKED[1:], "--stages", "4,x"), "--stages: '4,x'"),
    (("sweep", "--model", "opt-125m", "--gpu", "l4,a101"), "--gpu: 'a101'"),
    (("sweep", *ASKED[1:], "--jobs", "0"), "--jobs: '0'"),
    (("sweep", *ASKED[1:], "-o", "rows.txt"), "-o: 'rows.txt'"),
    (("sweep", *ASKED[1:], "-o", "/nonexistent/rows.csv"), "-o: '/nonexistent/rows.csv'"),
    (("sweep", *ASKED[1:], "--plot", "rows.csv"), "--plot: 'rows.csv'"),
    (("plot", "sweep", "-", "-o", "x.png"), "stdin: ''"),
    (("plot", "sweep", "missing.csv", "-o", "x.png"), "missing.csv"),
    (("plot", "values", "-", "--x", "batch", "-o", "x.png"), "--x: 'batch'"),
    (("analyze",), "TRACE"),
    (("analyze", "missing.json"), "missing.json"),
    (("analyze", "-", "--steps", "0"), "--steps: '0'"),
    (("analyze", "-", "--device", "first"), "--device: 'first'"),
    (("analyze", "-", "--gpu", "abacus"), "abacus"),
    (("analyze", "-"), "a trace in JSON"),
    (("report",), "PLAN"),
    (("report", "plan.json"), "-o: None"),
    (("report", "plan.json", "-o", "report.pdf"), "-o: 'report.pdf'"),
    (("report", "plan.json", "-o", "report.html", "--pictures", "valus"), "did you mean values"),
    (("report", "missing.json", "-o", "report.html"), "missing.json"),
    (("report", "missing.json", "-o", "/nonexistent/report.html"), "/nonexistent"),
    (("plot",), "KIND"),
    (("plot", "timelin", "plan.json", "-o", "x.png"), "did you mean timeline"),
    (("plot", "values", "plan.json"), "-o: None"),
    (("plot", "values", "plan.json", "-o", "x.gif"), "-o: 'x.gif'"),
    (("plot", "values", "plan.json", "-o", "/nonexistent/x.png"), "-o: '/nonexistent/x.png'"),
    (("plot", "values", "missing.json", "-o", "x.png"), "missing.json"),
    (("plot", "accuracy", "missing.json", "-o", "x.png"), "missing.json"),
    (("plot", "accuracy", "-", "-o", "x.png"), "stdin: ''"),
    (("plot", "values", "-", "--measured", "t.json", "-o", "x.png"), "--measured: 't.json'"),
    (("plot", "timeline", "-", "--measured", "none.json", "-o", "x.png"), "stdin: ''"),
]


@pytest.mark.parametrize(("argv", "says"), USAGE, ids=lambda v: " ".join(v)[:40])
def test_usage(argv: tuple[str, ...], says: str) -> None:
    refused(run(*argv), 2, says)


FIT: list[tuple[str, str, str]] = [
    ("--tp", "0", "--tp: '0'"),
    ("--tp", "5", "--tp: 5"),
    ("--tp", "two", "--tp: 'two'"),
    ("--pp", "13", "--pp: 13"),
    ("--context", "0", "--context: '0'"),
    ("--context", "4k,", "--context: ''"),
    ("--context", "long", "--context: 'long'"),
    ("--batch", "0", "--batch: '0'"),
    ("--kv-dtype", "fp7", "--kv-dtype: 'fp7'"),
    ("--memory", "much", "--memory: 'much'"),
    ("--utilisation", "1.5", "--utilisation: '1.5'"),
    ("--reserve", "-1", "--reserve: '-1'"),
    ("--weights-bytes", "1GiB/card", "--weights-bytes: '1GiB/card'"),
    ("--weights-dtype", "fp17", "--weights-dtype: 'fp17'"),
    ("--activation-peak", "low", "--activation-peak: 'low'"),
    ("--non-torch", "nan", "--non-torch: 'nan'"),
    ("--block-size", "0", "--block-size: 0"),
    ("--chunk", "0", "--chunk: 0"),
    ("--chunk-above", "-1", "--chunk-above: '-1'"),
    ("--host-cache", "big", "--host-cache: 'big'"),
]


@pytest.mark.parametrize(("option", "value", "says"), FIT)
def test_an_option_of_fit(option: str, value: str, says: str) -> None:
    argv = ("fit", "--model", "opt-125m", "--gpu", "l4", option, value)
    refused(run(*argv), 2, says, given=value)


HOST: list[tuple[str, str, str]] = [
    ("--cache", "big", "--cache: 'big'"),
    ("--ranks", "0", "--ranks: '0'"),
    ("--ranks", "1.5", "--ranks: '1.5'"),
    ("--buffers", "0", "--buffers: '0'"),
    ("--allocator", "magic", "--allocator: 'magic' is not accepted: caching or exact"),
    ("--available", "-1", "--available: '-1'"),
    ("--cgroup-limit", "some", "--cgroup-limit: 'some'"),
    ("--cgroup-usage", "some", "--cgroup-usage: 'some'"),
    ("--reserve", "ten", "--reserve: 'ten'"),
    ("--growth", "1Gb", "--growth: '1Gb'"),
    ("--pinned-limit", "half", "--pinned-limit: 'half'"),
    ("--gpu", "abacus", "abacus"),
    ("--gpu", "gb10", "share one memory"),
]


@pytest.mark.parametrize(("option", "value", "says"), HOST)
def test_an_option_of_host(option: str, value: str, says: str) -> None:
    argv = ("host", "--available", "64GiB", "--cache", "1GiB", option, value)
    refused(run(*argv), 2, says, given=value)


TRANSFER: list[tuple[str, str, str]] = [
    ("--size", "0", "--size: 0"),
    ("--size", "many", "--size: 'many'"),
    ("--piece", "2GiB", "--piece: 2147483648"),
    ("--piece", "0", "--piece: 0"),
    ("--direction", "up", "--direction: 'up'"),
    ("--memory", "lost", "--memory: 'lost'"),
    ("--gpus", "0", "--gpus: '0'"),
    ("--depth", "deep", "--depth: 'deep'"),
    ("--link", "pcie4x3", "--link: 'pcie4x3'"),
    ("--h2d", "500GB/s", "raw rate"),
    ("--gpu", "gb10", "share one memory"),
]


@pytest.mark.parametrize(("option", "value", "says"), TRANSFER)
def test_an_option_of_transfer(option: str, value: str, says: str) -> None:
    refused(run("transfer", "--gpu", "l4", option, value), 2, says, given=value)


def test_what_does_not_fit_names_its_limit() -> None:
    card = ("fit", "--model", "llama-3.1-8b", "--gpu", "l4")
    refused(run(*card, "--memory", "8GiB"), 3, "no feasible plan: weights: ")
    refused(run(*card, "--context", "32k", "--batch", "9"), 3, "no feasible plan: kv: ")
    refused(run(*card, "--context", "64k", "--chunk", "none"), 3, "activation peak: ")
    refused(run(*card, "--host-cache", "1TiB"), 3, "no feasible plan: host: ")
    refused(run("host", "--available", "8GB"), 3, "no feasible plan: host: ")


# -- budgets ---------------------------------------------------------------------------------

BUDGETS: list[tuple[tuple[str, ...], str]] = [
    (("--hbm", "0"), "hbm"),
    (("--reserve", "1TiB"), "hbm"),
    (("--paths", "fetch", "--batch", "64", "--dram", "1GiB"), "dram"),
    (("--paths", "fetch", "--batch", "64", "--pinned", "1GiB"), "pinned"),
    (("--paths", "resident", "--hbm", "1GiB"), "hbm"),
    (("--paths", "fetch_disk", "--disk", "1GiB", "--batch", "64"), "disk"),
]


@pytest.mark.parametrize(("options", "budget"), BUDGETS, ids=lambda v: "".join(v))
def test_a_budget_that_is_too_small_is_named(options: tuple[str, ...], budget: str) -> None:
    result = run(*ASKED, *options)
    refused(result, 3, f"no feasible plan: {budget}: ")
    assert f"--{budget} at least" in result.err or "--" in result.err


# -- models ----------------------------------------------------------------------------------

MODELS: list[tuple[str, str | bytes, str]] = [
    ("empty", "", "config.json"),
    ("not JSON", "{hidden", "config.json"),
    ("not UTF-8", b"\xff\xfe\x00", "config.json"),
    ("a list", "[1, 2]", "config.json"),
    ("null", "null", "config.json"),
    ("deep", "[" * 20_000, "config.json"),
    ("no keys", "{}", "model_type"),
    (
        "unknown family",
        json.dumps({"model_type": "mamba9", "hidden_size": 64}),
        "num_hidden_layers",
    ),
    ("negative width", json.dumps(CONFIG | {"hidden_size": -1}), "hidden_size"),
    ("text for a number", json.dumps(CONFIG | {"num_hidden_layers": "4"}), "num_hidden_layers"),
    ("no layers", json.dumps(CONFIG | {"num_hidden_layers": 0}), "num_hidden_layers"),
    ("too many layers", json.dumps(CONFIG | {"num_hidden_layers": 10**9}), "num_hidden_layers"),
    ("a fraction", json.dumps(CONFIG | {"num_attention_heads": 8.5}), "num_attention_heads"),
    ("true for a number", json.dumps(CONFIG | {"vocab_size": True}), "vocab_size"),
    ("heads that do not divide", json.dumps(CONFIG | {"num_key_value_heads": 3}), "num_"),
    ("a number out of range", json.dumps(CONFIG).replace("512", "1e999"), "hidden_size"),
    ("not a number", json.dumps(CONFIG).replace("512", "NaN"), "config.json"),
]


@pytest.mark.parametrize("command", ["solve", "models"])
@pytest.mark.parametrize(("name", "content", "says"), MODELS, ids=part_of_name)
def test_a_model(tmp_path: Path, command: str, name: str, content: str | bytes, says: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    argv = {"solve": ("solve", "--gpu", "l4", "--model"), "models": ("models",)}[command]
    refused(run(*argv, str(file)), 2, says, given="nan" if name == "not a number" else "")


# -- hardware --------------------------------------------------------------------------------


@cache
def profile() -> str:
    return (data_dir("hwprofiles") / "l4.toml").read_text(encoding="utf-8")


def edited(old: str, new: str) -> Callable[[], str]:
    def content() -> str:
        assert old in profile()
        return profile().replace(old, new, 1)

    return content


PROFILES: list[tuple[str, Callable[[], str], str]] = [
    ("empty", lambda: "", "schema"),
    ("not TOML", lambda: "= 3", "TOML"),
    ("cut short", lambda: profile()[:400], "card.toml"),
    ("twice", lambda: profile() + "\n[gpu]\n", "TOML"),
    ("unknown schema", edited("schema = 1", "schema = 99"), "schema"),
    ("unknown key", edited("[host]", "[host]\nspeed = 1"), "speed"),
    ("missing key", edited("launch = ", "# launch = "), "launch"),
    ("negative", edited("value = 22518", "value = -22518"), "memory"),
    ("zero", edited("value = 22518", "value = 0"), "memory"),
    ("infinite", edited("value = 22518", "value = inf"), "memory"),
    ("a text", edited("value = 22518", 'value = "much"'), "memory"),
    ("a wrong unit", edited('unit = "MiB"', 'unit = "furlong"'), "memory"),
    ("no source", edited('source = "deviceQuery in public lab notes"', 'source = ""'), "memory"),
    ("an unknown kind", edited('kind = "measured"', 'kind = "guessed"'), "kind"),
    ("faster than the slot", edited("rate = { value = 12.0", "rate = { value = 120.0"), "h2d"),
]


@pytest.mark.parametrize("command", ["solve", "gpus"])
@pytest.mark.parametrize(("name", "content", "says"), PROFILES, ids=part_of_name)
def test_a_profile(
    tmp_path: Path, command: str, name: str, content: Callable[[], str], says: str
) -> None:
    file = tmp_path / "card.toml"
    file.write_text(content(), encoding="utf-8")
    argv = {"solve": ("solve", "--model", "opt-125m", "--gpu"), "gpus": ("gpus",)}[command]
    refused(run(*argv, str(file)), 2, says)


# -- plans -----------------------------------------------------------------------------------


@cache
def plan_text() -> str:
    return run(*ASKED, "--batch", "64", "--hbm", "3GiB", "--stages", "4", "--json").out


def put(path: str, value: object) -> Callable[[], str]:
    """The plan with one value changed; ``...`` takes it away."""

    def content() -> str:
        document: Any = json.loads(plan_text())
        *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
        at = document
        for part in parents:
            at = at[part]
        if value is ...:
            del at[last]
        else:
            at[last] = value
        return json.dumps(document)

    return content


LAYER = "decision.layers.0."

PLANS: list[tuple[str, Callable[[], str], str]] = [
    ("empty", lambda: "", "stdin"),
    ("cut short", lambda: plan_text()[:1000], "stdin"),
    ("a number", lambda: "3", "stdin"),
    ("deep", lambda: "[" * 50_000, "stdin"),
    ("no version", put("kvplan_plan", ...), "kvplan_plan"),
    ("another major version", put("kvplan_plan", "2.0"), "kvplan_plan: '2.0'"),
    ("a newer minor version", put("kvplan_plan", "1.99"), "kvplan_plan: '1.99'"),
    ("no version at all", put("kvplan_plan", "one"), "kvplan_plan: 'one'"),
    ("an unknown key", put("decision.colour", "red"), "colour"),
    ("no decision", put("decision", ...), "decision"),
    ("null layers", put("decision.layers", None), "decision.layers"),
    ("no layers", put("decision.layers", []), "decision.layers"),
    ("a layer too few", put("decision.layers.11", ...), "decision.layers"),
    ("layers out of order", put("decision.layers.0.layer", 7), "decision.layers[0].layer"),
    ("an unknown path", put(LAYER + "ranges.0.path", "teleport"), "decision.layers[0]"),
    ("a stage too high", put(LAYER + "ranges.0.stage", 9), "decision.layers[0]"),
    ("a range backwards", put(LAYER + "ranges.0.end", 0), "decision.layers[0]"),
    ("a negative range", put(LAYER + "ranges.0.begin", -64), "begin"),
    ("counts that differ", put(LAYER + "tokens", {"fetch": 1}), "decision.layers[0].tokens"),
    ("a ratio above 1", put(LAYER + "recompute_ratio", 1.5), "recompute_ratio"),
    ("a text for a number", put("prediction.step_s", "fast"), "prediction.step_s"),
    ("no context", put("inputs.workload.context", 0), "inputs.workload.context"),
    ("a longer context", put("inputs.workload.context", 4096), "decision.layers[0]"),
    ("an unknown format", put("inputs.workload.kv_dtype", "fp3"), "fp3"),
    ("an unknown machine", put("inputs.hardware.name", "abacus"), "abacus"),
    ("a changed profile", put("inputs.hardware.digest", "0"), "inputs.hardware.digest"),
    ("an unknown override", put("inputs.hardware.overrides", {"clock": 2.0}), "clock"),
    ("no boundary", put("decision.boundary", "fuzzy"), "decision.boundary"),
    ("a queue of none", put("decision.queue_depth", 0), "decision.queue_depth"),
]


@pytest.mark.parametrize(("name", "content", "says"), PLANS, ids=part_of_name)
def test_a_plan(name: str, content: Callable[[], str], says: str) -> None:
    refused(run("simulate", "-", stdin=content().encode()), 2, says)


MACHINE = ("an unknown machine", "a changed profile", "an unknown override")
"""Rows about the machine, which an export does not look up."""


@pytest.mark.parametrize(
    ("name", "content", "says"), [row for row in PLANS if row[0] not in MACHINE], ids=part_of_name
)
def test_a_plan_for_a_runtime(name: str, content: Callable[[], str], says: str) -> None:
    refused(run("export", "-", "--to", "vllm", stdin=content().encode()), 2, says)


EXPORTS: list[tuple[str, str, str]] = [
    ("--to", "nonesuch", "--to: 'nonesuch' is not accepted: one of "),
    ("--to", "", "--to: ''"),
    ("--to", "vlm", "did you mean vllm?"),
    ("--tp", "0", "--tp: 0"),
    ("--tp", "-2", "--tp: -2"),
    ("--tp", "two", "--tp"),
    ("--tp", "5", "--tp: 5 is not accepted: a divisor or a multiple of 12 KV heads"),
    ("--ranks", "99999", "--tp: 99999"),
    ("--replicas", "0", "--replicas: 0"),
    ("--pool", "some", "--pool: 'some'"),
    ("--pool", "-1GiB", "--pool: '-1GiB'"),
    ("--pool", "1GiB/card", "--pool: '1GiB/card'"),
    ("--pool", "1GiB/rank/rank", "--pool: '1GiB/rank/rank'"),
    ("--pool", "0", "--pool: 0 is not accepted: at least "),
    ("--pool", "", "--pool: ''"),
    ("--host", "there", "--host: 'there'"),
    ("--host", "-1", "--host: '-1'"),
    ("--container", "40 apples", "--container: '40 apples'"),
    ("--container-used", "1GiB", "--container-used"),
    ("--reserve", "some", "--reserve: 'some'"),
    ("--shm", "big", "--shm: 'big'"),
    ("-o", "/nonexistent/folder/vllm.yaml", "-o: "),
    ("-o", "", "-o: ''"),
    ("-o", "-", "-o: '-'"),
    ("-o", "vllm.json", "-o: 'vllm.json' is not accepted: a name that ends in .yaml"),
]


@pytest.mark.parametrize(("option", "value", "says"), EXPORTS)
def test_an_export(
    option: str, value: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ("export", "-", "--to", "vllm", option, value)
    refused(run(*argv, stdin=plan_text().encode()), 2, says)
    assert list(tmp_path.iterdir()) == []


TO: list[tuple[tuple[str, ...], str]] = [
    (("transformers", "--tp", "2"), "--tp: 2 is not accepted: 1"),
    (("flexgen", "--tp", "4"), "--tp: 4 is not accepted: 1"),
    (("llamacpp",), "never sends K and V back to the GPU"),
    (("sglang", "--pool", "10MB"), "SGLang counts whole GB"),
    (("sglang", "--pool", "1KiB"), "one chunk of 64 tokens"),
    (("trtllm", "--pool", "0"), "--pool: 0 is not accepted: at least "),
    (("dynamo", "--pool", "1GiB"), "only hold copies of what is in HBM"),
    (("mooncake", "--pool", "1.5KB"), "one chunk of 16 tokens"),
    (("lmcache", "--tp", "7"), "--tp: 7 is not accepted"),
    (("kvpr", "-o", "/nonexistent/kvpr.sh"), "-o: "),
]


@pytest.mark.parametrize(("argv", "says"), TO, ids=lambda v: " ".join(v)[:40])
def test_a_runtime(argv: tuple[str, ...], says: str) -> None:
    refused(run("export", "-", "--to", *argv, stdin=plan_text().encode()), 2, says)


def test_the_tables_are_long_enough() -> None:
    assert len(OPTIONS + USAGE + BUDGETS + MODELS + PROFILES + PLANS) >= 45
