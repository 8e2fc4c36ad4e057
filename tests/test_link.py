"""Slots, what slows a link, unified memory, and reads in flight."""

from __future__ import annotations

import dataclasses
import tomllib
from itertools import pairwise

import pytest
from cli_runner import run

from kvplan.curve import affine
from kvplan.datafiles import data_dir
from kvplan.disk import Disk, Queue
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile, override
from kvplan.hardware_file import from_document
from kvplan.hardware_library import hardware_names, load_hardware
from kvplan.link import Link, Links, Pieces, Uplink
from kvplan.slot import Slot, parse_link, pcie_raw_bytes_per_s

CARDS = [load_hardware(name) for name in hardware_names() if not name.startswith("what-if")]
"""Those that exist: what could be states no more than it changes."""
every = pytest.mark.parametrize("card", CARDS, ids=lambda c: c.name)
A100, GB10 = load_hardware("a100"), load_hardware("gb10")


def link(duplex_bytes_per_s: float | None = None) -> Link:
    return Link(
        raw_bytes_per_s=30e9, copy=affine(0.0, 1 / 20e9), latency_s=1e-5,
        duplex_bytes_per_s=duplex_bytes_per_s,
    )  # fmt: skip


# -- the cards -------------------------------------------------------------------------------


@every
def test_a_card_says_what_slows_its_link(card: HardwareProfile) -> None:
    """Every rate is stated for both directions, below raw, and no better than a plain copy."""
    if card.links is None:
        return
    slot = card.links.slot
    assert slot is not None
    for name in ("h2d", "d2h"):
        one: Link = getattr(card.links, name)
        assert slot.raw_bytes_per_s is None or one.raw_bytes_per_s == pytest.approx(
            slot.raw_bytes_per_s, rel=5e-3
        )
        rates = [one.duplex_bytes_per_s, one.pageable_bytes_per_s]
        rates += [one.far_bytes_per_s] if slot.generation else []
        for rate in rates:
            assert rate is not None
            assert rate <= one.copy.rate() * 1.03 < one.raw_bytes_per_s


@every
def test_pinned_rates_are_what_clean_measurements_show(card: HardwareProfile) -> None:
    """0.75 to 0.91 of raw one way over PCIe; less only where a note says why."""
    if card.links is None or card.links.slot is None or card.links.slot.generation is None:
        return
    if card.name in ("a10", "b300-sxm-288gb"):  # bound by its host; planned at the rate of 5.0
        return
    for one in (card.h2d, card.d2h):
        assert 0.75 <= one.copy.rate() / one.raw_bytes_per_s <= 0.91


def test_a_card_whose_title_names_its_slot_has_that_slot() -> None:
    for card in CARDS:
        if card.links and "PCIe" in card.title:
            assert str(card.links.slot) in card.title


def test_two_gpus_share_one_grace() -> None:
    for name in ("gb200", "gb300"):
        links = load_hardware(name).links
        assert links is not None
        assert links.uplink is not None
        assert links.h2d.raw_bytes_per_s == 225e9
        assert links.rate("h2d", gpus=1) > 1.1 * links.rate("h2d", gpus=2) > 0
        assert 169e9 <= links.rate("h2d", gpus=2) <= 175e9
        assert 182e9 <= links.rate("d2h", gpus=4) <= 184e9


# -- slots -----------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["pcie4x8", "PCIe4 x8", "pcie 4.0 x8", "gen4x8", "PCIe Gen4 x8",
                                   "pcie-4-x8", "Gen 4 x8"])  # fmt: skip
def test_slots_as_people_type_them(typed: str) -> None:
    assert parse_link(typed) == (4, 8)


@pytest.mark.parametrize("typed", ["", "pcie", "pcie7x16", "pcie4x3", "pcie4x32", "x16", "nvlink"])
def test_what_is_no_slot(typed: str) -> None:
    with pytest.raises(InputError, match=r"^--link: .*such as pcie4x16"):
        parse_link(typed)


def test_another_slot_moves_rates_in_proportion() -> None:
    half = override(A100, link_generation=4, link_lanes=8)
    assert half.h2d.raw_bytes_per_s == pytest.approx(pcie_raw_bytes_per_s(4, 8))
    assert half.h2d.copy.rate() == pytest.approx(A100.h2d.copy.rate() / 2, rel=1e-3)
    assert half.d2h.copy.rate() == pytest.approx(A100.d2h.copy.rate() / 2, rel=1e-3)
    assert half.h2d.copy.seconds(0) == A100.h2d.copy.seconds(0)
    assert half.h2d.pageable_bytes_per_s == A100.h2d.pageable_bytes_per_s
    assert half.links is not None
    assert str(half.links.slot) == "PCIe 4.0 x8"
    said = "the profile's rate in proportion to PCIe 4.0 x8, --link"
    assert half.provenance["h2d.copy.rate"].source == said
    full = override(load_hardware("t4"), link_generation=3, link_lanes=16)
    assert full.h2d.copy.rate() == pytest.approx(12.4e9, rel=1e-3)


