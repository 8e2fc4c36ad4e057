"""Profiler traces in JSON: which copies and kernels ran when, whoever recorded them.

Read are the traces of torch.profiler (CUDA and ROCm), Nsight Systems' and XLA's exports, and
kvplan's own, simulated or measured: all are trace events, and differ in how they name a copy.

Source: Trace Event Format, Google, 2016; names of copies as CUPTI and torch.profiler write them.
"""

from __future__ import annotations

import gzip
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvplan.errors import InputError

LARGEST_FILE = 2 * 2**30

KINDS = ("h2d", "d2h", "gpu", "host", "disk")
"""Resources that events are put to; ``gpu`` is kernels and copies within the device."""

_H2D = re.compile(r"HtoD|H2D|host[ _-]?to[ _-]?device", re.I)
_D2H = re.compile(r"DtoH|D2H|device[ _-]?to[ _-]?host", re.I)
_COPY = re.compile(r"memcpy|copy", re.I)
_BYTES = re.compile(r"size:(\d+)")
_LAUNCH = re.compile(r"(cuda|hip|cu)(Graph|Module)?Launch")
_COPY_CALL = re.compile(r"(cuda|hip|cu)Memcpy")
_PAGEABLE = re.compile(r"pageable", re.I)
_PINNED = re.compile(r"pinned|page-?locked", re.I)


@dataclass(frozen=True, slots=True)
class Work:
    """One copy or kernel.

    Args:
        kind: resource, of `KINDS`.
        begin_s: start, seconds.
        end_s: end, seconds.
        size_bytes: bytes moved, for copies; None where the trace does not say.
        pinned: whether the host side was page-locked; None where the trace does not say.
        device: number of the GPU.
    """

    kind: str
    begin_s: float
    end_s: float
    size_bytes: float | None = None
    pinned: bool | None = None
    device: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """What a trace holds.

    Args:
        work: copies and kernels of one GPU, by start.
        launches: kernel and graph launches on the CPU, seconds each took.
        copy_calls: calls that started a copy, seconds each took.
        steps: steps that the profiler marked; 0 where it marked none.
        card: name of the GPU, where the trace says it.
        device: number of the GPU.
        devices: all GPUs that worked, and events of each.
    """

    work: tuple[Work, ...]
    launches: tuple[float, ...]
    copy_calls: tuple[float, ...]
    steps: int
    card: str | None
    device: int
    devices: Mapping[int, int]


class _Event(msgspec.Struct):
    """What is read of an event; everything may be missing."""

    ph: Any = None
    name: Any = None
    cat: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Any = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event]
    deviceProperties: Any = None


def read_profile(path: str | os.PathLike[str], device: int | None = None) -> Profile:
    """Read a profiler trace.

    Args:
        path: a JSON trace, also gzipped; ``-`` is stdin.
        device: which GPU; None takes the one with most copies to it, else most events.

    Raises:
        InputError: no such file, not a trace in JSON, or nothing that ran on a GPU.
    """
    name = str(path)
    try:
        if name != "-" and Path(path).is_file() and Path(path).stat().st_size > LARGEST_FILE:
            raise InputError("trace", name, "a trace below 2 GiB")
        raw = sys.stdin.buffer.read() if name == "-" else Path(path).read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError("trace", name, f"a profiler trace ({reason})") from None
    except (EOFError, zlib.error) as error:
        raise InputError("trace", name, f"a gzip file that is whole ({error})") from None
    return decode_profile(raw, name, device)


def decode_profile(raw: bytes, name: str = "trace", device: int | None = None) -> Profile:
    """Read a profiler trace from its JSON text.

    Raises:
        InputError: not a trace in JSON, or nothing that ran on a GPU.
    """
    document = _document(raw, name)
    work = list(_all_work(document.traceEvents))
    if not work:
        raise InputError(
            name,
            f"{len(document.traceEvents)} events",
            "a trace with copies or kernels of a GPU: record CUDA activities "
            "(ProfilerActivity.CUDA)",
        )
    devices = Counter(w.device for w in work)
    if device is not None and device not in devices:
        known = ", ".join(str(d) for d in sorted(devices))
        raise InputError("--device", device, f"one of the devices in the trace: {known}")
    copies = Counter(w.device for w in work if w.kind == "h2d")
    chosen = device if device is not None else max(devices, key=lambda d: (copies[d], devices[d]))
    own = sorted((w for w in work if w.device == chosen), key=lambda w: (w.begin_s, w.end_s))
    return Profile(
        work=tuple(own),
        launches=tuple(_calls(document.traceEvents, _LAUNCH)),
        copy_calls=tuple(_calls(document.traceEvents, _COPY_CALL)),
        steps=len(_steps(document.traceEvents)),
        card=_card(document.deviceProperties, chosen),
        device=chosen,
        devices=dict(devices),
    )


