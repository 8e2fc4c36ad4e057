"""Who is told while steps run: a table, a file, a port; all closed at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from kvplan_validate import prometheus
from kvplan_validate.live import LiveTable
from kvplan_validate.metrics import Metrics
from kvplan_validate.nvml import Card


@contextmanager
def watching(
    *, live: Console | None, file: str | None, port: int | None, bus: str | None = None
) -> Iterator[Metrics | None]:
    """Metrics that go where asked; None where nobody asked.

    Args:
        live: console of a table that follows the run.
        file: Prometheus text, written whole after every change.
        port: of this machine, for Prometheus to scrape.
        bus: PCI address of the card whose counters are read too.

    Raises:
        InputError: the port is taken, or the file cannot be written.
    """
    if live is None and file is None and port is None:
        yield None
        return
    metrics = Metrics(card=Card.here(bus))
    with ExitStack() as open_until_the_end:
        if port is not None:
            server = prometheus.Server(metrics, port)
            open_until_the_end.callback(server.close)
        if file is not None:
            metrics.sinks.append(lambda now: prometheus.to_file(now, file))
            prometheus.to_file(metrics, file)
        if live is not None:
            shown = LiveTable(live)
            open_until_the_end.callback(shown.close)
            metrics.sinks.append(shown)
        yield metrics