def test_a_rate_above_the_slot_names_the_way_out() -> None:
    with pytest.raises(InputError, match=r"raw rate.*31\.5 GB/s; --link names another slot"):
        override(A100, h2d_bytes_per_s=40e9)
    faster = override(A100, link_generation=5, link_lanes=16, h2d_bytes_per_s=40e9)
    assert faster.h2d.copy.rate() == pytest.approx(40e9)
    with pytest.raises(InputError, match=r"raw rate"):
        override(A100, link_generation=4, link_lanes=4, h2d_bytes_per_s=8e9)


def test_links_refuse_a_raw_rate_of_another_slot() -> None:
    with pytest.raises(InputError, match=r"31\.51 GB/s, the rate of PCIe 4\.0 x16"):
        Links(h2d=link(), d2h=link(), slot=Slot(generation=4, lanes=16))
    with pytest.raises(InputError, match="lanes"):
        Slot(generation=4)


def test_link_option_is_kept_in_the_plan() -> None:
    asked = ("solve", "--model", "opt-125m", "--gpu", "a100", "--batch", "4", "--link", "pcie3x8")
    found = run(*asked)
    assert found.code == 0, found.err
    assert "set by hand: PCIe 3.0 x8" in " ".join(found.out.split())
    plan = run(*asked, "--json").out
    again = run("simulate", "-", stdin=plan.encode())
    assert again.code == 0, again.err


def test_a_slot_faster_than_the_card_is_a_what_if() -> None:
    asked = ("solve", "--model", "opt-125m", "--gpu", "a100", "--batch", "4", "--json", "--link")
    assert "what-if" in run(*asked, "pcie5x16").err
    assert run(*asked, "pcie4x8").err == ""


# -- sharing ---------------------------------------------------------------------------------


def test_directions_share_one_budget_unless_measured() -> None:
    assert link().shared_bytes_per_s() == pytest.approx(10e9)
    assert link(duplex_bytes_per_s=18e9).shared_bytes_per_s() == 18e9


def test_gpus_behind_one_uplink_share_it() -> None:
    uplink = Uplink(gpus=2, h2d_bytes_per_s=24e9, d2h_bytes_per_s=20e9)
    links = Links(h2d=link(duplex_bytes_per_s=10e9), d2h=link(), uplink=uplink)
    assert links.rate("h2d") == pytest.approx(20e9)
    assert links.rate("h2d", gpus=2) == pytest.approx(12e9)
    assert links.rate("h2d", gpus=8) == pytest.approx(12e9)  # two on each uplink
    assert links.rate("h2d", gpus=2, both=True) == pytest.approx(6e9)
    alone = dataclasses.replace(links, uplink=None)
    assert alone.rate("h2d", gpus=8) == pytest.approx(20e9)
    with pytest.raises(InputError, match="gpus"):
        Uplink(gpus=1, h2d_bytes_per_s=1.0, d2h_bytes_per_s=1.0)


def test_pieces_are_counted() -> None:
    plain = Link(raw_bytes_per_s=30e9, copy=affine(5e-6, 1 / 20e9), latency_s=1e-5)
    assert plain.pieces_s(100, 20_000) == pytest.approx(100 * 6e-6)
    measured = dataclasses.replace(plain, loop=Pieces(((1e3, 5e-6), (1e4, 6e-6))),
                                   batch=Pieces(((1e3, 2e-6), (1e4, 6e-6))))  # fmt: skip
    assert measured.pieces_s(10, 500) == pytest.approx(50e-6)
    assert measured.pieces_s(10, 500, batched=True) == pytest.approx(20e-6)
    assert measured.pieces_s(1, 30_000) == pytest.approx(7e-6)
    one_call = dataclasses.replace(measured, loop=None)
    assert one_call.pieces_s(10, 1000) == pytest.approx(10 * 5.05e-6)  # calls of their own
    assert one_call.pieces_s(10, 1000, batched=True) == pytest.approx(20e-6)
    assert one_call.pieces_s(2, 1, batched=True) == pytest.approx(5e-6, rel=1e-4)  # as one
    with pytest.raises(InputError):
        Pieces(((1e3, 5e-6),))


