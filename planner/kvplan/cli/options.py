"""Options that ask a question; `solve` and `compare` share them."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from kvplan.cli.declarations import (
    ASKED,
    FIGURES,
    MEMORY,
    Flops,
    Gpu,
    H2d,
    Hbm,
    HbmBandwidth,
    Model,
    Reserve,
    Utilisation,
    kv_dtype_option,
    mode_option,
    panel_option,
)
from kvplan.errors import InputError

_LOAD, _SEARCH = "Workload", "Search"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed: one field per option, in the order of the help."""

    model: Model
    gpu: Gpu
    batch: Annotated[str | None, panel_option(
        _LOAD, "--batch", metavar="N", help="Sequences decoded together. With --objective "
        "throughput the most that may be, a range such as 8..64, or auto. [default: 32; auto]",
        )] = None
    context: Annotated[str | None, panel_option(
        _LOAD, "--context", metavar="TOKENS", help="Tokens in the cache per sequence: 4096, 32k, "
        "128k. [default: 4096, or what the model has positions for]")] = None
    gen: Annotated[str, panel_option(
        _LOAD, "--gen", metavar="TOKENS",
        help="Tokens still to be generated; the plan is for the last one.")] = "0"
    new_tokens: Annotated[str | None, panel_option(
        _LOAD, "--new-tokens", metavar="N", help="Tokens each sequence decodes in one step, such "
        "as a draft that is verified. [default: 1, or those of --scale]")] = None
    scale: Annotated[str | None, panel_option(
        _LOAD, "--scale", metavar="K", help="Scale of a visual autoregressive model that the step "
        "decodes, all before it cached. [default: the last one]")] = None
    segments: Annotated[str | None, panel_option(
        _LOAD, "--segments", metavar="N", help="Plan the whole generation, in N segments with "
        "decisions of their own, or auto. [default: only the last step is planned]")] = None
    tp: Annotated[str, panel_option(
        ASKED, "--tp", metavar="N", help="GPUs that share every layer (tensor parallelism).",
        )] = "1"
    kv_dtype: Annotated[str, kv_dtype_option(_LOAD)] = "fp16"
    block: Annotated[str, panel_option(
        _LOAD, "--block", metavar="TOKENS", help="Tokens that share one decision.")] = "64"
    micro_batches: Annotated[str | None, panel_option(
        _LOAD, "--micro-batches", metavar="N", help="Equal parts the batch is decoded in; with "
        "--objective throughput those to try, such as 1,2,4, or auto. [default: 1; auto]")] = None
    schedule: Annotated[str | None, panel_option(
        _LOAD, "--schedule", metavar="column|row", help="All micro-batches through a layer first, "
        "or one through all layers. [default: column; both for throughput]")] = None
    source_tokens: Annotated[str | None, panel_option(
        _LOAD, "--source-tokens", metavar="TOKENS", help="Tokens of the source (text, sound, "
        "image) that cross-attention reads. [default: what the model fixes]")] = None
    hbm: Hbm = None
    utilisation: Utilisation = "0.9"
    reserve: Reserve = "0"
    dram: Annotated[str | None, panel_option(
        MEMORY, "--dram", metavar="SIZE", help="Host memory to use. [default: all]")] = None
    pinned: Annotated[str | None, panel_option(
        MEMORY, "--pinned", metavar="SIZE",
        help="Most of it that may be page-locked. [default: all]")] = None
    uplink: Annotated[str | None, panel_option(
        MEMORY, "--uplink", metavar="RATE", help="What all GPUs of --tp together get from host "
        "memory, such as 25GB/s. [default: each its own link]")] = None
    disk: Annotated[str, panel_option(
        MEMORY, "--disk", metavar="SIZE", help="Disk to use; 0 uses none.")] = "0"
    allow: Annotated[str | None, panel_option(
        _SEARCH, "--allow", metavar="FORMATS", help="Inexact formats that blocks may be stored in: "
        "int8,int4; int8:0.5 is at most half of the tokens. [default: exact only]")] = None
    paths: Annotated[str | None, panel_option(
        _SEARCH, "--paths", metavar="NAMES", help="Only these ways to reach a token's KV, such as "
        "resident,fetch,recompute. [default: all the machine has figures for]")] = None
    axis: Annotated[str, panel_option(
        _SEARCH, "--axis", metavar="token|layer",
        help="Stages are token ranges in a layer, or groups of layers.")] = "token,layer"
    stages: Annotated[str, panel_option(
        _SEARCH, "--stages", metavar="RANGE",
        help="Stages to try: 4..8, 4-8 or 4,6.")] = "4..8"
    queue_depth: Annotated[str, panel_option(
        _SEARCH, "--queue-depth", metavar="RANGE",
        help="Staging buffers in flight to try.")] = "2..4"
    boundary: Annotated[str, panel_option(
        _SEARCH, "--boundary", metavar="overlap|barrier",
        help="Whether copies for the next step may start in the tail of this one.")] = "overlap"
    mode: Annotated[str, mode_option(_SEARCH)] = "graph"
    weights: Annotated[str, panel_option(
        _SEARCH, "--weights", metavar="auto|resident|streamed",
        help="auto streams them only where they do not fit.")] = "auto"
    flexgen: Annotated[str | None, panel_option(
        _SEARCH, "--flexgen", metavar="PERCENTAGES", help="FlexGen's six --percent numbers for "
        "its baseline, such as 20,80,0,100,0,100. [default: its own search]")] = None
    good_gap: Annotated[str, panel_option(
        _SEARCH, "--good-gap", metavar="SHARE", help="Proven distance from the optimum that is "
        "good enough: a smaller one is looked for longer; above 1% the first such plan is taken.")
        ] = "1%"
    layer_budget: Annotated[str | None, panel_option(
        _SEARCH, "--layer-budget", metavar="FILE|RULE", help="Tokens each layer keeps after "
        "eviction (not exact): a JSON file, pyramid:2048, pyramid:0.12, or scalekv:0.1:0,23 with "
        "its drafters.")] = None
    objective: Annotated[str, panel_option(
        _SEARCH, "--objective", metavar="latency|throughput",
        help="The shortest step of this batch, or most tokens/s over batches.")] = "latency"
    max_step_latency: Annotated[str | None, panel_option(
        _SEARCH, "--max-step-latency", "--slo", metavar="TIME",
        help="Longest decode step (TPOT) that is accepted, such as 100ms.")] = None
    link: Annotated[str | None, panel_option(
        FIGURES, "--link", metavar="SLOT", help="PCIe slot of the GPU, such as pcie4x8: the "
        "profile's rates move in proportion.")] = None
    h2d: H2d = None
    flops: Flops = None
    hbm_bandwidth: HbmBandwidth = None
    host_attention: Annotated[str | None, panel_option(
        FIGURES, "--host-attention", metavar="RATE",
        help="Attention on the CPU, such as 70GB/s.")] = None
