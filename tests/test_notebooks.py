"""Notebooks: outputs stripped, public names only, and every cell runs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import kvplan
from kvplan import pictures

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="notebooks are not in a wheel")

SECONDS = 150
"""Most that one cell may take."""

MODULES = {"estimate", "sweep", "analyze", "trace", "report", "validation_file", "pictures"}
"""Modules of kvplan that are public beside its own names."""


def cells(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return found


def code(file: Path) -> str:
    """All code of a notebook, without magics."""
    lines = [
        line
        for cell in cells(file)
        if cell["cell_type"] == "code"
        for line in [*cell["source"], "\n"]
        if not line.startswith("%")
    ]
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def test_there_are_five() -> None:
    assert [file.name[0] for file in NOTEBOOKS] == list("12345")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_outputs_are_stripped(file: Path) -> None:
    for cell in cells(file):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_a_notebook_reads_like_an_article(file: Path) -> None:
    found = cells(file)
    assert "".join(found[0]["source"]).startswith("# ")
    kinds = [cell["cell_type"] for cell in found]
    assert kinds.count("markdown") >= 4
    assert not any(len(line.rstrip("\n")) > 110 for cell in found for line in cell["source"])


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_only_public_names_are_used(file: Path) -> None:
    for node in ast.walk(ast.parse(code(file))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("kvplan"):
            where = str(node.module).removeprefix("kvplan").removeprefix(".")
            assert not where or where in MODULES, node.module
            assert where or all(a.name in MODULES | set(kvplan.__all__) for a in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert not node.attr.startswith("_")
            if node.value.id == "kvplan":
                assert node.attr in kvplan.__all__, node.attr
            if node.value.id == "pictures":
                assert node.attr in pictures.__all__, node.attr


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda f: f.stem)
def test_every_cell_runs(file: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="kvplan[notebooks] is not installed")
    import nbformat

    notebook = nbformat.read(file, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(FOLDER)}}
    )
    client.execute()
