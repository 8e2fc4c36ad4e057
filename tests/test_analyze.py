"""Profiler traces: what is counted, and what follows from it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run

from kvplan.analysis import Analysis
from kvplan.analyze import analyze
from kvplan.errors import InputError
from kvplan.hardware_library import load_hardware
from kvplan.profiler_trace import decode_profile, read_profile

TRACES = Path(__file__).parent / "traces"
MIB = 2**20


def copy(begin_us: float, length_us: float, size: float = 16 * MIB, how: str = "Pinned -> Device",
         **more: Any) -> dict[str, Any]:  # fmt: skip
    return {"ph": "X", "cat": "gpu_memcpy", "name": f"Memcpy HtoD ({how})", "ts": begin_us,
            "dur": length_us, "args": {"bytes": size, "device": 0}, **more}  # fmt: skip


def kernel(begin_us: float, length_us: float, device: int = 0) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "gemm", "ts": begin_us, "dur": length_us,
            "args": {"device": device}}  # fmt: skip


def judged(*events: dict[str, Any], **more: Any) -> Analysis:
    document = {"traceEvents": [{"pid": 1, "tid": 1, **event} for event in events]}
    return analyze(decode_profile(json.dumps(document).encode()), **more)


# -- by hand -----------------------------------------------------------------------------------


def test_times_are_those_of_a_clock() -> None:
    """Copies 0-40 and 50-90, kernels 30-60 on one stream and 55-70 on another; window 0-100."""
    found = judged(copy(0, 40), copy(50, 40), kernel(30, 30), kernel(55, 15), kernel(95, 5))
    assert found.window_s == pytest.approx(100e-6)
    assert found.busy_s == pytest.approx({"gpu": 45e-6, "h2d": 80e-6})
    assert found.hidden_share == pytest.approx(30 / 80)  # 30-40 and 50-70
    assert found.exposed_s == pytest.approx(50e-6)
    assert found.idle_s == pytest.approx(5e-6)  # 90-95
    assert found.best_s == pytest.approx(80e-6)
    assert found.h2d.bytes_per_s == pytest.approx(32 * MIB / 80e-6)


def test_a_full_link_cannot_be_hidden() -> None:
    found = judged(copy(0, 95), kernel(10, 20), kernel(95, 5))
    assert found.verdict == "link"
    assert "more prefetch" in found.answer
    assert [a.saves_s for a in found.advice] == [pytest.approx((100 - 95 / 2) * 1e-6)]
    assert "fewer bytes" in found.advice[0].what


def test_prefetch_ahead_of_a_bandwidth_deficit_is_still_the_link() -> None:
    """10 ms to fetch and 0.47 ms to compute per layer: nothing but fewer bytes helps."""
    events = [copy(10_000 * k, 10_000) for k in range(32)]
    events += [kernel(10_000 * (k + 1), 470) for k in range(32)]
    found = judged(*events)
    assert found.verdict == "link"
    assert found.window_s / found.best_s == pytest.approx(1.0, abs=0.01)
    assert not any("stream of its own" in a.what for a in found.advice)


def test_copies_that_wait_their_turn_are_exposed() -> None:
    found = judged(copy(0, 40), kernel(40, 40), copy(80, 40), kernel(120, 40))
    assert (found.verdict, found.hidden_share) == ("exposed", 0.0)
    (advice,) = found.advice
    assert advice.saves_s == pytest.approx(80e-6)
    assert "stream of its own" in advice.what


def test_hidden_copies_are_left_alone() -> None:
    found = judged(kernel(0, 100), copy(10, 50))
    assert (found.verdict, found.hidden_share, found.advice) == ("gpu", 1.0, ())
    assert found.answer.endswith("hides 100 % of the copies")


def test_full_link_and_full_gpu_are_balanced() -> None:
    assert "balanced" in judged(kernel(0, 100), copy(0, 100)).answer


def test_gaps_are_idle() -> None:
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 5, "dur": 17}
    found = judged(kernel(0, 10), launch, kernel(90, 10), copy(20, 5))
    assert found.verdict == "idle"
    assert "1 launches took 17.0 µs" in found.advice[0].what
    assert found.advice[0].saves_s == pytest.approx(75e-6)


def test_without_copies_the_link_is_no_question() -> None:
    found = judged(kernel(0, 100))
    assert found.hidden_share is None
    assert found.answer.startswith("Nothing crosses the link")


def test_small_copies_are_compared_with_what_the_link_reaches() -> None:
    """256 KiB in 20 µs is 13 GB/s; the card's link brings 55."""
    found = judged(*(copy(20 * k, 20, MIB / 4) for k in range(100)),
                   hardware=load_hardware("h200"))  # fmt: skip
    advice = next(a for a in found.advice if "larger" in a.what)
    reach, rate = load_hardware("h200").h2d.copy.rate(), MIB / 4 / 20e-6
    assert advice.saves_s == pytest.approx(2000e-6 * (1 - rate / reach))


