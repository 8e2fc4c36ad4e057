"""The question that options ask: a `Request` turned into a `Scenario`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from kvplan.cli.options import Request
from kvplan.cli.overrides import overrides_of
from kvplan.cli.values import (
    number_or_range,
    percentages,
    share,
    shares,
    size,
    whole_number,
    whole_numbers,
    words,
)
from kvplan.errors import InputError
from kvplan.formats import cache_dtype
from kvplan.slot import parse_link
from kvplan.units import format_bytes, parse_rate, parse_seconds, parse_tokens

if TYPE_CHECKING:
    from kvplan.hardware import HardwareProfile
    from kvplan.model import ModelSpec
    from kvplan.objective import Objective
    from kvplan.scenario import Options, Scenario
    from kvplan.workload import Budgets, Workload

DEFAULT_BATCH = "32"
"""Sequences, where ``--batch`` is not given and the batch is not to be chosen."""

DEFAULT_CONTEXT = 4096
"""Tokens, where the model has as many positions and ``--context`` is not given."""

LARGEST_BUDGET_FILE = 1 << 22
"""Bytes read of a file of layer budgets."""

MOST_STAGES, DEEPEST_QUEUE = 64, 16
"""Most that a search is asked to try."""


def scenario_of(request: Request) -> tuple[Scenario, list[str]]:
    """The scenario a request means, and what the person should know about it.

    Raises:
        InputError: an option that is not accepted.
    """
    from kvplan.hardware import override
    from kvplan.hardware_library import load_hardware
    from kvplan.model_library import load_model
    from kvplan.scenario import Scenario

    objective = _objective(request)
    model = load_model(text_of("--model", request.model))
    hardware = load_hardware(text_of("--gpu", request.gpu))
    overrides = _overrides(request)
    scenario = Scenario(
        model=model, hardware=override(hardware, **overrides) if overrides else hardware,  # type: ignore[arg-type]
        workload=_workload(request, model, objective), budgets=_budgets(request, hardware),
        options=_choices(request), overrides=overrides, objective=objective,
        hardware_file=request.gpu if is_profile_path(request.gpu) else None,
    )  # fmt: skip
    from kvplan.ranks import planned_with

    return planned_with(scenario), _warnings(request, scenario)


def is_profile_path(gpu: str) -> bool:
    """Whether ``--gpu`` means a file, as `load_hardware` takes it."""
    return gpu.endswith(".toml") or os.sep in gpu


def text_of(field: str, text: str) -> str:
    """A text that can be written to a plan: bytes that are not UTF-8 are refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(field, text, "text in UTF-8") from None
    return text


def _overrides(request: Request) -> dict[str, float]:
    slot: dict[str, float] = {}
    if request.link is not None:
        generation, lanes = parse_link(request.link)
        slot = {"link_generation": float(generation), "link_lanes": float(lanes)}
    return slot | overrides_of(request)


def _objective(request: Request) -> Objective:
    """What to be best at; for throughput, the batches that may be chosen from."""
    from kvplan.objective import Objective
    from kvplan.workload import MAX_BATCH

    limit = request.max_step_latency
    limit_s = None if limit is None else parse_seconds(limit, "--max-step-latency")
    goal = request.objective
    asked: dict[str, Any] = {}
    if goal == "throughput":
        batch, parts, order = (_given(t) for t in (
            request.batch, request.micro_batches, request.schedule))  # fmt: skip
        if batch is not None:
            low, high = number_or_range(batch, "--batch", MAX_BATCH)
            asked["batches"] = (1 if low is None else low, high)
        if parts is not None:
            asked["micro_batches"] = whole_numbers(parts, "--micro-batches", MAX_BATCH)
        if order is not None:
            asked["schedules"] = words(order, "--schedule")
    if request.segments is not None:
        asked["segments"] = _segments(request)
    return Objective(goal=goal, max_step_s=limit_s, **asked)


def _segments(request: Request) -> int:
    """Parts of the generation to plan."""
    from kvplan.objective import AUTO_SEGMENTS, MOST_SEGMENTS

    if parse_tokens(request.gen, "--gen") < 1:
        raise InputError("--segments", request.segments, "a generation: give --gen, such as 512")
    text = _given(request.segments)
    return AUTO_SEGMENTS if text is None else whole_number(text, "--segments", MOST_SEGMENTS)


def _given(text: str | None) -> str | None:
    """What was typed, or None where the choice is left open."""
    return None if text is None or text.strip() == "auto" else text


def _batching(request: Request, objective: Objective) -> dict[str, Any]:
    """Batch, micro-batches and order; the least of them where they are to be chosen."""
    from kvplan.workload import MAX_BATCH

    if objective.seeks_throughput:
        return {"batch": objective.batches[0]}
    for name, text in (("--batch", request.batch), ("--micro-batches", request.micro_batches),
                       ("--schedule", request.schedule)):  # fmt: skip
        if text is not None and _given(text) is None:
            accepted = "one value; auto goes with --objective throughput"
            raise InputError(name, text, accepted)
    return {
        "batch": whole_number(request.batch or DEFAULT_BATCH, "--batch", MAX_BATCH),
        "micro_batches": whole_number(request.micro_batches or "1", "--micro-batches", MAX_BATCH),
        "schedule": "column" if request.schedule is None else request.schedule,
    }


