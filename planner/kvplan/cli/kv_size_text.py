"""The size of a cache for people: the answer first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kvplan.cli.reserved import reserved_words
from kvplan.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

Answer = dict[str, Any]


def show(console: Console, found: Answer) -> None:
    """Print an answer."""
    console.print(Text(headline(found), style="bold green"))
    console.print()
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for label, text in lines(found):
        grid.add_row(Text(label), Text(text))
    console.print(grid)


def headline(found: Answer) -> str:
    """One sentence: how much, of what.

    >>> headline({"total_bytes": 536870912, "bytes_per_token": 131072, "tp": 1, "context": 4096,
    ...     "batch": 1, "model": "m", "k_dtype": "fp16", "v_dtype": "fp16"})
    'm: 512.0 MiB for 4,096 tokens in fp16; one more token adds 128.0 KiB.'
    """
    batch = f" x {found['batch']}" if found["batch"] > 1 else ""
    rank = f" on each of {found['tp']} ranks" if found["tp"] > 1 else ""
    formats = found["k_dtype"]
    if found["v_dtype"] != formats:
        formats = f"{formats} (K) and {found['v_dtype']} (V)"
    growth = found["bytes_per_token"]
    more = f"one more token adds {format_bytes(growth)}" if growth else "more tokens add nothing"
    return (
        f"{found['model']}: {format_bytes(found['total_bytes'])}{rank} for {found['context']:,} "
        f"token{'s' * (found['context'] != 1)}{batch} in {formats}; {more}."
    )


def lines(found: Answer) -> list[tuple[str, str]]:
    """Label and text of every line below the headline."""
    shown = [("layers", f"{found['kv_layers']} of {found['layers']} keep tokens")]
    shown += [
        ("", f"{kind['count']} x {kind['what']}: {format_bytes(kind['bytes'])} each per sequence")
        for kind in found["kinds"]
    ]
    parts = [("grows", "growing_bytes"), ("windows", "window_bytes"), ("fixed", "fixed_bytes")]
    shown += [(label, _size(found[key])) for label, key in parts if found[key]]
    shown.append(("total", _size(found["total_bytes"])))
    if found["tp"] > 1:
        shown.append(
            ("all ranks", f"{_size(found['aggregate_bytes'])}; each byte that grows is held "
             f"{found['replication']:.3g} times")
        )  # fmt: skip
    for index, device in enumerate(found.get("devices", ())):
        shown.append((f"device {index}", f"{device['layers']} layers, {_size(device['bytes'])}"))
    for name, layout in found.get("layouts", {}).items():
        text = f"{_size(layout['total_bytes'])}, {format_bytes(layout['bytes_per_token'])} a token"
        shown.append((f"as {name}", text))
    uniform = found.get("uniform")
    if uniform:
        text = (
            f"{_size(uniform['total_bytes'])}, {format_bytes(uniform['bytes_per_token'])} a token"
        )
        shown.append(("uniform", f"{text}, where an engine charges every layer for every token"))
    if "pool_bytes" in found:
        tokens, charged = found["tokens_in_pool"], (uniform or {}).get("tokens_in_pool")
        most = "any number of" if tokens is None else f"{tokens:,}"
        sequences = f" of each of {found['sequences']} sequences" if found["sequences"] > 1 else ""
        text = f"{format_bytes(found['pool_bytes'])} hold {most} tokens{sequences}"
        if charged is not None:
            text += f"; charged uniformly {charged:,} tokens in all"
        shown.append(("pool", text))
        if found["reserved"]:
            shown.append(("engine", reserved_words(found["reserved"])))
    if found["act_over_kv"] is not None:
        shown.append(("activations / KV", f"{found['act_over_kv']:.3g}"))
    shown.append(("source", found["source"]))
    return shown


def _size(size: int) -> str:
    return f"{format_bytes(size)} ({size:,} bytes)"
