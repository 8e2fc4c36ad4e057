"""Options of ``kvplan restore``, and the question they ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from kvplan.cli.declarations import (
    ASKED,
    FIGURES,
    MEMORY,
    MOST_RANKS,
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
from kvplan.cli.overrides import overrides_of
from kvplan.cli.question import is_profile_path, text_of
from kvplan.cli.values import share, share_below_one, size, whole_number, words
from kvplan.formats import cache_dtype
from kvplan.units import parse_flops, parse_token_rate, parse_tokens

if TYPE_CHECKING:
    from kvplan.restoration import Restoration

_LOAD, _STORE, _USE = "Requests", "Store", "Computing"


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """What was typed: one field per option, in the order of the help."""

    model: Model
    gpu: Gpu
    tp: Annotated[str, panel_option(
        ASKED, "--tp", metavar="N",
        help="Ranks that heads and MLP are divided over; figures are of one rank.")] = "1"
    prefix: Annotated[str, panel_option(
        _LOAD, "--prefix", metavar="TOKENS", help="Known tokens: 4096, 32k.")]
    suffix: Annotated[str, panel_option(
        _LOAD, "--suffix", metavar="TOKENS", help="New tokens behind them.")] = "64"
    concurrency: Annotated[str, panel_option(
        _LOAD, "--concurrency", "--batch", metavar="N",
        help="Such requests that arrive together; restored one after the other.")] = "1"
    prefixes: Annotated[str | None, panel_option(
        _LOAD, "--prefixes", metavar="N", help="Different prefixes in use, drawn at random: how "
        "often one is still in HBM or in the store.")] = None
    source: Annotated[str, panel_option(
        _STORE, "--from", metavar="dram|disk", help="Where the prefix waits.")] = "dram"
    ways: Annotated[str, panel_option(
        _STORE, "--ways", metavar="NAMES",
        help="Only these; rebuild needs activations to have been stored.",
        )] = "load,recompute,rebuild,split"
    kv_dtype: Annotated[str, kv_dtype_option(_STORE)] = "fp16"
    stored_as: Annotated[str | None, panel_option(
        _STORE, "--stored-as", metavar="FORMAT", help="Smaller format that K and V are stored in: "
        "int8 or int4. [default: as in the cache]")] = None
    block: Annotated[str, panel_option(
        _STORE, "--block", metavar="TOKENS", help="Tokens per block of the store.")] = "16"
    granularity: Annotated[str, panel_option(
        _STORE, "--granularity", metavar="NAME", help="What one copy is: layer (a layer's tokens), "
        "block (of one layer), split-block (its K or its V), whole-block (of all layers).",
        )] = "layer"
    pageable: Annotated[bool, panel_option(
        _STORE, "--pageable/--pinned", help="Whether host memory is page-locked.")] = False
    chunk: Annotated[str, panel_option(
        _USE, "--chunk", metavar="TOKENS", help="Most tokens computed together.")] = "2048"
    overlap: Annotated[bool, panel_option(
        _USE, "--overlap/--no-overlap",
        help="Whether new tokens are computed layer by layer as K and V arrive.")] = True
    mode: Annotated[str, mode_option(_USE)] = "graph"
    gpu_busy: Annotated[str, panel_option(
        _USE, "--gpu-busy", metavar="SHARE", help="Share of the GPU's time others take.")] = "0"
    link_busy: Annotated[str, panel_option(
        _USE, "--link-busy", metavar="SHARE", help="Share of the link's time others take.")] = "0"
    hbm: Hbm = None
    utilisation: Utilisation = "0.9"
    reserve: Reserve = "0"
    dram: Annotated[str | None, panel_option(
        MEMORY, "--dram", metavar="SIZE",
        help="Host memory of the store, all ranks together. [default: all]")] = None
    h2d: H2d = None
    disk_bandwidth: Annotated[str | None, panel_option(
        FIGURES, "--disk-bandwidth", metavar="RATE", help="Reads, such as 6GB/s.")] = None
    pageable_bandwidth: Annotated[str | None, panel_option(
        FIGURES, "--pageable-bandwidth", metavar="RATE",
        help="Copies from memory that is not pinned.")] = None
    flops: Flops = None
    attention_flops: Annotated[str | None, panel_option(
        FIGURES, "--attention-flops", metavar="RATE",
        help="Prefill attention. [default: 0.8 of --flops]")] = None
    prefill_rate: Annotated[str | None, panel_option(
        FIGURES, "--prefill-rate", metavar="TOKENS/S",
        help="Measured rate of computing this prefix, such as 37000.")] = None
    hbm_bandwidth: HbmBandwidth = None
# fmt: on


SPELLED = {
    "suffix": "suffix",
    "concurrency": "concurrency",
    "from": "from",
    "stored_as": "stored_as",
    "hbm_bytes": "hbm",
    "reserve_bytes": "reserve",
    "dram_bytes": "dram",
    "h2d_bytes_per_s": "h2d",
    "disk_bytes_per_s": "disk_bandwidth",
    "pageable_bytes_per_s": "pageable_bandwidth",
    "flop_per_s": "flops",
    "hbm_bytes_per_s": "hbm_bandwidth",
    "output": "o",
}
"""Field of a specification to the option that sets it, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a request means.

    Args:
        restoration: one rank's model, the machine, the prefix.
        ways: ways that may be used.
        prefixes: different prefixes in use, if that was asked.
        overrides: figures changed by hand.
        hardware_file: the profile's file, if it is not in the library.
        warnings: what is accepted and yet likely not what was meant.
    """

    restoration: Restoration
    ways: tuple[str, ...]
    prefixes: int | None
    overrides: dict[str, float]
    hardware_file: str | None
    warnings: tuple[str, ...]


def question_of(request: RestoreRequest) -> Question:
    """The question a request means.

    Raises:
        InputError: an option that is not accepted.
    """
    from kvplan.hardware import override
    from kvplan.hardware_library import load_hardware
    from kvplan.hits import MOST_PREFIXES
    from kvplan.model_library import load_model
    from kvplan.prefix import MOST_REQUESTS, Prefix
    from kvplan.ranks import rank_budgets, rank_hardware, rank_model
    from kvplan.restoration import Restoration
    from kvplan.workload import Budgets

    model = load_model(text_of("--model", request.model))
    hardware = load_hardware(text_of("--gpu", request.gpu))
    overrides = overrides_of(request)
    rate, attending = request.prefill_rate, request.attention_flops
    prefix = Prefix(
        tokens=parse_tokens(request.prefix, "--prefix"),
        suffix=parse_tokens(request.suffix, "--suffix"),
        requests=whole_number(request.concurrency, "--concurrency", MOST_REQUESTS),
        source=request.source,
        kv_dtype=cache_dtype(request.kv_dtype, "--kv-dtype"),
        stored_dtype=request.stored_as,
        block=parse_tokens(request.block, "--block"),
        chunk=parse_tokens(request.chunk, "--chunk"),
        granularity=request.granularity,
        overlap=request.overlap,
        pinned=not request.pageable,
        gpu_busy=share_below_one(request.gpu_busy, "--gpu-busy"),
        link_busy=share_below_one(request.link_busy, "--link-busy"),
        prefill_tokens_per_s=None if rate is None else parse_token_rate(rate, "--prefill-rate"),
        attention_flop_per_s=(
            None if attending is None else parse_flops(attending, "--attention-flops")
        ),
        mode=request.mode,
    )
    tp = whole_number(request.tp, "--tp", MOST_RANKS)
    prefixes = request.prefixes
    budgets = Budgets(
        hbm_bytes=size(request.hbm, "--hbm"),
        utilisation=share(request.utilisation, "--utilisation"),
        reserve_bytes=size(request.reserve, "--reserve") or 0,
        dram_bytes=size(request.dram, "--dram"),
    )
    machine = override(hardware, **overrides) if overrides else hardware  # type: ignore[arg-type]
    restoration = Restoration(
        model=rank_model(model, tp) if tp > 1 else model,
        hardware=rank_hardware(machine, tp, None) if tp > 1 else machine,
        prefix=prefix,
        budgets=rank_budgets(budgets, tp),
        ranks=tp,
    )
    return Question(
        restoration=restoration,
        ways=words(request.ways, "--ways"),
        prefixes=None if prefixes is None else whole_number(prefixes, "--prefixes", MOST_PREFIXES),
        overrides=overrides,
        hardware_file=request.gpu if is_profile_path(request.gpu) else None,
        warnings=_warnings(request, restoration),
    )


def _warnings(request: RestoreRequest, restoration: Restoration) -> tuple[str, ...]:
    found = []
    model, prefix = restoration.model, restoration.prefix
    whole = prefix.tokens + prefix.suffix
    if model.max_positions is not None and whole > model.max_positions:
        found.append(
            f"{whole} tokens are more than the {model.max_positions} positions of {model.name}; "
            "planned all the same"
        )
    if request.disk_bandwidth is not None and prefix.source != "disk":
        found.append("--disk-bandwidth changes nothing without --from disk")
    if request.pageable_bandwidth is not None and prefix.pinned:
        found.append("--pageable-bandwidth changes nothing without --pageable")
    return tuple(found)
