"""Plans that people run today, as rungs of a ladder; each goes through the same judge.

A rung is an evaluation or the reason why it is not possible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvplan import cost, flexgen_policy, kvpr, solve, throughput
from kvplan.allocation import rounded
from kvplan.batching import Batching, batching_of, with_batching
from kvplan.dtypes import element_bytes
from kvplan.errors import InfeasibleError
from kvplan.evaluate import Evaluation, evaluate, refuse_overflow
from kvplan.flexgen import Percentages, cache_shares, weight_shares
from kvplan.hardware import ONE_POOL
from kvplan.layer import LayerSpec
from kvplan.objective import MICRO_BATCHES, Objective
from kvplan.peak import peak
from kvplan.scenario import Options, Scenario
from kvplan.schedule import Schedule
from kvplan.units import format_seconds

RULE_OF_THUMB_RATIO = 0.3
"""Middle of "recompute 20 to 40 % where the link is under 10 % of compute"."""

RULE_OF_THUMB_LINK = 0.1
"""Bytes per second of the link over FLOP per second below which the rule applies."""


NARROW = 1 / 16
"""Share of a batch to which a baseline's best batch is found."""


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


NOTHING_CACHED = "no layer caches tokens that could be split"


@dataclass(frozen=True, slots=True)
class Baseline:
    """One trivial or published plan.

    Args:
        name: key in JSON.
        title: for people.
        plan: scenario to evaluation, or the reason why it is not possible.
        search: scenario to the plan at the batch that makes most tokens per second; None tries
            batches with ``plan``.
    """

    name: str
    title: str
    plan: Callable[[Scenario], Evaluation | Played | str]
    search: Callable[[Scenario], Played | str] | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    """A baseline's result: its evaluation and batch, or None and the reason."""

    name: str
    title: str
    evaluation: Evaluation | None
    reason: str | None
    batching: Batching
    note: str | None = None

    @property
    def step_s(self) -> float | None:
        """Seconds of one decode step; None where it is not possible."""
        return self.evaluation.step_s if self.evaluation else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second; None where it is not possible."""
        return self.batching.batch / self.evaluation.step_s if self.evaluation else None


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


def _schedule(scenario: Scenario, **changes: object) -> Schedule:
    """A schedule with the scenario's launch mode; weights are streamed if they do not fit."""
    options = scenario.options
    weights = sum(cost.weight_bytes(scenario.model, layer) for layer in scenario.model.layers)
    fits = weights + cost.shared_weight_bytes(scenario.model) < scenario.capacity["hbm"]
    stream = options.weights == "streamed" or (options.weights == "auto" and not fits)
    stream = stream and not scenario.hardware.unified
    base = Schedule(boundary=options.boundary, mode=options.mode, stream_weights=stream)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def no_offload(scenario: Scenario) -> Evaluation | str:
    """Everything in HBM."""
    schedule = _schedule(scenario, stages=1, queue_depth=1, stream_weights=False)
    return forced(scenario, schedule, {"resident": 1.0})


def synchronous_fetch(scenario: Scenario) -> Evaluation | str:
    """All K and V in host memory; a layer copies, then computes."""
    schedule = _schedule(scenario, stages=1, queue_depth=1, prefetch=False)
    return forced(scenario, schedule, {"fetch": 1.0})


def overlapped_fetch(scenario: Scenario) -> Evaluation | str:
    """All K and V in host memory; the next layer is copied into a second buffer meanwhile."""
    return forced(scenario, _schedule(scenario, stages=1, queue_depth=2), {"fetch": 1.0})


def staged_pipeline(scenario: Scenario) -> Evaluation | str:
    """Stages of a layer need small buffers, so K and V fill the HBM that is left."""
    try:
        return solve.search(_staged(scenario)).best
    except InfeasibleError as error:
        return f"{error.budget}: {error.reason}"


def staged_throughput(scenario: Scenario) -> Played | str:
    """The staged pipeline at the batch that makes most tokens per second."""
    objective = dataclasses.replace(scenario.objective, micro_batches=(1,), schedules=("column",))
    staged = dataclasses.replace(_staged(scenario), objective=objective)
    try:
        found = throughput.search(staged)
    except InfeasibleError as error:
        return f"{error.budget}: {error.reason}"
    return Played(found.search.best, found.batching)


def _staged(scenario: Scenario) -> Scenario:
    """Only resident and fetched tokens, in four stages."""
    options = Options(
        paths=("resident", "fetch"),
        axes=("token",),
        stages=(4,),
        queue_depths=(3,),
        boundary=scenario.options.boundary,
        mode=scenario.options.mode,
        weights=scenario.options.weights,
    )
    return dataclasses.replace(scenario, options=options)