def _document(raw: bytes, name: str) -> _Document:
    accepted = (
        "a trace in JSON (torch.profiler's export_chrome_trace, or Perfetto's traceconv json)"
    )
    text = raw.strip()
    if text[:1] not in (b"{", b"["):
        raise InputError(name, raw[:20].decode(errors="replace"), accepted)
    try:
        if text[:1] == b"{":
            return msgspec.json.decode(text, type=_Document)
        if not text.endswith(b"]"):  # the format lets the end of a list be missing
            text = text.rstrip(b",") + b"]"
        return _Document(msgspec.json.decode(text, type=list[_Event]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        start = raw[:40].decode(errors="replace")
        raise InputError(name, start, f"{accepted} ({error})") from None


def _number(value: Any) -> float | None:
    """A finite time in microseconds, also where it is written as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None


def _all_work(events: Iterable[_Event]) -> Iterable[Work]:
    """Copies and kernels of all GPUs."""
    listed = list(events)
    lanes = {
        (e.pid, e.tid): str(e.args.get("name", ""))
        for e in listed
        if e.ph == "M" and e.name == "thread_name" and isinstance(e.args, dict)
    }
    processes = {
        e.pid: str(e.args.get("name", ""))
        for e in listed
        if e.ph == "M" and e.name == "process_name" and isinstance(e.args, dict)
    }
    measured = {pid for pid, title in processes.items() if title == "measured"}
    for event, begin, length in _complete(listed):
        if measured and event.pid not in measured:
            continue  # kvplan's traces hold the prediction beside the measurement
        kind = _kind(event, lanes.get((event.pid, event.tid), ""))
        if kind is not None:
            yield _work(event, kind, begin / 1e6, (begin + length) / 1e6)


def _complete(events: Iterable[_Event]) -> Iterable[tuple[_Event, float, float]]:
    """Events with start and length in microseconds; begins and ends are paired."""
    open_: dict[tuple[Any, Any], list[_Event]] = {}
    for event in events:
        begin = _number(event.ts)
        if begin is None:
            continue
        if event.ph == "X":
            length = _number(event.dur)
            if length is not None and length >= 0:
                yield event, begin, length
        elif event.ph == "B":
            open_.setdefault((event.pid, event.tid), []).append(event)
        elif event.ph == "E" and open_.get((event.pid, event.tid)):
            first = open_[event.pid, event.tid].pop()
            start = _number(first.ts)
            if start is not None and begin >= start:
                yield first, start, begin - start


def _kind(event: _Event, lane: str) -> str | None:
    """The resource an event kept busy; None where it is not work of a GPU or its links."""
    name, category = str(event.name or ""), str(event.cat or "").lower()
    if "runtime" in category or "driver" in category or "cpu_op" in category:
        return None
    if "annotation" in category or "ac2g" in category:
        return None
    copies = "memcpy" in category or _COPY.search(name)
    if copies and _H2D.search(name):
        return "h2d"
    if copies and _D2H.search(name):
        return "d2h"
    if lane in KINDS:  # kvplan's own
        return lane
    gpu = category in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")
    return "gpu" if gpu or (not category and re.match(r"stream\b", lane, re.I)) else None


def _work(event: _Event, kind: str, begin_s: float, end_s: float) -> Work:
    given = event.args if isinstance(event.args, dict) else {}
    details = " ".join([str(event.name or ""), *(v for v in given.values() if isinstance(v, str))])
    size = _number(given.get("bytes", given.get("Bytes", given.get("size"))))
    if size is None:
        found = _BYTES.search(details)
        size = float(found[1]) if found else None
    size = size or None  # kvplan's traces say 0 where they say nothing
    pinned: bool | None = None
    if kind in ("h2d", "d2h"):
        pinned = False if _PAGEABLE.search(details) else True if _PINNED.search(details) else None
    device = given.get("device", given.get("Device", 0))
    number = device if isinstance(device, int) and not isinstance(device, bool) else 0
    return Work(kind, begin_s, end_s, size, pinned, number)


def _calls(events: Iterable[_Event], which: re.Pattern[str]) -> Iterable[float]:
    """Seconds of the CPU's calls of one kind."""
    for event in events:
        if event.ph == "X" and which.match(str(event.name)):
            length = _number(event.dur)
            if length is not None:
                yield length / 1e6


def _steps(events: Iterable[_Event]) -> set[str]:
    """Steps that torch.profiler marked."""
    return {str(e.name) for e in events if str(e.name).startswith("ProfilerStep#")}


def _card(properties: Any, device: int) -> str | None:
    if not isinstance(properties, list):
        return None
    for one in properties:
        if isinstance(one, dict) and one.get("id") == device and isinstance(one.get("name"), str):
            return str(one["name"])
    return None
