"""Reports: one file that loads nothing, says what the plan says, and trusts no text in it."""

from __future__ import annotations

import base64
import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import msgspec
from cli_runner import run

from kvplan import wording
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.pictures import KINDS
from kvplan.plan import Plan
from kvplan.plan_file import encode
from kvplan.planning import make_plan
from kvplan.report import PICTURES, report
from kvplan.scenario import Options, Scenario
from kvplan.workload import Budgets, Workload


@cache
def plan() -> Plan:
    return make_plan(Scenario(
        model=load_model("opt-125m"), hardware=load_hardware("l4"),
        workload=Workload(batch=64, context=2048), budgets=Budgets(hbm_bytes=2 * 2**30),
        options=Options(axes=("token",), stages=(4,), queue_depths=(2,)),
    ), time="2026-11-29T00:00:00+00:00")  # fmt: skip


class Reader(HTMLParser):
    """Text, tags and everything a file would load."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v for k, v in attrs if k in ("src", "href", "srcset", "data") and v]
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)
        assert tag not in ("script", "link", "iframe", "object")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


def test_a_report_loads_nothing_and_is_well_formed() -> None:
    page = read(report(plan(), kinds=("timeline", "paths", "memory")))
    assert len(page.loads) == 3
    for source in page.loads:
        kind, _, data = source.partition(",")
        assert kind == "data:image/svg+xml;base64"
        picture = base64.b64decode(data)
        assert picture.startswith(b"<?xml")
        assert b"<script" not in picture


def test_a_report_says_what_the_plan_says() -> None:
    page = read(report(plan(), kinds=("values",)))
    assert wording.strategy(plan()) in page.text
    for baseline in plan().baselines.values():
        assert baseline.title in page.text
    for line in wording.memory(plan().prediction.memory_bytes, plan().prediction.capacity_bytes):
        assert line in page.text
    for provenance in load_hardware("l4").provenance.values():
        assert provenance.source in page.text


def test_every_picture_of_a_plan_is_in_the_report() -> None:
    assert set(PICTURES) == {name for name, kind in KINDS.items() if kind.reads == "plan"}


def test_texts_of_the_plan_are_not_markup() -> None:
    model = msgspec.structs.replace(plan().inputs.model, name="<script>alert(1)</script>&")
    inputs = msgspec.structs.replace(plan().inputs, model=model)
    text = report(msgspec.structs.replace(plan(), inputs=inputs), kinds=("values",))
    assert "<script" not in text
    assert "<script>alert(1)</script>&" in read(text).text


def test_the_same_plan_gives_the_same_report() -> None:
    assert report(plan(), kinds=("paths",)) == report(plan(), kinds=("paths",))


def test_the_command_writes_the_file_and_prints_numbers(tmp_path: Path) -> None:
    few = ("--pictures", "values,paths")
    file, out = tmp_path / "plan.json", tmp_path / "report.html"
    file.write_text(encode(plan()), encoding="utf-8")
    result = run("report", str(file), "-o", str(out), *few)
    assert (result.code, result.out) == (0, ""), result.err
    read(out.read_text(encoding="utf-8"))
    numbers = json.loads(run("report", str(file), "--json", *few).out)
    assert numbers["answer"] == wording.strategy(plan())
    assert set(numbers["pictures"]) == {"values", "paths"}