def _caches(scenario: Scenario) -> Callable[[LayerSpec], bool]:
    tokens = scenario.workload.tokens
    return lambda layer: layer.cached_tokens(tokens) > 0


def kvpr_layer(scenario: Scenario) -> kvpr.Layer:
    """The first layer that caches tokens as KVPR's cost model sees it, at the machine's link and
    matrix rates.
    """
    workload, hardware = scenario.workload, scenario.hardware
    spec = next(filter(_caches(scenario), scenario.model.layers))
    return kvpr.Layer(
        batch=workload.batch,
        hidden=spec.activation_elements,
        kv_elements=spec.kv_elements,
        element_bytes=element_bytes(workload.kv_dtype),
        tokens=workload.tokens,
        prompt=workload.context,
        link_bytes_per_s=hardware.h2d.copy.rate(),
        flop_per_s=cost.flop_per_s(hardware, scenario.model.weight_dtype),
    )


def kvpr_serial(scenario: Scenario) -> Evaluation | str:
    """KVPR's split, activations first and no prefetch over layers, one value for all layers."""
    if not any(map(_caches(scenario), scenario.model.layers)):
        return NOTHING_CACHED
    split = kvpr.serial_split(kvpr_layer(scenario))
    return _split(scenario, split, _schedule(scenario, stages=1, queue_depth=1, prefetch=False))


def kvpr_pipelined(scenario: Scenario) -> Evaluation | str:
    """KVPR's split with the next layer prefetched."""
    if not any(map(_caches(scenario), scenario.model.layers)):
        return NOTHING_CACHED
    split = kvpr.pipelined_split(kvpr_layer(scenario))
    return _split(scenario, split, _schedule(scenario, stages=1, queue_depth=2))


def _split(scenario: Scenario, split: int, schedule: Schedule) -> Evaluation | str:
    shares = {"recompute": float(split), "fetch": float(scenario.workload.tokens - split)}
    return forced(scenario, schedule, shares, block=1)


def rule_of_thumb(scenario: Scenario) -> Evaluation | str:
    """Recompute a fixed share whatever the model."""
    rate = cost.flop_per_s(scenario.hardware, scenario.model.weight_dtype)
    applies = scenario.hardware.h2d.copy.rate() < RULE_OF_THUMB_LINK * rate
    ratio = RULE_OF_THUMB_RATIO if applies else 0.0
    schedule = _schedule(scenario, stages=4, queue_depth=3)
    return forced(scenario, schedule, {"recompute": ratio, "fetch": 1.0 - ratio})


def flexgen_percentages(scenario: Scenario) -> Played | str:
    """FlexGen's block schedule with its own percentages, or those asked for.

    Its linear program chooses for every number of GPU batches; what its runtime makes of the
    percentages is judged, in whole sequences and whole matrices.
    """
    if not all(layer.plain for layer in scenario.model.layers):
        return "its cost model knows only layers of K and V heads with a dense MLP"
    given = scenario.options.flexgen
    asked = None if given is None else Percentages(*given)
    own = scenario.workload.micro_batches
    parts = (own,) if own > 1 else [m for m in MICRO_BATCHES if scenario.workload.batch % m == 0]
    best: Played | None = None
    reasons: list[str] = []
    for gpu_batches in parts:
        for on_cpu in (False, True):
            played = _flexgen(scenario, gpu_batches, on_cpu, asked)
            if played is None:
                continue
            if isinstance(played, str):
                reasons.append(played)
            elif best is None or played.evaluation.step_s < best.evaluation.step_s:
                best = played
    if best is not None:
        return best
    return reasons[0] if reasons else "its linear program finds no percentages that fit"


