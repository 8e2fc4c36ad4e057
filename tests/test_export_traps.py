"""Values that runtimes take silently and then do something else with: refused, with the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_runner import Result, run
from exported import demand, plan, text

from kvplan.errors import InfeasibleError, InputError
from kvplan.export import (
    dynamo,
    flexgen,
    kvpr,
    lmcache,
    mooncake,
    sglang,
    transformers,
    trtllm,
    vllm,
)
from kvplan.export.demand import demand_of
from kvplan.export.deployment import COMFORT_BYTES, Deployment, check_host, host_budget
from kvplan.export.here import measure
from kvplan.export.registry import REGISTRY
from kvplan.plan import Range
from kvplan.plan_file import encode
from kvplan.units import GB, GIB


def export(*options: str, kind: str = "grouped") -> Result:
    return run("export", "-", *options, stdin=text(kind))


# -- host memory over ranks ---------------------------------------------------------------------

RANKS: list[tuple[tuple[str, ...], str, float]] = [
    (("--pool", "200GB/rank", "--tp", "4", "--host", "768GB"), "reject", 800 * GB),
    (("--pool", "100GB/rank", "--tp", "4", "--host", "768GB"), "accept", 400 * GB),
    (("--pool", "512GB/rank", "--tp", "8", "--host", "2000GB"), "reject", 4096 * GB),
    (("--pool", "2000GB", "--tp", "4", "--host", "1500GB"), "reject", 2000 * GB),
    (("--pool", "4GiB/rank", "--tp", "8", "--host", "31.27GiB"), "reject", 32 * GIB),
    (("--pool", "4GiB/rank", "--tp", "4", "--host", "31.27GiB"), "warn", 16 * GIB),
]
"""Source: LMCache/LMCache#949 and PR#5127 (host of the third assumed),
SemiAnalysisAI/InferenceX#1358, dphnAI/sonar#483.
"""


@pytest.mark.parametrize(("options", "verdict", "total"), RANKS)
def test_a_size_per_rank_is_counted_for_every_rank(
    options: tuple[str, ...], verdict: str, total: float
) -> None:
    result = export("--to", "lmcache", "--json", *options)
    tight = "of host memory are left" in result.err
    if verdict == "reject":
        assert (result.code, result.out) == (3, "")
        assert f"{total / GB:.1f} GB" in result.err
        return
    assert result.code == 0, result.err
    pool = json.loads(result.out)["pool"]
    assert abs(pool["total_bytes"] - total) <= pool["chunk_bytes"]
    assert tight == (verdict == "warn")


def test_200_per_rank_may_pin_256() -> None:
    found = export("--to", "lmcache", "--pool", "200GiB/rank", "--tp", "2", "--host", "2TB")
    assert "pin 256.0 GiB" in found.err


def test_replicas_count_as_ranks_do() -> None:
    one = ("--to", "vllm", "--pool", "100GiB", "--host", "250GiB", "--shm")
    assert export(*one, "200GiB", "--replicas", "2").code == 0
    assert "/dev/shm" in export(*one, "199GiB", "--replicas", "2").err
    refused = export(*one, "1TiB", "--replicas", "3")
    assert refused.code == 3
    assert "3 ranks in 3 engines" in refused.err


# -- free memory is not budget ------------------------------------------------------------------


def test_budget_of_a_host() -> None:
    """Source: sgl-project/sglang#8102: 44.87 GB free, a reserve of 10 GB."""
    assert host_budget(44.87 * GB, reserve_bytes=10 * GB) == pytest.approx(34.87 * GB, rel=1e-12)
    assert host_budget(None, 400 * GIB, 291 * GIB) == 109 * GIB
    assert host_budget(50, 400, 291, 10, 4) == 10
    assert host_budget(5, reserve_bytes=10) == 0


