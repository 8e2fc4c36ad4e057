"""What was found, written down: the parts of a plan document."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import msgspec

import kvplan
from kvplan import cost, fluid, highs, throughput
from kvplan.allocation import tokens_by_path
from kvplan.baselines import Rung
from kvplan.candidates import flow_graph
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation
from kvplan.gap import gap
from kvplan.generation import Generation, Part
from kvplan.hardware import HardwareProfile, override
from kvplan.plan import (
    SCHEMA_VERSION,
    BaselineResult,
    BatchChoice,
    BatchTrial,
    BudgetInput,
    Decision,
    GenerationPlan,
    GenerationSegment,
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
from kvplan.resident import everything_resident
from kvplan.scenario import Scenario
from kvplan.solve import Search
from kvplan.units import GB, GIB


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
    return Plan(
        kvplan_plan=SCHEMA_VERSION,
        inputs=inputs_of(scenario),
        decision=decision_of(
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
        provenance=provenance(time),
    )


def provenance(time: str | None = None) -> Provenance:
    """Who makes a document, and when.

    Args:
        time: ISO 8601; None takes the clock.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Provenance(
        kvplan=kvplan.__version__,
        solver=f"HiGHS {highs.version()}",
        time=now if time is None else time,
    )


def inputs_of(scenario: Scenario) -> Inputs:
    """Everything a plan depends on."""
    whole = scenario.whole or scenario
    model = whole.model
    known = (name for name in model.__struct_fields__ if name not in ("layers", "uncounted"))
    fields = {name: getattr(model, name) for name in known}
    fields["scales"] = list(model.scales)
    return Inputs(
        model=ModelInput(**fields, layers=layer_runs(model.layers)),
        hardware=hardware_input(
            whole.hardware, dict(sorted(scenario.overrides.items())), scenario.hardware_file
        ),
        workload=msgspec.convert(dataclasses.asdict(scenario.workload), WorkloadInput),
        budgets=msgspec.convert(dataclasses.asdict(whole.budgets), BudgetInput),
        options=msgspec.convert(
            {
                **dataclasses.asdict(scenario.options),
                "allow": dict(sorted(scenario.options.allow.items())),
            },
            OptionInput,
        ),
        objective=msgspec.convert(dataclasses.asdict(scenario.objective), ObjectiveInput),
    )


def hardware_input(
    hardware: HardwareProfile, overrides: dict[str, float], file: str | None
) -> HardwareInput:
    """A machine as documents name it.

    Args:
        hardware: its profile.
        overrides: figures that were changed by hand.
        file: where the profile came from; None: the library.
    """
    return HardwareInput(
        name=hardware.name, title=hardware.title, kind=hardware.kind, digest=hardware.digest,
        file=file, overrides=overrides,
    )  # fmt: skip


def decision_of(strategy: str, best: Evaluation, block: int) -> Decision:
    """Schedule and token ranges of a judged allocation."""
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
        tokens_per_s=scenario.workload.tokens_per_s(step_s),
        bound_s=bound_s,
        gap=gap(step_s, bound_s),
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
    flop = 1.1 * cost.flop_per_s(hardware, scenario.model.weight_dtype)
    listed = [
        ("1 GiB more HBM", duals.get("hbm", 0.0) * GIB),
        ("1 GiB more host memory", duals.get("dram", 0.0) * GIB),
        ("1 GiB more pinned memory", duals.get("pinned", 0.0) * GIB),
        ("10 % more FLOP/s", saved_s(scenario, found, flop_per_s=flop)),
    ]
    if not hardware.unified:
        link = hardware.h2d.copy.rate() + GB
        saved = saved_s(scenario, found, h2d_bytes_per_s=link)
        listed.insert(3, ("1 GB/s more link bandwidth", saved))
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
    graph = resident.graph if resident else flow_graph(faster, found.best.schedule)
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


def generation_of(generation: Generation, strategy: str) -> GenerationPlan:
    """The segments of a generation; those with a strategy of their own are the last."""
    last = generation.parts[-1]
    total_s = generation.total_s
    return GenerationPlan(
        steps=last.end,
        total_s=total_s,
        tokens_per_s=generation.tokens_per_s,
        bound_s=generation.least_s,
        gap=gap(total_s, generation.least_s),
        uniform_s=generation.uniform_s,
        segments=[
            _segment(part, generation.kept_bytes(index), strategy if part is last else "kvplan")
            for index, part in enumerate(generation.parts)
        ],
    )


def _segment(part: Part, kept_bytes: float, strategy: str) -> GenerationSegment:
    prediction = predict(part.scenario, part.evaluation)
    bound_s = min(part.bound_s, part.evaluation.step_s)
    return GenerationSegment(
        begin=part.begin,
        end=part.end,
        first_step_s=part.first_s,
        steps_s=part.steps_s,
        moved_bytes={k: float(v) for k, v in sorted(part.moves.bytes_moved.items())},
        moves_s=part.moves.seconds(part.scenario),
        kept_bytes=kept_bytes,
        decision=decision_of(strategy, part.evaluation, part.block),
        prediction=msgspec.structs.replace(
            prediction, bound_s=bound_s, gap=gap(part.evaluation.step_s, bound_s)
        ),
    )
