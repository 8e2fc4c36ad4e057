"""What the README shows is what the program prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from cli_runner import run

README = Path(__file__).parents[1] / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is not in a wheel")


def test_the_answer_is_printed_word_for_word() -> None:
    """Every line of the abridged output appears in the real one, in order."""
    text = README.read_text(encoding="utf-8")
    command, shown = re.search(r"<!-- output of: kvplan (.*?) -->\n```text\n(.*?)```", text, re.S).groups()  # type: ignore[union-attr]  # noqa: E501
    printed = run(command.split()).stdout.splitlines()
    at = 0
    for line in shown.splitlines():
        assert line in printed[at:], line
        at = printed.index(line, at) + 1


def test_every_command_in_the_table_exists() -> None:
    listed = set(re.findall(r"^\| `kvplan (\w+)", README.read_text(encoding="utf-8"), re.M))
    assert listed == {"solve", "compare", "simulate", "models", "gpus", "schema"}
    for name in listed:
        assert run([name, "--help"]).code == 0


def test_python_examples() -> None:
    assert doctest.testfile(str(README), module_relative=False).failed == 0
