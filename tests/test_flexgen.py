"""FlexGen's percentages: asked for, in effect, searched, and judged like any other plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.baselines import BASELINES, at_batch, ladder
from kvplan.errors import InputError
from kvplan.flexgen import (
    Percentages,
    cache_sequences,
    rounded_percentages,
    shares_of,
    weight_shares,
)
from kvplan.flexgen_policy import Estimate, Rates, Task, estimate, search
from kvplan.forced import Played
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.workload import Budgets, Workload

PERCENT = st.integers(0, 100)


@st.composite
def policies(draw: st.DrawFn) -> Percentages:
    parts = []
    for _ in range(3):
        gpu = draw(PERCENT)
        parts += [gpu, draw(st.integers(0, 100 - gpu))]
    return Percentages(*parts)


@given(policy=policies(), gpu_batch=st.integers(1, 300))
def test_sequences_are_whole_and_all_there(policy: Percentages, gpu_batch: int) -> None:
    parts = cache_sequences(policy, gpu_batch)
    assert sum(parts) == gpu_batch
    assert min(parts) >= 0
    assert parts[0] <= gpu_batch * policy.cache_gpu / 100 < parts[0] + 1


@given(policy=policies())
@pytest.mark.parametrize("name", ["opt-6.7b", "llama-3.1-8b"])
def test_weight_shares_are_whole_matrices(policy: Percentages, name: str) -> None:
    shares = weight_shares(policy, load_model(name).layers[0])
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert min(shares) >= 0


@given(values=st.tuples(st.floats(-1e-9, 1.0), st.floats(-1e-9, 1.0), st.floats(0.1, 1.0)))
def test_a_solvers_values_become_shares(values: tuple[float, ...]) -> None:
    shares = shares_of(values)
    assert sum(shares) == pytest.approx(1, abs=1e-9)
    assert all(0 <= share <= 1 for share in shares)


def test_percentages_that_cannot_be() -> None:
    for numbers in ((101, 0, 0, 0, 0, 0), (60, 60, 0, 0, 0, 0), (0, 0, -1, 0, 0, 0)):
        with pytest.raises(InputError, match="flexgen"):
            Percentages(*numbers)
    with pytest.raises(InputError, match="six whole percentages"):
        Options(flexgen=(1, 2))
    assert rounded_percentages((1.0, 0.0, 0.0), (0.999, 0.0005, 0.0005)).numbers[2:4] == (99, 1)


RATES = Rates(
    h2d_bytes_per_s=10e9, d2h_bytes_per_s=10e9, hbm_bytes_per_s=1e12, flop_per_s=1e14,
    host_attention_bytes_per_s=20e9, disk_read_bytes_per_s=2e9, disk_write_bytes_per_s=1e9,
)  # fmt: skip


@given(policy=policies(), gpu_batch=st.integers(1, 64), on_cpu=st.booleans())
def test_times_are_never_negative(policy: Percentages, gpu_batch: int, on_cpu: bool) -> None:
    task = Task(prompt=256, gen=8, gpu_batch=gpu_batch, gpu_batches=2, cpu_attention=on_cpu)
    for effective in (True, False):
        found = estimate(load_model("opt-6.7b"), RATES, task, policy, effective=effective)
        assert found.prefill_s > 0
        assert found.decode_s > 0
        assert found.h2d_bytes >= 0
        assert min(found.memory_bytes.values()) >= 0


@pytest.mark.parametrize("on_cpu", [False, True])
def test_no_percentages_on_a_grid_beat_the_program(on_cpu: bool) -> None:
    """As asked, not in effect: the program knows nothing of whole sequences."""
    model = load_model("opt-6.7b")
    capacity = {"hbm": 12 * 2**30, "dram": 200 * 2**30, "disk": 0.0}
    task = Task(prompt=1024, gen=32, gpu_batch=8, gpu_batches=4, cpu_attention=on_cpu)
    chosen = search(model, RATES, task, capacity)
    assert chosen is not None

    def run(policy: Percentages) -> Estimate:
        return estimate(model, RATES, task, policy, effective=False)

    grid = [Percentages(w, 100 - w, c, 100 - c) for w in range(0, 101, 4) for c in range(0, 101, 4)]
    fits = [run(p) for p in grid if all(run(p).memory_bytes[t] <= capacity[t] for t in capacity)]
    assert fits
    best_s = min(found.total_s for found in fits)
    assert run(chosen).total_s <= best_s * 1.02  # whole percentages, rounded down on the GPU
    assert all(run(chosen).memory_bytes[t] <= capacity[t] * 1.001 for t in capacity)


def scenario(flexgen: tuple[int, ...] | None, batch: int = 2, parts: int = 1) -> Scenario:
    return Scenario(
        model=load_model("opt-6.7b"),
        hardware=load_hardware("a100"),
        workload=Workload(batch=batch, context=2048, micro_batches=parts),
        budgets=Budgets(hbm_bytes=30 * 2**30),
        options=Options(flexgen=flexgen),
    )


def played(asked: Scenario) -> Played:
    baseline = next(b for b in BASELINES if b.name == "flexgen")
    found = baseline.plan(asked)
    assert isinstance(found, Played), found
    return found


def test_the_split_in_effect_is_judged() -> None:
    """60 % on the CPU of two sequences is all of them; so the step is that of a whole fetch."""
    asked, whole = (100, 0, 40, 60, 100, 0), (100, 0, 0, 100, 100, 0)
    one = Scenario(**{**vars(scenario(asked)), "workload": Workload(batch=2, context=2048)})
    found, all_away = played(one), played(scenario(whole))
    assert found.note is not None
    assert "--percent 100 0 40 60 100 0" in found.note
    if found.batching == all_away.batching:
        assert found.evaluation.step_s == all_away.evaluation.step_s
    moved = found.evaluation.graph.link_bytes(found.evaluation.values)["h2d"]
    assert moved == 2 * 2048 * 32 * 2 * 4096 * 2  # sequences, tokens, layers, K and V, fp16
    assert "0 % of the cache on the GPU" in found.note


def test_it_stands_in_the_ladder_with_its_own_micro_batches() -> None:
    asked = scenario(None, batch=64)
    rung = at_batch(asked, next(b for b in BASELINES if b.name == "flexgen"))
    assert rung.evaluation is not None
    assert rung.batching.batch == 64
    assert rung.evaluation.overflow(asked.capacity) is None
    assert [r.name for r in ladder(asked)].index("flexgen") >= 0


def test_weights_for_the_disk_are_refused_with_the_reason() -> None:
    baseline = next(b for b in BASELINES if b.name == "flexgen")
    found = baseline.plan(scenario((0, 50, 0, 100, 100, 0)))
    assert isinstance(found, str)
    assert "weights on disk" in found
