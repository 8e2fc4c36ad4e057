"""The tiered pool: no block lost or twice, no tier too full, every byte where it was put."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from kvplan.errors import InputError, ResourceError  # noqa: E402
from kvplan_validate.pool import PinnedPool  # noqa: E402
from kvplan_validate.tiers import TIERS, BlockKey, TieredPool  # noqa: E402

BLOCK = 5000
"""Bytes: more than a page, and not whole pages."""


class Checked:
    """A pool beside what it should hold."""

    def __init__(self, folder: Path, capacities: dict[str, int]) -> None:
        self.host = PinnedPool(4 << 20)
        self.pool = TieredPool(
            BLOCK, capacities, device=torch.device("cpu"), host=self.host, folder=folder,
            notice=lambda text: None,
        )  # fmt: skip
        self.content: dict[BlockKey, Any] = {}

    def put(self, key: BlockKey, tier: str = "hbm") -> None:
        data = torch.randint(0, 256, (BLOCK,), dtype=torch.uint8)
        self.pool.put(key, data, tier)
        self.content[key] = data

    def check(self) -> None:
        pool = self.pool
        held = [key for tier in TIERS for key in pool.held(tier)]
        assert sorted(held) == sorted(self.content)
        assert len(pool) == len(held)
        for tier in TIERS:
            keys = pool.held(tier)
            assert len(keys) <= pool.capacities[tier]
            assert all(pool.where(key) == tier for key in keys)
            slots = [pool.slot(key) for key in keys]
            assert len(set(slots)) == len(slots)
            assert all(0 <= slot < pool.capacities[tier] for slot in slots)
        for key, data in self.content.items():
            out = torch.empty(BLOCK, dtype=torch.uint8)
            pool.read(key, out)
            assert torch.equal(out, data), key

    def close(self) -> None:
        self.pool.close()
        self.host.close()


@pytest.fixture
def checked(tmp_path: Path) -> Iterator[Checked]:
    made = Checked(tmp_path, {"hbm": 2, "dram": 3, "disk": 4})
    yield made
    made.close()


def test_what_is_used_least_moves_down(checked: Checked) -> None:
    for number in range(5):
        checked.put((0, 0, number))
        checked.pool.touch((0, 0, 0))  # hot: stays
    pool = checked.pool
    assert pool.held("hbm") == [(0, 0, 4), (0, 0, 0)]
    assert sorted(pool.held("dram")) == [(0, 0, 1), (0, 0, 2), (0, 0, 3)]
    checked.put((0, 0, 5))
    assert pool.where((0, 0, 1)) == "disk"
    assert (pool.traffic.promotions, pool.traffic.demotions) == (0, 5)
    checked.check()


def test_hits_and_bytes_are_counted_by_tier(checked: Checked) -> None:
    for number, tier in enumerate(TIERS):
        checked.put((0, 0, number), tier)
    out = torch.empty(BLOCK, dtype=torch.uint8)
    for _ in range(2):
        assert [checked.pool.read((0, 0, n), out) for n in range(3)] == list(TIERS)
    checked.pool.touch((0, 0, 0))
    traffic = checked.pool.traffic
    assert traffic.hits == {"hbm": 3, "dram": 2, "disk": 2}
    assert traffic.read_bytes["disk"] == 2 * BLOCK
    assert traffic.hit_rate() == pytest.approx({"hbm": 3 / 7, "dram": 2 / 7, "disk": 2 / 7})


def test_a_plan_is_followed_where_every_tier_is_full(tmp_path: Path) -> None:
    """Blocks that wait for each other's places change them."""
    checked = Checked(tmp_path, {"hbm": 2, "dram": 2, "disk": 2})
    keys = [(0, 0, number) for number in range(6)]
    for number, key in enumerate(keys):
        checked.put(key, TIERS[number // 2])
    wanted = {key: TIERS[(number // 2 + 1) % 3] for number, key in enumerate(keys)}
    assert checked.pool.follow(wanted) == 6
    assert {key: checked.pool.where(key) for key in keys} == wanted
    assert sum(checked.pool.traffic.moves.values()) == 6
    assert checked.pool.follow(wanted) == 0
    checked.check()
    checked.close()


def test_a_plan_that_does_not_fit_moves_nothing(checked: Checked) -> None:
    for number in range(3):
        checked.put((0, 0, number), "dram")
    with pytest.raises(ResourceError, match="hbm: 3 blocks in a tier of 2"):
        checked.pool.follow({(0, 0, number): "hbm" for number in range(3)})
    with pytest.raises(InputError, match="a tier for every block"):
        checked.pool.follow({(0, 0, 0): "hbm"})
    assert len(checked.pool.held("dram")) == 3
    assert not checked.pool.traffic.moves
    checked.check()


def test_full_tiers_refuse_and_lose_nothing(checked: Checked) -> None:
    for number in range(9):
        checked.put((0, 0, number))
    with pytest.raises(ResourceError):
        checked.pool.put((0, 0, 9), torch.zeros(BLOCK, dtype=torch.uint8))
    with pytest.raises(InputError, match="not in the pool yet"):
        checked.pool.put((0, 0, 8), torch.zeros(BLOCK, dtype=torch.uint8))
    checked.check()
    checked.pool.move(checked.pool.held("disk")[0], "hbm")
    checked.check()


@pytest.mark.parametrize("seed", range(30))
def test_random_use_loses_nothing(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    capacities = {tier: rng.randint(1, 4) for tier in TIERS if rng.random() < 0.8} or {"dram": 3}
    checked = Checked(tmp_path, capacities)
    pool, most = checked.pool, sum(capacities.values())
    for number in range(40):
        keys = sorted(checked.content)
        tiers = sorted(capacities)
        action = rng.choice(["put", "put", "move", "follow", "drop", "touch"])
        try:
            if action == "put" and len(keys) < most:
                checked.put((0, 0, number), rng.choice(tiers))
            elif action == "move" and keys:
                pool.move(rng.choice(keys), rng.choice(tiers))
            elif action == "follow" and keys:
                places = [tier for tier in tiers for _ in range(capacities[tier])]
                rng.shuffle(places)
                wanted = dict(zip(keys, places, strict=False))
                pool.follow(wanted)
                assert {key: pool.where(key) for key in keys} == wanted
            elif action == "drop" and keys:
                key = rng.choice(keys)
                pool.drop(key)
                del checked.content[key]
            elif keys:
                pool.touch(rng.choice(keys))
        except ResourceError:
            assert action in ("put", "move")
        checked.check()
    checked.close()
    assert list(tmp_path.iterdir()) == []
