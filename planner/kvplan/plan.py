"""The plan document: what was asked, what was decided, what is predicted, and where it is from.

Sizes are bytes, times seconds. The JSON Schema shipped as ``plan.schema.json`` is generated from
these classes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvplan.layer import LayerSpec
from kvplan.limits import MAX_LAYERS

SCHEMA_VERSION = "1.2"
"""Version of the plan format: readers accept older minor versions, refuse other major ones."""

Count = Annotated[int, Meta(ge=0, le=2**62)]
Positive = Annotated[int, Meta(ge=1, le=2**40)]
Seconds = Annotated[float, Meta(ge=0)]
Size = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class DocumentPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parts: an unknown key is an error."""


class LayerRun(DocumentPart, frozen=True):
    """Equal layers that follow each other."""

    count: Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
    layer: LayerSpec


class ModelInput(DocumentPart, frozen=True, kw_only=True):
    """The model, whole, so that a plan can be read without the library it came from."""

    name: Name
    family: Name
    hidden: Positive
    vocab: Positive
    max_positions: Positive | None
    weight_dtype: Name
    embedding_params: Count
    embedding_width: Positive
    head_params: Count
    tied: bool
    source: str
    other_params: Count = 0
    source_tokens: Count | None = None
    sequences_per_sample: Annotated[int, Meta(ge=1, le=2)] = 1
    scales: list[Positive] = []
    layers: Annotated[list[LayerRun], Meta(min_length=1, max_length=MAX_LAYERS)]


class HardwareInput(DocumentPart, frozen=True):
    """The machine: its profile by name and digest, and what was changed on the command line."""

    name: Name
    title: str
    kind: Literal["measured", "datasheet", "assumed"]
    digest: str
    file: str | None = None
    overrides: dict[str, Annotated[float, Meta(gt=0)]] = {}


class WorkloadInput(DocumentPart, frozen=True):
    """The batch."""

    batch: Positive
    context: Positive
    gen: Count
    kv_dtype: Name
    block: Positive
    micro_batches: Positive
    schedule: Literal["column", "row"]
    source_tokens: Count | None = None
    tp: Positive = 1
    layer_tokens: Annotated[list[Positive], Meta(min_length=1, max_length=MAX_LAYERS)] | None = None
    new_tokens: Positive = 1


class BudgetInput(DocumentPart, frozen=True):
    """Memory that could be used; null where the profile's figure was taken."""

    hbm_bytes: Count | None
    utilisation: Annotated[float, Meta(gt=0, le=1)]
    reserve_bytes: Count
    dram_bytes: Count | None
    pinned_bytes: Count | None
    disk_bytes: Count
    uplink_bytes_per_s: Annotated[float, Meta(gt=0)] | None = None


class OptionInput(DocumentPart, frozen=True):
    """What the search could choose from."""

    paths: list[Name] | None
    allow: dict[str, Share]
    axes: list[Literal["token", "layer"]]
    stages: list[Positive]
    queue_depths: list[Positive]
    boundary: Literal["overlap", "barrier"]
    mode: Literal["graph", "eager"]
    refine_blocks: bool
    weights: Literal["auto", "resident", "streamed"]
    flexgen: list[Annotated[int, Meta(ge=0, le=100)]] | None = None
    good_gap: Annotated[float, Meta(gt=0, le=1)] = 0.01


class ObjectiveInput(DocumentPart, frozen=True):
    """What the plan is to be best at; batches and what follows count for throughput only."""

    goal: Literal["latency", "throughput"]
    max_step_s: Annotated[float, Meta(gt=0)] | None
    batches: tuple[Positive, Positive]
    micro_batches: list[Positive]
    schedules: list[Literal["column", "row"]]
    segments: Annotated[int, Meta(ge=1, le=64)] | None = None


class Inputs(DocumentPart, frozen=True):
    """Everything the plan depends on; the workload's batch is the chosen one."""

    model: ModelInput
    hardware: HardwareInput
    workload: WorkloadInput
    budgets: BudgetInput
    options: OptionInput
    objective: ObjectiveInput | None = None


class Range(DocumentPart, frozen=True):
    """Tokens ``[begin, end)`` that take one path; stage is null outside the pipeline."""

    begin: Count
    end: Count
    path: Name
    stage: Count | None


class LayerDecision(DocumentPart, frozen=True):
    """What one layer does."""

    layer: Count
    tokens: dict[str, Count]
    recompute_ratio: Share
    ranges: list[Range]
    streamed_weights: Share


