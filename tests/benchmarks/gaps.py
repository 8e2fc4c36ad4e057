"""Proven gap of the plan for every built-in model on every built-in card, widest first.

Run with ``python tests/benchmarks/gaps.py``, or with ``--sample 200`` for as many pairs drawn with
a fixed seed: all of them take half an hour on two cores. Where the batch does not fit, it is halved
until it does.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import random
import time

from kvplan.errors import InfeasibleError
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.model_library import load_model, model_names
from kvplan.scenario import Scenario
from kvplan.solve import search
from kvplan.sweep import parallel
from kvplan.workload import Workload


def widest_batch(pair: tuple[str, str], batch: int, context: int) -> tuple[int, float] | None:
    """The largest batch that fits, by halves, and its gap; None where even one does not."""
    model, card = pair
    while batch:
        workload = Workload(batch=batch, context=context, source_tokens=0)
        try:
            scenario = Scenario(
                model=load_model(model), hardware=load_hardware(card), workload=workload
            )
            return batch, search(scenario).gap
        except InfeasibleError:
            batch //= 2
    return None


def main() -> None:
    """Print pairs above 1 %, and how many there are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--sample", type=int, default=0, help="pairs to draw; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cores", type=int, default=2)
    asked = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    cards = [name for name in hardware_names() if not load_hardware(name).unified]
    pairs = list(itertools.product(model_names(), cards))
    if asked.sample:
        pairs = random.Random(asked.seed).sample(pairs, min(asked.sample, len(pairs)))
    rows: list[tuple[float, str]] = []
    unfit, start = 0, time.perf_counter()
    solve = functools.partial(widest_batch, batch=asked.batch, context=asked.context)
    for index, found in parallel(solve, pairs, asked.cores):
        if found is None:
            unfit += 1
            continue
        (model, card), (batch, gap) = pairs[index], found
        rows.append((gap, f"{model:34} {card:16} batch {batch}"))
    rows.sort(reverse=True)
    wide = [row for row in rows if row[0] > 0.01]
    for gap, what in wide:
        print(f"{gap:7.2%}  {what}")
    print(
        f"{len(rows)} pairs, {len(wide)} with a gap above 1 %; {unfit} fit with no batch; "
        f"{time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