def _workload(request: Request, model: ModelSpec, objective: Objective) -> Workload:
    from kvplan.workload import MAX_NEW, MAX_RANKS, Workload

    gen = parse_tokens(request.gen, "--gen")
    scale = _scale(request, model)
    new = 1 if scale is None else model.scales[scale - 1]
    if request.new_tokens is not None:
        new = whole_number(request.new_tokens, "--new-tokens", MAX_NEW)
    if request.context is not None:
        context = parse_tokens(request.context, "--context")
    elif scale is not None:
        context = sum(model.scales[: scale - 1])
    else:
        room = (model.max_positions or DEFAULT_CONTEXT) - gen
        context = max(min(DEFAULT_CONTEXT, room), 1)
    if new > 1 and (objective.seeks_throughput or request.segments is not None):
        option = "--segments" if request.segments is not None else "--objective throughput"
        accepted = f"1 with {option}: a step of one new token per sequence is repeated"
        raise InputError("--new-tokens" if scale is None else "--scale", new, accepted)
    return Workload(
        context=context,
        new_tokens=new,
        gen=gen,
        kv_dtype=cache_dtype(request.kv_dtype, "--kv-dtype"),
        block=parse_tokens(request.block, "--block"),
        tp=whole_number(request.tp, "--tp", MAX_RANKS),
        layer_tokens=_layer_tokens(request, model, context),
        **_batching(request, objective),
        source_tokens=None if request.source_tokens is None
        else parse_tokens(request.source_tokens, "--source-tokens"),
    )  # fmt: skip


def _scale(request: Request, model: ModelSpec) -> int | None:
    """The scale that a step decodes, from 1; None where the model has none, or its tokens are given
    by hand.
    """
    if request.scale is None:
        by_hand = request.context is not None or request.new_tokens is not None
        return None if by_hand or len(model.scales) < 2 else len(model.scales)
    if len(model.scales) < 2:
        accepted = f"left out: {model.name} does not decode scale by scale"
        raise InputError("--scale", request.scale, accepted)
    scale = whole_number(request.scale, "--scale", len(model.scales))
    if scale == 1:
        raise InputError("--scale", 1, f"2 to {len(model.scales)}: nothing is cached before it")
    return scale


def _layer_tokens(request: Request, model: ModelSpec, context: int) -> tuple[int, ...] | None:
    """Tokens each layer keeps, from a rule or a file."""
    from kvplan.layer_budget import from_document, parse_budget

    text, option = request.layer_budget, "--layer-budget"
    if text is None:
        return None
    layers = len(model.layers)
    if not (text.endswith(".json") or os.sep in text):
        return tuple(parse_budget(text, layers, context, option))
    try:
        with open(text, "rb") as stream:
            raw = stream.read(LARGEST_BUDGET_FILE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(option, text, f"a file that can be read ({reason})") from None
    return tuple(from_document(raw, layers, context, option))


def _budgets(request: Request, hardware: HardwareProfile) -> Budgets:
    from kvplan.workload import Budgets

    disk = size(request.disk, "--disk") or 0
    if disk and hardware.disk is None and not hardware.unified:
        raise InputError("--disk", request.disk, f"0: {hardware.name} has no figures for a disk")
    return Budgets(
        hbm_bytes=size(request.hbm, "--hbm"),
        utilisation=share(request.utilisation, "--utilisation"),
        reserve_bytes=size(request.reserve, "--reserve") or 0,
        dram_bytes=size(request.dram, "--dram"), pinned_bytes=size(request.pinned, "--pinned"),
        disk_bytes=disk,
        uplink_bytes_per_s=_uplink(request),
    )  # fmt: skip


def _uplink(request: Request) -> float | None:
    return None if request.uplink is None else parse_rate(request.uplink, "--uplink")


def _choices(request: Request) -> Options:
    from kvplan.scenario import Options

    return Options(
        paths=None if request.paths is None else words(request.paths, "--paths"),
        allow={} if request.allow is None else shares(request.allow, "--allow"),
        axes=words(request.axis, "--axis"),
        stages=whole_numbers(request.stages, "--stages", MOST_STAGES),
        queue_depths=whole_numbers(request.queue_depth, "--queue-depth", DEEPEST_QUEUE),
        boundary=request.boundary, mode=request.mode, weights=request.weights,
        flexgen=None if request.flexgen is None else percentages(request.flexgen, "--flexgen"),
        good_gap=share(request.good_gap, "--good-gap", such_as="0.01 or 5%"),
    )  # fmt: skip


def _own_generation(request: Request) -> float:
    """PCIe generation that the card itself has, as its profile states."""
    from kvplan.hardware_library import load_hardware

    links = load_hardware(request.gpu).links
    return (links and links.slot and links.slot.generation) or float("inf")


def _warnings(request: Request, scenario: Scenario) -> list[str]:
    """What is accepted and yet likely not what was meant."""
    from kvplan.wording import sparse_words, uncounted_words

    found = []
    model, workload, card = scenario.model, scenario.workload, scenario.hardware.gpu
    if model.max_positions is not None and workload.tokens > model.max_positions:
        found.append(
            f"{workload.tokens} tokens are more than the {model.max_positions} positions of "
            f"{model.name}; planned all the same"
        )
    if scenario.overrides.get("link_generation", 0) > _own_generation(request):
        found.append(
            f"--link {request.link} is faster than the card's own link; planned as a what-if"
        )
    offered = card.memory_bytes * scenario.budgets.utilisation
    if scenario.budgets.hbm_bytes is not None and scenario.budgets.hbm_bytes > offered:
        found.append(
            f"--hbm {request.hbm} is more than the {format_bytes(offered)} of {card.name} at "
            f"--utilisation {request.utilisation}; the smaller one counts"
        )
    searched = {path.name for paths in scenario.paths.values() for path in paths}
    if request.host_attention is not None and "attend_host" not in searched:
        found.append(
            "--host-attention changes nothing: attend_host is not among the paths searched; "
            "name it in --paths"
        )
    return found + [words for words in (sparse_words(model), uncounted_words(model)) if words]
