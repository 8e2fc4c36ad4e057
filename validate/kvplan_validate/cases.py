"""Validation cases: what to run, and the scenario and allocation it stands for."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from kvplan import units
from kvplan.baselines import BASELINES
from kvplan.batching import batching_of
from kvplan.errors import InfeasibleError, InputError
from kvplan.evaluate import Evaluation
from kvplan.forced import Played, forced
from kvplan.hardware import HardwareProfile
from kvplan.model_library import load_model
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import search
from kvplan.workload import Budgets, Workload

Share = Annotated[float, Meta(ge=0, le=1)]


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to run; keys are those of ``kvplan solve``'s long options.

    Args:
        force: path to share of tokens, the same in every layer, instead of solving.
        baseline: name of a baseline to run instead of solving.
        mode: ``graph`` replays the step as one CUDA graph, ``eager`` launches it.
    """

    model: str
    batch: int = 32
    context: int | str = 4096
    gen: int = 0
    kv_dtype: str = "fp16"
    block: int = 64
    micro_batches: int = 1
    schedule: str = "column"
    hbm: str | int | None = None
    dram: str | int | None = None
    pinned: str | int | None = None
    disk: str | int = 0
    utilisation: float = 0.9
    allow: dict[str, Share] | list[str] = {}
    paths: list[str] | None = None
    force: dict[str, Share] | None = None
    baseline: str | None = None
    axis: str | None = None
    stages: int | None = None
    queue_depth: int | None = None
    mode: str = "graph"
    weights: str = "auto"
    name: str | None = None

    @property
    def strategy(self) -> str:
        """Who decides on the plan: ``forced``, a baseline's name, or ``solve``."""
        return "forced" if self.force else self.baseline or "solve"

    @property
    def boundary(self) -> str:
        """A graph holds one step with its copies, so steps do not overlap."""
        return "barrier" if self.mode == "graph" else "overlap"

    def scenario(self, hardware: HardwareProfile) -> Scenario:
        """The question this case asks of a machine."""
        allow = self.allow if isinstance(self.allow, dict) else dict.fromkeys(self.allow, 1.0)
        return Scenario(
            model=load_model(self.model),
            hardware=hardware,
            workload=Workload(
                batch=self.batch,
                context=units.parse_tokens(self.context, "context"),
                gen=self.gen,
                kv_dtype=self.kv_dtype,
                block=self.block,
                micro_batches=self.micro_batches,
                schedule=self.schedule,
            ),
            budgets=Budgets(
                hbm_bytes=_size(self.hbm, "hbm"),
                utilisation=self.utilisation,
                dram_bytes=_size(self.dram, "dram"),
                pinned_bytes=_size(self.pinned, "pinned"),
                disk_bytes=_size(self.disk, "disk") or 0,
            ),
            options=Options(
                paths=None if self.paths is None else tuple(self.paths),
                allow=allow,
                axes=("token", "layer") if self.axis is None else (self.axis,),
                stages=tuple(range(4, 9)) if self.stages is None else (self.stages,),
                queue_depths=(2, 3, 4) if self.queue_depth is None else (self.queue_depth,),
                boundary=self.boundary,
                mode=self.mode,
                weights=self.weights,
            ),
        )

    def plan(self, scenario: Scenario) -> Evaluation:
        """The allocation to run: forced, a baseline's, or the search's.

        Raises:
            InfeasibleError: it does not fit.
            InputError: an unknown path or baseline.
        """
        if self.force is not None:
            schedule = Schedule(
                axis=self.axis or "token",
                stages=self.stages or 4,
                queue_depth=self.queue_depth or 3,
                boundary=self.boundary,
                mode=self.mode,
            )
            shares = {path: share for path, share in self.force.items() if share > 0}
            return _fits(forced(scenario, schedule, shares))
        if self.baseline is not None:
            known = {baseline.name: baseline for baseline in BASELINES}
            if self.baseline not in known:
                raise InputError("baseline", self.baseline, f"one of {', '.join(known)}")
            found = known[self.baseline].plan(scenario)
            if isinstance(found, Played):
                own = found.batching
                if own != batching_of(scenario):
                    accepted = f"micro_batches {own.micro_batches}, {self.baseline}'s own choice"
                    raise InputError("micro_batches", scenario.workload.micro_batches, accepted)
                found = found.evaluation
            return _fits(found)
        return search(scenario).best


def _size(value: str | int | None, field: str) -> int | None:
    return None if value is None else units.parse_bytes(value, field)


def _fits(found: Evaluation | str) -> Evaluation:
    if isinstance(found, str):
        raise InfeasibleError("memory", found, "lower batch or context, or raise a budget")
    return found


def read_grid(path: str | Path) -> list[Case]:
    """Cases of a TOML or JSON file: a list, or a table ``case`` of them; lists are multiplied.

    A key ``grid`` in TOML holds tables whose list values are combined in every way.

    Raises:
        InputError: the file cannot be read or a case is not accepted.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        data: Any = tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InputError("grid", str(path), f"a TOML or JSON list of cases ({error})") from None
    listed = data.get("case", []) if isinstance(data, dict) else data
    grids = data.get("grid", []) if isinstance(data, dict) else []
    if not isinstance(listed, list) or not isinstance(grids, list) or not (listed or grids):
        raise InputError("grid", str(path), "a list of cases, or tables [[case]] and [[grid]]")
    expanded = [*listed, *(case for grid in grids for case in _combined(grid))]
    cases = []
    for number, fields in enumerate(expanded):
        try:
            cases.append(msgspec.convert(fields, Case))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}: case {number}", fields, str(error)) from None
    return cases


LIST_VALUED = {"allow", "paths"}


def _combined(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the list values of a table."""
    combined: list[dict[str, Any]] = [{}]
    for key, value in grid.items():
        choices = value if isinstance(value, list) and key not in LIST_VALUED else [value]
        combined = [{**fields, key: choice} for fields in combined for choice in choices]
    return combined
