"""Scenarios per second of a sweep, at both levels, with one process and with one per core.

Run with ``python tests/benchmarks/sweep_rate.py``. The clock runs from the first row on, so that
starting processes does not count; the whole time is shown beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.scenario import GOOD_GAP, Options, Scenario
from kvplan.sweep import LEVELS, cores, parallel, row
from kvplan.workload import Budgets, Workload

MODELS = ("llama-7b", "llama-3.1-8b", "opt-13b", "qwen2.5-32b")
CARDS = ("a100", "h100", "l4")


def scenarios(count: int, gap: float) -> list[Scenario]:
    """Models, cards, batches, contexts and budgets; most of them do not fit without offload."""
    found = []
    for k in range(count):
        machine = load_hardware(CARDS[k // 4 % len(CARDS)])
        base = Scenario(
            model=load_model(MODELS[k % 4]), hardware=machine,
            workload=Workload(batch=(4, 16, 32, 64)[k // 12 % 4], context=2048 * (1 + k // 48 % 8)),
            options=Options(good_gap=gap),
        )  # fmt: skip
        hbm = round(base.capacity["hbm"] * (1.0, 0.9, 0.8)[k // 384 % 3])
        found.append(dataclasses.replace(base, budgets=Budgets(hbm_bytes=hbm)))
    return found


def judge(asked: tuple[Scenario, str]) -> str:
    """The status of a scenario."""
    return str(row(*asked)["status"])


def main() -> None:
    """Print rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=384)
    parser.add_argument("--gap", type=float, default=GOOD_GAP, help="what solve's --good-gap says")
    asked = parser.parse_args()
    print(f"{asked.scenarios} scenarios, {cores()} cores")
    for level in LEVELS:
        for jobs in dict.fromkeys((1, cores())):
            items = [(s, level) for s in scenarios(asked.scenarios, asked.gap)]
            start = time.perf_counter()
            first, statuses = 0.0, []
            for _, status in parallel(judge, items, jobs):
                first = first or time.perf_counter()
                statuses.append(status)
            end = time.perf_counter()
            rate = (len(statuses) - 1) / (end - first)
            print(
                f"{level:8} {jobs} processes: {rate:6.1f} /s  ({end - start:.1f} s in all, "
                f"{statuses.count('ok')} fit)"
            )


if __name__ == "__main__":
    main()
