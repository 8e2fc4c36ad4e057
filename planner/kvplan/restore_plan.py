"""The restore document: its parts, its JSON and the schema of that.

Sizes are bytes, times seconds, rates bytes per second. Keys may be added; these stay.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from kvplan.plan import (
    Count,
    DocumentPart,
    HardwareInput,
    LayerDecision,
    Name,
    Positive,
    Provenance,
    Seconds,
    Size,
)

RESTORE_VERSION = "1.0"
"""Version of the restore format: a key that is added raises the second number, any other change of
keys the first."""


class PrefixInput(DocumentPart, frozen=True):
    """The prefix and who else uses the machine; as `Prefix` has it."""

    tokens: Positive
    suffix: Positive
    requests: Positive
    source: Literal["dram", "disk"]
    kv_dtype: Name
    stored_dtype: Name | None
    block: Positive
    chunk: Positive
    granularity: Name
    overlap: bool
    pinned: bool
    gpu_busy: float
    link_busy: float
    prefill_tokens_per_s: float | None
    attention_flop_per_s: float | None
    mode: Name


class RestoreInputs(DocumentPart, frozen=True):
    """Everything the answer depends on; sizes are of one rank."""

    model: Name
    tp: Positive
    hardware: HardwareInput
    prefix: PrefixInput
    ways: list[Name]
    kv_bytes: Size
    kv_bytes_per_token: Size
    act_over_kv: float | None


class Way(DocumentPart, frozen=True):
    """One way to bring the prefix back."""

    title: str
    ttft_s: Seconds
    mean_ttft_s: Seconds
    first_ttft_s: Seconds
    moved_bytes: dict[str, Size]
    busy_s: dict[str, Seconds]
    stored_bytes: Size
    recomputed_tokens: Count


class RestoreDecision(DocumentPart, frozen=True):
    """What was chosen: the front that is recomputed, and where each layer's tail comes from."""

    way: Name
    front_tokens: Count
    front_layers: Count
    chunk: Positive
    spread: Count
    layers: list[LayerDecision]


class RestorePrediction(DocumentPart, frozen=True):
    """What running it is expected to show."""

    ttft_s: Seconds
    mean_ttft_s: Seconds
    first_ttft_s: Seconds
    bound_s: Seconds
    gap: Annotated[float, Meta(ge=0)]
    bottleneck: str
    busy_s: dict[str, Seconds]
    moved_bytes: dict[str, Size]
    memory_bytes: dict[str, Size]
    capacity_bytes: dict[str, Size]
    confidence: str


class BreakEven(DocumentPart, frozen=True):
    """Where loading takes as long as recomputing; null where it never does.

    ``prefix_tokens`` is the length from which loading is faster up to ``longest_tokens``, the
    longest tried; ``recompute_wins`` the ranges (first and last length) at which it is not.
    """

    prefix_tokens: Count | None
    longest_tokens: Count
    recompute_wins: list[tuple[Count, Count]]
    h2d_bytes_per_s: float | None
    disk_bytes_per_s: float | None


class CutResult(DocumentPart, frozen=True):
    """One way to cut the store into copies."""

    copy_bytes: Size
    copies: float
    rate_bytes_per_s: float
    load_ttft_s: Seconds


class Copies(DocumentPart, frozen=True):
    """What the size of copies costs."""

    link_bytes_per_s: float
    disk_bytes_per_s: float | None
    smallest_copy_bytes: Size
    smallest_chunk_tokens: dict[str, Count]
    granularity: dict[str, CutResult]


class Hits(DocumentPart, frozen=True):
    """What requests can expect when several prefixes share the machine."""

    prefixes: Positive
    hbm_tokens: float
    store_tokens: float
    hbm: float
    store: float
    miss: float
    mean_ttft_s: Seconds
    without_store_s: Seconds
    prefill_tokens: float


class RestorePlan(DocumentPart, frozen=True):
    """A whole restore document."""

    kvplan_restore: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+$")]
    inputs: RestoreInputs
    decision: RestoreDecision
    prediction: RestorePrediction
    ways: dict[str, Way]
    baselines: dict[str, Way]
    break_even: BreakEven
    copies: Copies
    hits: Hits | None
    provenance: Provenance


def encode(plan: RestorePlan) -> str:
    """The JSON text of a document; equal documents give equal text."""
    return json.dumps(msgspec.to_builtins(plan), indent=1, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema of restore documents."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvplan restore {RESTORE_VERSION}",
        **msgspec.json.schema(RestorePlan),
    }
