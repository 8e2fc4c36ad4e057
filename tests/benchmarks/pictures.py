"""How long each picture takes to draw and to write as PNG and SVG, slowest first.

Run with ``python tests/benchmarks/pictures.py``; matplotlib is loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from kvplan import pictures
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.planning import make_plan
from kvplan.scenario import Scenario
from kvplan.validation_file import read_results
from kvplan.workload import Workload

RESULTS = Path(__file__).parents[2] / "validate/results/h200-2026-11-29/results.json"


def main() -> None:
    """Print seconds per kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--gpu", default="h200")
    asked = parser.parse_args()
    plan = make_plan(Scenario(
        model=load_model(asked.model), hardware=load_hardware(asked.gpu),
        workload=Workload(batch=32, context=8192, gen=256),
    ))  # fmt: skip
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pictures.save(pictures.values(plan), Path(folder) / "first.png")
        for name, kind in pictures.KINDS.items():
            document = plan if kind.reads == "plan" else read_results(RESULTS)
            times = []
            for ending in ("png", "svg"):
                start = time.perf_counter()
                pictures.save(kind.draw(document), Path(folder) / f"{name}.{ending}")
                times.append(time.perf_counter() - start)
            rows.append((times, name))
    print(f"{asked.model} on {asked.gpu}\n  png s   svg s")
    for (png_s, svg_s), name in sorted(rows, reverse=True):
        print(f"{png_s:7.2f} {svg_s:7.2f}  {name}")


if __name__ == "__main__":
    main()
