"""Time and memory of the whole ``kvplan solve`` process, beside those of loading its libraries.

Run with ``python tests/benchmarks/process_time.py``; takes no arguments. The ratio does not
depend much on the machine, the seconds do.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 5
PLANNER = Path(__file__).parents[2] / "planner"
SOLVE = [sys.executable, "-m", "kvplan", "solve", "--model", "llama-7b", "--gpu", "a100"]
LIBRARIES = [sys.executable, "-c", "import scipy.optimize, typer, rich.table"]


def seconds(command: list[str]) -> float:
    """Wall-clock time of one run."""
    path = os.pathsep.join(filter(None, (str(PLANNER), os.environ.get("PYTHONPATH"))))
    start = time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path}
    )
    return time.perf_counter() - start


def main() -> None:
    """Print medians, their ratio, and the peak resident memory of the largest process."""
    for command in (SOLVE, LIBRARIES):
        seconds(command)  # fills caches
    loaded = [seconds(LIBRARIES) for _ in range(RUNS)]
    solved = [seconds(SOLVE) for _ in range(RUNS)]
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    solve_s, libraries_s = statistics.median(solved), statistics.median(loaded)
    print(f"kvplan solve      {solve_s:6.3f} s   (median of {RUNS})")
    print(f"its libraries     {libraries_s:6.3f} s   (import scipy.optimize, typer, rich.table)")
    print(f"ratio             {solve_s / libraries_s:6.2f}")
    print(f"peak memory       {peak_kib / 1024:6.1f} MiB")


if __name__ == "__main__":
    main()
