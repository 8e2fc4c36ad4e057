"""From a scenario to a plan document and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvplan import generation, throughput
from kvplan.allocation import Allocation, Segment, tokens_by_path
from kvplan.baselines import Rung, ladder
from kvplan.batching import batching_of, with_batching
from kvplan.document import batch_choice, document, generation_of
from kvplan.errors import InputError
from kvplan.evaluate import Evaluation, evaluate
from kvplan.hardware import OVERRIDES, HardwareProfile, override
from kvplan.hardware_library import load_hardware
from kvplan.model import MAX_LAYERS, ModelSpec
from kvplan.objective import Objective
from kvplan.plan import Plan
from kvplan.ranks import planned_with
from kvplan.regret import as_good
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.solve import Search, search
from kvplan.step_limit import too_long
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
            raise too_long(scenario, found)
    rungs = ladder(scenario)
    rung = choose(asked, found, rungs)
    best = found.best
    if rung is not None:
        assert rung.evaluation is not None, "only plans that fit are as good"
        best = rung.evaluation
        if batching_of(asked) != rung.batching:
            asked = with_batching(asked, rung.batching)
            found = search(asked)
    plan = document(asked, found, rung.name if rung else "kvplan", best, rungs, time)
    if choice is not None:
        plan = msgspec.structs.replace(plan, batch_choice=batch_choice(choice, plan))
    if scenario.objective.segments is not None:
        whole = generation.generate(
            asked, best, found.bound_s, plan.decision.block, scenario.objective.segments
        )
        segments = generation_of(whole, plan.decision.strategy)
        plan = msgspec.structs.replace(plan, generation=segments)
    return Answer(asked, plan, rungs)


def choose(asked: Scenario, found: Search, rungs: Sequence[Rung]) -> Rung | None:
    """The simplest baseline that is as good as the searched plan; None if none is.

    Where the paths were named, one that takes any other is only compared with.
    """
    named = None if asked.options.paths is None else set(asked.options.paths)
    rates = {
        rung.name: rung.tokens_per_s
        for rung in rungs
        if rung.evaluation and (named is None or named.issuperset(rung.evaluation.paths))
    }
    name = as_good(rates, asked.workload.tokens_per_s(found.best.step_s))
    return next((rung for rung in rungs if rung.name == name), None)


def model_of(plan: Plan) -> ModelSpec:
    """The model a plan holds."""
    fields = {
        name: getattr(plan.inputs.model, name)
        for name in plan.inputs.model.__struct_fields__
        if name not in ("layers", "scales")
    }
    scales = tuple(plan.inputs.model.scales)
    total = sum(run.count for run in plan.inputs.model.layers)
    if total > MAX_LAYERS:
        raise InputError("inputs.model.layers", total, f"at most {MAX_LAYERS} layers in all")
    layers = tuple(run.layer for run in plan.inputs.model.layers for _ in range(run.count))
    return ModelSpec(**fields, layers=layers, scales=scales)


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
    load: dict[str, Any] = msgspec.structs.asdict(plan.inputs.workload)
    if load["layer_tokens"] is not None:
        load["layer_tokens"] = tuple(load["layer_tokens"])
    workload = Workload(**load)
    budgets = Budgets(**msgspec.structs.asdict(plan.inputs.budgets))
    chosen: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in msgspec.structs.asdict(plan.inputs.options).items()
    }
    asked = Scenario(
        model=model_of(plan),
        hardware=hardware,
        workload=workload,
        budgets=budgets,
        options=Options(**chosen),
        objective=_objective(plan),
        hardware_file=file,
        overrides=overrides,
    )
    return planned_with(asked)


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


def segment_plan(plan: Plan, number: int) -> Plan:
    """One segment of a generation as a plan of its own.

    Args:
        plan: a plan with segments.
        number: which, from 1.

    Raises:
        InputError: the plan has no such segment.
    """
    count = len(plan.generation.segments) if plan.generation else 0
    if not 1 <= number <= count:
        accepted = f"1 to {count}" if count else "a plan made with --segments"
        raise InputError("segment", number, accepted)
    assert plan.generation is not None
    segment = plan.generation.segments[number - 1]
    workload = msgspec.structs.replace(plan.inputs.workload, gen=segment.end)
    objective = plan.inputs.objective
    if objective is not None:
        objective = msgspec.structs.replace(objective, segments=None)
    return msgspec.structs.replace(
        plan,
        inputs=msgspec.structs.replace(plan.inputs, workload=workload, objective=objective),
        decision=segment.decision,
        prediction=segment.prediction,
        baselines={},
        batch_choice=None,
        generation=None,
    )
