"""Many decode steps over the tiered pool equal float64, while blocks move between tiers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from test_runtime import small_model  # noqa: E402

from kvplan.errors import InputError, ResourceError  # noqa: E402
from kvplan.evaluate import Evaluation  # noqa: E402
from kvplan.forced import forced  # noqa: E402
from kvplan.hardware_library import load_hardware  # noqa: E402
from kvplan.scenario import Scenario  # noqa: E402
from kvplan.schedule import Schedule  # noqa: E402
from kvplan.workload import Budgets, Workload  # noqa: E402
from kvplan_validate import decode_run  # noqa: E402
from kvplan_validate.decoder import Decoder  # noqa: E402
from kvplan_validate.decoding import Decoding, block_bytes, placement  # noqa: E402
from kvplan_validate.pool import PinnedPool  # noqa: E402
from kvplan_validate.reference import History, Reference  # noqa: E402
from kvplan_validate.tiers import TIERS, TieredPool  # noqa: E402

BLOCK, CONTEXT, LAYERS = 4, 24, 3

SHARES = {
    "mixed": {"resident": 0.34, "fetch": 0.33, "fetch_disk": 0.33},
    "cold": {"fetch_disk": 1.0},
    "warm": {"resident": 0.5, "fetch": 0.5},
    "hot": {"resident": 1.0},
}


class Beside:
    """A decoding beside its float64 reference."""

    def __init__(
        self, folder: Path, plan: Any, capacities: dict[str, int], *, grouped: bool = True,
        micro_batches: int = 1, device: str = "cpu", dtype: Any = torch.float32,
    ) -> None:  # fmt: skip
        self.model = small_model(grouped=grouped, rope=True, layers=LAYERS)
        self.scenario = Scenario(
            model=self.model, hardware=load_hardware("h200"), budgets=Budgets(disk_bytes=10**9),
            workload=Workload(
                batch=2 * micro_batches, context=CONTEXT, block=BLOCK, micro_batches=micro_batches
            ),
        )  # fmt: skip
        place = torch.device(device)
        self.decoder = Decoder(self.model, place, dtype, positions=CONTEXT + 64)
        history = History(self.decoder, [CONTEXT] * LAYERS, 2, micro_batches)
        self.reference = Reference(self.decoder, history)
        self.blocks_host, self.host = PinnedPool(16 << 20), PinnedPool(8 << 20)
        item = torch.empty(0, dtype=dtype).element_size()
        self.blocks = TieredPool(
            block_bytes(self.scenario, item), capacities, device=place, host=self.blocks_host,
            folder=folder, notice=lambda text: None,
        )  # fmt: skip
        self.decoding = Decoding(self.scenario, plan, self.decoder, self.blocks, self.host)
        self.decoding.fill(history.source())

    def worst(self, steps: int) -> float:
        """Largest relative error of the residual over some steps."""
        found = 0.0
        for step in range(steps):
            runtime = self.decoding.runtime
            assert runtime is not None
            batches = runtime.state.batches
            starts = [batch.start.clone() for batch in batches]
            runtime.state.staging.poison()
            self.decoding.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the step runs on streams of its own
            for index, start in enumerate(starts):
                wanted = self.reference.step(start, index, CONTEXT + step)
                got = batches[index].hidden.double().cpu()
                found = max(found, float((got - wanted).norm() / wanted.norm()))
        return found

    def close(self) -> None:
        self.decoding.close()
        self.blocks.close()
        self.blocks_host.close()
        self.host.close()


def by_shares(*names: str) -> Any:
    """Plans that change with the context: one mix after the other."""

    def plan(scenario: Scenario) -> Evaluation:
        grown = (scenario.workload.context - CONTEXT) // BLOCK
        shares = SHARES[names[grown % len(names)]]
        found = forced(scenario, Schedule(stages=2, mode="eager"), shares)
        assert isinstance(found, Evaluation), found
        return found

    return plan


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "names", [("mixed",), ("cold", "hot"), ("hot", "warm", "cold", "mixed")], ids="-".join
)
def test_decoding_equals_float64(names: tuple[str, ...], grouped: bool, tmp_path: Path) -> None:
    made = Beside(
        tmp_path, by_shares(*names), dict.fromkeys(TIERS, 60), grouped=grouped,
        micro_batches=1 + grouped,
    )  # fmt: skip
    steps = 4 * BLOCK + 1
    assert made.worst(steps) < 2e-5
    decoding = made.decoding
    assert decoding.scenario.workload.context == CONTEXT + 4 * BLOCK
    held = {key: made.blocks.where(key) for tier in TIERS for key in made.blocks.held(tier)}
    assert held == placement(decoding.scenario, decoding.evaluation)
    rates = decoding.hit_rate()
    assert sum(rates.values()) == pytest.approx(1.0)
    read = sum(made.blocks.traffic.hits.values())
    each = LAYERS * (1 + grouped)
    assert read == each * (sum(CONTEXT // BLOCK + step // BLOCK for step in range(steps)))
    if len(names) > 1:
        assert made.blocks.traffic.promotions > 0
        assert made.blocks.traffic.demotions > 0
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_pool_without_room_for_the_next_block_says_so(tmp_path: Path) -> None:
    made = Beside(tmp_path, by_shares("hot"), {"hbm": LAYERS * CONTEXT // BLOCK})
    with pytest.raises(ResourceError, match=r"hbm: .* raise its capacity"):
        made.worst(BLOCK)
    made.close()


def test_paths_that_keep_no_keys_are_refused(tmp_path: Path) -> None:
    def plan(scenario: Scenario) -> Evaluation:
        found = forced(scenario, Schedule(stages=2), {"recompute": 1.0})
        assert isinstance(found, Evaluation)
        return found

    with pytest.raises(InputError, match="recompute"):
        Beside(tmp_path, plan, {"dram": 60})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_decoding_on_a_gpu(tmp_path: Path) -> None:
    made = Beside(
        tmp_path, by_shares("hot", "warm", "cold", "mixed"), dict.fromkeys(TIERS, 60),
        device="cuda", dtype=torch.float16,
    )  # fmt: skip
    assert made.worst(4 * BLOCK + 1) < 6e-3
    made.close()


def test_a_run_says_what_each_tier_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_run, "SMALL_POOL", 8 << 20)
    scenario = Scenario(
        model=small_model(grouped=True, rope=True, layers=LAYERS), hardware=load_hardware("h200"),
        budgets=Budgets(disk_bytes=10**9), workload=Workload(batch=2, context=26, block=BLOCK),
    )  # fmt: skip
    evaluation = forced(scenario, Schedule(stages=2), SHARES["mixed"])
    assert isinstance(evaluation, Evaluation)
    decoded = decode_run.decode(
        scenario, evaluation, 2 * BLOCK + 1, device="cpu", disk_folder=tmp_path, notice=print
    )
    assert decoded["context"] == CONTEXT + 2 * BLOCK
    assert decoded["hit_rate"]["hbm"] == pytest.approx(1 / 3, abs=0.1)
    assert sum(decoded["hit_rate"].values()) == pytest.approx(1.0)
    assert sorted(decoded["latency_s"]) == ["0.5", "0.95", "0.99"]
    assert "blocks read from hbm" in decode_run.sentence(decoded)
    assert list(tmp_path.iterdir()) == []
