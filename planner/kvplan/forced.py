"""A plan that is given by hand instead of searched: the same shares in every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvplan import cost
from kvplan.allocation import rounded
from kvplan.batching import Batching
from kvplan.evaluate import Evaluation, evaluate, refuse_overflow
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Played:
    """A baseline's plan where it chose its own batching, or has something to add.

    Args:
        evaluation: the plan, judged.
        batching: its batch, micro-batches and order.
        note: one sentence on what was chosen.
    """

    evaluation: Evaluation
    batching: Batching
    note: str | None = None


def forced(
    scenario: Scenario,
    schedule: Schedule,
    shares: Mapping[str, float],
    block: int | None = None,
    streamed: Sequence[float] | None = None,
) -> Evaluation | str:
    """The same shares of tokens per path in every layer.

    Where weights are streamed, as small a share of them is as the HBM budget allows.

    Args:
        scenario: model, machine, workload, budgets.
        schedule: how the step is pipelined.
        shares: path to share of tokens.
        block: tokens per block; None takes the workload's.
        streamed: share of each layer's weights to stream instead.

    Returns:
        The evaluation, or why a tier does not hold it.
    """
    layers = range(len(scenario.model.layers))
    allocation = rounded(
        [scenario.cached_tokens(i) for i in layers],
        [dict(shares) for _ in layers],
        scenario.classes,
        schedule.axis,
        schedule.stages,
        scenario.workload.block if block is None else block,
        "grouped",
    )
    shares_streamed = [1.0 for _ in layers] if streamed is None else list(streamed)
    evaluation = evaluate(scenario, schedule, allocation, shares_streamed)
    if schedule.stream_weights and streamed is None:
        room = scenario.capacity["hbm"] - evaluation.memory_bytes["hbm"]
        weights = sum(
            cost.streamable_bytes(scenario.model, layer) for layer in scenario.model.layers
        )
        share = min(max(1.0 - room / weights, 0.0), 1.0)
        evaluation = evaluate(scenario, schedule, allocation, [share for _ in layers])
    reason = refuse_overflow(evaluation, scenario.capacity)
    return reason if reason else evaluation


def forced_schedule(scenario: Scenario, **changes: object) -> Schedule:
    """A schedule with the scenario's launch mode; weights are streamed if they do not fit."""
    options = scenario.options
    weights = sum(cost.weight_bytes(scenario.model, layer) for layer in scenario.model.layers)
    fits = weights + cost.shared_weight_bytes(scenario.model) < scenario.capacity["hbm"]
    stream = options.weights == "streamed" or (options.weights == "auto" and not fits)
    stream = stream and not scenario.hardware.unified
    base = Schedule(boundary=options.boundary, mode=options.mode, stream_weights=stream)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]
