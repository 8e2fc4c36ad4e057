"""``kvplan restore``: what it prints, and the document it writes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_runner import run

from kvplan.restore import WAYS
from kvplan.restore_plan import RestorePlan

GROUPED = ("restore", "--model", "llama-3.2-1b", "--gpu", "a100", "--prefix", "8k")
HEADS = ("restore", "--model", "opt-1.3b", "--gpu", "a100", "--prefix", "1k")


@cache
def document(*argv: str) -> dict[str, Any]:
    result = run(*argv, "--json")
    assert result.code == 0, result.err
    found: dict[str, Any] = json.loads(result.out)
    return found


def test_document_is_what_its_schema_says() -> None:
    text = run(*GROUPED, "--json").out
    plan = msgspec.json.decode(text, type=RestorePlan)
    assert set(plan.ways) == {*WAYS, "resident"}
    assert plan.prediction.ttft_s >= plan.prediction.bound_s > 0
    assert plan.prediction.ttft_s == plan.ways[plan.decision.way].ttft_s
    for layer in plan.decision.layers:
        assert sum(layer.tokens.values()) == 8192
        assert [r.begin for r in layer.ranges][1:] == [r.end for r in layer.ranges][:-1]


def test_same_question_same_bytes() -> None:
    first, second = (json.loads(run(*GROUPED, "--json").out) for _ in range(2))
    first["provenance"]["time"] = second["provenance"]["time"] = ""
    assert first == second


def test_grouped_heads_never_rebuild() -> None:
    """Activations are larger than the K and V they rebuild, so no split takes them."""
    found = document(*GROUPED)
    assert found["inputs"]["act_over_kv"] == 2.0
    assert all("recompute" not in layer["tokens"] for layer in found["decision"]["layers"])
    assert "storing them cannot help" in run(*GROUPED).out


def test_multi_head_attention_rebuilds() -> None:
    found = document(*HEADS)
    assert found["inputs"]["act_over_kv"] == 0.5
    assert found["ways"]["rebuild"]["moved_bytes"]["h2d"] == (
        found["ways"]["load"]["moved_bytes"]["h2d"] / 2
    )


def test_ways_can_be_left_out() -> None:
    found = document(*HEADS, "--ways", "load,recompute")
    assert set(found["ways"]) == {"load", "recompute", "resident"}
    split = document(*HEADS, "--ways", "split")
    assert set(split["ways"]) == {"split", "resident"}
    assert split["decision"]["way"] == "split"
    assert all("recompute" not in layer["tokens"] for layer in split["decision"]["layers"])


def test_break_even_rate_makes_them_equal() -> None:
    rate = document(*GROUPED)["break_even"]["h2d_bytes_per_s"]
    ways = document(*GROUPED, "--h2d", f"{rate:.0f}")["ways"]
    assert ways["load"]["ttft_s"] == pytest.approx(ways["recompute"]["ttft_s"], rel=1e-3)


def test_break_even_prefix_is_where_the_order_changes() -> None:
    """On a slow link short prefixes and long ones load faster, those between do not."""
    rate = document(*GROUPED)["break_even"]["h2d_bytes_per_s"]
    slow = (*GROUPED, "--h2d", f"{0.97 * rate:.0f}")
    found = document(*slow)["break_even"]
    ((first, last),) = found["recompute_wins"]
    assert 1 < first < last < found["longest_tokens"]
    assert found["prefix_tokens"] == last + 1
    for prefix, slower in ((first - 1, False), (first, True), (last, True), (last + 1, False)):
        ways = document(*slow, "--prefix", str(prefix))["ways"]
        assert (ways["load"]["ttft_s"] > ways["recompute"]["ttft_s"]) is slower


def test_smallest_chunk_uses_the_link() -> None:
    copies = document(*GROUPED)["copies"]
    tokens = copies["smallest_chunk_tokens"]
    good = document(*GROUPED, "--block", str(tokens["block"]))["copies"]["granularity"]["block"]
    assert good["rate_bytes_per_s"] >= 0.9 * copies["link_bytes_per_s"]
    short = document(*GROUPED, "--block", str(tokens["block"] - 1))["copies"]["granularity"][
        "block"
    ]
    assert short["rate_bytes_per_s"] < 0.9 * copies["link_bytes_per_s"]


def test_a_busy_gpu_moves_the_meeting_point() -> None:
    free, busy = document(*GROUPED), document(*GROUPED, "--gpu-busy", "0.8")
    assert busy["decision"]["front_tokens"] <= free["decision"]["front_tokens"]
    assert busy["ways"]["recompute"]["ttft_s"] > 4 * free["ways"]["recompute"]["ttft_s"]


def test_ranks_divide_the_bytes() -> None:
    one, two = document(*GROUPED), document(*GROUPED, "--tp", "2")
    sixteen = document(*GROUPED, "--tp", "16")
    assert two["inputs"]["kv_bytes"] == one["inputs"]["kv_bytes"] / 2
    assert sixteen["inputs"]["kv_bytes"] == one["inputs"]["kv_bytes"] / 8  # 8 KV heads, replicated


def test_pageable_memory_is_slower() -> None:
    machine = ("restore", "--model", "llama-3.2-1b", "--gpu", "h200", "--prefix", "8k")
    pinned, pageable = document(*machine), document(*machine, "--pageable")
    assert pageable["ways"]["load"]["ttft_s"] > 3 * pinned["ways"]["load"]["ttft_s"]


def test_everything_in_hbm_is_said_first() -> None:
    out = run(*GROUPED, "--prefixes", "2").out
    assert out.startswith("Nothing to restore: HBM keeps all 2 prefixes")
    assert "mean TTFT" in run(*GROUPED, "--prefixes", "5000").out


def test_document_is_written_and_printed(tmp_path: Path) -> None:
    file = tmp_path / "restore.json"
    result = run(*GROUPED, "-o", str(file))
    assert (result.code, result.err) == (0, "")
    assert f"Written to {file}" in " ".join(result.out.split())
    assert json.loads(file.read_text(encoding="utf-8"))["kvplan_restore"] == "1.0"
    assert json.loads(run(*GROUPED, "-o", "-").out)["decision"] == document(*GROUPED)["decision"]


def test_a_trace_draws_every_operation(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert run(*GROUPED, "--trace", str(file)).code == 0
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    words = {event["name"].split()[0] for event in spans}
    assert {"prefill", "copy_kv", "head"} <= words
    ends = max(event["ts"] + event["dur"] for event in spans)
    assert ends / 1e6 == pytest.approx(document(*GROUPED)["prediction"]["ttft_s"], rel=1e-4)


def test_the_answer_comes_first() -> None:
    first = run(*GROUPED, "--ways", "load,recompute").out.splitlines()[0]
    assert first.startswith("Load it: ")
    assert "as fast as recomputing" in first
    many = run(*GROUPED, "--concurrency", "4").out
    assert "until all 4 requests have their first new token" in " ".join(many.split())


def test_warnings_go_to_stderr() -> None:
    long = run("restore", "--model", "opt-125m", "--gpu", "l4", "--prefix", "4k")
    assert "more than the 2048 positions" in long.err
    unused = run(*GROUPED, "--disk-bandwidth", "5GB/s")
    assert "changes nothing without --from disk" in unused.err
