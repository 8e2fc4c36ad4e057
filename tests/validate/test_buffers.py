"""No buffer is written before its last reader has ended, whatever the streams do.

What happens before what follows from the order on each stream and from the events between them. A
buffer's next tenant must enter after its last one has left.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from test_runtime import EXACT, prepared  # noqa: E402

from kvplan_validate.runtime import Runtime  # noqa: E402
from kvplan_validate.wiring import Tenant, disk_tenants, staged_tenants, weight_tenants  # noqa: E402


def before(runtime: Runtime, steps: int) -> list[int]:
    """For each action of some steps, a bit for every action that surely ended before it."""
    count = len(runtime.actions)
    reached = [0] * (count * steps)
    last: dict[str, int] = {}
    for step in range(steps):
        for index, action in enumerate(runtime.actions):
            own = step * count + index
            waits = [step * count + b for b in action.waits]
            waits += [(step - 1) * count + b for b in action.reaches_back if step]
            waits += [last[action.lane]] if action.lane in last else []
            for b in waits:
                reached[own] |= reached[b] | 1 << b
            last[action.lane] = own
    return reached


def check(runtime: Runtime, tenants: list[Tenant], count: int, steps: int) -> None:
    """Each tenant enters after the one before it in the same buffer has left."""
    reached = before(runtime, steps)
    size = len(runtime.actions)
    held: dict[int, list[int]] = {}
    for step in range(steps):
        for number, (enters, leaves) in enumerate(tenants):
            slot = number % count
            for enter in enters:
                for leave in held.get(slot, []):
                    assert reached[step * size + enter] >> leave & 1, (number, enter, leave)
            held[slot] = [step * size + leave for leave in leaves]


@pytest.mark.parametrize("seed", range(40))
def test_buffers_are_free_when_they_are_written(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    made = prepared(
        seed, tmp_path, grouped=False, rope=False, axis=rng.choice(["token", "layer"]),
        micro_batches=rng.randint(1, 2), stream=rng.random() < 0.5, paths=EXACT,
    )  # fmt: skip
    runtime = made.runtime
    staging = runtime.state.staging
    staged = staged_tenants(runtime.actions, staging)
    if staged:
        check(runtime, staged, len(staging.buffers), steps=3)
    on_disk = disk_tenants(runtime.actions)
    for number, (reads, _) in enumerate(on_disk):
        operation = runtime.actions[reads[0]].operation
        key = (operation.layer, operation.stage or 0, operation.micro_batch)
        assert runtime.work.disk.turns[key] == number
    check(runtime, on_disk, staging.depth, steps=3)
    check(runtime, weight_tenants(runtime.actions), 2, steps=3)
    made.close()