class Decision(DocumentPart, frozen=True):
    """What was decided."""

    strategy: Name
    axis: Literal["token", "layer"]
    stages: Annotated[int, Meta(ge=1, le=4096)]
    queue_depth: Annotated[int, Meta(ge=1, le=64)]
    block: Positive
    boundary: Literal["overlap", "barrier"]
    prefetch: bool
    mode: Literal["graph", "eager"]
    stream_weights: bool
    layers: Annotated[list[LayerDecision], Meta(min_length=1, max_length=MAX_LAYERS)]


class Value(DocumentPart, frozen=True):
    """What more of something would bring, from the duals of the program."""

    what: str
    saved_s: Seconds


class Prediction(DocumentPart, frozen=True):
    """What running the plan is expected to show; with tensor parallelism, of each rank."""

    step_s: Seconds
    tokens_per_s: Annotated[float, Meta(ge=0)]
    bound_s: Seconds
    gap: Annotated[float, Meta(ge=0)]
    bottleneck: str
    busy_s: dict[str, Seconds]
    memory_bytes: dict[str, Size]
    capacity_bytes: dict[str, Size]
    moved_bytes: dict[str, Size]
    values: list[Value]
    confidence: str


class BaselineResult(DocumentPart, frozen=True):
    """A baseline beside the plan; step null and a reason where it is not possible."""

    title: str
    step_s: Seconds | None
    reason: str | None = None
    batch: Positive | None = None
    tokens_per_s: Annotated[float, Meta(ge=0)] | None = None
    note: str | None = None


class BatchTrial(DocumentPart, frozen=True):
    """A batch that was tried; step null where only the bound was asked for."""

    batch: Positive
    micro_batches: Positive
    schedule: Literal["column", "row"]
    bound_s: Seconds
    step_s: Seconds | None


class BatchChoice(DocumentPart, frozen=True):
    """Why this batch: what keeps it from growing, and how much any other could bring.

    ``bound_tokens_per_s`` is over every batch that was tried; ``gap`` is its distance.
    """

    batch: Positive
    micro_batches: Positive
    schedule: Literal["column", "row"]
    limit: Literal["asked", "memory", "max_step", "throughput"]
    why: str
    bound_tokens_per_s: Annotated[float, Meta(ge=0)]
    gap: Annotated[float, Meta(ge=0)]
    trials: list[BatchTrial]


class GenerationSegment(DocumentPart, frozen=True):
    """Steps of a generation that share a decision, made for the last of them.

    ``begin`` and ``end`` count generated tokens; ``moved_bytes`` and ``moves_s`` are what passes
    to it from the segment before; ``kept_bytes`` are activations that it keeps in host memory, on
    top of the prediction's, for segments behind it.
    """

    begin: Count
    end: Positive
    first_step_s: Seconds
    steps_s: Seconds
    moved_bytes: dict[str, Size]
    moves_s: Seconds
    kept_bytes: Size
    decision: Decision
    prediction: Prediction


class GenerationPlan(DocumentPart, frozen=True):
    """A whole generation in segments; ``uniform_s`` is its time with the last one's decision."""

    steps: Positive
    total_s: Seconds
    tokens_per_s: Annotated[float, Meta(ge=0)]
    bound_s: Seconds
    gap: Annotated[float, Meta(ge=0)]
    uniform_s: Seconds
    segments: Annotated[list[GenerationSegment], Meta(min_length=1, max_length=64)]


class Provenance(DocumentPart, frozen=True):
    """Who made the plan."""

    kvplan: str
    solver: str
    time: str


class Plan(DocumentPart, frozen=True):
    """A whole plan document."""

    kvplan_plan: Annotated[str, Meta(pattern=r"^[0-9]+\.[0-9]+$")]
    inputs: Inputs
    decision: Decision
    prediction: Prediction
    baselines: dict[str, BaselineResult]
    provenance: Provenance
    batch_choice: BatchChoice | None = None
    generation: GenerationPlan | None = None


def layer_runs(layers: tuple[LayerSpec, ...]) -> list[LayerRun]:
    """Equal neighbours together."""
    runs: list[LayerRun] = []
    for layer in layers:
        if runs and runs[-1].layer == layer:
            runs[-1] = LayerRun(count=runs[-1].count + 1, layer=layer)
        else:
            runs.append(LayerRun(count=1, layer=layer))
    return runs
