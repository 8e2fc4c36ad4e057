"""Hardware files: what is accepted, what is refused and how, and that nothing else can happen."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.datafiles import data_dir
from kvplan.errors import InputError
from kvplan.hardware_file import from_document, parse_hardware, read_hardware_file

FILES = sorted(p for p in data_dir("hwprofiles").glob("*.toml") if p.name != "index.toml")
SHAPES = ("a100-80gb-sxm", "dgx-spark-gb10", "gb300", "h100-sxm-80gb", "h200-sxm-141gb", "mi300x")
"""One file of each kind: an uplink, one memory, no lanes, pieces, points of everything."""

DOCUMENTS = {
    p.stem: tomllib.loads(p.read_text(encoding="utf-8")) for p in FILES if p.stem in SHAPES
}
A100 = (data_dir("hwprofiles") / "a100-40gb-pcie.toml").read_text(encoding="utf-8")
H200 = (data_dir("hwprofiles") / "h200-sxm-141gb.toml").read_text(encoding="utf-8")
KeyPath = tuple[str | int, ...]


def without(key: str) -> str:
    """The A100 file without the first line that starts with this text."""
    lines = A100.splitlines(keepends=True)
    lines.remove(next(line for line in lines if line.startswith(key)))
    return "".join(lines)


def instead(old: str, new: str, text: str = A100) -> str:
    assert old in text
    return text.replace(old, new, 1)


MEMORY = '{ value = 39539, unit = "MiB", kind = "measured", source = "ekondis/mixbench issue 18"'
MALFORMED = {
    "empty": ("", "hw.toml: schema"),
    "not TOML": ("[gpu", "hw.toml:"),
    "deep": ("a = " + "[" * 5000 + "]" * 5000, "hw.toml:"),
    "huge number": (instead("value = 39539", "value = " + "9" * 5000), "hw.toml:"),
    "huge hexadecimal": (instead("value = 39539", "value = 0x" + "9" * 5000), "hw.toml:"),
    "schema 2": (instead("schema = 1", "schema = 2"), "hw.toml: schema"),
    "schema text": (instead("schema = 1", 'schema = "1"'), "hw.toml: schema"),
    "no schema": (without("schema"), "hw.toml: schema"),
    "no title": (without("title"), "hw.toml: title"),
    "title number": (instead("title = ", "title = 5 #"), "hw.toml: title"),
    "title lines": (instead("x16\"", 'x16\\nx"'), "hw.toml: title"),
    "name spaces": (instead('name = "a100', 'name = "A 100'), "hw.toml: name"),
    "aliases": (instead('aliases = ["a100"', "aliases = [5"), "hw.toml: aliases"),
    "date": (instead('date = "2026-11-29"', 'date = "29.11.2026"'), "hw.toml: date"),
    "bare date": (instead('date = "2026-11-29"', "date = 2026-11-29"), "hw.toml: date"),
    "profile kind": (instead('kind = "datasheet"', 'kind = "guess"'), "hw.toml: kind"),
    "no memory": (without("memory"), "hw.toml: gpu.memory"),
    "unknown key": (instead("memory = ", "memroy = "), "did you mean memory?"),
    "bare number": (instead(f"memory = {MEMORY}", "memory = 39539 #"), "hw.toml: gpu.memory"),
    "unknown inner key": (instead(MEMORY, MEMORY.replace("source", "sauce")), "gpu.memory.sauce"),
    "no source": (instead(', source = "ekondis/mixbench issue 18"', ""), "gpu.memory.source"),
    "blank source": (instead('"ekondis/mixbench issue 18"', '" "'), "gpu.memory.source"),
    "kind": (instead('kind = "measured"', 'kind = "true"'), "hw.toml: gpu.memory.kind"),
    "kind list": (instead('kind = "measured"', 'kind = ["a"]'), "hw.toml: gpu.memory.kind"),
    "unit": (instead('"MiB"', '"Mib"'), "hw.toml: gpu.memory.unit"),
    "unit of a rate": (instead('"MiB"', '"GB/s"'), "hw.toml: gpu.memory.unit"),
    "unit list": (instead('"MiB"', "[]"), "hw.toml: gpu.memory.unit"),
    "text value": (instead("value = 39539", 'value = "39539"'), "gpu.memory.value"),
    "true": (instead("value = 39539", "value = true"), "hw.toml: gpu.memory.value"),
    "zero": (instead("value = 39539", "value = 0"), "hw.toml: gpu.memory.value"),
    "negative": (instead("value = 1555", "value = -1555"), "hw.toml: gpu.hbm_bandwidth.value"),
    "nan": (instead("value = 1555", "value = nan"), "hw.toml: gpu.hbm_bandwidth.value"),
    "inf": (instead("value = 1555", "value = inf"), "hw.toml: gpu.hbm_bandwidth.value"),
    "below a byte": (instead('39539, unit = "MiB"', '0.2, unit = "B"'), "gpu.memory.value"),
    "wrong scale": (instead('1555, unit = "GB/s"', '1555e9, unit = "GB/s"'), "gpu.hbm_bandwidth"),
    "efficiency": (instead("value = 0.89", "value = 1.2"), "gpu.hbm_efficiency.value"),
    "no efficiency": (without("hbm_efficiency"), "hw.toml: gpu.hbm_efficiency"),
    "efficiency of a measurement": (
        instead('"GB/s", kind = "datasheet"', '"GB/s", kind = "measured"'),
        "hw.toml: gpu.hbm_efficiency",
    ),
    "unknown dtype": (instead("int8 = ", "int9 = "), "did you mean int8?"),
    "no flop": (instead("[gpu.flop]", "[gpu.flop]\n[gpu.flop2]"), "hw.toml: gpu.flop2"),
    "above raw": (instead("value = 24.5", "value = 31.6"), "above its link's raw rate"),
    "duplex above raw": (
        instead("duplex_bandwidth = { value = 12", "duplex_bandwidth = { value = 32"),
        "hw.toml: h2d.duplex_bandwidth",
    ),
    "no copy": (instead("[h2d.copy]", "[h2d.latency2]"), "hw.toml: h2d.latency2"),
    "link is text": ("d2h = 5\n" + A100.replace("[d2h]", "[x]"), "hw.toml:"),
    "curve without rate": (
        A100.replace("rate = { value = 24.5", "rote = { value = 24.5"), "did you mean rate?",
    ),
    "one point": (instead("[h2d.copy]", "[h2d.copy]\npoints = [[1, 1]]"), "h2d.copy"),
    "points fall": (H200.replace("[65536, ", "[1048576, ", 1), "h2d.copy.points.1.0"),
    "point not a pair": (H200.replace("[65536, ", "[65536, 2, ", 1), "h2d.copy.points.0"),
    "point of text": (H200.replace("[65536, ", '["64 parsecs", ', 1), "h2d.copy.points.0.0"),
    "point of zero": (H200.replace("[65536, ", "[0, ", 1), "h2d.copy.points.0.0"),
    "points above raw": (H200.replace("[1048576, 2.19", "[1048576, 1.19", 1), "hw.toml: h2d.copy"),
    "gemm not a list": (instead("[gpu.flop]", "[gpu.gemm]\n[gpu.flop]"), "hw.toml: gpu.gemm"),
    "gemm shape": (H200.replace("inputs = 4096", "inputs = 0", 1), "gpu.gemm.0.inputs"),
    "gemm dtype": (H200.replace('dtype = "fp16"', 'dtype = "half"', 1), "gpu.gemm.0.dtype"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file_is_one_line_with_key_path(case: str) -> None:
    text, expected = MALFORMED[case]
    with pytest.raises(InputError) as caught:
        parse_hardware(text, "hw.toml")
    message = str(caught.value)
    assert expected in message
    assert message.startswith("hw.toml")
    assert "\n" not in message
    assert len(message) < 500


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(A100.encode().replace(b"NVIDIA", b"NVIDI\xc4"))
    large = tmp_path / "large.toml"
    large.write_text("#" * (1 << 20) + "\n")
    for path in (tmp_path, tmp_path / "missing.toml", latin, large, "a\0b.toml"):
        with pytest.raises(InputError) as caught:
            read_hardware_file(path)
        assert str(caught.value).startswith(str(path).split("\0")[0])


def test_units_are_converted_once() -> None:
    profile = parse_hardware(A100)
    assert profile.gpu.memory_bytes == 39539 * 2**20
    assert profile.gpu.hbm_bytes_per_s == pytest.approx(1555e9 * 0.89)
    assert profile.gpu.flop_per_s["bf16"] == 253e12
    assert profile.gpu.kernel_s == 3e-6
    assert profile.h2d.copy.seconds(0) == pytest.approx(8e-6)
    assert profile.h2d.copy.rate() == pytest.approx(24.5e9)


def test_points_may_be_bare_or_texts() -> None:
    text = H200.replace("[65536, ", '["64KiB", ', 1).replace(
        "[512, 6.928e-05]", '["512", "69.28us"]'
    )
    assert parse_hardware(text).h2d.copy == parse_hardware(H200).h2d.copy
    assert parse_hardware(text).gpu.gemm == parse_hardware(H200).gpu.gemm


def test_digest_is_of_the_content_not_the_layout() -> None:
    assert parse_hardware("# note\n" + A100).digest == parse_hardware(A100).digest
    assert parse_hardware(instead("24.5", "24.4")).digest != parse_hardware(A100).digest


def test_import_is_light() -> None:
    code = "import sys, kvplan.hardware_file; print({'numpy', 'highspy'} & set(sys.modules))"
    environment = {"PYTHONPATH": str(Path(sys.modules["kvplan"].__file__ or "").parents[1])}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                           text=True, check=True)  # fmt: skip
    assert shown.stdout.strip() == "set()"


def leaves(node: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Paths of all tables, lists and values of a document, but the document itself."""
    inner: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(node, dict):
        inner = iter(node.items())
    elif isinstance(node, list):
        inner = iter(enumerate(node))
    for key, value in inner:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def mutated(document: dict[str, Any], path: KeyPath, value: Any) -> dict[str, Any]:
    """A copy with one field replaced, or removed where the value is `...`."""
    changed = copy.deepcopy(document)
    node: Any = changed
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return changed


