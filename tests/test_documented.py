"""Every command and every public function has an example that is run.

Run are: docstrings (pytest collects them), the README's Python blocks (test_readme), code cells of
notebooks (test_notebooks) and, here, the README's command lines.
"""

from __future__ import annotations

import ast
import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import run
from test_notebooks import NOTEBOOKS, code

import kvplan
from kvplan import pictures
from kvplan.cli import app

PACKAGE = Path(kvplan.__file__).parent
ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is not in a wheel")

BY_MODULE = ("estimate.estimate", "sweep.rows", "analyze.analyze", "trace.trace", "report.report")
"""Public functions whose module has the same word or a noun of its own."""

ELSEWHERE = {
    "profile": "needs a GPU: tests/validate/test_profile.py",
    "validate": "needs a GPU: tests/validate",
    "host": "what it says depends on the machine: tests/test_host_memory.py",
    "report": "takes ten seconds: tests/test_report.py runs it with fewer pictures",
}
"""Commands whose example is not run here, and where it is."""


def examples() -> Iterator[str]:
    """Source of every example that a test runs."""
    parser = doctest.DocTestParser()
    texts = [README.read_text(encoding="utf-8")]
    for file in PACKAGE.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts += [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, documented)]
    for text in texts:
        yield from (example.source for example in parser.get_examples(text))
    yield from (code(file) for file in NOTEBOOKS)


def used() -> set[str]:
    """Names and attributes in examples."""
    found = set()
    for text in examples():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


def test_every_public_name_is_in_an_example_that_is_run() -> None:
    names = {*kvplan.__all__, *pictures.__all__, *(name.split(".")[1] for name in BY_MODULE)}
    assert not names - used()


def test_every_public_name_is_there_and_documented() -> None:
    for owner in (kvplan, pictures):
        for name in owner.__all__:
            thing = getattr(owner, name)
            assert isinstance(thing, dict) or thing.__doc__, name
    with pytest.raises(AttributeError, match="nonesuch"):
        kvplan.nonesuch  # noqa: B018
    assert set(kvplan.__all__) <= set(dir(kvplan))


def command_lines() -> list[str]:
    """Commands of the README's table, one each row."""
    text = README.read_text(encoding="utf-8")
    return re.findall(r"^\| `(kvplan [^`]*)`", text, re.M)


def test_every_command_is_in_the_table_and_has_examples_in_its_help() -> None:
    listed = {line.split()[1] for line in command_lines()}
    own = {command.name for command in app.registered_commands}
    assert own <= listed
    for command in app.registered_commands:
        assert f"kvplan {command.name}" in (command.epilog or ""), command.name


def test_the_command_lines_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order: later ones read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    assert run("solve", "--model", "llama-7b", "--gpu", "a100", "-o", "plan.json").code == 0
    ran = set()
    for line in command_lines():
        words = shlex.split(line)[1:]
        if words[0] in ELSEWHERE:
            continue
        result = run(*words)
        assert result.code == 0, (line, result.err)
        ran.add(words[0])
    own = {command.name for command in app.registered_commands}
    assert own - ELSEWHERE.keys() <= ran


def test_what_kvplan_answers_to_the_question_of_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- answer of: kvplan (.*?) -->([\d.]+) s per step: (.*?); at most", text)
    assert found
    printed = run(*found[1].split()).out.splitlines()[0]
    step = re.search(r"([\d.]+) s per step", printed)
    assert step
    assert float(found[2]) == pytest.approx(float(step[1]), rel=0.02)
    assert [w for w in found[3].lower().split() if w.isalpha()] == [
        w for w in printed.partition(":")[0].lower().split() if w.isalpha()
    ]


def test_the_picture_of_the_readme_is_made_by_a_command() -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- picture of: (.*?) -->\n!\[.*?\]\((.*?)\)", text)
    assert found
    assert (ROOT / found[2]).read_bytes().startswith(b"\x89PNG")
    solve, plot = (line.split()[1:] for line in found[1].split(" && "))
    assert solve[0] == "solve"
    assert plot[:2] == ["plot", "timeline"]
    assert plot[-1] == found[2]