def test_a_slow_link_is_found_out() -> None:
    found = judged(copy(0, 1000, 20 * MIB), kernel(1000, 10), hardware=load_hardware("h200"))
    assert any("why the link is slow" in a.what for a in found.advice)


def test_steps_are_marked_or_given() -> None:
    marks = [{"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{k}", "ts": 0, "dur": 9}
             for k in (3, 4)]  # fmt: skip
    assert judged(copy(0, 10), *marks).steps == 2
    assert judged(copy(0, 10), *marks, steps=5).steps == 5
    assert judged(copy(0, 10)).steps == 0


# -- formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [
    "Memcpy HtoD (Pageable -> Device)", "[CUDA memcpy Host-to-Device]", "MemcpyH2D",
    "CopyHostToDevice", "hipMemcpyHtoD",
])  # fmt: skip
def test_copies_by_any_name(name: str) -> None:
    found = judged({"ph": "X", "name": name, "ts": "1.5", "dur": 8, "args": {}})
    assert found.h2d.count == 1
    assert found.h2d.size_bytes is None
    assert found.h2d.bytes_per_s is None


def test_sizes_and_memory_in_the_details_of_xla() -> None:
    details = {"memcpy_details": "kind_src:pageable kind_dst:device size:1048576 dest:0 async:1"}
    found = judged({"ph": "X", "name": "MemcpyH2D", "ts": 0, "dur": 100, "args": details})
    assert (found.h2d.size_bytes, found.h2d.pageable_share) == (MIB, 1.0)


def test_begins_and_ends_are_paired() -> None:
    begin = {"ph": "B", "cat": "kernel", "name": "gemm", "ts": 5}
    assert judged(begin, {"ph": "E", "ts": 25}, {"ph": "E", "ts": 30}).busy_s == {
        "gpu": pytest.approx(20e-6)
    }


def test_a_list_may_lack_its_end() -> None:
    text = json.dumps([{"pid": 1, "tid": 1, **copy(0, 10)}])[:-1] + ","
    assert len(decode_profile(text.encode()).work) == 1


def test_the_gpu_with_most_copies_is_taken() -> None:
    events = [kernel(0, 10), kernel(20, 10), copy(0, 10, args={"device": 1, "bytes": 5})]
    raw = json.dumps({"traceEvents": events}).encode()
    assert decode_profile(raw).device == 1
    assert len(decode_profile(raw, device=0).work) == 2
    with pytest.raises(InputError, match="0, 1"):
        decode_profile(raw, device=7)


def test_kvplans_own_traces_are_read(tmp_path: Path) -> None:
    file, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    asked = ("--model", "opt-125m", "--gpu", "l4", "--batch", "64", "--hbm", "2GiB")
    run("solve", *asked, "--stages", "4", "-o", str(file))
    told = json.loads(run("simulate", str(file), "--trace", str(trace), "--json").out)
    found = json.loads(run("analyze", str(trace), "--steps", "3", "--json").out)
    busy_s = told["prediction"]["busy_s"]
    for name in ("gpu", "h2d"):
        assert found["busy_s"][name] == pytest.approx(3 * busy_s[name], rel=1e-3)
    assert found["step_s"] == pytest.approx(told["prediction"]["step_s"], rel=0.1)
    moved = told["prediction"]["moved_bytes"]["h2d"]
    assert found["h2d"]["size_bytes"] == pytest.approx(3 * moved)