def test_a_container_near_its_limit_is_tight() -> None:
    """Source: bytedance-iaas/sglang#744: 400 GiB, 291 idle, grows by 108: killed at 399."""
    asked = ("--pool", "108GiB", "--container", "400GiB", "--container-used", "291GiB")
    result = export("--to", "lmcache", *asked)
    assert result.code == 0
    assert "only 1.0 GiB (1.1 GB) of host memory are left" in result.err
    refused = export("--to", "lmcache", *asked, "--reserve", "10GiB")
    assert refused.code == 3
    assert "limit of 400.0 GiB with 291.0 GiB used, less a reserve of 10.0 GiB" in refused.err


def test_the_plans_own_budget_counts_where_no_host_is_given() -> None:
    refused = export("--to", "lmcache", "--pool", "100GiB", kind="fetch")
    assert refused.code == 3
    assert "the plan's host budget of 64.0 GiB" in refused.err
    assert "--host SIZE" in refused.err


def test_warnings_end_where_memory_is_ample() -> None:
    ample = Deployment(host_bytes=200 * GIB)
    assert check_host(demand(), ample, 200 * GIB - COMFORT_BYTES) == []
    assert len(check_host(demand(), ample, 200 * GIB - COMFORT_BYTES + 1)) == 1
    with pytest.raises(InfeasibleError):
        check_host(demand(), ample, 200 * GIB + 1)


def files(root: Path, given: dict[str, str]) -> str:
    for name, content in given.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="ascii")
    return str(root)


MEMINFO = "MemTotal:  100 kB\nMemAvailable:   64 kB\n"


def test_this_machine_is_measured(tmp_path: Path) -> None:
    second = files(tmp_path / "2", {
        "proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "50000\n",
        "sys/fs/cgroup/memory.current": "20000\n",
        "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 5000\n", "dev/shm/x": "",
    })  # fmt: skip
    found = measure(second)
    assert (found.free_bytes, found.limit_bytes, found.used_bytes) == (65536, 50000, 15000)
    assert found.shm_bytes
    first = files(tmp_path / "1", {
        "proc/meminfo": MEMINFO, "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096),
    })  # fmt: skip
    assert measure(first).limit_bytes is None
    unlimited = files(tmp_path / "0", {
        "proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n",
    })  # fmt: skip
    assert measure(unlimited).limit_bytes is None
    assert measure(unlimited).shm_bytes is None
    with pytest.raises(InputError, match="no /proc/meminfo"):
        measure(str(tmp_path / "none"))


# -- one memory -----------------------------------------------------------------------------------


def on(title: str, kind: str) -> bytes:
    """A plan of a machine with another title."""
    inputs = plan(kind).inputs
    hardware = msgspec.structs.replace(inputs.hardware, title=title)
    inputs = msgspec.structs.replace(inputs, hardware=hardware)
    return encode(msgspec.structs.replace(plan(kind), inputs=inputs)).encode()


def test_one_memory_takes_plans_that_offload_nothing() -> None:
    for runtime in ("trtllm", "transformers", "flexgen", "llamacpp"):
        result = run("export", "-", "--to", runtime, stdin=on("NVIDIA GB10", "resident"))
        assert result.code == 0, result.err


@pytest.mark.parametrize("runtime", sorted(REGISTRY))
def test_one_memory_is_no_host_tier(runtime: str) -> None:
    """Source: hao-ai-lab/FastVideo#1710, vllm-project/vllm#57555."""
    kind = "host" if runtime == "llamacpp" else "fetch"
    for result in (
        run("export", "-", "--to", runtime, stdin=on("NVIDIA GB10, 121 GB unified", kind)),
        export("--to", runtime, "--unified-memory", kind=kind),
    ):
        assert result.code == 3
        assert "a host tier holds 0 B" in result.err
        assert "leave KV offload off" in result.err


# -- pools that hold nothing ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "tokens"),
    [("vllm", 64), ("lmcache", 64), ("sglang", 64), ("trtllm", 64), ("dynamo", 16),
     ("mooncake", 16)],
)  # fmt: skip
def test_a_pool_below_one_chunk_is_refused(runtime: str, tokens: int) -> None:
    result = export("--to", runtime, "--pool", "100KiB")
    assert result.code == 2
    assert f"one chunk of {tokens} tokens over all layers" in result.err