def profile_or_input_error(document: dict[str, Any]) -> None:
    try:
        profile = from_document(document, "hw.toml")
    except InputError as error:
        message = str(error)
    else:
        if profile.unified:
            return
        link = profile.h2d
        rates = [size / link.copy.seconds(size) for size in (1, 4096, 2**20, 2**33)]
        assert max(rates) <= link.raw_bytes_per_s * 1.000001
        return
    assert message.startswith("hw.toml: ")
    assert "\n" not in message


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_removed_or_of_another_type(name: str) -> None:
    for path in leaves(DOCUMENTS[name]):
        values: tuple[object, ...] = (..., -1, {"x": []})
        for value in values:
            profile_or_input_error(mutated(DOCUMENTS[name], path, value))


ANY_VALUE = st.one_of(
    st.none().map(lambda _: ...), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from([1e-300, 1e300, 10**400, "1GiB", "1us", "GB/s", "1", "measured", "2026-02-30"]),
    st.lists(st.lists(st.integers(-1, 2**40) | st.floats(1e-9, 1.0), max_size=3), max_size=4),
    st.dictionaries(st.sampled_from(["value", "unit", "kind", "fixed", "points"]), st.integers()),
)  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_field_of_any_value(name: str, data: st.DataObject) -> None:
    document = DOCUMENTS[name]
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(leaves(document))))
        document = mutated(document, path, data.draw(ANY_VALUE))
    profile_or_input_error(document)


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, len(H200)), extra=st.text(max_size=5))
def test_any_text(cut: int, extra: str) -> None:
    with contextlib.suppress(InputError):
        parse_hardware(H200[:cut] + extra, "hw.toml")
