"""Every exporter: keys, units, round trips, what is left out; and how one is added."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from exported import SCENARIOS, demand, plan, text

import kvplan
import kvplan.export
from kvplan.errors import InfeasibleError, InputError
from kvplan.export import registry
from kvplan.export.demand import demand_of
from kvplan.export.deployment import Deployment
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, unmet
from kvplan.export.registry import REGISTRY

ROOMY = Deployment(host_bytes=2**40, shm_bytes=2**40, disk_path="/kv")
WHOLE = replace(ROOMY, pool="all")
NAMES = sorted(REGISTRY)
KINDS = sorted(SCENARIOS)

OFFLOADING = [kind for kind in KINDS if kind != "resident"]
OPT = [kind for kind in KINDS if kind not in ("grouped", "latent")]
ACCEPTS: dict[str, list[str]] = {
    "vllm": OFFLOADING,
    "lmcache": OFFLOADING,
    "sglang": OFFLOADING,
    "trtllm": KINDS,
    "dynamo": OFFLOADING,
    "mooncake": OFFLOADING,
    "transformers": KINDS,
    "flexgen": OPT,
    "kvpr": OPT,
    "llamacpp": ["host", "resident"],
}
"""Plans that each runtime takes; it refuses the others of `SCENARIOS`."""

POOLED = ["vllm", "lmcache", "sglang", "trtllm", "dynamo", "mooncake"]
"""Runtimes with a host pool and ranks."""

CASES = [(name, kind) for name, kinds in ACCEPTS.items() for kind in kinds]
RANKED = [
    (name, kind, ranks) for name, kind in CASES for ranks in ((1, 2, 4) if name in POOLED else (1,))
]


def place(name: str) -> Deployment:
    """Where it runs: KVBM only takes pools that hold more than HBM."""
    return WHOLE if name == "dynamo" else ROOMY


def made(name: str, kind: str, deployment: Deployment | None = None) -> Export:
    exporter = REGISTRY[name]
    return exporter.export(demand(kind), deployment or place(name), exporter.file)


def test_every_runtime_is_judged() -> None:
    assert ACCEPTS.keys() == REGISTRY.keys()


@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in NAMES for k in KINDS if k not in ACCEPTS[n]]
)
def test_other_plans_are_refused_with_the_reason(name: str, kind: str) -> None:
    reason = {
        "resident": "this plan keeps everything in HBM",
        "grouped": "an OPT model other than 350m",
        "latent": "an OPT model other than 350m",
    }
    with pytest.raises(InputError) as refusal:
        made(name, kind, ROOMY)
    wanted = "never sends K and V back" if name == "llamacpp" else reason[kind]
    assert wanted in str(refusal.value)


def test_plans_are_what_their_names_say() -> None:
    for kind, path in (("fetch", "fetch"), ("recompute", "recompute"), ("packed", "fetch_int8"),
                       ("host", "attend_host"), ("disk", "fetch_disk")):  # fmt: skip
        assert demand(kind).path_share[path] > 0.1
        assert 0.1 < demand(kind).away_share < 0.9
    assert demand("resident").away_share == 0.0


def test_bytes_by_hand() -> None:
    """opt-125m: 12 layers x 2 x 768 elements x 2 bytes; 64 sequences of 2048 tokens."""
    found = demand("fetch")
    assert found.token_bytes == 12 * 2 * 768 * 2 == 36_864
    assert found.all_bytes == 64 * 2048 * 36_864
    assert found.place_bytes["host"] == found.plan.prediction.memory_bytes["dram"]
    assert found.rank_token_bytes(4) == 36_864 / 4
    assert found.engine_token_bytes(4) == 36_864


def test_ranks_beyond_the_heads_hold_copies() -> None:
    found = demand("grouped")  # llama-3.2-1b: 8 KV heads
    assert found.engine_token_bytes(8) == found.token_bytes
    assert found.engine_token_bytes(16) == 2 * found.token_bytes
    with pytest.raises(InputError, match="--tp: 3 is not accepted"):
        found.engine_token_bytes(3)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_nothing_is_unknown_none_or_out_of_range(name: str, kind: str) -> None:
    exporter = REGISTRY[name]
    values = dict(exporter.parse(made(name, kind).text))
    assert values
    assert not unmet(exporter.keys, values)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_has_its_source_and_unit(name: str) -> None:
    for key in REGISTRY[name].keys.values():
        assert key.source
        assert key.unit


@pytest.mark.parametrize(("name", "kind", "ranks"), RANKED)
def test_reading_it_back_gives_the_bytes_within_one_block(name: str, kind: str, ranks: int) -> None:
    deployment = replace(place(name), ranks=ranks)
    export = made(name, kind, deployment)
    back = REGISTRY[name].read_back(export.text, demand(kind), deployment)
    places, total = demand(kind).place_bytes, demand(kind).all_bytes
    if name in POOLED and export.pool is not None:
        copies = ranks if kind == "latent" and name != "vllm" else 1
        wanted = copies * (total if deployment.pool == "all" else places["host"])
        assert export.pool.asked_bytes == wanted
        assert wanted - 1 <= back.host_bytes <= wanted + back.block_bytes
    elif name == "flexgen":
        assert abs(back.host_bytes - places["host"]) <= back.block_bytes
    elif name == "kvpr":
        share = demand(kind).path_share.get("recompute", 0.0)
        assert abs(back.host_bytes - total * (1 - share / 2)) <= back.block_bytes
    else:  # all or nothing
        assert abs(back.host_bytes - (total if kind != "resident" else 0)) <= back.block_bytes
    if back.hbm_bytes is not None:
        assert abs(back.hbm_bytes - places["hbm"]) <= back.block_bytes
    if back.disk_bytes is not None:
        assert abs(back.disk_bytes - places["disk"]) <= back.block_bytes


def test_ranks_keep_copies_of_a_latent() -> None:
    found = demand("latent")
    assert found.latent
    assert not demand("grouped").latent
    assert found.engine_token_bytes(4) == 4 * found.token_bytes


@pytest.mark.parametrize("name", POOLED)
def test_a_given_pool_is_not_exceeded(name: str) -> None:
    """By no more than the padding page of SGLang."""
    size = 7 * 2**30 + 12_345
    deployment = replace(ROOMY, ranks=2, pool=size)
    export = made(name, "fetch", deployment)
    back = REGISTRY[name].read_back(export.text, demand("fetch"), deployment)
    assert export.pool is not None
    padding = export.pool.chunk_bytes if name == "sglang" else 0
    assert size - back.block_bytes <= back.host_bytes <= size + padding


@pytest.mark.parametrize("name", NAMES)
def test_same_plan_same_text(name: str) -> None:
    kind = ACCEPTS[name][0]
    assert made(name, kind) == made(name, kind)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[1] != "resident"])
def test_what_the_plan_does_and_the_runtime_does_not_is_listed(name: str, kind: str) -> None:
    export = made(name, kind)
    listed = " ".join(u.what for u in export.unexpressed)
    mapped = " ".join(m.option for m in export.mapped)
    assert "schedule" in listed
    for path, word, option in (
        ("recompute", "recompute", "--recompute-len"),
        ("fetch_int8", "precision", "--compress-cache"),
        ("attend_host", "attention on the host", "--cpu-cache-compute"),
    ):
        if path in demand(kind).path_share:
            assert (word in listed) != (option in mapped.split() or "-nkvo" in mapped.split())


def test_segments_of_a_generation_are_listed() -> None:
    asked = ("--model", "opt-125m", "--gpu", "l4", "--batch", "64", "--hbm", "3GiB")
    more = ("--context", "1024", "--gen", "1024", "--segments", "2", "--stages", "4")
    solved = run("solve", *asked, *more, "--paths", "resident,fetch", "--json")
    made = run("export", "-", "--to", "vllm", "--json", stdin=solved.out.encode())
    listed = {each["what"]: each["plan"] for each in json.loads(made.out)["not_expressed"]}
    assert listed["segments of the generation"] == "2"


# -- structure ---------------------------------------------------------------------------------


def toy() -> Exporter:
    """A runtime of one option, to show that nothing else has to know it."""
    keys = {"bytes": Key(kind=int, unit="bytes", source="here")}

    def export(found: Any, deployment: Deployment, file: str) -> Export:
        size = int(found.place_bytes["host"])
        return Export(command=f"toy {file}", text=f"bytes: {size}\n",
                      mapped=(Mapped("bytes", size, "bytes"),), unexpressed=())  # fmt: skip

    def read_back(text: str, found: Any, deployment: Deployment) -> ReadBack:
        return ReadBack(host_bytes=float(text.split(": ")[1]), block_bytes=1)

    return Exporter(name="toy", title="Toy", version="1", file="toy.yaml", keys=keys,
                    export=export, parse=json.loads, read_back=read_back)  # fmt: skip


def test_a_runtime_is_one_file_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.REGISTRY, "toy", toy())
    shown = run("export", "-", "--to", "toy", stdin=text())
    assert shown.code == 0, shown.err
    assert shown.out.startswith("toy toy.yaml\n")
    refused = run("export", "-", "--to", "nonesuch", stdin=text())
    assert "toy" in refused.err


def test_every_runtime_is_registered_and_known_nowhere_else() -> None:
    """Modules with an EXPORTER are those of the registry; code elsewhere names no runtime."""
    found = {}
    for module in pkgutil.iter_modules(kvplan.export.__path__, "kvplan.export."):
        exporter = getattr(importlib.import_module(module.name), "EXPORTER", None)
        if exporter is not None:
            found[exporter.name] = module.name
    assert found.keys() == REGISTRY.keys()
    package = Path(kvplan.__file__).parent
    shared = [f"export/{m}.py" for m in ("demand", "deployment", "exporter", "pool")]
    for name in ("cli/export.py", "cli/exports.py", "cli/completion.py", *shared):
        tree = ast.parse((package / name).read_text(encoding="utf-8"))
        strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
        assert not strings & REGISTRY.keys(), name


# -- the command -------------------------------------------------------------------------------


def command(name: str) -> tuple[tuple[str, ...], bytes]:
    """Arguments and stdin of an export that works."""
    asked = ("--host", "1TiB", "--shm", "1TiB", "--pool", str(place(name).pool))
    kind = "fetch" if "fetch" in ACCEPTS[name] else ACCEPTS[name][0]
    return ("export", "-", "--to", name, *asked), text(kind)


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_comes_first(name: str) -> None:
    argv, stdin = command(name)
    shown = run(*argv, stdin=stdin)
    assert shown.code == 0, shown.err
    document = json.loads(run(*argv, "--json", stdin=stdin).out)
    assert shown.out.startswith(document["command"] + "\n")
    assert shown.out.index("\nmapped to ") < shown.out.index("\nnot expressed\n")
    assert document["version"] == REGISTRY[name].version
    assert document["not_expressed"]
    assert all(each["why"] for each in document["not_expressed"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("into", ["folder", "file"])
def test_notes_lie_beside_the_file(name: str, into: str, tmp_path: Path) -> None:
    file = tmp_path / REGISTRY[name].file
    argv, stdin = command(name)
    argv = (*argv, "-o", str(tmp_path if into == "folder" else file))
    document = json.loads(run(*argv, "--json", stdin=stdin).out)
    assert sorted(p.name for p in tmp_path.iterdir()) == [file.name, f"{file.name}.notes.txt"]
    notes = (tmp_path / f"{file.name}.notes.txt").read_text(encoding="utf-8")
    assert file.read_text(encoding="utf-8") == document["text"]
    assert document["command"] in notes
    for each in document["not_expressed"]:
        assert each["why"] in notes
    for each in document["warnings"]:
        assert each in notes


def test_weights_that_do_not_fit_are_refused() -> None:
    found = demand("fetch")
    small = {**found.plan.prediction.capacity_bytes, "hbm": 1e6}
    import msgspec

    prediction = msgspec.structs.replace(found.plan.prediction, capacity_bytes=small)
    squeezed = demand_of(msgspec.structs.replace(plan("fetch"), prediction=prediction))
    with pytest.raises(InfeasibleError, match="the weights take"):
        REGISTRY["vllm"].export(squeezed, ROOMY, "vllm.yaml")
