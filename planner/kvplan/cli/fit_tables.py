"""Answers of ``kvplan fit`` and ``kvplan host`` for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvplan.cli.output import console
from kvplan.cli.reserved import reserved_words
from kvplan.units import format_bytes, format_rate

if TYPE_CHECKING:
    from kvplan.cli.fit_answer import Answer
    from kvplan.host_cache import HostCache


def _grid(rows: list[tuple[str, str]]) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(value))
    return grid


def show_fit(answer: Answer, document: dict[str, Any]) -> None:
    """Print what fits, and where the memory goes."""
    out, fit, memory = console(), answer.fit, document["memory_bytes"]
    out.print(Text(headline(answer, document), style="bold green"))
    ranks = fit.tp * fit.pp
    each = " per GPU" if ranks > 1 else ""
    budget = f"{format_bytes(memory['total'])} x {fit.utilisation:g}"
    budget += f" - {format_bytes(memory['reserve'])}" * bool(memory["reserve"])
    blocks = f": {document['blocks']} blocks of {document['block_tokens']} tokens, "
    blocks = blocks + f"{document['tokens']} tokens" if document["block_bytes"] else ""
    rows = [
        ("model", f"{answer.model.name}, {fit.kv_dtype} cache"
                  + (f", tp {fit.tp}" if fit.tp > 1 else "")
                  + (f", pp {fit.pp}" if fit.pp > 1 else "")),
        ("machine", answer.card.title),
        ("budget", f"{budget} = {format_bytes(memory['budget'])}{each}"),
        ("taken", f"weights {format_bytes(memory['weights'])}, activation peak "
                  f"{format_bytes(memory['activation_peak'])}, outside torch "
                  f"{format_bytes(memory['non_torch'])}"),
        ("pool", format_bytes(document["pool_bytes"]) + blocks),
        ("KV", f"{format_bytes(document['bytes_per_token'])} per token{each}, "
               f"{format_bytes(document['bytes_per_sequence'])} per sequence of "
               f"{document['context']} tokens"),
        ("concurrency", f"{document['max_concurrency']:.2f} at {document['context']} tokens"),
        ("limit", document["limit"]),
    ]  # fmt: skip
    if document["reserved"]:
        rows.insert(-1, ("engine", reserved_words(document["reserved"])))
    if document["host"]:
        host = document["host"]
        room = f"{format_bytes(host['taken_bytes'])} of {format_bytes(host['budget_bytes'])}"
        asked = format_bytes(host["requested_bytes"])
        rows.append(("host", f"{asked} hold {host['tokens']} tokens and take {room}"))
    if document["assumed"]:
        rows.append(("assumed", "; ".join(document["assumed"])))
    out.print()
    out.print(_grid(rows))
    if len(document["table"]) > 1:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("context", "most sequences"):
            table.add_column(title, justify="right")
        for row in document["table"]:
            table.add_row(str(row["context"]), str(row["max_batch"]))
        out.print()
        out.print(table)


def headline(answer: Answer, document: dict[str, Any]) -> str:
    """The answer in one sentence."""
    context, most = document["context"], document["max_batch"]
    if answer.contexts and answer.batch and len(answer.contexts) > 1:
        rows = [row for row in document["table"] if row["max_batch"] >= answer.batch]
        fitting = ", ".join(str(row["context"]) for row in rows)
        return f"{_sequences(answer.batch)} fit at {fitting} tokens."
    if answer.contexts and answer.batch:
        asked = f"{answer.batch} x {context} tokens"
        return f"{asked} fit; up to {_sequences(most)} of that length."
    if answer.batch:
        verb = "fits" if answer.batch == 1 else "fit"
        return f"{_sequences(answer.batch)} of up to {document['max_context']} tokens {verb}."
    if answer.contexts and len(answer.contexts) == 1:
        return f"{_sequences(most)} of {context} tokens {'fits' if most == 1 else 'fit'}."
    if not document["block_bytes"]:
        return f"A sequence of any length fits; its cache does not grow. {_sequences(most)} fit."
    return f"One sequence of up to {document['max_context']} tokens fits."


def _sequences(count: int) -> str:
    return "1 sequence" if count == 1 else f"{count} sequences"


def show_host(wanted: HostCache, document: dict[str, Any]) -> None:
    """Print the budget of a host, and what a cache takes of it."""
    from kvplan.cli.host import start_words

    out = console()
    best = format_bytes(wanted.best_bytes)
    per_rank = " per rank" if wanted.ranks > 1 else ""
    asked = wanted.size_bytes is not None
    if asked:
        out.print(Text(f"A cache of {wanted.words()} fits.", style="bold green"))
    else:
        out.print(Text(f"A cache of up to {best}{per_rank} fits.", style="bold green"))
    where = "limit of the cgroup less its usage" if wanted.memory.bound_by_cgroup else "free memory"
    growth = f" - {format_bytes(wanted.growth_bytes)} growth" if wanted.growth_bytes else ""
    rows = [
        ("budget", f"{format_bytes(wanted.memory.free_bytes)} ({where}) - "
                   f"{format_bytes(wanted.reserve_bytes)} reserve{growth} = "
                   f"{format_bytes(wanted.budget_bytes)}"),
        ("ranks", f"{wanted.ranks}, {format_bytes(wanted.rank_budget_bytes)} each"),
        ("largest", f"{best}{per_rank} without rounding (allocator {wanted.allocator})"),
    ]  # fmt: skip
    if asked:
        rows.append(("takes", f"{format_bytes(wanted.taken_bytes)} of host memory"))
        if not wanted.pageable:
            rows.append(("start", start_words(wanted)))
    if document["h2d_bytes_per_s"]:
        kind = "pageable" if wanted.pageable else "pinned"
        rows.append(("link", f"{format_rate(document['h2d_bytes_per_s'])} from {kind} memory"))
    out.print()
    out.print(_grid(rows))
