"""A report on a plan: one HTML file that needs nothing else, with the answer, tables, pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from kvplan import pictures, wording
from kvplan.layer_groups import group_mix, layer_groups, layer_names
from kvplan.pictures.style import svg
from kvplan.plan import Plan
from kvplan.planning import scenario_of
from kvplan.units import format_bytes, format_seconds

PICTURES = {
    "timeline": "Top: all lanes over one step. Bottom: a few layers in its middle; a number is "
    "layer.stage. A buffer is held from the first copy into it until attention has read it.",
    "paths": "How each token's K and V reach attention, layer by layer.",
    "values": "Where money or tuning would help. Bars hold for a little more, not for twice as "
    "much.",
    "recompute": "Rebuilding K and V from activations trades link bytes for matrix work.",
    "pipeline": "Fewer, larger stages fill the pipeline slowly; more buffers take HBM from KV.",
    "workload": "Where the cache stops fitting, throughput falls.",
    "machine": "The middle is this machine; links faster than its slot are what-ifs.",
    "roofline": "Points on a roof are limited by it.",
    "memory": "What each tier holds while the cache fills, and the step meanwhile.",
    "front": "What another batch or another HBM budget would give.",
}
"""Pictures of a plan in the order of a report, with a sentence on how to read each."""

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: .6rem 0; } td, th { padding: .25rem .8rem .25rem 0;
       text-align: left; vertical-align: top; border-bottom: 1px solid #ddd; }
th { font-weight: 600; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.chosen td { font-weight: 600; background: #eef7f3; } figure { margin: 1.2rem 0;
       break-inside: avoid; } figure img { max-width: 100%; } figcaption { color: #555;
       font-size: .87rem; } .about { color: #555; } details { margin: .6rem 0; }
.small { font-size: .85rem; }
@media print { body { margin: 0; max-width: none; } }
"""

Cell = str | tuple[str, str]
"""A text, or a text and the class of its cell."""


def report(
    plan: Plan,
    measured: Mapping[str, Any] | None = None,
    results: Mapping[str, Any] | None = None,
    kinds: Sequence[str] | None = None,
) -> str:
    """A report on a plan, as HTML.

    Args:
        plan: the plan.
        measured: a trace that ``kvplan validate PLAN --trace`` wrote: drawn under the timeline.
        results: validation results: how far predictions were off, as a further picture.
        kinds: pictures to show, of `PICTURES`; None shows all.

    Returns:
        The text of one file: pictures are in it, and it loads nothing.

    Raises:
        InputError: the plan contradicts itself or the machine, or matplotlib is missing.
    """
    parts = [_head(plan), _facts(plan), _baselines(plan)]
    for kind in PICTURES if kinds is None else kinds:
        more = {"measured": measured} if kind == "timeline" and measured is not None else {}
        figure = pictures.KINDS[kind].draw(plan, **more)
        parts.append(_figure(kind, pictures.KINDS[kind].shows, PICTURES[kind], figure))
    if results is not None:
        shown = pictures.KINDS["accuracy"]
        caption = "Predictions of this version beside steps that were measured."
        parts.append(_figure("accuracy", shown.shows, caption, shown.draw(results)))
    parts += [_layers(plan), _sources(plan)]
    title = escape(f"kvplan: {plan.inputs.model.name} on {plan.inputs.hardware.title}")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _head(plan: Plan) -> str:
    note = wording.recompute_note(plan)
    made = plan.provenance
    lines = [f"<h1>{escape(wording.strategy(plan))}</h1>"]
    if note:
        lines.append(f"<p>{escape(note[0].upper() + note[1:])}.</p>")
    lines.append(
        f'<p class="about">kvplan {escape(made.kvplan)}, {escape(made.solver)}, '
        f"{escape(made.time)}</p>"
    )
    return "\n".join(lines)