def _flexgen(
    scenario: Scenario, gpu_batches: int, on_cpu: bool, asked: Percentages | None
) -> Played | str | None:
    """One GPU batch size; None where the machine cannot, or the program finds nothing."""
    model, load = scenario.model, scenario.workload
    rates = flexgen_policy.Rates.of(scenario.hardware, model, load.kv_dtype)
    if on_cpu and (
        rates.host_attention_bytes_per_s is None
        or not all(any(p.name == "attend_host" for p in ps) for ps in scenario.paths.values() if ps)
    ):
        return None
    size = load.batch // gpu_batches
    task = flexgen_policy.Task(
        prompt=load.context, gen=max(load.gen, 2), gpu_batch=size, gpu_batches=gpu_batches,
        kv_dtype=load.kv_dtype, cpu_attention=on_cpu,
    )  # fmt: skip
    policy = asked or flexgen_policy.search(model, rates, task, scenario.capacity)
    if policy is None:
        return None
    held = [weight_shares(policy, layer) for layer in model.layers]
    if any(disk > 0 for _, _, disk in held):
        return "it would keep weights on disk, which the step does not describe"
    gpu, cpu, disk = cache_shares(policy, size)
    streamed = [
        min(away * cost.weight_bytes(model, layer) / max(cost.streamable_bytes(model, layer), 1.0),
            1.0)
        for layer, (_, away, _) in zip(model.layers, held, strict=True)
    ]  # fmt: skip
    batching = Batching(load.batch, gpu_batches)
    result = forced(
        with_batching(scenario, batching),
        _schedule(scenario, stages=1, queue_depth=2, stream_weights=any(streamed)),
        {"resident": gpu, "attend_host" if on_cpu else "fetch": cpu, "fetch_disk": disk},
        1, streamed,
    )  # fmt: skip
    if isinstance(result, str):
        return f"at {_percent(policy)}: {result}"
    weights = sum(s[1] * y.params for s, y in zip(held, model.layers, strict=True))
    away = weights / sum(layer.params for layer in model.layers)
    note = (
        f"--percent {_percent(policy)}, {gpu_batches} x {size} sequences"
        f"{', attention on the CPU' if on_cpu else ''}; in effect {100 * (1 - away):.0f} % of "
        f"the weights and {100 * gpu:.0f} % of the cache on the GPU"
    )
    return Played(result, batching, note)


def _percent(policy: Percentages) -> str:
    return " ".join(str(number) for number in policy.numbers)


BASELINES = (
    Baseline("no_offload", "no offload", no_offload),
    Baseline("synchronous_fetch", "synchronous fetch", synchronous_fetch),
    Baseline("overlapped_fetch", "overlapped fetch (double buffer)", overlapped_fetch),
    Baseline("staged_pipeline", "staged pipeline, HBM filled", staged_pipeline, staged_throughput),
    Baseline("rule_of_thumb", "rule of thumb (recompute 30 %)", rule_of_thumb),
    Baseline("flexgen", "FlexGen percentages", flexgen_percentages),
    Baseline("kvpr_serial", "KVPR split, serial", kvpr_serial),
    Baseline("kvpr_pipelined", "KVPR split, pipelined", kvpr_pipelined),
)
"""In the order an engineer would try them."""


def ladder(scenario: Scenario) -> tuple[Rung, ...]:
    """Every baseline of a scenario; for throughput, each at its own best batch."""
    climb = at_best_batch if scenario.objective.seeks_throughput else at_batch
    return tuple(climb(scenario, baseline) for baseline in BASELINES)


def at_batch(scenario: Scenario, baseline: Baseline) -> Rung:
    """A baseline with the workload as it is."""
    if scenario.hardware.unified and baseline.plan is not no_offload:
        return rung_of(scenario, baseline, ONE_POOL)
    return rung_of(scenario, baseline, baseline.plan(scenario))


def rung_of(scenario: Scenario, baseline: Baseline, result: Evaluation | Played | str) -> Rung:
    """A baseline's result, refused where its step is longer than accepted."""
    batching = batching_of(scenario)
    if isinstance(result, str):
        return Rung(baseline.name, baseline.title, None, result, batching)
    played = result if isinstance(result, Played) else Played(result, batching)
    if not scenario.objective.accepts(played.evaluation.step_s):
        reason = too_slow(scenario.objective, played.evaluation)
        return Rung(baseline.name, baseline.title, None, reason, batching)
    return Rung(
        baseline.name, baseline.title, played.evaluation, None, played.batching, played.note
    )


def at_best_batch(scenario: Scenario, baseline: Baseline) -> Rung:
    """A baseline with the batch that makes most tokens per second; micro-batches are its own."""
    least, most = scenario.objective.batches
    if scenario.hardware.unified and baseline.plan is not no_offload:
        return at_batch(scenario, baseline)
    if baseline.search is not None:
        return rung_of(scenario, baseline, baseline.search(scenario))
    known: dict[int, Rung] = {}

    def rung(batch: int) -> Rung:
        if batch not in known:
            known[batch] = at_batch(with_batching(scenario, Batching(batch)), baseline)
        return known[batch]

    batch = peak(lambda size: rung(size).tokens_per_s, least, most, NARROW)
    return rung(least if batch is None else batch)


def too_slow(objective: Objective, evaluation: Evaluation) -> str:
    """Why a plan that fits is not taken."""
    limit = format_seconds(objective.max_step_s or 0.0)
    return f"its step takes {format_seconds(evaluation.step_s)}, longer than {limit}"
