"""Raw results to a hardware profile in the format of ``hwprofiles/README.md``.

Every number is measured, with the raw results as its source, or assumed by a rule that it names.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.curve import Curve
from kvplan.curve import measured as measured_curve
from kvplan.hardware_file import parse_hardware
from kvplan_validate.figures import Figures
from kvplan_validate.link_document import link
from kvplan_validate.provenance import STAND_IN, assumed, best_rate, curve, measured, median_time
from kvplan_validate.toml_text import toml_text

_SEQUENCES = 16
"""Batch of the multi-head shape whose curve stands for attention as a whole, if measured."""

_SHAPE = ("sequences", "kv_heads", "group", "head_dim")


def to_toml(raw: Mapping[str, Any], name: str, title: str, file: str = "raw.json") -> str:
    """A complete hardware profile.

    Args:
        raw: what ``run_profile`` gave.
        name: of the profile: lower-case letters, digits, dots and dashes.
        title: one line for people.
        file: what to call the raw results in sources.

    Returns:
        TOML text that ``kvplan.hardware_file.parse_hardware`` accepts.

    Raises:
        InputError: not raw results, or a name or figure that a profile may not have.
    """
    figures = Figures(raw, file)
    text = toml_text(_document(figures, name, title))
    parse_hardware(text, name)
    return text


def default_name(raw: Mapping[str, Any]) -> str:
    """A name after the card, such as ``nvidia-h200``.

    >>> default_name({"machine": {"card": "NVIDIA H200 (SXM)"}}), default_name({})
    ('nvidia-h200-sxm', 'this-machine')
    """
    card = str(raw.get("machine", {}).get("card") or "this machine")
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def residuals(raw: Mapping[str, Any], file: str = "raw.json") -> list[dict[str, Any]]:
    """How well each fitted curve matches its points.

    Returns:
        One row per curve: ``curve`` (its key path), ``of`` (which shape), ``points``,
        ``pieces`` (affine ones), ``residual`` (largest relative distance below a point).
    """
    document = _document(Figures(raw, file), "residuals", "residuals")
    return list(_fits(document, "", ""))


def _fits(table: Any, path: str, of: str) -> Iterator[dict[str, Any]]:
    if isinstance(table, dict) and "points" in table:
        points = [(float(x), float(y)) for x, y in table["points"]]
        fitted = fit(points)
        distance = max(0.0, *(1 - fitted.seconds(x) / y for x, y in points))
        row = {"curve": path, "of": of, "points": len(points), "pieces": len(fitted.pieces)}
        yield row | {"residual": distance}
        return
    items = table.items() if isinstance(table, dict) else enumerate(table)
    for key, inner in items:
        if isinstance(inner, dict | list):
            shape = [f"{k} {v}" for k, v in table.items() if isinstance(v, int)] if of == "" and (
                isinstance(table, dict) and path
            ) else []  # fmt: skip
            yield from _fits(inner, f"{path}.{key}" if path else str(key), ", ".join(shape) or of)


def fit(points: list[tuple[float, float]]) -> Curve:
    """The curve that a hardware file's reader makes of points: convex, never above the best rate.

    >>> [fit([(1.0, 3.0), (2.0, 3.5), (4.0, 7.5)]).seconds(v) for v in (1.0, 2.0, 4.0)]
    [3.0, 3.5, 7.5]
    """
    return measured_curve(points)


def _document(figures: Figures, name: str, title: str) -> dict[str, Any]:
    gpu, host, disk = _gpu(figures), _host(figures), _disk(figures)
    parts = {"gpu": gpu, "h2d": link(figures, "h2d"), "d2h": link(figures, "d2h"), "host": host}
    known = (gpu["hbm_bandwidth"], parts["h2d"]["latency"])
    complete = all(number["kind"] == "measured" for number in known) and all(
        host.get(f"attention{kind}_bandwidth") for kind in ("", "_gqa")
    )
    document: dict[str, Any] = {
        "schema": 1,
        "name": name,
        "title": title,
        "kind": "measured" if complete else "assumed",
        "date": figures.machine.get("date", "1970-01-01"),
    }
    return document | parts | ({"disk": disk} if disk else {})


def _gpu(figures: Figures) -> dict[str, Any]:
    machine = figures.machine
    size = machine.get("hbm_bytes")
    hbm = [best_rate(figures, "memory.hbm", "GB/s", operation=o) for o in ("sum", "max", "copy")]
    reads = [rate for rate in hbm[:2] if rate] or [rate for rate in hbm if rate]
    read = max(reads, key=lambda rate: float(rate["value"]), default=None)
    table: dict[str, Any] = {
        "name": machine.get("card", "no GPU"),
        "memory": measured(figures, size / 2**20, "MiB", "machine.hbm_bytes")
        if size
        else assumed(16, "GiB", STAND_IN),
        "hbm_bandwidth": read or assumed(300, "GB/s", STAND_IN),
        "kernel": median_time(figures, "launch.light")
        or median_time(figures, "launch.kernel")
        or assumed(3, "us", "start and drain of one kernel inside a stream, a round figure"),
        "launch": median_time(figures, "launch.issue")
        or median_time(figures, "launch.eager", operation="mix")
        or assumed(10, "us", "one launch from Python, a round figure"),
        "edge": median_time(figures, "edges.waiting", waiting="in turn"),
        "wait": median_time(figures, "edges.waiting", waiting="done"),
        "sample": median_time(figures, "launch.sample"),
        "graph_launch": median_time(figures, "launch.graph", nodes=512, until="launched"),
        "flop": _flop(figures),
        "dequantise_bandwidth": _dequantise(figures),
        "attention": _whole_attention(figures),
        "linear": curve(
            figures,
            "matmul.linear",
            "volume",
            figures.points("matmul.linear"),
            "bytes of weights; the median over shapes and 1 to 64 tokens",
        ),
        "gemm": list(_gemm(figures)),
        "linear_points": list(_linear(figures)),
        "attention_points": list(_attention(figures)),
        "gemm_sustained": _sustained(figures),
    }
    return {key: value for key, value in table.items() if value}


def _flop(figures: Figures) -> dict[str, Any]:
    rates = {
        dtype: best_rate(
            figures, "matmul.formats", "TOP/s" if dtype == "int8" else "TFLOP/s", dtype=dtype
        )
        for dtype in ("fp32", "fp16", "bf16", "fp8", "int8")
    }
    rebuild = best_rate(figures, "matmul.rebuild", "TFLOP/s", dtype="fp16")
    half = [rate for rate in (rates["fp16"], rebuild) if rate]
    best = max(half, key=lambda rate: float(rate["value"]), default=None)
    fp16 = best or assumed(50, "TFLOP/s", STAND_IN)
    rates["fp16"] = fp16
    if rates["bf16"] is None:
        rule = "the fp16 rate: tensor cores run both alike"
        rates["bf16"] = assumed(float(fp16["value"]), "TFLOP/s", rule)
    return {dtype: rate for dtype, rate in rates.items() if rate}


def _dequantise(figures: Figures) -> dict[str, Any]:
    """Rates of the runtime's own unpacking."""
    rates = {
        dtype: best_rate(figures, "dequantise.runtime", "GB/s", dtype=dtype)
        for dtype in ("int8", "int4")
    }
    return {dtype: rate for dtype, rate in rates.items() if rate}