def test_of_a_validated_plan_the_measured_half_counts() -> None:
    def name(pid: int, title: str) -> dict[str, Any]:
        return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}}

    lanes = [{"ph": "M", "name": "thread_name", "pid": p, "tid": 1, "args": {"name": "h2d"}}
             for p in (1, 2)]  # fmt: skip
    works = [{"ph": "X", "name": "copy_kv", "pid": p, "tid": 1, "ts": 0, "dur": 10.0 * p}
             for p in (1, 2)]  # fmt: skip
    raw = json.dumps({"traceEvents": [name(1, "predicted"), name(2, "measured"), *lanes, *works]})
    assert [w.end_s for w in decode_profile(raw.encode()).work] == [pytest.approx(20e-6)]


# -- of a real card ----------------------------------------------------------------------------


def recorded(name: str) -> Analysis:
    return analyze(read_profile(TRACES / f"{name}.json.gz"), hardware=load_hardware("h200"))


def test_a_serial_step_on_a_card_is_exposed() -> None:
    found = recorded("synchronous")
    assert (found.verdict, found.steps) == ("exposed", 3)
    assert found.h2d.size_bytes == 12 * 128 * MIB
    assert found.hidden_share == pytest.approx(0.0, abs=0.01)
    # With overlap the same work takes what the pipelined recording shows, within its tail.
    saves_s = found.advice[0].saves_s
    assert saves_s is not None
    assert found.window_s - saves_s == pytest.approx(recorded("pipelined").window_s, rel=0.1)


def test_a_pipelined_step_on_a_card_is_limited_by_the_link() -> None:
    found = recorded("pipelined")
    assert found.verdict == "link"
    assert found.h2d.bytes_per_s == pytest.approx(55.3e9, rel=0.01)
    assert found.hidden_share is not None
    assert found.hidden_share > 0.15


def test_pageable_memory_on_a_card_is_to_be_pinned() -> None:
    found = recorded("pageable")
    assert found.h2d.pageable_share == 1.0
    assert found.advice[0].what.startswith("pin the host memory")
    # Pinned copies of the same bytes took 29 ms in the serial recording.
    saves_s = found.advice[0].saves_s
    assert saves_s is not None
    assert found.busy_s["h2d"] - saves_s == pytest.approx(
        recorded("synchronous").busy_s["h2d"], rel=0.02
    )


def test_small_copies_on_a_card_leave_gaps() -> None:
    found = recorded("small_copies")
    assert found.verdict == "idle"
    assert found.h2d.count == 2048
    assert "fewer, larger copies" in found.advice[0].what


# -- command -----------------------------------------------------------------------------------


def test_the_answer_comes_first_and_changes_last() -> None:
    result = run("analyze", str(TRACES / "synchronous.json.gz"), "--gpu", "h200")
    lines = result.out.splitlines()
    assert lines[0].startswith("The link is not full but not hidden")
    assert "NVIDIA H200" in result.out
    assert "3 steps of 12.3 ms" in result.out
    assert "change   1. copy on a stream of its own" in result.out


BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "a trace in JSON"),
    ("binary", b"\x0a\x10perfetto", "a trace in JSON"),
    ("cut short", b'{"traceEvents": [{"ph": "X"', "a trace in JSON"),
    ("no events", b'{"name": 3}', "traceEvents"),
    ("no work", b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 0, "dur": 1}]}', "CUDA"),
    ("no length", json.dumps({"traceEvents": [kernel(0, 0)]}).encode(), "events that take time"),
    ("half a gzip", gzip.compress(b'{"traceEvents": []}')[:-9], "gzip"),
    ("odd values", b'{"traceEvents": [{"ph": [], "ts": {}, "dur": "x", "args": 3}]}', "CUDA"),
    ("deep", b"[" * 50_000, "a trace in JSON"),
    ("infinite", b'[{"ph": "X", "cat": "kernel", "ts": "inf", "dur": 1}]', "CUDA"),
]


@pytest.mark.parametrize(("name", "content", "says"), BAD, ids=[b[0] for b in BAD])
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    result = run("analyze", str(file))
    assert (result.code, result.out) == (2, ""), result.err
    assert says in result.err
    assert result.err.count("\n") == 1
