"""Models and machines for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvplan.units import format_bytes, format_rate

if TYPE_CHECKING:
    from rich.console import Console

Row = dict[str, Any]

GRADES = "grade: V published, P reconstructed from code, D defaults of its class, R recalled"


def _table(left: Sequence[str], right: Sequence[str] = (), last: Sequence[str] = ()) -> Table:
    """Columns of text, of figures, and of text that may be folded."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    for title in last:
        table.add_column(title, overflow="fold", ratio=1)
    return table


def ratio(value: float | None) -> str:
    """A ratio, or a dash where there is none.

    >>> ratio(12.444), ratio(None)
    ('12', '-')
    """
    return "-" if value is None else f"{value:.2g}"


def params(row: Row) -> str:
    """Weights, and those that one token meets where experts rest.

    >>> params({"params": 8030261248, "active_params": 7504924672})
    '8,030,261,248'
    """
    rests = row["active_params"] < 0.7 * row["params"]
    active = f" ({row['active_params']:,} active)" if rests else ""
    return f"{row['params']:,}{active}"


def show_models(console: Console, rows: Sequence[Row]) -> None:
    """Print the list of models, a line each: without short names where they have no room."""
    table = _models(rows, ["short name"])
    short = (name for row in rows for name in row["aliases"] if "/" not in name)
    widest = max(map(len, short), default=0)
    if Measurement.get(console, console.options, _models(rows)).maximum + widest > console.width:
        table = _models(rows)
    console.print(table)
    console.print(Text("\nKV/token: fp16, all layers; act/KV: activations over the KV they rebuild "
                       f"(1 and above: recompute from host memory cannot help)\n{GRADES}",
                       style="dim"))  # fmt: skip


def _models(rows: Sequence[Row], last: Sequence[str] = ()) -> Table:
    figures = ["layers", "params", "KV/token", "act/KV", "positions", "grade"]
    table = _table(["name"], figures, last)
    table.columns[0].no_wrap = True
    for row in rows:
        short = min((alias for alias in row["aliases"] if "/" not in alias), key=len, default="")
        table.add_row(
            Text(row["name"]), str(row["layers"]), f"{row['params'] / 1e9:.1f} B",
            format_bytes(row["kv_bytes_per_token"]), ratio(row["act_over_kv"]),
            str(row["max_positions"] or "?"), row["grade"], *[Text(short)] * len(last),
        )  # fmt: skip
    return table


def show_model(console: Console, rows: Sequence[Row]) -> None:
    """Print one model."""
    (row,) = rows
    console.print(Text(row["name"], style="bold green"))
    grid = _table(["", ""])
    facts = {
        "family": row["family"], "layers": row["layers"], "params": params(row),
        "hidden": row["hidden"], "vocab": row["vocab"], "weights": row["weight_dtype"]
        + (f", without its {' and '.join(row['uncounted'])}" if row["uncounted"] else ""),
        "max positions": row["max_positions"] or "not stated",
        "KV per token (fp16)": format_bytes(row["kv_bytes_per_token"]),
        "states and sources": format_bytes(row["fixed_bytes"]),
        "activations / KV": ratio(row["act_over_kv"]),
        "aliases": ", ".join(row.get("aliases", ())) or "none",
        "grade": row.get("grade", "none: a file"), "source": row["source"],
    }  # fmt: skip
    for label, value in facts.items():
        grid.add_row(Text(label, style="bold"), Text(str(value)))
    for kind in row["layer_kinds"]:
        queries = f"{kind['query_heads']} query heads, " if kind["query_heads"] else ""
        grid.add_row(
            Text(f"{kind['count']} x layer", style="bold"),
            Text(f"{queries}{kind['what']}, KV {format_bytes(kind['kv_bytes_per_token'])} per "
                 f"token, {params(kind)} weights, first is layer {kind['first']}"),
        )  # fmt: skip
    grid.show_header = False
    console.print(grid)


def _flops(row: Row) -> float:
    rates = row["flop_per_s"]
    return float(rates.get("fp16") or rates.get("bf16") or max(rates.values()))


def _short(aliases: Sequence[str]) -> list[str]:
    """Names to type, without those that drivers print."""
    return [alias for alias in aliases if " " not in alias]


def _gigabytes(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e9:.1f}"


_CASES = {
    "pinned_bytes_per_s": "pinned",
    "both_directions_bytes_per_s": "beside the other way",
    "pageable_bytes_per_s": "pageable",
    "far_node_bytes_per_s": "far NUMA node",
    "all_gpus_bytes_per_s": "all GPUs of the uplink",
    "raw_bytes_per_s": "raw",
}


def _show_link(console: Console, row: Row) -> None:
    """What the link does in each case, in and out."""
    rates = row["link_rates"]
    if rates is None:
        console.print(Text("link: none, CPU and GPU share one memory\n"))
        return
    table = _table([f"link: {row['link'] or 'slot not stated'}"], ["in GB/s", "out GB/s"])
    for key, words in _CASES.items():
        both = [rates[name][key] for name in ("h2d", "d2h")]
        if any(both):
            table.add_row(words, *map(_gigabytes, both))
    console.print(table)
    console.print()


def show_gpus(console: Console, rows: Sequence[Row]) -> None:
    """Print the list of machines."""
    table = _table(["name", "title"], ["memory", "HBM GB/s", "TFLOP/s", "link GB/s"], ["kind"])
    for row in rows:
        table.add_row(
            Text(", ".join([row["name"], *_short(row["aliases"])])), Text(row["title"]),
            format_bytes(row["memory_bytes"]), f"{row['hbm_bytes_per_s'] / 1e9:.0f}",
            f"{_flops(row) / 1e12:.0f}", _gigabytes(row["h2d_bytes_per_s"]), row["kind"],
        )  # fmt: skip
    console.print(table)
    console.print(Text("\nrates are usable ones, TFLOP/s for fp16; `kvplan gpus NAME` shows where "
                       "each number is from", style="dim"))  # fmt: skip


def show_gpu(console: Console, rows: Sequence[Row]) -> None:
    """Print one machine with every number."""
    (row,) = rows
    console.print(Text(row["title"], style="bold green"))
    console.print(Text(
        f"{row['name']} ({', '.join(row['aliases']) or 'no aliases'}), {row['kind']}, "
        f"{row['date']}\nusable: {format_bytes(row['memory_bytes'])}, HBM "
        f"{format_rate(row['hbm_bytes_per_s'])}, {_flops(row) / 1e12:.0f} TFLOP/s fp16\n"
    ))  # fmt: skip
    _show_link(console, row)
    table = _table(["number"], ["value"], ["kind", "source and note"])
    table.columns[2].ratio = None
    for path, number in row["numbers"].items():
        source = ". ".join(filter(None, (number["source"], number.get("note"))))
        table.add_row(Text(path), _value(number), number["kind"], Text(source))
    console.print(table)


def _value(number: Row) -> str:
    if "points" in number:
        return f"{len(number['points'])} points"
    unit = "" if number["unit"] == "1" else f" {number['unit']}"
    return f"{number['value']}{unit}"
