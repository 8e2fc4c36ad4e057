"""The built-in machines: names, and the H200 against its raw figures."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvplan import hardware_library
from kvplan.datafiles import data_dir
from kvplan.errors import InputError
from kvplan.hardware import HardwareProfile
from kvplan.hardware_file import read_hardware_file
from kvplan.hardware_library import hardware_aliases, hardware_names, load_hardware

RAW = data_dir("hwprofiles") / "measurements" / "h200-2026-11-29"


def raw(name: str) -> Any:
    return json.loads((RAW / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def h200() -> HardwareProfile:
    return load_hardware("h200")


def test_the_machines_are_there() -> None:
    assert hardware_names() == (
        "a10", "a100-40gb-pcie", "a100-40gb-sxm", "a100-80gb-pcie", "a100-80gb-sxm", "a10g", "a30",
        "a40", "a800-80gb-sxm", "b200-sxm-180gb", "b300-sxm-288gb", "dgx-spark-gb10", "gb200",
        "gb300", "gh200-144gb", "gh200-96gb", "h100-nvl-94gb", "h100-pcie-80gb", "h100-sxm-80gb",
        "h20", "h200-nvl-141gb", "h200-sxm-141gb", "h800-sxm-80gb", "l20", "l4", "l40", "l40s",
        "mi300x", "rtx-3060-12gb", "rtx-3080-10gb", "rtx-3090", "rtx-4080", "rtx-4090", "rtx-5090",
        "rtx-6000-ada", "rtx-a5000", "rtx-a6000", "rtx-pro-6000-blackwell", "t4", "v100-pcie-16gb",
        "v100-sxm2-16gb", "v100-sxm2-32gb", "what-if-c2c", "what-if-cxl", "what-if-near-memory",
        "what-if-pcie6", "what-if-sram",
    )  # fmt: skip


@pytest.mark.parametrize("name", hardware_names())
def test_file_name_and_index_agree_with_the_file(name: str) -> None:
    profile = load_hardware(name)
    assert profile.name == name
    assert profile.aliases == hardware_aliases()[name]


def test_index_names_no_machine_that_is_not_there() -> None:
    index = tomllib.loads((data_dir("hwprofiles") / "index.toml").read_text(encoding="utf-8"))
    assert tuple(sorted(index)) == hardware_names()
    every = [name for entry in index.items() for name in (entry[0], *entry[1])]
    assert len(every) == len(set(every))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("GA100 [A100 SXM4 80GB]", "a100-80gb-sxm"), ("AD102 [GeForce RTX 4090]", "rtx-4090"),
        ("NVIDIA Corporation GA100 [A100 PCIe 40GB] (rev a1)", "a100-40gb-pcie"),
        ("NVIDIA A100-SXM-80GB", "a100-80gb-sxm"), ("a100 40g", "a100-40gb-pcie"),
        ("GH100 [H100 PCIe]", "h100-pcie-80gb"), ("T4 16GB", "t4"), ("NVIDIA A40", "a40"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("RTX 3080", "rtx-3080-10gb"),
        ("a100", "a100-40gb-pcie"), ("A100", "a100-40gb-pcie"), ("a100 40GB", "a100-40gb-pcie"),
        ("h100", "h100-sxm-80gb"), ("H200", "h200-sxm-141gb"), ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"), ("rtx_4090", "rtx-4090"), ("T4", "t4"), ("L4", "l4"),
        ("A100_80GB_SXM", "a100-80gb-sxm"), ("gb10", "dgx-spark-gb10"), 
        ("DGX Spark", "dgx-spark-gb10"),
        ("v100", "v100-pcie-16gb"), ("A6000", "rtx-a6000"), ("gh200", "gh200-96gb"),
        ("A100 SXM4 80GB", "a100-80gb-sxm"), ("h100-sxm5", "h100-sxm-80gb"),
        ("b200 192gb", "b200-sxm-180gb"),
        ("80gb a100 pcie", "a100-80gb-pcie"), ("gh200 144gb", "gh200-144gb"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"), ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), ("Tesla T4", "t4"), ("MI300X", "mi300x"),
        ("b200", "b200-sxm-180gb"), ("rtx 6000 ada", "rtx-6000-ada"),
    ],
)  # fmt: skip
def test_forgiving_names(typed: str, name: str) -> None:
    assert load_hardware(typed).name == name


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("a100-80gb", ["a100-80gb-pcie", "a100-80gb-sxm"]),
        ("a100-sxm", ["a100-40gb-sxm", "a100-80gb-sxm"]),
        ("rtx 4070", ["rtx-4090"]), ("rtx3090ti", ["rtx-3090"]), ("mi308x", ["mi300x"]),
        ("L42", ["l40", "l4"]), ("h21", ["h200-sxm-141gb"]),
    ],
)  # fmt: skip
def test_what_is_not_a_name_lists_what_it_could_be(typed: str, candidates: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load_hardware(typed)
    for candidate in candidates:
        assert candidate in caught.value.accepted


def test_a100_means_the_40_gb_pcie_card_and_says_so() -> None:
    assert load_hardware("a100").title == "NVIDIA A100-PCIe-40GB, PCIe 4.0 x16"


def test_only_the_needed_file_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def spy(path: str | os.PathLike[str]) -> HardwareProfile:
        read.append(Path(path).name)
        return read_hardware_file(path)

    monkeypatch.setattr(hardware_library, "read_hardware_file", spy)
    hardware_library.built_in.cache_clear()
    assert load_hardware("a100") is load_hardware("a100-40gb")
    assert read == ["a100-40gb-pcie.toml"]


def test_a_path_is_accepted(tmp_path: Path) -> None:
    text = (data_dir("hwprofiles") / "t4.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "t4"', 'name = "mine"'), encoding="utf-8")
    assert load_hardware(str(path)).name == "mine"


@pytest.mark.parametrize("typed", ["", " ", "no-such-card", "./none.toml", "a/b", "a100-80gb"])
def test_unknown_names(typed: str) -> None:
    with pytest.raises(InputError):
        load_hardware(typed)


def test_h200_copy_points_are_the_measured_ones(h200: HardwareProfile) -> None:
    """The curve lies below every measured point, by at most 2 % from 1 MiB up."""
    figures = raw("link_gemm_attention")
    queued = {int(size): rate for size, rate in figures["amortised_h2d"].items()}
    single = {int(s): r["h2d"] for s, r in figures["link"].items() if s.isdigit()}
    back = {int(s): r["d2h"] for s, r in figures["link"].items() if s.isdigit()}
    large = {size: rate for size, rate in single.items() if size >= 2**26}
    for curve, rates in ((h200.h2d.copy, queued | large), (h200.d2h.copy, back)):
        for size, rate in rates.items():
            distance = 1 - curve.seconds(size) / (size / rate / 1e9)
            assert distance > -1e-4
            assert distance <= 0.02 or size < 2**20
    assert h200.residuals["h2d.copy"] <= 0.02


def test_h200_products_are_the_measured_ones(h200: HardwareProfile) -> None:
    figures = raw("link_gemm_attention")["gemm"]
    best = max(row["tflops"] for row in figures.values()) * 1e12
    assert h200.gpu.flop_per_s["fp16"] == pytest.approx(best, rel=1e-3)
    assert len(h200.gpu.gemm) == 4
    for index, product in enumerate(h200.gpu.gemm):
        weights = product.inputs * product.outputs
        rates = {}
        for key, row in figures.items():
            tokens, *shape = map(int, key.split("x"))
            if shape == [product.inputs, product.outputs] and tokens >= 512:
                rates[tokens] = row["tflops"] * 1e12
                assert product.seconds.seconds(tokens) <= row["us"] * 1.00001e-6
        top = max(rates.values())
        far = 10**7
        assert 2 * far * weights / product.seconds.seconds(far) == pytest.approx(top, rel=1e-3)
        assert h200.residuals[f"gpu.gemm.{index}.time"] <= 0.065


def test_h200_single_figures(h200: HardwareProfile) -> None:
    link, host = raw("link_gemm_attention"), raw("host_attention_pinning")
    grouped = [row for row in raw("small_batch_and_host_gqa") if row["name"] == "host-gqa-folded"]
    bf16 = min(row["GBs"] for row in grouped if row["dt"] == "torch.bfloat16")
    expected = {
        h200.gpu.hbm_bytes_per_s: link["hbm_read_GBs"],
        h200.gpu.launch_s: link["launch_us"]["cpu"] * 1e-15,
        h200.h2d.latency_s: link["small_h2d_us"] * 1e-15,
        h200.h2d.duplex_bytes_per_s: link["link"]["bidir512M_each_GBs_total"] / 2,
        h200.d2h.pageable_bytes_per_s: link["link"]["pageable256M"]["d2h"],
        h200.host.attention_bytes_per_s["bf16"]: host["contention"]["att_with_copy"],
        h200.host.attention_gqa_bytes_per_s["bf16"]: bf16,
    }
    for number, figure in expected.items():
        assert number == pytest.approx(figure * 1e9, rel=5e-3)
    assert h200.kind == "measured"
