"""Plans for people: the answer first, then why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kvplan import wording
from kvplan.layer_groups import LISTED_GROUPS, group_mix, layer_groups, layer_names
from kvplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.analysis import Analysis
    from kvplan.baselines import Rung
    from kvplan.evaluate import Evaluation
    from kvplan.plan import GenerationPlan, Plan
    from kvplan.profiler_trace import Profile
    from kvplan.scenario import Scenario


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """Labels and sentences in two columns; equal labels in a row are written once."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    last = ""
    for label, text in rows:
        grid.add_row(Text("" if label == last else label), Text(text))
        last = label
    return grid


def show_plan(console: Console, plan: Plan, written: str | None = None) -> None:
    """Print a plan.

    Args:
        console: where to.
        plan: the plan.
        written: the file it was written to, if any.
    """
    if plan.generation is not None:
        show_segments(console, plan, plan.generation)
        console.print("\nIts last step:\n")
    console.print(Text(wording.strategy(plan), style="bold green"))
    _print_note(console, plan)
    console.print()
    console.print(facts([*_question(plan), *_decision(plan), *_prediction(plan)]))
    if written:
        console.print(Text(f"\nWritten to {written}"))


def _question(plan: Plan) -> list[tuple[str, str]]:
    return [("workload", wording.workload(plan)), ("machine", wording.machine(plan))]


def _decision(plan: Plan) -> list[tuple[str, str]]:
    groups = layer_groups(plan.decision.layers, plan.inputs.workload.block)
    if len(groups) > LISTED_GROUPS:
        groups = [[layer for layer in plan.decision.layers if layer.tokens]]
    rows = [("decision", f"{layer_names(members)}: {group_mix(members)}") for members in groups]
    rows += [("batch", line) for line in wording.batch_choice(plan)]
    return [*rows, ("pipeline", wording.pipeline(plan))]


def _prediction(plan: Plan) -> list[tuple[str, str]]:
    predicted = plan.prediction
    rows = [
        ("step", f"{format_seconds(predicted.step_s)}, {predicted.tokens_per_s:.4g} tokens/s"),
        ("speed-up", wording.speed_up(plan, "overlapped_fetch", "overlapped fetch")),
        ("speed-up", wording.speed_up(plan, "synchronous_fetch", "synchronous fetch")),
        *[("speed-up", line) for line in wording.best_simple(plan)],
        ("limit", wording.busy(predicted.step_s, predicted.busy_s, predicted.bottleneck)),
        ("bound", f"no plan of this kind takes less than {format_seconds(predicted.bound_s)}; "
                  f"gap {100 * predicted.gap:.1f} %"),
    ]  # fmt: skip
    rows += [("memory", line) for line in
             wording.memory(predicted.memory_bytes, predicted.capacity_bytes)]  # fmt: skip
    rows += [("would save", line) for line in wording.more(plan)]
    return [*rows, ("confidence", predicted.confidence)]


def show_segments(console: Console, plan: Plan, generation: GenerationPlan) -> None:
    """Print the segments of a generation.

    Args:
        console: where to.
        plan: the plan that holds it.
        generation: its segments.
    """
    console.print(Text(wording.generation(plan, generation), style="bold green"))
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("tokens", "decision"):
        table.add_column(title, overflow="fold")
    for title in ("first step", "last step", "in all", "moved before", "HBM", "DRAM"):
        table.add_column(title, justify="right", no_wrap=True)
    for segment in generation.segments:
        held = segment.prediction.memory_bytes
        table.add_row(
            f"{segment.begin}–{segment.end}",
            Text(wording.mix(wording.counts(segment.decision.layers))),
            format_seconds(segment.first_step_s),
            format_seconds(segment.prediction.step_s),
            format_seconds(segment.steps_s + segment.moves_s),
            format_bytes(sum(segment.moved_bytes.values())),
            format_bytes(held.get("hbm", 0.0)),
            format_bytes(held.get("dram", 0.0) + segment.kept_bytes),
        )
    console.print(table)


