"""Time of a transfer against counting by hand, and that nothing which slows it is forgotten."""

from __future__ import annotations

import json

import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from kvplan.hardware import override
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.transfer import Transfer, seconds, sustained_bytes_per_s
from kvplan.units import GIB, KIB, MIB

LINKED = [
    card
    for name in hardware_names()
    if not name.startswith("what-if") and (card := load_hardware(name)).links
]
A100 = load_hardware("a100")


def test_one_copy_is_its_curve() -> None:
    assert seconds(A100, Transfer(size_bytes=GIB)) == pytest.approx(A100.h2d.copy.seconds(GIB))
    back = Transfer(size_bytes=GIB, direction="d2h")
    assert seconds(A100, back) == pytest.approx(A100.d2h.copy.seconds(GIB))


@examples(60)
@given(
    card=st.sampled_from(LINKED), size=st.integers(1, 2**32), parts=st.integers(1, 1000),
    direction=st.sampled_from(("h2d", "d2h")),
)  # fmt: skip
def test_what_slows_never_speeds(card: object, size: int, parts: int, direction: str) -> None:
    asked = {"size_bytes": size, "direction": direction}
    piece = max(size // parts, 1)
    alone = seconds(card, Transfer(**asked))  # type: ignore[arg-type]
    slower: list[dict[str, object]] = [
        {"both": True}, {"gpus": 8}, {"memory": "pageable"}, {"piece_bytes": piece},
        {"both": True, "gpus": 8}, {"piece_bytes": piece, "both": True},
        {"piece_bytes": piece, "batched": True},
    ]  # fmt: skip
    for more in slower:
        taken = seconds(card, Transfer(**asked, **more))  # type: ignore[arg-type]
        assert taken >= alone * (1 - 1e-9)


def test_neighbours_divide_an_uplink_and_only_one_that_is_known() -> None:
    shared, alone = load_hardware("a100-80gb-sxm"), load_hardware("a100-80gb-pcie")
    both = Transfer(size_bytes=GIB, gpus=8, both=True)
    assert sustained_bytes_per_s(shared, both) == pytest.approx(5.6e9, rel=0.02)
    assert sustained_bytes_per_s(alone, both) == alone.h2d.shared_bytes_per_s()


def test_gpus_without_a_known_uplink_are_warned_of() -> None:
    said = run("transfer", "--gpu", "h200", "--gpus", "8")
    assert (said.code, said.err.count("warning")) == (0, 1)
    assert "442.2 GB/s together" in said.err
    assert run("transfer", "--gpu", "gb300", "--gpus", "4").err == ""


def test_reads_in_flight_are_no_more_than_there_are() -> None:
    one = Transfer(size_bytes=64 * KIB, piece_bytes=64 * KIB, direction="disk", depth=64)
    many = Transfer(size_bytes=64 * MIB, piece_bytes=64 * KIB, direction="disk", depth=64)
    assert seconds(A100, one) > seconds(A100, many) / 1024 * 5


def test_figures_given_by_hand_are_used() -> None:
    slow = override(A100, h2d_bytes_per_s=10e9)
    assert seconds(slow, Transfer(size_bytes=10 * 10**9)) == pytest.approx(1.0, rel=1e-4)
    said = run("transfer", "--gpu", "a100", "--h2d", "10GB/s", "--size", "10GB", "--json")
    assert json.loads(said.out)["seconds"] == pytest.approx(1.0, rel=1e-4)


def test_json_keys_are_stable() -> None:
    keys = {"gpu", "link", "direction", "size_bytes", "pieces", "seconds", "bytes_per_s",
            "seconds_per_piece", "raw_bytes_per_s", "sources"}  # fmt: skip
    found = json.loads(run("transfer", "--gpu", "l4", "--piece", "1MiB", "--json").out)
    assert found.keys() == keys
    assert found["pieces"] == 1024
    assert found["bytes_per_s"] < found["raw_bytes_per_s"]
    assert {"number", "kind", "source"} == found["sources"][0].keys()
    disk = json.loads(run("transfer", "--gpu", "l4", "--direction", "disk", "--json").out)
    assert disk.keys() == keys | {"deep_enough"}
    assert disk["raw_bytes_per_s"] is None
    shown = run("transfer", "--gpu", "l4", "--piece", "64KiB", "--memory", "far", "--both")
    assert (shown.code, shown.err) == (0, "")
    assert "far_bandwidth" in shown.out
    assert "duplex_bandwidth" in shown.out


def test_memory_without_a_figure_is_refused() -> None:
    said = run("transfer", "--gpu", "gh200", "--memory", "far")
    assert said.code == 2
    assert "--memory: 'far' is not accepted: pinned" in said.err
