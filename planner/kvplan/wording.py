"""Sentences about a plan, from its document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvplan.plan import GenerationPlan, HardwareInput, LayerDecision, Plan
from kvplan.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from kvplan.model import ModelSpec
    from kvplan.traced_copies import Copies

_VERBS = {
    "resident": "keep {} in HBM", "fetch": "fetch {}", "recompute": "recompute {}",
    "recompute_resident": "recompute {} from activations in HBM",
    "attend_host": "attend {} on the host", "fetch_disk": "fetch {} from disk",
    "attend_tier": "attend {} in the tier", "fetch_tier": "fetch {} from the tier",
    "fetch_int8": "fetch {} as int8", "fetch_int4": "fetch {} as int4",
}  # fmt: skip

_SLOT = ("link_generation", "link_lanes")

_OVERRIDES = {
    "h2d_bytes_per_s": "link", "flop_per_s": "FLOP/s", "hbm_bytes_per_s": "HBM bandwidth",
    "host_attention_bytes_per_s": "host attention", "disk_bytes_per_s": "disk",
    "pageable_bytes_per_s": "pageable copies",
}  # fmt: skip


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.234), percent(0.004), percent(0.9996), percent(0.0001)
    ('23 %', '0.4 %', '100 %', '< 0.1 %')
    """
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 9.95 else f"{value:.0f} %"


def times(factor: float) -> str:
    """A ratio of speeds.

    >>> times(6.44), times(12.3)
    ('6.4x', '12x')
    """
    return f"{factor:.2g}x" if factor < 10 else f"{factor:.0f}x"


def mix(counts: Mapping[str, float]) -> str:
    """What happens to tokens, the largest share first.

    >>> mix({"fetch": 1.0, "resident": 3.0})
    'keep 75 % in HBM, fetch 25 %'
    """
    total = sum(counts.values())
    ranked = sorted((n for n in counts if counts[n] > 0), key=lambda name: -counts[name])
    parts = [_VERBS.get(n, f"{n} {{}}").format(percent(counts[n] / total)) for n in ranked]
    return ", ".join(parts) or "no KV"


def counts(layers: Sequence[LayerDecision]) -> dict[str, float]:
    """Tokens per path, all layers together."""
    total: dict[str, float] = {}
    for layer in layers:
        for path, tokens in layer.tokens.items():
            total[path] = total.get(path, 0.0) + tokens
    return total


def generation(plan: Plan, whole: GenerationPlan) -> str:
    """The answer for a whole generation in one sentence."""
    count = len(whole.segments)
    figures = (
        f"{whole.steps} tokens of {plan.inputs.workload.batch} sequences in "
        f"{format_seconds(whole.total_s)}, {whole.tokens_per_s:.4g} tokens/s"
    )
    if count == 1:
        return f"One plan serves the whole generation as well as several: {figures}."
    gain = percent(1 - whole.total_s / whole.uniform_s)
    return f"{figures}; {count} segments take {gain} less than the last one's plan throughout."


def strategy(plan: Plan) -> str:
    """The answer in one sentence."""
    decision, predicted = plan.decision, plan.prediction
    figures = f"{format_seconds(predicted.step_s)} per step, {predicted.tokens_per_s:.4g} tokens/s"
    if decision.strategy == "no_offload":
        return f"Everything fits in HBM, no offload is planned: {figures}."
    what = mix(counts(decision.layers))
    if decision.strategy in plan.baselines:
        title = plan.baselines[decision.strategy].title
        return (f"{title[0].upper()}{title[1:]} is as good as anything the search found: {what}; "
                f"{figures}.")  # fmt: skip
    return f"{what[0].upper()}{what[1:]}: {figures}."


def speed_up(plan: Plan, name: str, title: str) -> str:
    """How the plan compares with one baseline."""
    baseline = plan.baselines.get(name)
    if baseline is None or baseline.step_s is None:
        return f"{title} is not possible: {baseline.reason if baseline else 'not in the plan'}"
    if plan.batch_choice is not None and baseline.tokens_per_s:
        factor = plan.prediction.tokens_per_s / baseline.tokens_per_s
        return (
            f"{times(factor)} the tokens/s of {title} at its best batch of {baseline.batch} "
            f"({baseline.tokens_per_s:.4g})"
        )
    factor = baseline.step_s / plan.prediction.step_s
    return f"{times(factor)} as fast as {title} ({format_seconds(baseline.step_s)})"


def best_simple(plan: Plan) -> list[str]:
    """How the plan compares with the best baseline, where no other line says so."""
    rates = {name: b.tokens_per_s for name, b in plan.baselines.items() if b.tokens_per_s}
    name = max(rates, key=lambda n: rates[n], default="")
    if name in ("", "overlapped_fetch", "synchronous_fetch", plan.decision.strategy):
        return []
    title = plan.baselines[name].title
    return [f"{speed_up(plan, name, title)}, the best of the simple plans"]


def batch_choice(plan: Plan) -> list[str]:
    """Which batch was chosen, and why not more; nothing where it was given."""
    choice = plan.batch_choice
    if choice is None:
        return []
    parts = f" in {choice.micro_batches} micro-batches ({choice.schedule})"
    return [
        f"{choice.batch}{parts if choice.micro_batches > 1 else ''}; {choice.why}",
        f"of the {len(choice.trials)} batches tried none can make more than "
        f"{choice.bound_tokens_per_s:.4g} tokens/s; gap {100 * choice.gap:.1f} %",
    ]