def _table(head: Sequence[Cell], rows: Iterable[tuple[Sequence[Cell], str]]) -> str:
    def cells(tag: str, row: Sequence[Cell]) -> str:
        parts = []
        for cell in row:
            text, kind = (cell, "") if isinstance(cell, str) else cell
            mark = f' class="{kind}"' if kind else ""
            parts.append(f"<{tag}{mark}>{escape(text)}</{tag}>")
        return "".join(parts)

    lines = ["<table>"]
    if head:
        lines.append(f"<tr>{cells('th', head)}</tr>")
    for row, kind in rows:
        mark = f' class="{kind}"' if kind else ""
        lines.append(f"<tr{mark}>{cells('td', row)}</tr>")
    return "\n".join([*lines, "</table>"])


def _facts(plan: Plan) -> str:
    predicted = plan.prediction
    rows = [
        ("workload", wording.workload(plan)),
        ("machine", wording.machine(plan)),
        ("pipeline", wording.pipeline(plan)),
        ("step", f"{format_seconds(predicted.step_s)}, {predicted.tokens_per_s:.4g} tokens/s"),
        ("speed-up", wording.speed_up(plan, "overlapped_fetch", "overlapped fetch")),
        ("limit", wording.busy(predicted.step_s, predicted.busy_s, predicted.bottleneck)),
        (
            "bound",
            f"no plan of this kind takes less than {format_seconds(predicted.bound_s)}; "
            f"gap {100 * predicted.gap:.1f} %",
        ),
        *(
            ("memory", line)
            for line in wording.memory(predicted.memory_bytes, predicted.capacity_bytes)
        ),
        *(("would save", line) for line in wording.more(plan)),
        ("confidence", predicted.confidence),
    ]
    shown, last = [], ""
    for name, text in rows:
        shown.append((("" if name == last else name, text), ""))
        last = name
    return _table((), shown)


def _baselines(plan: Plan) -> str:
    step_s = plan.prediction.step_s
    rows: list[tuple[Sequence[Cell], str]] = []
    for name, baseline in plan.baselines.items():
        kind = "chosen" if name == plan.decision.strategy else ""
        if baseline.step_s is None:
            rows.append(((baseline.title, ("", "n"), ("", "n"), baseline.reason or ""), kind))
        else:
            slower = wording.times(baseline.step_s / step_s)
            cells = (baseline.title, (format_seconds(baseline.step_s), "n"), (slower, "n"), "")
            rows.append((cells, kind))
    if plan.decision.strategy not in plan.baselines:
        rows.append((("this plan", (format_seconds(step_s), "n"), ("1x", "n"), ""), "chosen"))
    head = ("plan", ("step", "n"), ("of this plan", "n"), "not possible because")
    return "<h2>Beside what people run today</h2>\n" + _table(head, rows)


def _figure(kind: str, shows: str, caption: str, figure: Any) -> str:
    picture = base64.b64encode(svg(figure)).decode()
    title = shows[0].upper() + shows[1:]
    return (
        f'<h2 id="{kind}">{escape(title)}</h2>\n<figure><img alt="{escape(shows)}" '
        f'src="data:image/svg+xml;base64,{picture}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _layers(plan: Plan) -> str:
    """Token ranges of every group of layers."""
    groups = layer_groups(plan.decision.layers, plan.inputs.workload.block)
    rows = [((layer_names(g), group_mix(g)), "") for g in groups]
    return "<h2>Decision per layer</h2>\n" + _table(("layers", "paths"), rows)


def _sources(plan: Plan) -> str:
    """Where every figure of the machine is from."""
    hardware = scenario_of(plan).hardware
    rows = [
        ((path, p.kind, ". ".join(filter(None, (p.source, p.note)))), "")
        for path, p in sorted(hardware.provenance.items())
    ]
    tiers = ", ".join(
        f"{tier} {format_bytes(size)}" for tier, size in plan.prediction.capacity_bytes.items()
    )
    return (
        '<h2>What the figures rest on</h2>\n<p class="about">'
        f"{escape(plan.prediction.confidence)}; budgets: {escape(tiers)}; profile "
        f"{escape(hardware.name)}, digest {escape(hardware.digest[:16])}</p>\n"
        f'<details class="small"><summary>{len(rows)} figures of the machine and their '
        f"sources</summary>\n{_table(('figure', 'kind', 'source and note'), rows)}\n</details>"
    )
