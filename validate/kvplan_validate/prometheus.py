"""Metrics as Prometheus text: in a file for node_exporter's textfile collector, or over HTTP.

Source: Prometheus, Exposition formats (text format 0.0.4) and Metric and label naming.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import kvplan
from kvplan.errors import InputError
from kvplan.plan_file import write_text
from kvplan_validate.metrics import Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[str, Mapping[str, str], float]
"""Suffix of the name, labels, value."""


def text(metrics: Metrics) -> str:
    """The exposition of everything that is known."""
    lines: list[str] = []
    for name, kind, sentence, samples in _families(metrics):
        found = list(samples)
        if not found:
            continue
        lines += [f"# HELP {name} {sentence}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{suffix}{_labels(labels)} {value!r}" for suffix, labels, value in found]
    return "\n".join(lines) + "\n"


def _families(metrics: Metrics) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    yield (
        "kvplan_build_info", "gauge", "Version of kvplan.",
        [("", {"version": kvplan.__version__}, 1.0)],
    )  # fmt: skip
    yield (
        "kvplan_case_info", "gauge", "The case that runs.",
        [("", metrics.case, 1.0)] if metrics.case else [],
    )  # fmt: skip
    yield (
        "kvplan_cases_total", "counter", "Cases that are over.",
        _by("state", metrics.cases),
    )  # fmt: skip
    quantiles: list[Sample] = [
        ("", {"quantile": str(share)}, seconds) for share, seconds in metrics.latency_s().items()
    ]
    totals: list[Sample] = [
        ("_sum", {}, metrics.step_seconds),
        ("_count", {}, float(metrics.steps)),
    ]
    yield (
        "kvplan_step_seconds", "summary",
        "Decode steps; quantiles of the case that runs.", [*quantiles, *totals],
    )  # fmt: skip
    yield (
        "kvplan_step_predicted_seconds", "gauge", "Predicted step of the case that runs.",
        [("", {}, metrics.predicted_s)] if metrics.case else [],
    )  # fmt: skip
    yield (
        "kvplan_resource_busy_seconds_total", "counter", "Time each resource worked.",
        _by("resource", metrics.busy_seconds),
    )  # fmt: skip
    yield (
        "kvplan_resource_busy_ratio", "gauge", "Share of the step that each resource works.",
        _by("resource", metrics.utilisation()),
    )  # fmt: skip
    yield (
        "kvplan_link_bytes_total", "counter", "Bytes over each link.",
        _by("link", metrics.link_bytes),
    )  # fmt: skip
    yield (
        "kvplan_tier_read_tokens_total", "counter",
        "Cached tokens times layers that each tier served, per sequence.",
        _by("tier", metrics.tier_tokens),
    )  # fmt: skip
    yield (
        "kvplan_tier_hit_ratio", "gauge", "Share of cached tokens that each tier serves.",
        _by("tier", metrics.hit_rate()),
    )  # fmt: skip
    yield from _card(metrics)


def _card(metrics: Metrics) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    reading = metrics.reading
    if reading is None:
        return
    rows: list[tuple[str, str, Mapping[str, float | None]]] = [
        ("kvplan_gpu_busy_ratio", "Time with a kernel running, by NVML.", {"": reading.gpu_busy}),
        ("kvplan_gpu_memory_used_bytes", "GPU memory in use, by NVML.",
         {"": reading.memory_used_bytes}),
        ("kvplan_gpu_power_watts", "Power drawn, by NVML.", {"": reading.power_w}),
        ("kvplan_gpu_clock_hertz", "Clock of the multiprocessors, by NVML.",
         {"": reading.clock_hz}),
        ("kvplan_pcie_bytes_per_second", "Raw traffic of the slot over 20 ms, by NVML.",
         {"h2d": reading.pcie_to_gpu_bytes_per_s, "d2h": reading.pcie_to_host_bytes_per_s}),
    ]  # fmt: skip
    for name, sentence, values in rows:
        known = {key: float(value) for key, value in values.items() if value is not None}
        yield name, "gauge", sentence, _by("link", known)


def _by(label: str, values: Mapping[str, float]) -> list[Sample]:
    return [("", {label: key} if key else {}, float(value)) for key, value in values.items()]


def _labels(labels: Mapping[str, str]) -> str:
    """Labels with what the format asks to be escaped."""
    if not labels:
        return ""
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    shown = [
        f'{name}="{"".join(escapes.get(c, c) for c in value)}"' for name, value in labels.items()
    ]
    return "{" + ",".join(shown) + "}"


def to_file(metrics: Metrics, path: str | Path) -> None:
    """Write the text whole or not at all, as the textfile collector needs it."""
    write_text(path, text(metrics))


class Server:
    """Serves ``/metrics`` on this machine until it is closed.

    Args:
        metrics: what to show.
        port: TCP port; 0 takes a free one.
        host: address to listen on.

    Raises:
        InputError: the port is taken or not allowed.
    """

    def __init__(self, metrics: Metrics, port: int, host: str = "127.0.0.1") -> None:
        """Listen."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.split("?")[0] in ("/", "/metrics")
                body = text(metrics).encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stderr is for talk with people."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InputError("--prometheus-port", port, f"a free port ({error})") from None
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
