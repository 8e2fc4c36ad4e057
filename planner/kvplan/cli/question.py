"""The question that options ask: a `Request` turned into a `Scenario`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvplan.cli.options import Request
from kvplan.cli.values import share, shares, whole_number, whole_numbers, words
from kvplan.errors import InputError
from kvplan.units import format_bytes, parse_bytes, parse_flops, parse_rate, parse_tokens

if TYPE_CHECKING:
    from kvplan.hardware import HardwareProfile
    from kvplan.model import ModelSpec
    from kvplan.scenario import Options, Scenario
    from kvplan.workload import Budgets, Workload

DEFAULT_CONTEXT = 4096
"""Tokens, where the model has as many positions and ``--context`` is not given."""

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

    if request.objective != "latency":
        later = " (throughput is not available yet)" * (request.objective == "throughput")
        raise InputError("--objective", request.objective, "latency" + later)
    model = load_model(_text("--model", request.model))
    hardware = load_hardware(_text("--gpu", request.gpu))
    overrides = _overrides(request)
    scenario = Scenario(
        model=model, hardware=override(hardware, **overrides) if overrides else hardware,  # type: ignore[arg-type]
        workload=_workload(request, model), budgets=_budgets(request, hardware),
        options=_choices(request), overrides=overrides,
        hardware_file=request.gpu if is_profile_path(request.gpu) else None,
    )  # fmt: skip
    return scenario, _warnings(request, scenario)


def is_profile_path(gpu: str) -> bool:
    """Whether ``--gpu`` means a file, as `load_hardware` takes it."""
    return gpu.endswith(".toml") or os.sep in gpu


def _text(field: str, text: str) -> str:
    """A text that can be written to a plan: bytes that are not UTF-8 are refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(field, text, "text in UTF-8") from None
    return text


def _overrides(request: Request) -> dict[str, float]:
    readers = {
        "h2d_bytes_per_s": (parse_rate, "--h2d", request.h2d),
        "flop_per_s": (parse_flops, "--flops", request.flops),
        "hbm_bytes_per_s": (parse_rate, "--hbm-bandwidth", request.hbm_bandwidth),
        "host_attention_bytes_per_s": (parse_rate, "--host-attention", request.host_attention),
    }
    return {
        name: read(text, option)
        for name, (read, option, text) in readers.items()
        if text is not None
    }


def _workload(request: Request, model: ModelSpec) -> Workload:
    from kvplan.workload import MAX_BATCH, Workload

    gen = parse_tokens(request.gen, "--gen")
    if request.context is not None:
        context = parse_tokens(request.context, "--context")
    else:
        room = (model.max_positions or DEFAULT_CONTEXT) - gen
        context = max(min(DEFAULT_CONTEXT, room), 1)
    return Workload(
        batch=whole_number(request.batch, "--batch", MAX_BATCH),
        context=context,
        gen=gen,
        kv_dtype=request.kv_dtype,
        block=parse_tokens(request.block, "--block"),
        micro_batches=whole_number(request.micro_batches, "--micro-batches", MAX_BATCH),
        schedule=request.schedule,
    )


def _budgets(request: Request, hardware: HardwareProfile) -> Budgets:
    from kvplan.workload import Budgets

    def size(name: str) -> int | None:
        text = getattr(request, name)
        return None if text is None else parse_bytes(text, f"--{name}")

    disk = size("disk") or 0
    if disk and hardware.disk is None:
        raise InputError("--disk", request.disk, f"0: {hardware.name} has no figures for a disk")
    return Budgets(
        hbm_bytes=size("hbm"), utilisation=share(request.utilisation, "--utilisation"),
        reserve_bytes=size("reserve") or 0,
        dram_bytes=size("dram"), pinned_bytes=size("pinned"), disk_bytes=disk,
    )  # fmt: skip


def _choices(request: Request) -> Options:
    from kvplan.scenario import Options

    return Options(
        paths=None if request.paths is None else words(request.paths, "--paths"),
        allow={} if request.allow is None else shares(request.allow, "--allow"),
        axes=words(request.axis, "--axis"),
        stages=whole_numbers(request.stages, "--stages", MOST_STAGES),
        queue_depths=whole_numbers(request.queue_depth, "--queue-depth", DEEPEST_QUEUE),
        boundary=request.boundary, mode=request.mode, weights=request.weights,
    )  # fmt: skip


def _warnings(request: Request, scenario: Scenario) -> list[str]:
    """What is accepted and yet likely not what was meant."""
    found = []
    model, workload, card = scenario.model, scenario.workload, scenario.hardware.gpu
    if model.max_positions is not None and workload.tokens > model.max_positions:
        found.append(
            f"{workload.tokens} tokens are more than the {model.max_positions} positions of "
            f"{model.name}; planned all the same"
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
    return found
