"""The answer to a restore written down: the parts of its document, with what lies around it."""

from __future__ import annotations

from kvplan import break_even
from kvplan.document import confidence, hardware_input, provenance
from kvplan.dtypes import element_bytes
from kvplan.gap import gap
from kvplan.hits import Expected, Traffic, expect
from kvplan.plan import LayerDecision, Range
from kvplan.prefill import ATTENTION_SHARE
from kvplan.restoration import Restoration
from kvplan.restore import WAYS, Answer, spare_tokens
from kvplan.restore_baselines import BASELINES
from kvplan.restore_plan import (
    RESTORE_VERSION,
    BreakEven,
    Copies,
    CutResult,
    Hits,
    PrefixInput,
    RestoreDecision,
    RestoreInputs,
    RestorePlan,
    RestorePrediction,
    Way,
)
from kvplan.restored import Restored, resident, store_bytes


def document(
    restoration: Restoration, found: Answer, *, prefixes: int | None = None,
    overrides: dict[str, float] | None = None, hardware_file: str | None = None,
    time: str | None = None,
) -> RestorePlan:  # fmt: skip
    """Write an answer down, with what lies around it.

    Args:
        restoration: model (one rank's part), machine, prefix.
        found: its answer.
        prefixes: different prefixes in use; None: not asked.
        overrides: figures of the machine that were changed by hand.
        hardware_file: where the machine's profile came from, if not from the library.
        time: time of making, ISO 8601; None: now.
    """
    chosen = found.ways[found.chosen]
    shown = {name: _way(WAYS[name], restored) for name, restored in found.ways.items()}
    shown["resident"] = _way("still in HBM", resident(restoration))
    return RestorePlan(
        kvplan_restore=RESTORE_VERSION,
        inputs=_inputs(restoration, found, overrides or {}, hardware_file),
        decision=_decision(found),
        prediction=_prediction(restoration, found),
        ways=shown,
        baselines={name: _way(title, run(restoration)) for name, (title, run) in BASELINES.items()},
        break_even=_break_even(restoration),
        copies=_copies(restoration),
        hits=None if prefixes is None else _hits(restoration, prefixes, chosen, found),
        provenance=provenance(time),
    )


def _inputs(
    restoration: Restoration, found: Answer, overrides: dict[str, float], hardware_file: str | None
) -> RestoreInputs:
    prefix, model = restoration.prefix, restoration.model
    size = element_bytes(prefix.kv_dtype)
    ratios = [layer.act_over_kv(size) for layer in model.layers if layer.kv_bytes(size)]
    return RestoreInputs(
        model=model.name,
        tp=restoration.ranks,
        hardware=hardware_input(restoration.hardware, overrides, hardware_file),
        prefix=PrefixInput(
            **{name: getattr(prefix, name) for name in PrefixInput.__struct_fields__}
        ),
        ways=list(found.ways),
        kv_bytes=model.kv_bytes(prefix.tokens, size),
        kv_bytes_per_token=sum(layer.kv_bytes(size) for layer in model.layers),
        act_over_kv=min(ratios, default=None),
    )


def _way(title: str, restored: Restored) -> Way:
    times = restored.ttfts
    return Way(
        title=title,
        ttft_s=restored.ttft_s,
        mean_ttft_s=sum(times) / len(times),
        first_ttft_s=times[0],
        moved_bytes=restored.graph.link_bytes(restored.values),
        busy_s=restored.simulation.busy_s,
        stored_bytes=store_bytes(restored),
        recomputed_tokens=restored.split.front if restored.split.depth else 0,
    )


def _decision(found: Answer) -> RestoreDecision:
    chosen = found.ways[found.chosen]
    split, given = chosen.split, chosen.restoration
    layers = []
    for index in range(len(given.model.layers)):
        front = split.front if index < split.depth else 0
        begin = given.prefix.tokens - given.behind(index, front)
        parts = [("prefill", 0, front), (given.rebuild.name, begin, split.rebuilt[index])]
        parts.append((given.load.name, begin + split.rebuilt[index], chosen.loaded(index)))
        ranges = [
            Range(begin=start, end=start + count, path=name, stage=None)
            for name, start, count in parts
            if count
        ]
        recomputed = split.rebuilt[index] + front
        layers.append(
            LayerDecision(
                layer=index,
                tokens={name: count for name, _, count in parts if count},
                recompute_ratio=recomputed / given.prefix.tokens,
                ranges=ranges,
                streamed_weights=0.0,
            )
        )
    return RestoreDecision(
        way=found.chosen, front_tokens=split.front if split.depth else 0,
        front_layers=split.depth, chunk=given.prefix.chunk, spread=split.spread, layers=layers,
    )  # fmt: skip