def workload(plan: Plan) -> str:
    """Model and batch."""
    model, load = plan.inputs.model, plan.inputs.workload
    layers = len(plan.decision.layers)
    gen = f" + {load.gen} generated" if load.gen else ""
    gen += f" + {load.new_tokens} new at once" if load.new_tokens > 1 else ""
    parts = f" in {load.micro_batches} micro-batches ({load.schedule})"
    return (
        f"{model.name}, {layers} layers, batch {load.batch}"
        f"{parts if load.micro_batches > 1 else ''}, context {load.context}{gen}, "
        f"{f'tensor parallel over {load.tp} GPUs (figures of each), ' if load.tp > 1 else ''}"
        f"{load.kv_dtype} cache{_kept(plan)}"
    )


def _kept(plan: Plan) -> str:
    """How much of the context layers keep, where they have budgets."""
    load = plan.inputs.workload
    if load.layer_tokens is None:
        return ""
    kept = sum(min(tokens, load.context) for tokens in load.layer_tokens)
    share = kept / (load.context * len(load.layer_tokens))
    return f", layers keep {percent(share)} of the context (not exact)"


def machine(plan: Plan) -> str:
    """Card and link, and what was changed by hand."""
    return machine_of(plan.inputs.hardware)


def machine_of(given: HardwareInput) -> str:
    """Card and link, and what was changed by hand."""
    slot = [given.overrides[name] for name in _SLOT if name in given.overrides]
    changed = [f"PCIe {slot[0]:.0f}.0 x{slot[-1]:.0f}"] if len(slot) == len(_SLOT) else []
    changed += [
        f"{_OVERRIDES.get(name, name)} {_override(name, value)}"
        for name, value in given.overrides.items()
        if name not in _SLOT
    ]
    return given.title + (f"; set by hand: {', '.join(changed)}" if changed else "")


def _override(name: str, value: float) -> str:
    return f"{value / 1e12:.4g} TFLOP/s" if name == "flop_per_s" else format_rate(value)


def pipeline(plan: Plan) -> str:
    """How the step is pipelined."""
    decision = plan.decision
    of = "token ranges in each layer" if decision.axis == "token" else "groups of layers"
    copies = "" if decision.prefetch else ", no prefetch"
    streamed = [layer.streamed_weights for layer in decision.layers]
    weights = sum(streamed) / len(streamed) if decision.stream_weights else 0.0
    stage = "stage" if decision.stages == 1 else "stages"
    return (
        f"{decision.stages} {stage} (axis {decision.axis}: {of}), queue depth "
        f"{decision.queue_depth}{copies}, {decision.boundary} of steps, {decision.mode} mode"
        + (f", {percent(weights)} of the weights streamed" if weights else "")
    )


def busy(step_s: float, busy_s: Mapping[str, float], bottleneck: str) -> str:
    """What limits the step, and how busy each resource is."""
    ranked = sorted(busy_s, key=lambda name: (-busy_s[name], name))
    shares = [f"{name} {percent(busy_s[name] / step_s)}" for name in ranked if busy_s[name] > 0]
    return f"{bottleneck}; busy: {', '.join(shares)}"


def memory(used: Mapping[str, float], capacity: Mapping[str, float]) -> list[str]:
    """Each tier that is used or may be, against its budget."""
    return [
        f"{tier} {format_bytes(used.get(tier, 0.0))} of {format_bytes(capacity.get(tier, 0.0))}"
        for tier in sorted({*used, *capacity}, key=_tier_rank)
        if used.get(tier, 0.0) > 0 or capacity.get(tier, 0.0) > 0
    ]


def _tier_rank(tier: str) -> tuple[int, str]:
    known = ("hbm", "dram", "pinned", "disk")
    return (known.index(tier) if tier in known else len(known), tier)


def more(plan: Plan) -> list[str]:
    """What a little more of each resource would save; zeros are left out."""
    return [
        f"{value.what}: {format_seconds(value.saved_s)} per step"
        for value in plan.prediction.values
        if value.saved_s > 1e-4 * plan.prediction.step_s
    ]


def recompute_note(plan: Plan) -> str | None:
    """Why recomputing from host memory cannot help, where it cannot."""
    tp = plan.inputs.workload.tp
    layers = [run.layer for run in plan.inputs.model.layers if run.layer.kv_elements]
    ratios = [layer.act_over_kv() * min(tp, layer.cache_heads) for layer in layers]
    if not ratios or min(ratios) < 1:
        return None
    low, high = min(ratios), max(ratios)
    ratio = f"{low:.1f}x" if low == high else f"{low:.1f}x to {high:.1f}x"
    return f"activations are {ratio} the KV they rebuild: recompute from host memory cannot help"


def copies(found: Copies) -> str:
    """Copies of one direction."""
    parts = [f"{found.count} cop{'y' if found.count == 1 else 'ies'}"]
    if found.size_bytes is not None:
        parts.append(format_bytes(found.size_bytes))
    if found.bytes_per_s is not None:
        parts.append(format_rate(found.bytes_per_s))
    if found.median_bytes is not None and found.count > 1:
        parts.append(f"median size {format_bytes(found.median_bytes)}")
    if found.pageable_share:
        parts.append(f"{percent(found.pageable_share)} from pageable memory")
    return ", ".join(parts)


def uncounted_words(model: ModelSpec) -> str | None:
    """That some of a model's weights are not counted; None where all are."""
    if not model.uncounted:
        return None
    return f"weights of the language model alone, without its {' and '.join(model.uncounted)}"


def sparse_words(model: ModelSpec) -> str | None:
    """That a model attends a choice of tokens only; None where it attends all."""
    chosen = sum(layer.index > 0 and not layer.shared for layer in model.layers)
    if not chosen:
        return None
    layers = f"{chosen} of {len(model.layers)} layers choose" if chosen > 1 else "a layer chooses"
    return (
        f"sparse attention: {layers} by an index what a step attends; a step here reads all of the "
        "cache, so its time at long contexts is an upper bound"
    )
