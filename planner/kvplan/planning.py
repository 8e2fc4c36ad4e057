"""From a scenario to a plan document and back."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import scipy

import kvplan
from kvplan import cost, fluid, throughput
from kvplan.allocation import Allocation, Segment, tokens_by_path
from kvplan.baselines import Rung, ladder
from kvplan.candidates import unit_graph
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import OVERRIDES, HardwareProfile, override
from kvplan.hardware_library import load_hardware
from kvplan.model import MAX_LAYERS, ModelSpec
from kvplan.objective import Objective
from kvplan.plan import (
    SCHEMA_VERSION,
    BaselineResult,
    BatchChoice,
    BatchTrial,
    BudgetInput,
    Decision,
    HardwareInput,
    Inputs,
    LayerDecision,
    ModelInput,
    ObjectiveInput,
    OptionInput,
    Plan,
    Prediction,
    Provenance,
    Range,
    Value,
    WorkloadInput,
    layer_runs,
)
from kvplan.regret import as_good
from kvplan.resident import everything_resident
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import Search, search
from kvplan.units import GB, GIB
from kvplan.workload import Budgets, Workload


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan with what it was chosen from.

    Args:
        scenario: the question, its batch chosen.
        plan: the document.
        rungs: every baseline, judged.
    """

    scenario: Scenario
    plan: Plan
    rungs: tuple[Rung, ...]


def make_plan(scenario: Scenario, time: str | None = None) -> Plan:
    """Search, compare with every baseline, and write down the better one.

    Args:
        scenario: the question.
        time: ISO time for the provenance; None takes the clock.

    Raises:
        InfeasibleError: nothing fits, or nothing that fits is fast enough.
    """
    return answer(scenario, time).plan


def answer(scenario: Scenario, time: str | None = None) -> Answer:
    """What `make_plan` does, with the baselines it compared.

    Raises:
        InfeasibleError: nothing fits, or nothing that fits is fast enough.
    """
    choice = None
    if scenario.objective.seeks_throughput:
        choice = throughput.search(scenario)
        asked, found = choice.scenario, choice.search
    else:
        asked, found = scenario, search(scenario)
        if not scenario.objective.accepts(found.best.step_s):
            raise throughput.too_long(scenario, found)
    rungs = ladder(scenario)
    rung = choose(asked.workload.batch, found, rungs)
    if rung is None:
        plan = document(asked, found, "kvplan", found.best, rungs, time)
    else:
        assert rung.evaluation is not None
        if throughput.batching_of(asked) != rung.batching:
            asked = throughput.with_batching(asked, rung.batching)
            found = search(asked)
        plan = document(asked, found, rung.name, rung.evaluation, rungs, time)
    if choice is not None:
        plan = msgspec.structs.replace(plan, batch_choice=batch_choice(choice, plan))
    return Answer(asked, plan, rungs)


def choose(batch: int, found: Search, rungs: Sequence[Rung]) -> Rung | None:
    """The simplest baseline that is as good as the searched plan; None if none is."""
    name = as_good({rung.name: rung.tokens_per_s for rung in rungs}, batch / found.best.step_s)
    return next((rung for rung in rungs if rung.name == name), None)


def batch_choice(choice: throughput.Throughput, plan: Plan) -> BatchChoice:
    """Why the plan has the batch it has; a baseline's batch is its own best."""
    workload, made = plan.inputs.workload, plan.prediction.tokens_per_s
    own = choice.scenario.workload
    trials = [
        BatchTrial(**dataclasses.asdict(t.batching), bound_s=t.bound_s, step_s=t.step_s)
        for t in choice.trials
        if t.step_s is not None
        or (t.batching.micro_batches, t.batching.schedule) == (own.micro_batches, own.schedule)
    ]
    top = max(choice.bound_tokens_per_s, made)
    return BatchChoice(
        batch=workload.batch,
        micro_batches=workload.micro_batches,
        schedule=workload.schedule,
        limit=choice.limit,  # type: ignore[arg-type]
        why=choice.why,
        bound_tokens_per_s=top,
        gap=max(top / made - 1.0, 0.0),
        trials=trials,
    )


