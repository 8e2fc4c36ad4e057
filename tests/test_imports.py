"""Imports point one way, and the planner loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvplan

PACKAGE = Path(kvplan.__file__).parent
CHECKOUT = PACKAGE.parents[1]
HEAVY = ("torch", "matplotlib", "pulp", "pandas", "pyarrow", "scipy", "highspy")

# From data files to the command line; a module may import from its own level and those above.
LEVELS = [
    {
        "errors",
        "units",
        "datafiles",
        "dtypes",
        "formats",
        "names",
        "quantised_names",
        "curve",
        "peak",
        "regret",
        "gap",
        "interpolation",
    },
    {"hardware_parts", "slot", "link", "disk", "peer", "tier", "limits", "layer_parts", "layer"},
    {"model", "kv_size", "hardware", "hardware_change", "workload", "schedule", "objective"},
    {"prefix", "hits"},
    {"hardware_table", "hardware_file", "hardware_library", "hf", "model_library"},
    {"cost", "flop", "kvpr", "highs", "layer_budget", "flexgen", "flexgen_policy"},
    {"weights", "prefill_peak", "transfer", "host_memory", "pinning"},
    {"fit", "host_cache"},
    {"fit_change"},
    {"prefill"},
    {"paths"},
    {"ring", "layer_costs", "graph", "step"},
    {"restoration", "restore_graph"},
    {"program", "program_pulp", "simulate", "allocation", "blocks"},
    {
        "statement",
        "chain",
        "staging",
        "mixture_statement",
        "mixture_layers",
        "mixture_windows",
        "mixture",
        "fluid",
        "block_program",
    },
    {"scenario", "ranks", "evaluate"},
    {
        "candidates",
        "certificate",
        "fitting",
        "exchange",
        "thin",
        "dive",
        "concentrate",
        "sample",
        "layout",
        "evenly",
        "layout_program",
        "descent",
        "apart",
        "layout_blocks",
        "restage",
        "polish",
        "resident",
        "infeasible",
        "quick",
        "best",
        "block_size",
    },
    {"restored", "restore_search", "restore", "restore_baselines", "break_even"},
    {"solve", "estimate"},
    {"batching", "batch_scan", "batch_limit", "step_limit"},
    {"throughput", "moves", "generation", "forced"},
    {"kvpr_baseline", "flexgen_baseline", "baselines"},
    {"plan", "plan_file", "document", "planning", "validation_file"},
    {"restore_plan", "restore_document"},
]
LEVEL_OF = {name: number for number, names in enumerate(LEVELS) for name in names}
TOP = len(LEVELS)
"""What only shows or serves plans: command line, pictures, exports and the like."""


def modules() -> dict[str, Path]:
    """Dotted names below the package to files; the package's own first."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = file
    return found


def imported(file: Path, lazy: bool = True) -> set[str]:
    """Absolute names a file imports; without those in functions and under TYPE_CHECKING."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if is_typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner |= set(ast.walk(node))
    names: set[str] = set()
    for node in ast.walk(tree):
        if not lazy and node in inner:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative import"
            assert node.module is not None
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room(name: str) -> str:
    return name.split(".")[0]


def level(name: str) -> int:
    return LEVEL_OF.get(room(name), TOP)


def test_arrows_point_one_way() -> None:
    known = modules()
    wrong = []
    for name, file in known.items():
        if not name:
            continue
        for target in imported(file):
            below = target.removeprefix("kvplan.")
            if target.startswith("kvplan.") and below in known and level(below) > level(name):
                wrong.append(f"{name} imports {below}")
    assert not wrong


def test_every_level_names_modules_that_exist() -> None:
    missing = {name for name in LEVEL_OF if name not in modules()}
    assert not missing


def test_nothing_imports_in_a_circle() -> None:
    known = modules()
    waits = {
        name: {t.removeprefix("kvplan.") for t in imported(file, lazy=False)
               if t.startswith("kvplan.")} & known.keys() - {name, ""}
        for name, file in known.items()
    }  # fmt: skip
    while waits:
        free = {name for name, others in waits.items() if not others & waits.keys()}
        assert free, f"a circle among {sorted(waits)}"
        waits = {name: others for name, others in waits.items() if name not in free}


@pytest.mark.parametrize("name", sorted(modules()))
def test_planner_never_imports_what_runs_plans(name: str) -> None:
    for target in imported(modules()[name]):
        assert room(target) not in ("torch", "kvplan_validate")


@pytest.mark.parametrize("name", sorted(modules()))
def test_heavy_packages_are_imported_where_they_are_used(name: str) -> None:
    top = {room(target) for target in imported(modules()[name], lazy=False)}
    assert not top & set(HEAVY)


@pytest.mark.parametrize(
    "module", ["kvplan", "kvplan.planning", "kvplan.program_pulp", "kvplan.cli"]
)
def test_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{n.split('.')[0] for n in sys.modules}}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": ""},
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "kvplan" in loaded
    assert not loaded & set(HEAVY)
    if module == "kvplan":
        assert not loaded & {"numpy", "msgspec", "typer", "rich"}