def test_less_than_a_gigabyte_per_rank_is_not_zero() -> None:
    """SGLang takes 0 as a ratio of 2 of its HBM pool."""
    refused = export("--to", "sglang", "--pool", "1.5GB", "--tp", "2")
    assert refused.code == 2
    assert "SGLang counts whole GB and takes 0 as twice its HBM pool" in refused.err
    assert "--hicache-size 1 " in export("--to", "sglang", "--pool", "2.5GB", "--tp", "2").out


def test_sglang_keeps_ten_gib_back() -> None:
    """Source: sgl-project/sglang#8102: 40 GB are refused with 44.87 free."""
    asked = ("--to", "sglang", "--pool", "40GB", "--host")
    refused = export(*asked, "44.87GB", "--reserve", "10GB")
    assert refused.code == 3
    assert "less a reserve of 9.3 GiB (10.0 GB), leaves 32.5 GiB (34.9 GB)" in refused.err
    own = export(*asked, "44.87GB")
    assert "less a reserve of 10.0 GiB" in own.err
    assert export(*asked, "60GB").code == 0


def test_sglang_writes_back_where_writing_through_would_lose() -> None:
    """Source: sgl-project/sglang#39444."""
    assert "write_back" in export("--to", "sglang").out
    whole = export("--to", "sglang", "--pool", "all", "--host", "1TB")
    assert "write_through" in whole.out.split("mapped to")[0]


def test_a_pool_below_hbm_is_useless_to_kvbm() -> None:
    refused = export("--to", "dynamo")
    assert refused.code == 2
    assert "only hold copies of what is in HBM" in refused.err
    assert export("--to", "dynamo", "--pool", "all").code == 0


def test_nothing_to_offload_is_said_to_trtllm() -> None:
    """Unset, each rank would take a host tier as large as its HBM pool."""
    result = export("--to", "trtllm", "--json", kind="resident")
    assert '"host_cache_size": 0' in json.loads(result.out)["text"]


# -- placements -----------------------------------------------------------------------------------


@pytest.mark.parametrize("percents", ["60 60 50 50 100 0", "100 0 -10 110 100 0", "100 0 50 50"])
def test_percentages_that_are_no_placement_are_refused(percents: str) -> None:
    """FlexGen takes all of these."""
    given = f'exec {flexgen.PROGRAM} --percent {percents} "$@"\n'
    with pytest.raises(InputError, match=r"--percent|flexgen (weights|cache)"):
        flexgen.parse(given)


def test_flexgen_never_puts_more_into_hbm_than_the_plan() -> None:
    for kind in ("fetch", "recompute", "packed", "host", "disk"):
        made = flexgen.export(
            demand(kind), Deployment(disk_path="/kv", host_bytes=64 * GIB), "flexgen.sh"
        )
        back = flexgen.read_back(made.text, demand(kind), Deployment())
        assert back.hbm_bytes is not None
        assert back.hbm_bytes <= demand(kind).place_bytes["hbm"]


def test_flexgen_does_not_check_positions() -> None:
    inputs = plan("fetch").inputs
    model = msgspec.structs.replace(inputs.model, max_positions=2047)
    short = msgspec.structs.replace(inputs, model=model)
    longer = demand_of(msgspec.structs.replace(plan("fetch"), inputs=short))
    for module in (flexgen, kvpr):
        with pytest.raises(InputError, match="at most 2047 tokens"):
            module.export(longer, Deployment(), "x.sh")


def recomputed(tokens: list[int]) -> Any:
    """The recompute plan with other lengths, layer by layer; the rest is fetched."""
    whole = plan("recompute")
    layers = []
    for layer, length in zip(whole.decision.layers, tokens, strict=True):
        parts = [("recompute", 0, length), ("fetch", length, 2048)]
        layers.append(
            msgspec.structs.replace(
                layer,
                tokens={path: end - begin for path, begin, end in parts if end > begin},
                ranges=[Range(begin=b, end=e, path=p, stage=0) for p, b, e in parts if e > b],
            )
        )
    decision = msgspec.structs.replace(whole.decision, layers=layers)
    return demand_of(msgspec.structs.replace(whole, decision=decision))


