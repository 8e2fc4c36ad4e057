"""What the README shows is what the program prints."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import pytest
from cli_runner import run

from kvplan.export.registry import REGISTRY
from kvplan_validate import accuracy

README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is not in a wheel")


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same(shown: str, printed: str) -> bool:
    """Equal words; numbers within 5 %, since solvers may tell equal plans apart differently.

    Where two resources are equally busy, either may be named as the limit.
    """
    shown, printed = (re.sub(r"^(limit +)\w+;", r"\1#;", line) for line in (shown, printed))
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return all(abs(float(a) - float(b)) <= 0.05 * float(b) + 0.2 for a, b in pairs)


def test_the_answer_is_printed() -> None:
    """Every line of the abridged output appears in the real one, in order."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- output of: kvplan (.*?) -->\n```text\n(.*?)```", text, re.S)
    assert found
    printed = run(*found[1].split()).out.splitlines()
    at = 0
    for line in found[2].splitlines():
        match = next((i for i in range(at, len(printed)) if same(line, printed[i])), None)
        assert match is not None, line
        at = match + 1


def test_every_command_in_the_table_exists() -> None:
    listed = set(re.findall(r"^\| `kvplan (\w+)", README.read_text(encoding="utf-8"), re.M))
    own = {"solve", "compare", "simulate", "segments", "models", "gpus", "export", "schema"}
    assert listed == own | {"profile", "validate"}
    for name in own:
        assert run(name, "--help").code == 0


def test_every_runtime_is_in_the_table_with_its_version() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", README.read_text(encoding="utf-8"), re.M)
    assert dict(rows) == {name: exporter.version for name, exporter in REGISTRY.items()}


def test_python_examples() -> None:
    assert doctest.testfile(str(README), module_relative=False).failed == 0


def test_accuracy_table_is_made_from_the_results() -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- accuracy: (.*?) -->\n(.*?)\n\n", text, re.S)
    assert found
    document = json.loads((README.parent / found[1]).read_text(encoding="utf-8"))
    assert found[2] == accuracy.table(document)


def test_chosen_plans_are_measured_faster_than_every_baseline() -> None:
    """In the README's second table and in the results behind it."""
    text = README.read_text(encoding="utf-8")
    file = README.parent / "validate" / "results" / "h200-2026-11-29" / "results.json"
    fastest: dict[tuple[str, int], dict[str, float]] = {}
    for result in json.loads(file.read_text(encoding="utf-8"))["results"]:
        case = result["case"]
        if "hbm" in case and "paths" not in case:
            key = (case["model"], case.get("batch", 32))
            fastest.setdefault(key, {})[result["strategy"]] = result["measured_s"]
    assert len(fastest) == 4
    for key, steps in fastest.items():
        assert steps["solve"] <= 1.03 * min(steps.values()), key
        if key != ("llama-3.1-8b", 8):
            for name in ("overlapped_fetch", "staged_pipeline", "kvpr_pipelined", "solve"):
                assert f"{steps[name] * 1e3:.1f}" in text, (key, name)
