"""From a scenario to a plan document and back."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import scipy

import kvplan
from kvplan import cost
from kvplan.allocation import Allocation, Segment, tokens_by_path
from kvplan.baselines import Rung, ladder
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import HardwareProfile, override
from kvplan.hardware_library import load_hardware
from kvplan.model import ModelSpec
from kvplan.plan import (
    SCHEMA_VERSION,
    BaselineResult,
    BudgetInput,
    Decision,
    HardwareInput,
    Inputs,
    LayerDecision,
    ModelInput,
    OptionInput,
    Plan,
    Prediction,
    Provenance,
    Range,
    Value,
    WorkloadInput,
    layer_runs,
)
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import NEAR, Search, search
from kvplan.units import GB, GIB
from kvplan.workload import Budgets, Workload


def make_plan(scenario: Scenario, time: str | None = None) -> Plan:
    """Search, compare with every baseline, and write down the better one.

    Args:
        scenario: the question.
        time: ISO time for the provenance; None takes the clock.

    Raises:
        InfeasibleError: nothing fits.
    """
    found = search(scenario)
    rungs = ladder(scenario)
    strategy, best = choose(found, rungs)
    return document(scenario, found, strategy, best, rungs, time)


def choose(found: Search, rungs: Sequence[Rung]) -> tuple[str, Evaluation]:
    """The searched plan, or the first baseline that is as good within NEAR."""
    for rung in rungs:
        if rung.evaluation is not None and rung.evaluation.step_s <= found.best.step_s * (1 + NEAR):
            return rung.name, rung.evaluation
    return "kvplan", found.best


def document(
    scenario: Scenario, found: Search, strategy: str, best: Evaluation, rungs: Sequence[Rung],
    time: str | None = None,
) -> Plan:  # fmt: skip
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
            rung.name: BaselineResult(title=rung.title, step_s=rung.step_s, reason=rung.reason)
            for rung in rungs
        },
        provenance=Provenance(
            kvplan=kvplan.__version__, solver=f"HiGHS (scipy {scipy.__version__})",
            time=now if time is None else time,
        ),
    )  # fmt: skip


def _inputs(scenario: Scenario) -> Inputs:
    model, hardware, options = scenario.model, scenario.hardware, scenario.options
    workload, budgets = scenario.workload, scenario.budgets
    return Inputs(
        model=ModelInput(
            name=model.name, family=model.family, hidden=model.hidden, vocab=model.vocab,
            max_positions=model.max_positions, weight_dtype=model.weight_dtype,
            embedding_params=model.embedding_params, embedding_width=model.embedding_width,
            head_params=model.head_params, tied=model.tied, source=model.source,
            layers=layer_runs(model.layers),
        ),
        hardware=HardwareInput(
            name=hardware.name, title=hardware.title, kind=hardware.kind, digest=hardware.digest,
            file=scenario.hardware_file, overrides=dict(sorted(scenario.overrides.items())),
        ),
        workload=WorkloadInput(
            batch=workload.batch, context=workload.context, gen=workload.gen,
            kv_dtype=workload.kv_dtype, block=workload.block,
            micro_batches=workload.micro_batches, schedule=workload.schedule,  # type: ignore[arg-type]
        ),
        budgets=BudgetInput(
            hbm_bytes=budgets.hbm_bytes, utilisation=float(budgets.utilisation),
            reserve_bytes=budgets.reserve_bytes, dram_bytes=budgets.dram_bytes,
            pinned_bytes=budgets.pinned_bytes, disk_bytes=budgets.disk_bytes,
        ),
        options=OptionInput(
            paths=None if options.paths is None else list(options.paths),
            allow=dict(sorted(options.allow.items())), axes=list(options.axes),  # type: ignore[arg-type]
            stages=list(options.stages), queue_depths=list(options.queue_depths),
            boundary=options.boundary, mode=options.mode,  # type: ignore[arg-type]
            refine_blocks=options.refine_blocks,
            weights=options.weights,  # type: ignore[arg-type]
        ),
    )  # fmt: skip


def _decision(strategy: str, best: Evaluation, block: int) -> Decision:
    schedule = best.schedule
    layers = []
    for index, segments in enumerate(best.allocation):
        tokens = tokens_by_path(segments)
        total = sum(tokens.values())
        recomputed = sum(n for path, n in tokens.items() if path.startswith("recompute"))
        layers.append(
            LayerDecision(
                layer=index, tokens=dict(sorted(tokens.items())),
                recompute_ratio=recomputed / total if total else 0.0,
                ranges=[Range(begin=s.begin, end=s.end, path=s.path, stage=s.stage)
                        for s in segments],
                streamed_weights=best.streamed[index] if schedule.stream_weights else 0.0,
            )
        )  # fmt: skip
    return Decision(
        strategy=strategy, axis=schedule.axis, stages=schedule.stages,  # type: ignore[arg-type]
        queue_depth=schedule.queue_depth, block=block,
        boundary=schedule.boundary,  # type: ignore[arg-type]
        prefetch=schedule.prefetch, mode=schedule.mode,  # type: ignore[arg-type]
        stream_weights=schedule.stream_weights, layers=layers,
    )  # fmt: skip


def predict(scenario: Scenario, best: Evaluation, found: Search | None = None) -> Prediction:
    """What an evaluation and its search say about running it."""
    step_s = best.step_s
    bound_s = min(found.bound_s, step_s) if found else 0.0
    moved = best.graph.link_bytes(best.values)
    return Prediction(
        step_s=step_s, tokens_per_s=scenario.workload.batch / step_s, bound_s=bound_s,
        gap=max(step_s / bound_s - 1.0, 0.0) if bound_s else 0.0,
        bottleneck=best.simulation.bottleneck, busy_s=dict(best.simulation.busy_s),
        memory_bytes={t: float(b) for t, b in sorted(best.memory_bytes.items())},
        capacity_bytes={t: float(b) for t, b in sorted(scenario.capacity.items())},
        moved_bytes={r: float(b) for r, b in sorted(moved.items())},
        values=values(scenario, best, found) if found else [],
        confidence=confidence(scenario.hardware),
    )  # fmt: skip


def values(scenario: Scenario, best: Evaluation, found: Search) -> list[Value]:
    """What a little more of each resource would save per step, from the program's duals."""
    duals, hardware = found.relaxation, scenario.hardware
    rate = hardware.h2d.copy.rate()
    copying_s = _variable_s(best, "h2d", None)
    rebuilding_s = _variable_s(best, "gpu", "rebuild")
    link = duals.resource_weight.get("h2d", 0.0) * copying_s * (1.0 - rate / (rate + GB))
    flop = duals.resource_weight.get("gpu", 0.0) * rebuilding_s * (1.0 - 1.0 / 1.1)
    listed = [
        ("1 GiB more HBM", duals.capacity_s_per_byte.get("hbm", 0.0) * GIB),
        ("1 GiB more host memory", duals.capacity_s_per_byte.get("dram", 0.0) * GIB),
        ("1 GiB more pinned memory", duals.capacity_s_per_byte.get("pinned", 0.0) * GIB),
        ("1 GB/s more link bandwidth", link),
        ("10 % more FLOP/s", flop),
    ]
    return [Value(what=what, saved_s=saved) for what, saved in listed]