def _prediction(restoration: Restoration, found: Answer) -> RestorePrediction:
    chosen = found.ways[found.chosen]
    times = chosen.ttfts
    return RestorePrediction(
        ttft_s=chosen.ttft_s,
        mean_ttft_s=sum(times) / len(times),
        first_ttft_s=times[0],
        bound_s=found.bound_s,
        gap=gap(chosen.ttft_s, found.bound_s),
        bottleneck=chosen.simulation.bottleneck,
        busy_s=chosen.simulation.busy_s,
        moved_bytes=chosen.graph.link_bytes(chosen.values),
        memory_bytes={
            tier: size
            for tier, size in chosen.graph.memory_bytes(chosen.values).items()
            if size and tier != "pinned"
        },
        capacity_bytes={
            "hbm": restoration.hbm_bytes,
            "dram": restoration.dram_bytes,
            restoration.prefix.source: restoration.store_capacity_bytes,
        },
        confidence=_confidence(restoration),
    )


def _confidence(restoration: Restoration) -> str:
    prefix, parts = restoration.prefix, [confidence(restoration.hardware)]
    if prefix.attention_flop_per_s is None and prefix.prefill_tokens_per_s is None:
        parts.append(f"prefill attention assumed at {ATTENTION_SHARE:g} of the matrix rate")
    if restoration.ranks > 1:
        parts.append("exchanges between ranks not counted")
    return "; ".join(parts)


def _break_even(restoration: Restoration) -> BreakEven:
    disk = restoration.prefix.source == "disk"
    ranges, longest = break_even.recompute_wins(restoration), break_even.longest(restoration)
    last = ranges[-1][1] if ranges else 0
    return BreakEven(
        prefix_tokens=last + 1 if last < longest else None,
        longest_tokens=longest,
        recompute_wins=ranges,
        h2d_bytes_per_s=break_even.rate(restoration, "h2d"),
        disk_bytes_per_s=break_even.rate(restoration, "disk") if disk else None,
    )


def _copies(restoration: Restoration) -> Copies:
    return Copies(
        link_bytes_per_s=break_even.present_rate(restoration, "h2d"),
        disk_bytes_per_s=(
            break_even.present_rate(restoration, "disk")
            if restoration.prefix.source == "disk"
            else None
        ),
        smallest_copy_bytes=break_even.smallest_copy(restoration.one_copy),
        smallest_chunk_tokens=break_even.smallest_chunk(restoration),
        granularity={
            cut.granularity: CutResult(
                copy_bytes=cut.copy_bytes, copies=cut.copies,
                rate_bytes_per_s=cut.rate_bytes_per_s, load_ttft_s=cut.ttft_s,
            )
            for cut in break_even.cuts(restoration)
        },
    )  # fmt: skip


def _hits(restoration: Restoration, prefixes: int, chosen: Restored, found: Answer) -> Hits:
    prefix = restoration.prefix
    traffic = Traffic(prefixes=prefixes, prefix_tokens=prefix.tokens, own_tokens=prefix.suffix)
    hbm_tokens, store_tokens = spare_tokens(restoration)
    seen: Expected = expect(
        traffic, hbm_tokens=hbm_tokens, store_tokens=store_tokens, suffix=prefix.suffix,
        front=chosen.split.front if chosen.split.depth else 0,
        resident_s=resident(restoration).ttft_s, restored_s=chosen.ttft_s,
        recomputed_s=found.recomputed_s,
    )  # fmt: skip
    return Hits(
        prefixes=prefixes, hbm_tokens=hbm_tokens, store_tokens=store_tokens, hbm=seen.hbm,
        store=seen.store, miss=seen.miss, mean_ttft_s=seen.mean_ttft_s,
        without_store_s=seen.without_store_s, prefill_tokens=seen.prefill_tokens,
    )  # fmt: skip
