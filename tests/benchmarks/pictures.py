"""How long each picture takes to draw and to write as PNG and SVG, slowest first.

Run with ``python tests/benchmarks/pictures.py``; matplotlib is loaded before the clock starts.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from pathlib import Path

from kvplan import pictures
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.planning import make_plan
from kvplan.scenario import Scenario
from kvplan.sweep import row
from kvplan.validation_file import read_results
from kvplan.workload import Workload

RESULTS = Path(__file__).parents[2] / "validate/results/h200-2026-11-30/results.json"


def main() -> None:
    """Print seconds per kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--gpu", default="h200")
    asked = parser.parse_args()
    asked_of = Scenario(
        model=load_model(asked.model),
        hardware=load_hardware(asked.gpu),
        workload=Workload(batch=32, context=8192, gen=256),
    )
    plan = make_plan(asked_of)
    results = read_results(RESULTS)
    batches = [
        dataclasses.replace(asked_of, workload=dataclasses.replace(asked_of.workload, batch=b))
        for b in (1, 2, 4, 8, 16, 32)
    ]
    swept = [{"batch": s.workload.batch, **row(s, "estimate")} for s in batches]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pictures.save(pictures.values(plan), Path(folder) / "first.png")
        for name, kind in pictures.KINDS.items():
            document = {"plan": plan, "results": results, "rows": swept}[kind.reads]
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