def document(
    scenario: Scenario,
    found: Search,
    strategy: str,
    best: Evaluation,
    rungs: Sequence[Rung],
    time: str | None = None,
) -> Plan:
    """The plan document of a judged allocation."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Plan(
        kvplan_plan=SCHEMA_VERSION,
        inputs=_inputs(scenario),
        decision=_decision(
            strategy, best, found.block if strategy == "kvplan" else scenario.workload.block
        ),
        prediction=predict(scenario, best, found),
        baselines={
            rung.name: BaselineResult(
                title=rung.title,
                step_s=rung.step_s,
                reason=rung.reason,
                batch=rung.batching.batch if rung.evaluation else None,
                tokens_per_s=rung.tokens_per_s,
                note=rung.note,
            )
            for rung in rungs
        },
        provenance=Provenance(
            kvplan=kvplan.__version__,
            solver=f"HiGHS (scipy {scipy.__version__})",
            time=now if time is None else time,
        ),
    )


def _inputs(scenario: Scenario) -> Inputs:
    model, hardware = scenario.model, scenario.hardware
    fields = {name: getattr(model, name) for name in model.__struct_fields__ if name != "layers"}
    return Inputs(
        model=ModelInput(**fields, layers=layer_runs(model.layers)),
        hardware=HardwareInput(
            name=hardware.name,
            title=hardware.title,
            kind=hardware.kind,
            digest=hardware.digest,
            file=scenario.hardware_file,
            overrides=dict(sorted(scenario.overrides.items())),
        ),
        workload=msgspec.convert(dataclasses.asdict(scenario.workload), WorkloadInput),
        budgets=msgspec.convert(dataclasses.asdict(scenario.budgets), BudgetInput),
        options=msgspec.convert(
            {
                **dataclasses.asdict(scenario.options),
                "allow": dict(sorted(scenario.options.allow.items())),
            },
            OptionInput,
        ),
        objective=msgspec.convert(dataclasses.asdict(scenario.objective), ObjectiveInput),
    )


def _decision(strategy: str, best: Evaluation, block: int) -> Decision:
    schedule = best.schedule
    layers = []
    for index, segments in enumerate(best.allocation):
        tokens = tokens_by_path(segments)
        total = sum(tokens.values())
        recomputed = sum(n for path, n in tokens.items() if path.startswith("recompute"))
        layers.append(
            LayerDecision(
                layer=index,
                tokens=dict(sorted(tokens.items())),
                recompute_ratio=recomputed / total if total else 0.0,
                ranges=[
                    Range(begin=s.begin, end=s.end, path=s.path, stage=s.stage) for s in segments
                ],
                streamed_weights=best.streamed[index] if schedule.stream_weights else 0.0,
            )
        )
    return msgspec.convert(
        {
            **dataclasses.asdict(best.schedule),
            "strategy": strategy,
            "block": block,
            "layers": layers,
        },
        Decision,
    )


def predict(scenario: Scenario, best: Evaluation, found: Search | None = None) -> Prediction:
    """What an evaluation and its search say about running it."""
    step_s = best.step_s
    bound_s = min(found.bound_s, step_s) if found else 0.0
    moved = best.graph.link_bytes(best.values)
    return Prediction(
        step_s=step_s,
        tokens_per_s=scenario.workload.batch / step_s,
        bound_s=bound_s,
        gap=max(step_s / bound_s - 1.0, 0.0) if bound_s else 0.0,
        bottleneck=best.simulation.bottleneck,
        busy_s=dict(best.simulation.busy_s),
        memory_bytes={t: float(b) for t, b in sorted(best.memory_bytes.items())},
        capacity_bytes={t: float(b) for t, b in sorted(scenario.capacity.items())},
        moved_bytes={r: float(b) for r, b in sorted(moved.items())},
        values=values(scenario, found) if found else [],
        confidence=confidence(scenario.hardware),
    )


def values(scenario: Scenario, found: Search) -> list[Value]:
    """What a little more of each resource would save per step.

    Memory: the duals of the program. Rates: the program's bound solved again with the better rate.
    """
    duals, hardware = found.relaxation.capacity_s_per_byte, scenario.hardware
    link = hardware.h2d.copy.rate() + GB
    flop = 1.1 * cost.flop_per_s(hardware, scenario.model.weight_dtype)
    listed = [
        ("1 GiB more HBM", duals.get("hbm", 0.0) * GIB),
        ("1 GiB more host memory", duals.get("dram", 0.0) * GIB),
        ("1 GiB more pinned memory", duals.get("pinned", 0.0) * GIB),
        ("1 GB/s more link bandwidth", saved_s(scenario, found, h2d_bytes_per_s=link)),
        ("10 % more FLOP/s", saved_s(scenario, found, flop_per_s=flop)),
    ]
    return [Value(what=what, saved_s=saved) for what, saved in listed]


def saved_s(scenario: Scenario, found: Search, **better: float) -> float:
    """Seconds that a better machine takes off the bound of the chosen schedule."""
    changed: dict[str, Any] = dict(better)
    try:
        hardware = override(scenario.hardware, **changed)
    except InputError:  # above what the slot can carry
        return 0.0
    faster = dataclasses.replace(scenario, hardware=hardware)
    resident = everything_resident(faster)
    graph = resident.graph if resident else unit_graph(faster, found.best.schedule)
    relaxation = fluid.bound(graph, scenario.classes, scenario.capacity, scenario.quality)
    return max(found.relaxation.step_s - relaxation.step_s, 0.0) if relaxation else 0.0


def confidence(hardware: HardwareProfile) -> str:
    """How sure the figures of a machine are."""
    if hardware.kind == "measured":
        return f"measured profile ({hardware.date}); no step was measured to fit it"
    count = len(hardware.provenance)
    kinds = [p.kind for p in hardware.provenance.values()]
    return (
        f"spec sheet: {kinds.count('measured')} of {count} figures measured, "
        f"{kinds.count('datasheet')} from data sheets, {kinds.count('assumed')} assumed"
    )


def model_of(plan: Plan) -> ModelSpec:
    """The model a plan holds."""
    fields = {
        name: getattr(plan.inputs.model, name)
        for name in plan.inputs.model.__struct_fields__
        if name != "layers"
    }
    total = sum(run.count for run in plan.inputs.model.layers)
    if total > MAX_LAYERS:
        raise InputError("inputs.model.layers", total, f"at most {MAX_LAYERS} layers in all")
    layers = tuple(run.layer for run in plan.inputs.model.layers for _ in range(run.count))
    return ModelSpec(**fields, layers=layers)


def scenario_of(plan: Plan, hardware: HardwareProfile | None = None) -> Scenario:
    """The scenario of a plan, on its own machine or another one.

    Raises:
        InputError: the machine is not known or its profile has changed.
    """
    given = plan.inputs.hardware
    if hardware is None:
        hardware = load_hardware(given.file or given.name)
        if given.overrides:
            changed: dict[str, Any] = dict(given.overrides)
            for name in changed:
                if name not in OVERRIDES:
                    accepted = f"some of {', '.join(OVERRIDES)}"
                    raise InputError("inputs.hardware.overrides", name, accepted)
            hardware = override(hardware, **changed)
        if hardware.digest != given.digest:
            raise InputError(
                "inputs.hardware.digest",
                given.digest,
                f"{hardware.digest}, that of {hardware.name} now: the profile has changed since "
                "the plan was made; solve again, or name a profile with --gpu",
            )
        file, overrides = given.file, given.overrides
    else:
        file, overrides = None, {}
    workload = Workload(**msgspec.structs.asdict(plan.inputs.workload))
    budgets = Budgets(**msgspec.structs.asdict(plan.inputs.budgets))
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in msgspec.structs.asdict(plan.inputs.options).items()
    }
    return Scenario(
        model=model_of(plan),
        hardware=hardware,
        workload=workload,
        budgets=budgets,
        options=Options(**chosen),
        objective=_objective(plan),
        hardware_file=file,
        overrides=overrides,
    )


def _objective(plan: Plan) -> Objective:
    given = plan.inputs.objective
    if given is None:  # written before 1.1
        return Objective()
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in msgspec.structs.asdict(given).items()
    }
    return Objective(**fields)


def schedule_of(plan: Plan) -> Schedule:
    """The schedule a plan decided on."""
    names = (field.name for field in dataclasses.fields(Schedule))
    return Schedule(**{name: getattr(plan.decision, name) for name in names})


def allocation_of(plan: Plan) -> Allocation:
    """The token ranges a plan decided on.

    Raises:
        InputError: layers out of order, or counts that differ from the ranges.
    """
    layers = []
    for index, layer in enumerate(plan.decision.layers):
        if layer.layer != index:
            raise InputError(f"decision.layers[{index}].layer", layer.layer, str(index))
        segments = tuple(Segment(r.begin, r.end, r.path, r.stage) for r in layer.ranges)
        for position, segment in enumerate(segments):
            if segment.stage is not None and segment.stage >= plan.decision.stages:
                raise InputError(
                    f"decision.layers[{index}].ranges[{position}].stage",
                    segment.stage,
                    f"a stage below {plan.decision.stages}",
                )
        if tokens_by_path(segments) != layer.tokens:
            raise InputError(
                f"decision.layers[{index}].tokens",
                layer.tokens,
                f"the sums of its ranges, {tokens_by_path(segments)}",
            )
        layers.append(segments)
    return tuple(layers)


def replay(plan: Plan, hardware: HardwareProfile | None = None) -> tuple[Scenario, Evaluation]:
    """Run a plan through the simulator again.

    Args:
        plan: the plan.
        hardware: another machine; None takes the plan's own.

    Raises:
        InputError: the plan contradicts itself or the machine.
    """
    scenario = scenario_of(plan, hardware)
    streamed = [layer.streamed_weights for layer in plan.decision.layers]
    evaluation = evaluate(scenario, schedule_of(plan), allocation_of(plan), streamed)
    return scenario, evaluation