def show_ladder(console: Console, plan: Plan, rungs: Sequence[Rung]) -> None:
    """Print every baseline and the chosen plan.

    Args:
        console: where to.
        plan: the chosen plan.
        rungs: every baseline, judged.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("plan", overflow="fold")
    chosen_batch = plan.batch_choice is not None
    for title in (*["batch"] * chosen_batch, "step", "tokens/s", "gain", "over h2d", "HBM"):
        table.add_column(title, justify="right", no_wrap=True)
    last: float | None = None
    for rung in rungs:
        if rung.evaluation is None:
            table.add_row(Text(f"{rung.title}: not possible: {rung.reason}", style="dim"))
            continue
        judged = rung.evaluation
        moved = judged.graph.link_bytes(judged.values)
        made = rung.tokens_per_s or 0.0
        cells = _cells(judged.step_s, made, last, moved, judged.memory_bytes)
        table.add_row(Text(rung.title), *[str(rung.batching.batch)] * chosen_batch, *cells)
        last = made
    predicted = plan.prediction
    cells = _cells(
        predicted.step_s, predicted.tokens_per_s, last, predicted.moved_bytes,
        predicted.memory_bytes,
    )  # fmt: skip
    cells = [*[str(plan.inputs.workload.batch)] * chosen_batch, *cells]
    table.add_row(Text(f"chosen: {_chosen(plan)}"), *cells, style="bold green")
    console.print(facts(_question(plan)))
    console.print()
    console.print(table)
    console.print()
    for rung in rungs:
        if rung.note:
            console.print(Text(f"{rung.title}: {rung.note}", style="dim"))
    console.print(Text("gain: tokens/s over the row before that is possible; over h2d: bytes per "
                       "step", style="dim"))  # fmt: skip
    console.print(Text(wording.strategy(plan)))
    for line in wording.batch_choice(plan):
        console.print(Text(f"batch: {line}"))
    _print_note(console, plan)


def _print_note(console: Console, plan: Plan) -> None:
    note = wording.recompute_note(plan)
    if note:
        console.print(Text(note[0].upper() + note[1:] + "."))


def _chosen(plan: Plan) -> str:
    baseline = plan.baselines.get(plan.decision.strategy)
    return baseline.title if baseline else "searched plan"


def _cells(
    step_s: float, tokens_per_s: float, last: float | None, moved: dict[str, float],
    memory: dict[str, float],
) -> list[str]:  # fmt: skip
    gain = "" if last is None else f"{100 * (tokens_per_s / last - 1):+.1f} %"
    link = format_bytes(moved.get("h2d", 0.0))
    return [format_seconds(step_s), f"{tokens_per_s:.4g}", gain, link,
            format_bytes(memory.get("hbm", 0.0))]  # fmt: skip


def show_replay(
    console: Console, plan: Plan, scenario: Scenario, evaluation: Evaluation,
    difference: float | None,
) -> None:  # fmt: skip
    """Print what a replay shows beside what the plan predicted.

    Args:
        console: where to.
        plan: the plan.
        scenario: what it was replayed on.
        evaluation: the replay.
        difference: how much longer it takes than the plan says, relative; None if not known.
    """
    step_s, planned_s = evaluation.step_s, plan.prediction.step_s
    made = scenario.workload.tokens_per_s(step_s)
    answer = f"{format_seconds(step_s)} per step, {made:.4g} tokens/s"
    if difference is None:
        beside = "not comparable with the prediction in the plan"
    elif abs(difference) <= 1e-9:
        beside = "the same as the plan's own prediction"
    else:
        beside = f"{100 * difference:+.2f} % on the {format_seconds(planned_s)} of the plan"
    console.print(Text(f"{answer}, {beside}.", style="bold green"))
    console.print()
    machine = scenario.hardware
    simulation = evaluation.simulation
    rows = [("workload", wording.workload(plan)), ("machine", f"{machine.title} ({machine.name})"),
            ("limit", wording.busy(step_s, simulation.busy_s, simulation.bottleneck))]  # fmt: skip
    rows += [("memory", line) for line in
             wording.memory(evaluation.memory_bytes, scenario.capacity)]  # fmt: skip
    console.print(facts(rows))


def show_analysis(console: Console, profile: Profile, found: Analysis) -> None:
    """Print what a profiler trace says about the link.

    Args:
        console: where to.
        profile: the trace.
        found: its analysis.
    """
    console.print(Text(f"{found.answer}.", style="bold green"))
    console.print()
    steps = ""
    if found.steps:
        per_step = format_seconds(found.window_s / found.steps)
        steps = f", {found.steps} step{'s' * (found.steps > 1)} of {per_step}"
    card = f"{profile.card}, " if profile.card else ""
    window = found.window_s
    shares = [f"{kind} {wording.percent(s / window)}" for kind, s in found.busy_s.items()]
    idle = f"; nothing {wording.percent(found.idle_s / window)}"
    rows = [("trace", f"{card}{format_seconds(window)}{steps}"), ("busy", ", ".join(shares) + idle)]
    if found.hidden_share is not None:
        rows.append(
            (
                "hidden",
                f"{wording.percent(found.hidden_share)} of the copies' time is "
                f"beside work of the GPU; {format_seconds(found.exposed_s)} is not",
            )
        )
        rows.append(("overlap", f"perfect, it would take {format_seconds(found.best_s)}"))
    rows += [
        (name, wording.copies(copies))
        for name, copies in (("h2d", found.h2d), ("d2h", found.d2h))
        if copies.count
    ]
    for number, advice in enumerate(found.advice, start=1):
        most = (
            ""
            if advice.saves_s is None
            else (f" (saves at most {wording.percent(advice.saves_s / window)})")
        )
        rows.append(("change", f"{number}. {advice.what}{most}"))
    if not found.advice:
        rows.append(("change", "nothing that this trace shows would save 2 % or more"))
    console.print(facts(rows))
