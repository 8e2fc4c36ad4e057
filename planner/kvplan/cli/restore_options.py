"""Options of ``kvplan restore``, and the question they ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    pass

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
