"""Restores for people: the answer first, then every way, where they break even, what limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kvplan import wording
from kvplan.cli.display import facts
from kvplan.units import format_bytes, format_rate, format_seconds
from kvplan.wording import percent, times

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.restore_plan import RestorePlan, Way

_WHERE = {"dram": "in host memory", "disk": "on disk"}

NAMED = 0.01
"""Share of the tail from which a way is named in the answer."""


def show_restore(console: Console, plan: RestorePlan, written: str | None = None) -> None:
    """Print a restore.

    Args:
        console: where to.
        plan: the document.
        written: the file it was written to, if any.
    """
    console.print(Text(headline(plan), style="bold green"))
    note = _activations(plan)
    if note:
        console.print(Text(note))
    console.print()
    console.print(facts([("prefix", _prefix(plan)), ("machine", _machine(plan))]))
    console.print()
    console.print(_ways(plan))
    console.print()
    console.print(facts(
        [*_break_even(plan), *_copies(plan), *_hits(plan), *_limits(plan)]
    ))  # fmt: skip
    if written:
        console.print(Text(f"\nWritten to {written}"))


def headline(plan: RestorePlan) -> str:
    """The answer in one sentence."""
    decision, ttft = plan.decision, format_seconds(plan.prediction.ttft_s)
    asked = plan.inputs.prefix
    until = "to the first new token" if asked.requests == 1 else (
        f"until all {asked.requests} requests have their first new token"
    )  # fmt: skip
    if plan.hits is not None and plan.hits.hbm >= 1:
        kept = plan.ways["resident"].ttft_s
        return (
            f"Nothing to restore: HBM keeps all {plan.hits.prefixes} prefixes, "
            f"{format_seconds(kept)} to the first new token; a store would not be read."
        )
    if decision.way == "split":
        what = f"Split it: {_split(plan)}"
    else:
        what = {"load": "Load it", "recompute": "Recompute it",
                "rebuild": "Rebuild it from activations"}[decision.way]  # fmt: skip
    return f"{what}: {ttft} {until}, {_compared(plan)}."


def _split(plan: RestorePlan) -> str:
    decision, asked = plan.decision, plan.inputs.prefix
    counts: dict[str, int] = {}
    for layer in decision.layers:
        for path, tokens in layer.tokens.items():
            counts[path] = counts.get(path, 0) + tokens
    front = counts.pop("prefill", 0)
    total = sum(counts.values())
    coming = []
    for path, tokens in sorted(counts.items(), key=lambda item: -item[1]):
        if tokens < NAMED * total:
            continue
        verb = "rebuilt from activations" if path.startswith("recompute") else "loaded"
        share = "" if tokens > (1 - NAMED) * total else f"{percent(tokens / total)} of it "
        coming.append(f"{share}{verb}")
    rest = " and ".join(coming)
    if not front:
        return f"{rest[0].upper()}{rest[1:]}" if rest else "nothing"
    if decision.front_layers < len(decision.layers):
        return (f"recompute the first {decision.front_layers} of {len(decision.layers)} layers "
                f"while the rest is {rest}")  # fmt: skip
    share = percent(decision.front_tokens / asked.tokens)
    return (f"recompute the first {decision.front_tokens} tokens ({share}) while the tail is "
            f"{rest}")  # fmt: skip


def _compared(plan: RestorePlan) -> str:
    """How it compares with the two plain ways."""
    ttft, parts = plan.prediction.ttft_s, []
    words = {"load": "loading", "recompute": "recomputing", "rebuild": "rebuilding"}
    for name in ("load", "recompute"):
        other = plan.ways.get(name)
        if name != plan.decision.way and other is not None:
            faster = other.ttft_s / ttft
            speed = f"{times(faster)} as fast as" if faster >= 1.05 else "hardly faster than"
            parts.append(f"{speed} {words[name]}")
    return " and ".join(parts) or "the only way allowed"


def _activations(plan: RestorePlan) -> str | None:
    ratio = plan.inputs.act_over_kv
    if ratio is None or ratio < 1 or "rebuild" not in plan.inputs.ways:
        return None
    return (f"Activations are {ratio:.1f}x the KV they rebuild: storing them cannot help the "
            "link.")  # fmt: skip


def _prefix(plan: RestorePlan) -> str:
    asked, inputs = plan.inputs.prefix, plan.inputs
    stored = f", stored as {asked.stored_dtype}" if asked.stored_dtype else ""
    ranks = f", per rank of {inputs.tp}" if inputs.tp > 1 else ""
    many = f"{asked.requests} requests of " if asked.requests > 1 else ""
    return (
        f"{inputs.model}, {many}{asked.tokens} tokens {_WHERE[asked.source]}"
        f"{'' if asked.pinned else ' (pageable)'} + {asked.suffix} new, {asked.kv_dtype} cache"
        f"{stored}: {format_bytes(inputs.kv_bytes)}"
        f"{' each' if many else ''}{ranks}"
    )


def _machine(plan: RestorePlan) -> str:
    given, asked = plan.inputs.hardware, plan.inputs.prefix
    shares = [
        f"{percent(share)} of the {name} taken by others"
        for name, share in (("GPU", asked.gpu_busy), ("link", asked.link_busy))
        if share
    ]
    return "; ".join([wording.machine_of(given), *shares])


def _ways(plan: RestorePlan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("way", overflow="fold")
    many = plan.inputs.prefix.requests > 1
    titles = ["TTFT", *(["mean", "first"] if many else []), "over h2d", "GPU busy", "stored"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    ranked = sorted(
        plan.ways.items(), key=lambda item: (item[0] == "resident", item[1].ttft_s or 0)
    )
    rows = [*ranked, *plan.baselines.items()]
    for name, way in rows:
        style = "bold green" if name == plan.decision.way else ""
        if name in plan.baselines or name == "resident":
            style = "dim"
        table.add_row(Text(f"{way.title}"), *_cells(way, many), style=style)
    return table


def _cells(way: Way, many: bool) -> list[str]:
    cells = [format_seconds(way.ttft_s)]
    if many:
        cells += [format_seconds(way.mean_ttft_s), format_seconds(way.first_ttft_s)]
    busy = way.busy_s.get("gpu", 0.0) / way.ttft_s
    stored = format_bytes(way.stored_bytes) if way.stored_bytes else ""
    return [*cells, format_bytes(way.moved_bytes.get("h2d", 0.0)), percent(min(busy, 1.0)), stored]


def _break_even(plan: RestorePlan) -> list[tuple[str, str]]:
    found, copies = plan.break_even, plan.copies
    if found.recompute_wins:
        ranges = " and ".join(f"{a} to {b}" for a, b in found.recompute_wins)
        length = f"recomputing is faster than loading from {ranges} tokens"
    else:
        length = "loading is faster than recomputing at every length"
    length += f" (of prefixes up to {found.longest_tokens})"
    rows = [("break-even", length)]
    for name, rate, now in (
        ("the link", found.h2d_bytes_per_s, copies.link_bytes_per_s),
        ("the disk", found.disk_bytes_per_s, plan.copies.disk_bytes_per_s),
    ):
        if rate is not None and now is not None:
            rows.append(("break-even", f"at this length, with {format_rate(rate)} of {name} "
                         f"(now {format_rate(now)})"))  # fmt: skip
        elif now is not None:
            rows.append(("break-even", f"no rate of {name} makes them equal at this length"))
    return rows


def _copies(plan: RestorePlan) -> list[tuple[str, str]]:
    copies, block = plan.copies, plan.inputs.prefix.block
    rows = []
    for name, cut in copies.granularity.items():
        own = " (planned)" if name == plan.inputs.prefix.granularity else ""
        of = "" if name == "layer" else f" of {block} tokens"
        rows.append(("copies", f"{name}{of}: {format_bytes(cut.copy_bytes)} each, "
                     f"{format_rate(cut.rate_bytes_per_s)}, load {format_seconds(cut.load_ttft_s)}"
                     f"{own}"))  # fmt: skip
    chunk = copies.smallest_chunk_tokens
    if not chunk:
        return [("copies", "nothing is cached per token")]
    rows.append(("copies", f"90 % of the link from {format_bytes(copies.smallest_copy_bytes)} on: "
                 f"{chunk['block']} tokens of a layer, {chunk['split-block']} with K and V apart, "
                 f"{chunk['whole-block']} of all layers"))  # fmt: skip
    return rows


def _hits(plan: RestorePlan) -> list[tuple[str, str]]:
    seen = plan.hits
    if seen is None:
        return []
    return [
        ("hits", f"of {seen.prefixes} prefixes HBM still has {percent(seen.hbm)}, the store "
                 f"{percent(seen.store)} more, nobody {percent(seen.miss)}"),
        ("hits", f"mean TTFT {format_seconds(seen.mean_ttft_s)}, without the store "
                 f"{format_seconds(seen.without_store_s)}; {seen.prefill_tokens:.0f} tokens "
                 "computed per request"),
    ]  # fmt: skip


def _limits(plan: RestorePlan) -> list[tuple[str, str]]:
    predicted = plan.prediction
    rows = [
        ("limit", wording.busy(predicted.ttft_s, predicted.busy_s, predicted.bottleneck)),
        ("bound", f"no way that is allowed takes less than {format_seconds(predicted.bound_s)}; "
                  f"gap {100 * predicted.gap:.1f} %"),
    ]  # fmt: skip
    rows += [("memory", line) for line in
             wording.memory(predicted.memory_bytes, predicted.capacity_bytes)]  # fmt: skip
    return [*rows, ("confidence", predicted.confidence)]
