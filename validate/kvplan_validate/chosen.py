"""What was chosen beside what it is compared with, per point of a grid, from measured steps.

``python -m kvplan_validate.chosen FILE`` prints the table as Markdown.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvplan.baselines import BASELINES

NEAR = 0.03
"""A chosen plan may be this much slower than the best baseline: noise of measuring twice."""

_NOT_OF_THE_POINT = ("baseline", "paths", "allow", "name", "weights")
"""Keys that say how a step is run, not what is asked."""

TITLES = {baseline.name: baseline.title for baseline in BASELINES}


def compared(results: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every chosen plan whose point has measured baselines too.

    Args:
        results: of a validation run; cases without a measurement are left out.

    Returns:
        Per chosen plan: ``case``, ``chosen_s``, ``baselines_s`` by name, ``best_baseline``,
        ``speed_up`` (best baseline over chosen) and ``holds``: no more than 3 % slower.
    """
    chosen: list[Mapping[str, Any]] = []
    baselines: dict[str, dict[str, float]] = {}
    for result in results:
        if result.get("measured_s") is None or "plan" in result["case"]:
            continue
        if result["strategy"] == "solve":
            chosen.append(result)
        elif result["strategy"] != "forced":
            steps = baselines.setdefault(_point(result["case"]), {})
            steps[result["strategy"]] = result["measured_s"]
    rows = []
    for result in chosen:
        steps = baselines.get(_point(result["case"]), {})
        if steps:
            best = min(steps, key=lambda name: steps[name])
            rows.append(
                {
                    "case": dict(result["case"]),
                    "chosen_s": result["measured_s"],
                    "baselines_s": steps,
                    "best_baseline": best,
                    "speed_up": steps[best] / result["measured_s"],
                    "holds": result["measured_s"] <= steps[best] * (1 + NEAR),
                }
            )
    return rows


def _point(case: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in case.items() if key not in _NOT_OF_THE_POINT}
    return json.dumps(kept, sort_keys=True)


def label(case: Mapping[str, Any]) -> str:
    """A point in a reader's words.

    >>> label({"model": "opt-6.7b", "batch": 8, "hbm": "24GiB"})
    'opt-6.7b, batch 8, context 4096, hbm 24GiB'
    """
    known = {"batch": 32, "context": 4096} | dict(case)
    more = [f"{key} {known[key]}" for key in ("hbm", "dram", "kv_dtype", "mode") if key in case]
    ways = [", ".join(case["paths"]) + " only"] if "paths" in case else []
    ways += [f"allowing {', '.join(case['allow'])}"] if case.get("allow") else []
    shown = [known["model"], f"batch {known['batch']}", f"context {known['context']}"]
    return ", ".join([*shown, *more, *ways])


def verdict(row: Mapping[str, Any]) -> str:
    """How the chosen plan compares with the best baseline.

    >>> verdict({"speed_up": 2.016, "best_baseline": "staged_pipeline"})
    '2.02x as fast as staged pipeline'
    >>> verdict({"speed_up": 0.98, "best_baseline": "no_offload"})
    '2.0 % slower than no offload'
    """
    gain, name = row["speed_up"], row["best_baseline"].replace("_", " ")
    if abs(gain - 1) <= 0.01:
        return f"as fast as {name}"
    if gain > 1:
        return f"{gain:.2f}x as fast as {name}"
    return f"{100 * (1 / gain - 1):.1f} % slower than {name}"


def table(document: Mapping[str, Any]) -> str:
    """The comparison of a results document as Markdown, milliseconds per step."""
    rows = compared(document["results"])
    names = [name for name in TITLES if any(name in row["baselines_s"] for row in rows)]
    heads = ["milliseconds per step", *(name.replace("_", " ") for name in names), "kvplan", ""]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --- |" * (len(heads) - 1)]
    for row in rows:
        steps = [row["baselines_s"].get(name) for name in names]
        cells = [label(row["case"]), *(_ms(s) for s in steps), _ms(row["chosen_s"]), verdict(row)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
