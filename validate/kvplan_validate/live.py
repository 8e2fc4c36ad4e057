"""Metrics as a table that follows the run."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.table import Table

from kvplan_validate.metrics import Metrics


class LiveTable:
    """A table on a terminal, redrawn when metrics change.

    Args:
        console: where; anything that is no terminal gets the last table only.
    """

    def __init__(self, console: Console) -> None:
        """Start drawing."""
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def __call__(self, metrics: Metrics) -> None:
        """Show the metrics of now."""
        self._live.update(table(metrics), refresh=True)

    def close(self) -> None:
        """Leave the last table where it is."""
        self._live.stop()
        if not self._console.is_terminal:
            self._console.print()


def table(metrics: Metrics) -> Table:
    """Latencies, then each resource and tier: measured beside predicted."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown.add_column(" ".join(metrics.case.values()) or "waiting", no_wrap=True)
    for title in ("measured", "predicted"):
        shown.add_column(title, justify="right", no_wrap=True)
    latency = metrics.latency_s()
    predicted = _ms(metrics.predicted_s) if metrics.case else ""
    for share, seconds in latency.items():
        name = f"step p{100 * share:.0f}"
        shown.add_row(name, _ms(seconds), predicted if share == 0.5 else "")
    for name, share in metrics.utilisation().items():
        expected = metrics.predicted_busy_s.get(name)
        known = expected is not None and metrics.predicted_s
        wanted = _percent(expected / metrics.predicted_s) if known and expected is not None else ""
        shown.add_row(f"{name} busy", _percent(share), wanted)
    for tier, share in metrics.hit_rate().items():
        shown.add_row(f"tokens from {tier}", _percent(share), "")
    reading = metrics.reading
    if reading is not None and reading.gpu_busy is not None:
        shown.add_row("GPU busy, by NVML", _percent(reading.gpu_busy), "")
    if reading is not None and reading.power_w is not None:
        shown.add_row("power, by NVML", f"{reading.power_w:.0f} W", "")
    done = metrics.cases
    shown.add_row("steps, cases, failed", f"{metrics.steps}, {sum(done.values())}, "
                  f"{done['failed']}", "")  # fmt: skip
    return shown


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
