"""Options that ask a question (`solve` and `compare` share them), and the scenario they mean."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from kvplan.cli.completion import complete_gpu, complete_model
from kvplan.cli.lists import shares, whole_numbers, words
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

_ASKED, _LOAD, _MEMORY = "Model and machine", "Workload", "Memory"
_SEARCH, _FIGURES = "Search", "Figures of the machine, changed"


def _option(panel: str, *names: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, **more)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed: one field per option, in the order of the help."""

    model: Annotated[str, _option(
        _ASKED, "--model", "-m", metavar="NAME|PATH", autocompletion=complete_model,
        help="Name, or a config.json; `kvplan models` lists names.")]  # fmt: skip
    gpu: Annotated[str, _option(
        _ASKED, "--gpu", "-g", metavar="NAME|PATH", autocompletion=complete_gpu,
        help="Name, or a .toml profile; `kvplan gpus` lists names.")]  # fmt: skip
    batch: Annotated[int, _option(_LOAD, "--batch", help="Sequences decoded together.")] = 32
    context: Annotated[str | None, _option(
        _LOAD, "--context", metavar="TOKENS", help="Tokens in the cache per sequence: 4096, 32k, "
        "128k. [default: 4096, or what the model has positions for]")] = None  # fmt: skip
    gen: Annotated[str, _option(
        _LOAD, "--gen", metavar="TOKENS",
        help="Tokens still to be generated; the plan is for the last one.")] = "0"  # fmt: skip
    kv_dtype: Annotated[str, _option(
        _LOAD, "--kv-dtype", metavar="FORMAT",
        help="Format of the cache: fp16, bf16, fp8, fp32.")] = "fp16"  # fmt: skip
    block: Annotated[int, _option(_LOAD, "--block", help="Tokens that share one decision.")] = 64
    micro_batches: Annotated[int, _option(
        _LOAD, "--micro-batches", help="Equal parts the batch is decoded in.")] = 1  # fmt: skip
    schedule: Annotated[str, _option(
        _LOAD, "--schedule", metavar="column|row",
        help="All micro-batches through a layer first, or one through all layers.",
    )] = "column"  # fmt: skip
    hbm: Annotated[str | None, _option(
        _MEMORY, "--hbm", metavar="SIZE", help="Most GPU memory to use, such as 40GiB.",
    )] = None  # fmt: skip
    utilisation: Annotated[float, _option(
        _MEMORY, "--utilisation", help="Share of the card's memory that may be used.")] = 0.9  # fmt: skip
    reserve: Annotated[str, _option(
        _MEMORY, "--reserve", metavar="SIZE", help="GPU memory kept free on top.")] = "0"  # fmt: skip
    dram: Annotated[str | None, _option(
        _MEMORY, "--dram", metavar="SIZE", help="Host memory to use. [default: all]",
    )] = None  # fmt: skip
    pinned: Annotated[str | None, _option(
        _MEMORY, "--pinned", metavar="SIZE", help="Most of it that may be page-locked.",
    )] = None  # fmt: skip
    disk: Annotated[str, _option(
        _MEMORY, "--disk", metavar="SIZE", help="Disk to use; 0 uses none.")] = "0"  # fmt: skip
    allow: Annotated[str | None, _option(
        _SEARCH, "--allow", metavar="FORMATS", help="Inexact formats that blocks may be stored in: "
        "int8,int4; int8:0.5 is at most half of the tokens. [default: exact only]",
    )] = None  # fmt: skip
    paths: Annotated[str | None, _option(
        _SEARCH, "--paths", metavar="NAMES", help="Only these ways to reach a token's KV, such as "
        "resident,fetch,recompute. [default: all the machine has figures for]",
    )] = None  # fmt: skip
    axis: Annotated[str, _option(
        _SEARCH, "--axis", metavar="token|layer",
        help="Stages are token ranges in a layer, or groups of layers.")] = "token,layer"  # fmt: skip
    stages: Annotated[str, _option(
        _SEARCH, "--stages", metavar="RANGE", help="Stages to try: 4..8, 4-8 or 4,6.",
    )] = "4..8"  # fmt: skip
    queue_depth: Annotated[str, _option(
        _SEARCH, "--queue-depth", metavar="RANGE", help="Staging buffers in flight to try.",
    )] = "2..4"  # fmt: skip
    boundary: Annotated[str, _option(
        _SEARCH, "--boundary", metavar="overlap|barrier",
        help="Whether copies for the next step may start in the tail of this one.",
    )] = "overlap"  # fmt: skip
    mode: Annotated[str, _option(
        _SEARCH, "--mode", metavar="graph|eager",
        help="CUDA graph, or kernels launched one by one.")] = "graph"  # fmt: skip
    weights: Annotated[str, _option(
        _SEARCH, "--weights", metavar="auto|resident|streamed",
        help="auto streams them only where they do not fit.")] = "auto"  # fmt: skip
    objective: Annotated[str, _option(
        _SEARCH, "--objective", metavar="latency", help="What to minimise.")] = "latency"  # fmt: skip
    h2d: Annotated[str | None, _option(
        _FIGURES, "--h2d", metavar="RATE", help="Link to the GPU, such as 25GB/s.")] = None  # fmt: skip
    flops: Annotated[str | None, _option(
        _FIGURES, "--flops", metavar="RATE", help="Achieved fp16 rate, such as 250TFLOP/s.",
    )] = None  # fmt: skip
    hbm_bandwidth: Annotated[str | None, _option(
        _FIGURES, "--hbm-bandwidth", metavar="RATE", help="GPU memory, such as 1.5TB/s.",
    )] = None  # fmt: skip
    host_attention: Annotated[str | None, _option(
        _FIGURES, "--host-attention", metavar="RATE",
        help="Attention on the CPU, such as 70GB/s.")] = None  # fmt: skip


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Request`: it gets them as its first argument.

    Errors name options as they are typed.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(Request, include_extras=True)
    asked = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[field.name],
            default=inspect.Parameter.empty
            if field.default is dataclasses.MISSING else field.default,
        )
        for field in dataclasses.fields(Request)
    ]  # fmt: skip
    parameters = asked + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

    def asking(**given: Any) -> None:
        request = Request(**{p.name: given.pop(p.name) for p in asked})
        try:
            command(request, **given)
        except InputError as error:
            raise as_typed(error) from error

    asking.__doc__ = command.__doc__
    asking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    asking.__annotations__ = {p.name: p.annotation for p in parameters}
    return asking


_SPELLED = {
    "axes": "axis", "queue_depths": "queue_depth", "hbm_bytes": "hbm", "reserve_bytes": "reserve",
    "dram_bytes": "dram", "pinned_bytes": "pinned", "disk_bytes": "disk",
    "h2d_bytes_per_s": "h2d", "flop_per_s": "flops", "hbm_bytes_per_s": "hbm_bandwidth",
    "host_attention_bytes_per_s": "host_attention", "output": "o",
} | {field.name: field.name for field in dataclasses.fields(Request)}  # fmt: skip
"""Field of a specification to the option that sets it."""


def as_typed(error: InputError) -> InputError:
    """The same error, its field spelled as the option that sets it.

    >>> as_typed(InputError("kv_dtype", "fp7", "fp16")).field
    '--kv-dtype'
    """
    word, _, rest = error.field.partition(" ")
    if word not in _SPELLED:
        return error
    option = _SPELLED[word].replace("_", "-")
    dashes = "-" if len(option) == 1 else "--"
    return InputError(f"{dashes}{option} {rest}".strip(), error.value, error.accepted)


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
    import os

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
    from kvplan.workload import Workload

    gen = parse_tokens(request.gen, "--gen")
    if request.context is not None:
        context = parse_tokens(request.context, "--context")
    else:
        room = (model.max_positions or DEFAULT_CONTEXT) - gen
        context = max(min(DEFAULT_CONTEXT, room), 1)
    return Workload(
        batch=request.batch, context=context, gen=gen, kv_dtype=request.kv_dtype,
        block=request.block, micro_batches=request.micro_batches, schedule=request.schedule,
    )  # fmt: skip


def _budgets(request: Request, hardware: HardwareProfile) -> Budgets:
    from kvplan.workload import Budgets

    def size(name: str) -> int | None:
        text = getattr(request, name)
        return None if text is None else parse_bytes(text, f"--{name}")

    disk = size("disk") or 0
    if disk and hardware.disk is None:
        raise InputError("--disk", request.disk, f"0: {hardware.name} has no figures for a disk")
    return Budgets(
        hbm_bytes=size("hbm"), utilisation=request.utilisation, reserve_bytes=size("reserve") or 0,
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
            f"--utilisation {request.utilisation:g}; the smaller one counts"
        )
    searched = {path.name for paths in scenario.paths.values() for path in paths}
    if request.host_attention is not None and "attend_host" not in searched:
        found.append(
            "--host-attention changes nothing: attend_host is not among the paths searched; "
            "name it in --paths"
        )
    return found