def test_kvpr_has_one_length_for_all_layers() -> None:
    deployment = Deployment(host_bytes=64 * GIB)
    same = recomputed([640] * 12)
    assert "--recompute-len 640" in kvpr.export(same, deployment, "kvpr.sh").text
    near = recomputed([640] * 6 + [704] * 6)
    assert "--recompute-len 672" in kvpr.export(near, deployment, "kvpr.sh").text
    with pytest.raises(InputError, match="640 to 1280 recomputed tokens"):
        kvpr.export(recomputed([640] * 6 + [1280] * 6), deployment, "kvpr.sh")
    assert "--kv-partial" not in kvpr.export(same, deployment, "kvpr.sh").text


def test_pinned_blocks_are_powers_of_two() -> None:
    """opt-125m: 12 layers, K and V of 64 x 2048 tokens of 768 x 2 bytes: 192 MiB take 256."""
    assert transformers.pinned_bytes(demand("fetch")) == 12 * 2 * 256 * 2**20
    asked = ("--to", "transformers", "--host")
    refused = export(*asked, "5GiB", kind="fetch")  # 4.5 GiB of K and V
    assert refused.code == 3
    assert "the pool takes 6.0 GiB" in refused.err
    assert "a smaller batch or fewer tokens" in refused.err
    assert "pin 6.0 GiB" in export(*asked, "7GiB", kind="fetch").err


def test_whole_layers_must_fit_twice() -> None:
    found = demand("fetch")
    weights = found.plan.prediction.capacity_bytes["hbm"] - found.hbm_kv_bytes(1)
    capacity = {**found.plan.prediction.capacity_bytes, "hbm": weights + GIB}
    prediction = msgspec.structs.replace(found.plan.prediction, capacity_bytes=capacity)
    tight = demand_of(msgspec.structs.replace(found.plan, prediction=prediction))
    with pytest.raises(InfeasibleError, match="two layers of the cache"):
        transformers.export(tight, Deployment(host_bytes=64 * GIB), "generation_config.json")


def test_caches_in_the_models_format_take_no_other() -> None:
    inputs = plan("fetch").inputs
    workload = msgspec.structs.replace(inputs.workload, kv_dtype="fp8")
    narrow = demand_of(
        msgspec.structs.replace(
            plan("fetch"), inputs=msgspec.structs.replace(inputs, workload=workload)
        )
    )
    for module in (transformers, flexgen, kvpr):
        with pytest.raises(InputError, match="kv_dtype: 'fp8'"):
            module.export(narrow, Deployment(), "x")


def test_shm_is_checked() -> None:
    refused = export("--to", "vllm", "--pool", "40GiB", "--shm", "64MiB")
    assert refused.code == 3
    assert "/dev/shm" in refused.err
    assert "--shm-size" in refused.err
    assert "/dev/shm, which must have" in export("--to", "vllm", "--pool", "20GiB").err


def test_one_sequence_must_fit_in_hbm() -> None:
    """An engine attends only what is in HBM."""
    found = demand("grouped")
    capacity = {**found.plan.prediction.capacity_bytes, "hbm": 2.6 * GIB}
    prediction = msgspec.structs.replace(found.plan.prediction, capacity_bytes=capacity)
    squeezed = demand_of(msgspec.structs.replace(found.plan, prediction=prediction))
    with pytest.raises(InfeasibleError, match="one sequence of 16512 tokens takes 516"):
        vllm.export(squeezed, Deployment(), "vllm.yaml")


def test_disk_needs_a_folder() -> None:
    refused = export("--to", "lmcache", kind="disk")
    assert refused.code == 2
    assert "--disk-path: None" in refused.err


