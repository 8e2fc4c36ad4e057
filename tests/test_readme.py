"""What the README shows is what the program prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from cli_runner import run

README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is not in a wheel")


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def same(shown: str, printed: str) -> bool:
    """Equal words; numbers within 5 %, since solvers may tell equal plans apart differently."""
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
    assert listed == {"solve", "compare", "simulate", "models", "gpus", "schema"}
    for name in listed:
        assert run(name, "--help").code == 0


def test_python_examples() -> None:
    assert doctest.testfile(str(README), module_relative=False).failed == 0
