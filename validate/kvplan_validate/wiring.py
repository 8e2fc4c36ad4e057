"""Which actions wait for which: edges between streams, and buffers that are taken in turn.

The order on one stream needs no event. An edge of the step graph between two streams becomes one;
so does, at the start of a step, a buffer that a stream fills while another still reads what the
last step put there.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvplan_validate.action import IMPLIED, Action
from kvplan_validate.staging import Staging
from kvplan_validate.streaming import BUFFERS

Tenant = tuple[list[int], list[int]]
"""Actions that enter a buffer, and actions that leave it."""


def wire(actions: Sequence[Action], staging: Staging) -> None:
    """Fill in what each action waits for, and whether another stream waits for it."""
    for action in actions:
        for before, lag in action.operation.after:
            other = actions[before]
            if other.operation.operation in IMPLIED or other.lane == action.lane:
                continue
            (action.waits if lag == 0 else action.reaches_back).append(before)
            other.records = True
    # The graph lets buffers rotate on across steps; here every step starts at the first one.
    _rotate(actions, staged_tenants(actions, staging), len(staging.buffers))
    _rotate(actions, disk_tenants(actions), staging.depth)
    _rotate(actions, weight_tenants(actions), BUFFERS)


def _rotate(actions: Sequence[Action], tenants: list[Tenant], count: int) -> None:
    """First tenants of a buffer wait for its last tenant of the step before."""
    for number, (enters, _) in enumerate(tenants[:count]):
        _, leaves = tenants[range(number, len(tenants), count)[-1]]
        for enter in enters:
            for leave in leaves:
                if actions[enter].lane != actions[leave].lane:
                    actions[enter].reaches_back.append(leave)
                    actions[leave].records = True


def staged_tenants(actions: Sequence[Action], staging: Staging) -> list[Tenant]:
    """What writes to and what reads from each staging buffer in turn."""
    tenants: dict[int, Tenant] = {}
    for index, action in enumerate(actions):
        operation = action.operation
        if operation.stage is None or operation.operation in ("launch", "read_disk"):
            continue
        enters, leaves = tenants.setdefault(staging.unit(operation), ([], []))
        (leaves if operation.operation == "attend" else enters).append(index)
    return [tenants[unit] for unit in sorted(tenants)]


def disk_tenants(actions: Sequence[Action]) -> list[Tenant]:
    """Reads into host buffers and the copies that empty them, in turn."""
    of_disk = [i for i, a in enumerate(actions) if a.operation.path == "fetch_disk"]
    reads = [i for i in of_disk if actions[i].operation.operation == "read_disk"]
    copies = [i for i in of_disk if actions[i].operation.operation == "copy_kv"]
    return [([read], [copy]) for read, copy in zip(reads, copies, strict=True)]


def weight_tenants(actions: Sequence[Action]) -> list[Tenant]:
    """Loads of weights and the layers that use them, in turn."""
    tenants: list[Tenant] = []
    for index, action in enumerate(actions):
        if action.operation.operation == "load_weights":
            tenants.append(([index], []))
        elif action.operation.operation == "finish" and tenants:
            tenants[-1][1].append(index)
    return tenants
