"""``python -m kvplan_validate.measure``: raw results as JSON on stdout, with torch alone.

For machines without kvplan's dependencies; ``kvplan profile --from raw.json`` makes a profile of
them anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys

from kvplan.errors import KvplanError
from kvplan_validate.profile import BUDGET_S, Step, run_profile


def main() -> int:
    """Measure; 0, or 2 for a measurement that does not exist."""
    parser = argparse.ArgumentParser(prog="python -m kvplan_validate.measure", description=__doc__)
    parser.add_argument("--only", default="", help="keys or modules, with commas between")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for everything")
    parser.add_argument("--scratch", help="folder on the disk to measure")
    parser.add_argument("--raw", help="file to write instead of stdout")
    options = parser.parse_args()
    try:
        raw = run_profile(options.only.split(","), options.budget, _say, scratch=options.scratch)
    except KvplanError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    text = json.dumps(raw, indent=1, allow_nan=False) + "\n"
    if options.raw:
        with open(options.raw, "w", encoding="utf-8") as stream:
            stream.write(text)
    else:
        sys.stdout.write(text)
    return 0


def _say(step: Step) -> None:
    print(f"{step.number}/{step.of} {step.key}, {step.left_s:.0f} s left", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
