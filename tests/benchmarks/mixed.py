"""Mixed scenarios solved on two cores, in processes as a sweep has them: how long a thousand take,
and where the time goes.

Run with ``python tests/benchmarks/mixed.py``. Models, cards, batches, contexts and options are
drawn with a fixed seed; one that fits with no plan counts, since saying so takes time too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import time
from collections.abc import Iterator

from kvplan.errors import InfeasibleError, InputError
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.model_library import load_model, model_names
from kvplan.planning import make_plan
from kvplan.scenario import GOOD_GAP, Options, Scenario
from kvplan.solve import find
from kvplan.sweep import parallel
from kvplan.workload import Budgets, Workload

Drawn = tuple[str, str, Scenario]


def drawn(count: int, seed: int) -> Iterator[tuple[str, str, dict[str, object]]]:
    """Model, card and the rest of each scenario."""
    draw = random.Random(seed)
    models = model_names()
    cards = [name for name in hardware_names() if not load_hardware(name).unified]
    for _ in range(count):
        yield draw.choice(models), draw.choice(cards), {
            "batch": draw.choice([1, 4, 8, 16, 32, 64, 128]),
            "context": draw.choice([1024, 2048, 4096, 8192, 16384, 32768, 65536]),
            "allow": draw.choice([{}, {}, {}, {"int8": 1.0}, {"int4": 0.5}]),
            "host": draw.choice([64, 256, 1024]),
        }  # fmt: skip


def scenario(model: str, card: str, rest: dict[str, object], gap: float) -> Scenario:
    """The scenario that was drawn."""
    batch, context, host = rest["batch"], rest["context"], rest["host"]
    assert isinstance(batch, int)
    assert isinstance(context, int)
    assert isinstance(host, int)
    return Scenario(
        model=load_model(model),
        hardware=load_hardware(card),
        workload=Workload(batch=batch, context=context),
        budgets=Budgets(dram_bytes=host * 2**30),
        options=Options(allow=rest["allow"], good_gap=gap),  # type: ignore[arg-type]
    )


def solved(
    case: tuple[str, str, dict[str, object]], whole: bool, gap: float
) -> tuple[float, float | None, str]:
    """CPU seconds, proven gap (None where nothing fits) and a name."""
    start = time.process_time()
    proven: float | None = None
    with contextlib.suppress(InfeasibleError, InputError):  # nothing fits, or a model needs more
        asked = scenario(*case, gap)
        if whole:
            proven = make_plan(asked).prediction.gap
        else:
            found = find(asked)
            proven = None if found is None else found.gap
    spent = time.process_time() - start
    return spent, proven, f"{case[0]} on {case[1]} {case[2]}"


def main() -> None:
    """Print the time of all, and of the slowest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="with every baseline, as solve does")
    parser.add_argument("--gap", type=float, default=GOOD_GAP, help="what solve's --good-gap says")
    asked = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    cases = list(drawn(asked.count, asked.seed))
    start = time.perf_counter()
    solve = functools.partial(solved, whole=asked.whole, gap=asked.gap)
    rows = [row for _, row in parallel(solve, cases, asked.cores)]
    wall = time.perf_counter() - start
    spent = sum(row[0] for row in rows)
    gaps = [gap for _, gap, _ in rows if gap is not None]
    print(f"{len(rows)} scenarios, {len(rows) - len(gaps)} without a plan: {wall:.1f} s on "
          f"{asked.cores} cores, {spent:.1f} CPU s")  # fmt: skip
    print(f"gap above 1 %: {sum(gap > 0.01 for gap in gaps)}, above 2 %: "
          f"{sum(gap > 0.02 for gap in gaps)}")  # fmt: skip
    for seconds, _, name in sorted(rows, reverse=True, key=lambda row: row[0])[:10]:
        print(f"{seconds:7.2f} s  {name}")


if __name__ == "__main__":
    main()