def test_formats_that_a_runtime_has_not_are_refused() -> None:
    inputs = plan("fetch").inputs
    workload = msgspec.structs.replace(inputs.workload, kv_dtype="fp32")
    wide = msgspec.structs.replace(
        plan("fetch"), inputs=msgspec.structs.replace(inputs, workload=workload)
    )
    for module in (vllm, lmcache, sglang, trtllm, dynamo, mooncake):
        with pytest.raises(InputError, match="fp32"):
            module.export(demand_of(wide), Deployment(), "x.yaml")


# -- ten of what ----------------------------------------------------------------------------------


def llama_8b() -> Any:
    """Llama-3.1-8B in two bytes: 131 072 bytes per token."""
    from kvplan.hardware_library import load_hardware
    from kvplan.model_library import load_model
    from kvplan.planning import make_plan
    from kvplan.scenario import Options, Scenario
    from kvplan.workload import Workload

    scenario = Scenario(
        model=load_model("llama-3.1-8b"), hardware=load_hardware("h100"),
        workload=Workload(batch=64, context=8192),
        options=Options(paths=("resident", "fetch"), axes=("token",), stages=(4,),
                        queue_depths=(2,), refine_blocks=False),
    )  # fmt: skip
    return demand_of(make_plan(scenario, time=""))


def test_the_same_number_is_another_size_in_each_runtime() -> None:
    """Tokens that a setting of 10 holds, one rank and two."""
    found = llama_8b()
    assert found.token_bytes == 131_072
    for ranks, tokens in ((1, 81_920), (2, 163_840)):
        config = "chunk_size: 64\nmax_local_cpu_size: 10.0\n"
        back = lmcache.read_back(config, found, Deployment(ranks=ranks))
        assert back.host_bytes / found.token_bytes == tokens
    for ranks in (1, 2):
        config = (
            'kv-transfer-config: {"kv_connector_extra_config": '
            f'{{"cpu_bytes_to_use": {10 * GIB}, "block_size": 16}}}}\n'
        )
        back = vllm.read_back(config, found, Deployment(ranks=ranks))
        assert back.host_bytes / found.token_bytes == 81_920
    for ranks, gpu, tokens in ((1, 1, 76_352), (2, 2, 152_640)):
        config = f'exec {sglang.PROGRAM} --hicache-size 10 --page-size 64 "$@"\n'
        back = sglang.read_back(config, found, Deployment(ranks=ranks))
        assert back.host_bytes / found.token_bytes == tokens
        config = 'kv_cache_config: {"host_cache_size": 10000000000, "tokens_per_block": 32}\n'
        back = trtllm.read_back(config, found, Deployment(ranks=ranks))
        assert back.host_bytes / found.token_bytes == gpu * 76_288
        config = f'export DYN_KVBM_CPU_CACHE_GB=10\nexec {dynamo.PROGRAM} "$@"\n'
        back = dynamo.read_back(config, found, Deployment(ranks=ranks))
        assert back.host_bytes / found.token_bytes == 76_288


@pytest.mark.parametrize("runtime", sorted(REGISTRY))
def test_names_are_quoted_in_command_lines(runtime: str) -> None:
    """A plan is somebody's file: what it calls its model is a word, never a command."""
    kind = "host" if runtime == "llamacpp" else "fetch"
    name = "opt; touch gone $(id)"
    inputs = plan(kind).inputs
    model = msgspec.structs.replace(inputs.model, name=name)
    inputs = msgspec.structs.replace(inputs, model=model)
    strange = demand_of(msgspec.structs.replace(plan(kind), inputs=inputs))
    where = Deployment(host_bytes=2**40, pool="all" if runtime == "dynamo" else "plan")
    exporter = REGISTRY[runtime]
    made = exporter.export(strange, where, exporter.file)
    lines = [made.command, *(line for _, line in made.others)]
    if exporter.file.endswith(".sh"):
        lines.append(made.text)
    for line in lines:
        for at in (m.start() for m in re.finditer(re.escape("; touch"), line)):
            assert line[:at].count("'") % 2 == 1, line