def _variable_s(best: Evaluation, resource: str, kind: str | None) -> float:
    """Seconds that a resource spends in proportion to volume, in one step."""
    total = 0.0
    for operation in best.graph.operations:
        if operation.resource == resource and kind in (None, operation.operation):
            volume = sum(best.values[v] for v in operation.variables)
            at = max(operation.curve.pieces, key=lambda p: p.fixed_s + p.s_per_unit * volume)  # noqa: B023
            total += at.s_per_unit * volume
    return total * best.graph.cycles


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
            hardware = override(hardware, **given.overrides)  # type: ignore[arg-type]
        if hardware.digest != given.digest:
            raise InputError(
                "inputs.hardware.digest", given.digest,
                f"{hardware.digest}, that of {hardware.name} now: the profile has changed since "
                "the plan was made; solve again, or name a profile with --gpu",
            )  # fmt: skip
        file, overrides = given.file, given.overrides
    else:
        file, overrides = None, {}
    workload = Workload(**msgspec.structs.asdict(plan.inputs.workload))
    budgets = Budgets(**msgspec.structs.asdict(plan.inputs.budgets))
    options = plan.inputs.options
    return Scenario(
        model=model_of(plan), hardware=hardware, workload=workload, budgets=budgets,
        options=Options(
            paths=None if options.paths is None else tuple(options.paths),
            allow=options.allow, axes=tuple(options.axes), stages=tuple(options.stages),
            queue_depths=tuple(options.queue_depths), boundary=options.boundary,
            mode=options.mode, refine_blocks=options.refine_blocks, weights=options.weights,
        ),
        hardware_file=file, overrides=overrides,
    )  # fmt: skip


def schedule_of(plan: Plan) -> Schedule:
    """The schedule a plan decided on."""
    decision = plan.decision
    return Schedule(
        axis=decision.axis, stages=decision.stages, queue_depth=decision.queue_depth,
        boundary=decision.boundary, prefetch=decision.prefetch, mode=decision.mode,
        stream_weights=decision.stream_weights,
    )  # fmt: skip


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
                    f"decision.layers[{index}].ranges[{position}].stage", segment.stage,
                    f"a stage below {plan.decision.stages}",
                )  # fmt: skip
        if tokens_by_path(segments) != layer.tokens:
            raise InputError(
                f"decision.layers[{index}].tokens", layer.tokens,
                f"the sums of its ranges, {tokens_by_path(segments)}",
            )  # fmt: skip
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
    return replace(scenario), evaluation
