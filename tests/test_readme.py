"""What the README shows is what the program prints."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import pytest
from cli_runner import run

from kvplan.cli import app
from kvplan.export.registry import REGISTRY
from kvplan.pictures.measured import accuracy_data
from kvplan_validate import accuracy, chosen

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


ANSWERS = re.findall(
    r"<!-- output of: kvplan (.*?) -->\n```text\n(.*?)```",
    README.read_text(encoding="utf-8") if README.exists() else "",
    re.S,
)


@pytest.mark.parametrize(("command", "shown"), ANSWERS, ids=[words for words, _ in ANSWERS])
def test_the_answer_is_printed(command: str, shown: str) -> None:
    """Every line of the abridged output appears in the real one, in order."""
    printed = run(*command.split()).out.splitlines()
    at = 0
    for line in shown.splitlines():
        match = next((i for i in range(at, len(printed)) if same(line, printed[i])), None)
        assert match is not None, line
        at = match + 1


def test_answers_are_shown() -> None:
    assert len(ANSWERS) >= 2


def test_every_command_in_the_table_exists() -> None:
    listed = set(re.findall(r"^\| `kvplan ([\w-]+)", README.read_text(encoding="utf-8"), re.M))
    own = {command.name or "" for command in app.registered_commands}
    assert listed == own | {"profile", "validate"}
    for name in own:
        assert run(name, "--help").code == 0


def test_the_way_into_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of that section but the runtime's own; the last one is what export prints."""
    section = README.read_text(encoding="utf-8").split("## Into a runtime\n")[1]
    *commands, last = section.split("```sh\n")[1].split("\n```")[0].splitlines()
    assert len(commands) + 1 <= 4  # after the installation, five in all
    monkeypatch.chdir(tmp_path)
    for line in commands:
        words = line.split()
        assert words[0] == "kvplan"
        result = run(*words[1:])
        assert result.code == 0, result.err
    assert result.out.splitlines()[0] == last
    assert (tmp_path / last.split()[-1]).exists()


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


def test_chosen_plans_are_measured_no_slower_than_every_baseline() -> None:
    """In the README's second table, made from the results behind it."""
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- chosen: (.*?) -->\n(.*?)\n\n", text, re.S)
    assert found
    document = json.loads((README.parent / found[1]).read_text(encoding="utf-8"))
    assert found[2] == chosen.table(document)
    rows = chosen.compared(document["results"])
    assert len(rows) >= 4
    assert all(row["holds"] for row in rows)


def test_the_picture_shows_every_measured_step() -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"!\[Predicted against measured steps\]\((.*?)\)", text)
    assert found
    picture = README.parent / found[1]
    document = json.loads((picture.parent / "results.json").read_text(encoding="utf-8"))
    groups = accuracy_data(document)["groups"]
    drawn = picture.read_text(encoding="utf-8")
    for name, points in groups.items():
        group = f"steps {name}".replace(",", "").replace(" ", "-")
        _, _, rest = drawn.partition(f'<g id="{group}">')
        assert rest.partition("</g>\n   <g")[0].count("<use ") == len(points), name
