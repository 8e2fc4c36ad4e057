"""How long rebuilding K and V takes where rows do not fill whole tiles of a matrix product.

Run with ``python tests/benchmarks/gemm_rows.py -o gemm_rows.json`` on a machine with a GPU. Each
product is timed at every multiple of 32 rows in a range, and at numbers between. Its time is set
beside the line between the two nearest multiples of 128 rows: where a part of a tile took as long
as a whole one, all others would lie above that line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime

from kvplan_validate.measure import Machine
from kvplan_validate.measure.matmul import REBUILDS, products

TILE = 128
FIRST, LAST, STEP = 1024, 4096, 32
BETWEEN = 24
"""Numbers of rows drawn between multiples."""

PLACES = (64, 32, 1)
"""A number of rows counts as a multiple of the first of these that divides it."""


def all_rows() -> list[int]:
    """Numbers of rows to time, in a random order so that drifts of the clock show as noise."""
    draw = random.Random(1)
    rows = [*range(FIRST, LAST + 1, STEP), *(draw.randrange(FIRST, LAST) for _ in range(BETWEEN))]
    draw.shuffle(rows)
    return list(dict.fromkeys(rows))


def timed(machine: Machine, inputs: int, outputs: int) -> Iterator[dict[str, object]]:
    """Rows and the median seconds of a product."""
    for rows in all_rows():
        product, copies = products(machine, inputs, outputs, rows)
        times = machine.timer.per_operation(product, copies=copies, burst_s=2e-3, gap_s=4e-3)
        yield {"rows": rows, "median": statistics.median(times), "samples": list(times)}


def excess(times: dict[int, float]) -> dict[int, list[float]]:
    """By place: shares by which times are above the line between multiples of TILE."""
    found: dict[int, list[float]] = {place: [] for place in PLACES}
    for rows, seconds in times.items():
        below = rows // TILE * TILE
        if rows % TILE and below + TILE in times:
            line = times[below] + (times[below + TILE] - times[below]) * (rows - below) / TILE
            found[next(p for p in PLACES if rows % p == 0)].append(seconds / line - 1)
    return found


def main() -> None:
    """Measure every shape, print a table, and write all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="gemm_rows.json")
    asked = parser.parse_args()
    machine = Machine.here()
    machine.warm_up()
    shapes = []
    for inputs, outputs in REBUILDS:
        points = list(timed(machine, inputs, outputs))
        times = {int(str(p["rows"])): float(str(p["median"])) for p in points}
        found = excess(times)
        shapes.append({"inputs": inputs, "outputs": outputs, "dtype": "fp16", "points": points})
        for place, shares in found.items():
            middle, mean, worst = statistics.median(shares), statistics.mean(shares), max(shares)
            print(f"{inputs:5} x {outputs:5}, multiples of {place:2}: {len(shares):3} of them, "
                  f"median {middle:+.1%}, mean {mean:+.1%}, worst {worst:+.1%}")  # fmt: skip
    document = {
        "made_at": datetime.now(UTC).isoformat(),
        "machine": machine.facts(),
        "shapes": shapes,
    }
    with open(asked.output, "w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)


if __name__ == "__main__":
    main()