def _shapes(figures: Figures, key: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    found = [{name: point["at"][name] for name in names} for point in figures.points(key)]
    return [shape for index, shape in enumerate(found) if shape not in found[:index]]


def _gemm(figures: Figures) -> Iterator[dict[str, Any]]:
    key = "matmul.rebuild"
    for shape in _shapes(figures, key, ("inputs", "outputs", "dtype")):
        time = curve(figures, key, "tokens", figures.points(key, **shape), "short bursts")
        if time:
            yield {**shape, "time": time}


def _linear(figures: Figures) -> Iterator[dict[str, Any]]:
    key = "matmul.linear"
    for rows in sorted({int(p["at"]["rows"]) for p in figures.points(key)}):
        shapes: dict[str, list[dict[str, Any]]] = {"wide": [], "narrow": []}
        for point in figures.points(key, rows=rows):
            wide = point["at"]["outputs"] > point["at"]["inputs"]
            shapes["wide" if wide else "narrow"].append(point)
        for shape, points in shapes.items():
            said = f"bytes of weights, {rows} tokens, {shape} layers"
            time = curve(figures, key, "volume", points, said)
            if time:
                yield {"tokens": rows, "shape": shape, "time": time}


def _sustained(figures: Figures) -> dict[str, Any] | None:
    """Share of a burst's rate that a long run of matrix products keeps: median over shapes."""
    shares = []
    for point in figures.points("matmul.sustained"):
        at = {name: point["at"][name] for name in ("inputs", "outputs", "tokens")}
        burst = figures.median("matmul.rebuild", **at)
        if burst and point["median"] > 0:
            shares.append(min(burst / float(point["median"]), 1.0))
    if not shares:
        return None
    value = statistics.median(shares)
    key = "matmul.rebuild over matmul.sustained, the median over shapes"
    return measured(figures, value, "1", key)


def _whole_attention(figures: Figures) -> dict[str, Any] | None:
    """The curve of one multi-head shape: a batch of 16, else the one with the most points."""
    key = "attention.token_major"
    shapes = [s for s in _shapes(figures, key, _SHAPE) if s["group"] == 1]

    def rank(shape: dict[str, Any]) -> tuple[bool, int]:
        return shape["sequences"] == _SEQUENCES, len(figures.points(key, **shape))

    for shape in sorted(shapes, key=rank, reverse=True)[:1]:
        said = ", ".join(f"{name} {value}" for name, value in shape.items())
        return curve(figures, key, "bytes", figures.points(key, **shape), said)
    return None


def _attention(figures: Figures) -> Iterator[dict[str, Any]]:
    key = "attention.token_major"
    for shape in _shapes(figures, key, _SHAPE):
        time = curve(figures, key, "bytes", figures.points(key, **shape))
        if time:
            yield {**shape, "time": time}


def _host(figures: Figures) -> dict[str, Any]:
    size = figures.machine.get("dram_bytes")
    table: dict[str, Any] = {
        "dram": measured(figures, size / 2**20, "MiB", "machine.dram_bytes")
        if size
        else assumed(16, "GiB", "a small host; the system does not say"),
        "attention_latency": _host_latency(figures),
    }
    for point in figures.points("pinned.limit", action="limit"):
        if point.get("notes", {}).get("refused"):
            table["pinned"] = measured(figures, point["median"] / 2**20, "MiB", "pinned.limit")
    native = bool(figures.points("host.attention", kernel="native"))
    kernel = {"kernel": "native" if native else "sdpa"}
    for heads, name in (("mha", ""), ("gqa", "_gqa")):
        at = {**kernel, "heads": heads}
        rates = {
            dtype: best_rate(figures, "host.attention", "GB/s", **at, dtype=dtype, beside="copies")
            or best_rate(figures, "host.attention", "GB/s", **at, dtype=dtype)
            for dtype in ("fp16", "bf16", "fp32")
        }
        if any(rates.values()):
            found = {dtype: rate for dtype, rate in rates.items() if rate}
            table[f"attention{name}_bandwidth"] = found
        share = _copy_share(figures, at)
        if share:
            table[f"copy_share{name}"] = share
    return table


def _copy_share(figures: Figures, at: dict[str, str]) -> dict[str, Any] | None:
    """Share of the link's rate that copies keep while the CPU attends."""
    beside = [
        float(point["notes"]["copy_bytes_per_s"])
        for point in figures.points("host.attention", **at, beside="copies")
        if point["at"]["dtype"] in ("fp16", "bf16") and "copy_bytes_per_s" in point.get("notes", {})
    ]
    alone = figures.best("copies.registered", direction="h2d")
    if not beside or alone is None:
        return None
    value = min(statistics.median(beside) / float(alone["volume_per_s"]), 1.0)
    key = "host.attention, copy_bytes_per_s, over the best rate of copies.registered"
    return measured(figures, value, "1", key)


def _host_latency(figures: Figures) -> dict[str, Any]:
    """Fixed time of one call: a hand-over less both latencies, which are counted apart."""
    call = figures.median("host.call", dtype="fp16", kernel="native") or figures.median(
        "host.call", dtype="fp16", kernel="sdpa"
    )
    trip = figures.median("host.hand_over", work="attention")
    there, back = (
        figures.median("copies.latency", direction=direction, bytes=4096)
        for direction in ("d2h", "h2d")
    )
    if trip and there and back:
        seconds = max(trip - there - back, 1e-6)
        key = "host.hand_over less copies.latency both ways, at least 1 us"
        return measured(figures, seconds * 1e6, "us", key)
    if call:
        return measured(figures, call * 1e6, "us", "host.call, dtype fp16")
    return assumed(50, "us", "handing over to CPU threads and back, a round figure")


def _disk(figures: Figures) -> dict[str, Any] | None:
    rate = best_rate(figures, "disk.read", "GB/s")
    fixed = median_time(figures, "disk.read", depth=1, bytes=4096)
    capacity = figures.machine.get("scratch_free_bytes")
    if rate is None or not capacity:
        return None
    size = measured(figures, capacity / 2**20, "MiB", "machine.scratch_free_bytes")
    return {
        "capacity": size,
        "read": {
            "fixed": fixed or assumed(100, "us", "latency of one NVMe read, a round figure"),
            "rate": rate,
        },
    }
