"""FlexGen's percentages as plans: its own choice, or those that were asked for."""

from __future__ import annotations

from kvplan import cost, flexgen_policy
from kvplan.batching import Batching, with_batching
from kvplan.flexgen import Percentages, cache_shares, weight_shares
from kvplan.forced import Played, forced, forced_schedule
from kvplan.objective import MICRO_BATCHES
from kvplan.scenario import Scenario


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
    size = load.batch // gpu_batches
    policy = _policy(scenario, gpu_batches, on_cpu, asked)
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
        forced_schedule(scenario, stages=1, queue_depth=2, stream_weights=any(streamed)),
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


def _policy(
    scenario: Scenario, gpu_batches: int, on_cpu: bool, asked: Percentages | None
) -> Percentages | None:
    """Percentages asked for, or its own choice; None where the machine cannot, or there is none."""
    model, load = scenario.model, scenario.workload
    rates = flexgen_policy.Rates.of(scenario.hardware, model, load.kv_dtype)
    if on_cpu and (
        rates.host_attention_bytes_per_s is None
        or not all(any(p.name == "attend_host" for p in ps) for ps in scenario.paths.values() if ps)
    ):
        return None
    task = flexgen_policy.Task(
        prompt=load.context, gen=max(load.gen, 2), gpu_batch=load.batch // gpu_batches,
        gpu_batches=gpu_batches, kv_dtype=load.kv_dtype, cpu_attention=on_cpu,
    )  # fmt: skip
    return asked or flexgen_policy.search(model, rates, task, scenario.capacity)


def _percent(policy: Percentages) -> str:
    return " ".join(str(number) for number in policy.numbers)