# fmt: on


_SPELLED = {
    "axes": "axis",
    "queue_depths": "queue_depth",
    "hbm_bytes": "hbm",
    "reserve_bytes": "reserve",
    "dram_bytes": "dram",
    "pinned_bytes": "pinned",
    "disk_bytes": "disk",
    "link_generation": "link",
    "link_lanes": "link",
    "h2d_bytes_per_s": "h2d",
    "flop_per_s": "flops",
    "hbm_bytes_per_s": "hbm_bandwidth",
    "host_attention_bytes_per_s": "host_attention",
    "max_step_s": "max_step_latency",
    "batches": "batch",
    "layer_tokens": "layer_budget",
    "uplink_bytes_per_s": "uplink",
    "output": "o",
    "block_size": "block_size",
    "chunk": "chunk",
    "tp": "tp",
    "pp": "pp",
    "ranks": "ranks",
    "buffers": "buffers",
    "available": "available",
    "size_bytes": "size",
    "piece_bytes": "piece",
    "direction": "direction",
    "memory": "memory",
    "gpus": "gpus",
    "depth": "depth",
} | {field.name: field.name for field in dataclasses.fields(Request)}
"""Field of a specification to the option that sets it."""


Command = Callable[..., None]


def asks(command: Command) -> Command:
    """Give a command the options of `Request`: it gets them as its first argument."""
    return asks_for(Request, _SPELLED)(command)


def asks_for(kind: type[Any], spelled: Mapping[str, str]) -> Callable[[Command], Command]:
    """Give a command the options of a class of requests: it gets one as its first argument.

    Errors name options as they are typed.

    Args:
        kind: a dataclass whose fields are annotated with options.
        spelled: field of a specification to the option that sets it, beside the class's own.
    """
    options = {field.name: field.name for field in dataclasses.fields(kind)} | dict(spelled)

    def asking_for(command: Command) -> Command:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        hints = get_type_hints(kind, include_extras=True)
        asked = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hints[field.name],
                default=inspect.Parameter.empty
                if field.default is dataclasses.MISSING
                else field.default,
            )
            for field in dataclasses.fields(kind)
        ]
        parameters = asked + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]

        def asking(**given: Any) -> None:
            request = kind(**{p.name: given.pop(p.name) for p in asked})
            try:
                command(request, **given)
            except InputError as error:
                raise as_typed(error, options) from error

        asking.__doc__ = command.__doc__
        asking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        asking.__annotations__ = {p.name: p.annotation for p in parameters}
        return asking

    return asking_for


@contextlib.contextmanager
def as_option() -> Iterator[None]:
    """Errors about a field become errors about the option that sets it."""
    try:
        yield
    except InputError as error:
        raise as_typed(error) from error


def as_typed(error: InputError, spelled: Mapping[str, str] = _SPELLED) -> InputError:
    """The same error, its field spelled as the option that sets it.

    >>> as_typed(InputError("kv_dtype", "fp7", "fp16")).field
    '--kv-dtype'
    """
    word, _, rest = error.field.partition(" ")
    if word not in spelled:
        return error
    option = spelled[word].replace("_", "-")
    dashes = "-" if len(option) == 1 else "--"
    return InputError(f"{dashes}{option} {rest}".strip(), error.value, error.accepted)