# -- one memory ------------------------------------------------------------------------------


def test_one_memory_has_no_link() -> None:
    assert GB10.unified
    assert GB10.host.dram_bytes == 0
    for name in ("h2d", "d2h"):
        with pytest.raises(InputError, match="share one memory"):
            getattr(GB10, name)
    with pytest.raises(InputError, match="share one memory"):
        override(GB10, h2d_bytes_per_s=10e9)
    with pytest.raises(InputError, match="share one memory"):
        override(GB10, dram_bytes=10**9)


ONE_MEMORY = [
    (("--paths", "fetch"), "--paths"),
    (("--paths", "attend_host"), "--paths"),
    (("--dram", "64GiB"), "--dram"),
    (("--pinned", "1GiB"), "--pinned"),
    (("--disk", "1GiB"), "--disk"),
    (("--weights", "streamed"), "--weights"),
    (("--h2d", "10GB/s"), ""),
    (("--link", "pcie4x16"), ""),
]


@pytest.mark.parametrize(("options", "names"), ONE_MEMORY, ids=lambda o: "".join(o))
def test_one_memory_refuses_to_offload(options: tuple[str, ...], names: str) -> None:
    found = run("solve", "--model", "opt-125m", "--gpu", "gb10", *options)
    assert found.code == 2
    assert names in found.err
    assert "share one memory" in found.err
    assert found.err.count("\n") == 1


def test_one_memory_holds_what_fits_and_says_what_does_not() -> None:
    fits = run("compare", "--model", "llama-2-7b", "--gpu", "gb10", "--batch", "8")
    assert fits.code == 0
    assert "no offload is planned" in fits.out
    assert "share one memory" in " ".join(fits.out.split())
    too_much = run("solve", "--model", "llama-2-7b", "--gpu", "gb10", "--batch", "256")
    assert too_much.code == 3
    assert "share one memory" in too_much.err
    assert "lower --batch to" in too_much.err


@pytest.mark.parametrize("key", ["h2d", "d2h", "link"])
def test_a_profile_with_one_memory_has_no_link_tables(key: str) -> None:
    text = (data_dir("hwprofiles") / "dgx-spark-gb10.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    other = (data_dir("hwprofiles") / "l4.toml").read_text(encoding="utf-8")
    document[key] = tomllib.loads(other)[key]
    with pytest.raises(InputError, match=f"hw: {key}"):
        from_document(document, "hw")


# -- disks -----------------------------------------------------------------------------------


def test_rate_rises_with_depth_and_size_up_to_the_drive() -> None:
    disk = Disk(read=affine(1e-4, 1 / 6.5e9), capacity_bytes=10**12)
    for size in (4096, 65536, 2**20, 2**24):
        rates = [disk.rate(size, depth) for depth in (1, 2, 4, 8, 16, 32, 64, 128)]
        assert all(low < high for low, high in pairwise(rates))
        assert rates[-1] <= disk.most_bytes_per_s(size) < 6.5e9
        assert rates[0] <= size / disk.read.seconds(size)


def test_measured_depths_win() -> None:
    queue = Queue(size_bytes=65536, points=((1, 0.5e9), (16, 3e9), (64, 4e9)))
    disk = Disk(read=affine(1e-4, 1 / 6.5e9), capacity_bytes=10**12, queues=(queue,))
    assert disk.rate(65536, 16) == 3e9
    assert disk.rate(2**24, 16) > 6e9  # another size: by the rule
    assert disk.deep_enough(65536) == 64


def test_a_profile_may_hold_measured_depths() -> None:
    text = (data_dir("hwprofiles") / "l4.toml").read_text(encoding="utf-8")
    text += """
[[disk.queue]]
size = "64KiB"
points = [[1, "0.49GB/s"], [16, "3.06GB/s"], [64, "3.87GB/s"]]
kind = "measured"
source = "fio"
"""
    disk = from_document(tomllib.loads(text), "hw").disk
    assert disk is not None
    assert disk.rate(65536, 16) == pytest.approx(3.06e9)
    for old, new in (('[1, "0.49', '[0, "0.49'), ("[16,", "[1,"), ('size = "64KiB"', "size = -1")):
        with pytest.raises(InputError, match=r"hw: disk\.queue\.0"):
            from_document(tomllib.loads(text.replace(old, new, 1)), "hw")
