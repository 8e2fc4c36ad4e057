"""Metrics while steps run: what they say, how Prometheus reads it, and that nothing stays open."""

from __future__ import annotations

import io
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from plugin_cli import run  # noqa: E402
from test_runtime import small_model  # noqa: E402

from kvplan.curve import affine  # noqa: E402
from kvplan.errors import InputError  # noqa: E402
from kvplan.evaluate import Evaluation  # noqa: E402
from kvplan.forced import forced  # noqa: E402
from kvplan.graph import Operation  # noqa: E402
from kvplan.hardware_library import load_hardware  # noqa: E402
from kvplan.model_library import load_model  # noqa: E402
from kvplan.scenario import Scenario  # noqa: E402
from kvplan.schedule import Schedule  # noqa: E402
from kvplan.workload import Budgets, Workload  # noqa: E402
from kvplan_validate import advice, cases, harness, prometheus  # noqa: E402
from kvplan_validate.action import Action  # noqa: E402
from kvplan_validate.busy import busy_s, union_s  # noqa: E402
from kvplan_validate.live import table  # noqa: E402
from kvplan_validate.metrics import Metrics, quantile, served_tokens  # noqa: E402
from kvplan_validate.nvml import Card, Reading  # noqa: E402
from kvplan_validate.watch import watching  # noqa: E402


def evaluated(shares: dict[str, float]) -> tuple[Scenario, Evaluation]:
    scenario = Scenario(
        model=load_model("opt-125m"), hardware=load_hardware("h200"),
        workload=Workload(batch=8, context=1024), budgets=Budgets(disk_bytes=10**9),
    )  # fmt: skip
    found = forced(scenario, Schedule(boundary="barrier"), shares)
    assert isinstance(found, Evaluation)
    return scenario, found


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    _, evaluation = evaluated({"resident": 0.5, "fetch": 0.25, "fetch_disk": 0.25})
    made.begin({"model": "opt-125m", "batch": 8}, evaluation)
    made.occupied({"gpu": 0.002, "h2d": 0.009})
    made.ran([0.010] * 98 + [0.020, 0.030])
    return made


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Prometheus text: name to labels to value; every line must have the form."""
    found: dict[str, dict[str, float]] = {}
    line_form = re.compile(r'([a-z_][a-z0-9_]*)(\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})? (\S+)')
    for line in text.splitlines():
        if not line.startswith("#"):
            match = line_form.fullmatch(line)
            assert match, line
            found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return found


def test_percentiles_shares_and_hit_rates(metrics: Metrics) -> None:
    assert metrics.latency_s() == {0.5: 0.010, 0.95: 0.010, 0.99: 0.020}
    assert metrics.utilisation() == pytest.approx({"gpu": 0.2, "h2d": 0.9})
    assert metrics.hit_rate() == {"hbm": 0.5, "dram": 0.25, "disk": 0.25}
    assert sum(metrics.step_tokens.values()) == 12 * 1024


def test_quantiles_are_samples() -> None:
    samples = [float(n) for n in range(1, 101)]
    assert [quantile(samples, q) for q in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert quantile([7.0], 0.5) == 7.0


def test_every_path_is_served_by_a_tier() -> None:
    _, evaluation = evaluated({"recompute": 0.5, "recompute_resident": 0.5})
    assert served_tokens(evaluation) == {"hbm": 6144, "dram": 6144, "disk": 0}


def test_busy_time_counts_overlap_once() -> None:
    assert union_s([(0.0, 1.0), (0.5, 0.75), (1.0, 2.0)]) == 2.0
    assert union_s([]) == 0.0


def spans(lane: str) -> list[tuple[Action, float, float]]:
    curve = affine(0.0, 0.0)

    def action(name: str, resource: str | None, on: str) -> Action:
        return Action(Operation(name, resource, curve), lambda: None, on)

    return [
        (action("project", "gpu", "gpu"), 0.0, 1.0),
        (action("attend_host", "host", lane), 1.0, 4.0),
        (action("send_query", None, "host"), 0.0, 9.0),
        (action("copy_kv", "h2d", "h2d"), 0.0, 2.0),
        (action("copy_kv", "h2d", "h2d"), 1.0, 3.0),
    ]


def test_busy_time_is_per_resource_and_only_where_events_can_tell() -> None:
    assert busy_s(spans("host")) == {"gpu": 1.0, "h2d": 3.0, "host": 3.0}
    assert busy_s(spans("gpu")) == {"h2d": 3.0}


def test_the_text_is_what_prometheus_reads(metrics: Metrics) -> None:
    metrics.case["model"] = 'a "quoted"\\name\n'
    found = parsed(prometheus.text(metrics))
    assert found["kvplan_step_seconds"]['{quantile="0.99"}'] == 0.020
    assert found["kvplan_step_seconds_count"][""] == 100
    assert found["kvplan_step_seconds_sum"][""] == pytest.approx(1.03)
    assert found["kvplan_resource_busy_ratio"]['{resource="h2d"}'] == pytest.approx(0.9)
    assert found["kvplan_resource_busy_seconds_total"]['{resource="gpu"}'] == pytest.approx(0.2)
    assert found["kvplan_link_bytes_total"]['{link="h2d"}'] == 100 * metrics.step_bytes["h2d"]
    assert found["kvplan_tier_hit_ratio"]['{tier="disk"}'] == 0.25


def test_names_carry_units_and_kinds(metrics: Metrics) -> None:
    metrics.reading = Reading(gpu_busy=0.5, power_w=300.0, pcie_to_gpu_bytes_per_s=1e9)
    text = prometheus.text(metrics)
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    assert len(kinds) == text.count("# HELP ")
    for name, kind in kinds.items():
        assert name.startswith("kvplan_")
        assert (kind == "counter") == name.endswith("_total"), name
        units = ("seconds", "bytes", "ratio", "info", "total", "watts", "hertz", "second")
        assert name.rsplit("_", 1)[1] in units, name
    assert parsed(text)["kvplan_pcie_bytes_per_second"] == {'{link="h2d"}': 1e9}


def test_a_port_is_served_and_given_back(metrics: Metrics) -> None:
    server = prometheus.Server(metrics, 0)
    address = f"http://127.0.0.1:{server.port}"
    with urllib.request.urlopen(f"{address}/metrics", timeout=5) as answer:
        assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
        assert answer.read().decode() == prometheus.text(metrics)
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(f"{address}/other", timeout=5)
    missing.value.close()
    with pytest.raises(InputError, match="--prometheus-port"):
        prometheus.Server(metrics, server.port)
    server.close()
    prometheus.Server(metrics, server.port).close()


def test_watching_ends_whatever_happens(tmp_path: Path) -> None:
    file = tmp_path / "k.prom"
    console = Console(file=io.StringIO(), width=100)

    def fail_after_a_step() -> None:
        with watching(live=console, file=str(file), port=None) as now:
            assert now is not None
            assert parsed(file.read_text())["kvplan_step_seconds_count"][""] == 0
            now.ran([0.5])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_a_step()
    assert parsed(file.read_text())["kvplan_step_seconds_count"][""] == 1
    assert "step p50" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [path.name for path in tmp_path.iterdir()] == ["k.prom"]
    with watching(live=None, file=None, port=None) as nobody:
        assert nobody is None


def test_the_table_shows_measured_beside_predicted(metrics: Metrics) -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(table(metrics))
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["step", "p99", "20.00", "ms"] in lines
    assert any(line[:4] == ["h2d", "busy", "90", "%"] and line[-1] == "%" for line in lines)


def test_the_card_is_read_where_nvml_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise RuntimeError("not supported")

    fake = SimpleNamespace(
        nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: "card",
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=75),
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(used=10**9),
        nvmlDeviceGetPowerUsage=lambda card: 350_000, nvmlDeviceGetClockInfo=refused,
        NVML_PCIE_UTIL_RX_BYTES=1, NVML_PCIE_UTIL_TX_BYTES=0,
        nvmlDeviceGetPcieThroughput=lambda card, counter: 1000 * counter,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    card = Card.here()
    assert card is not None
    assert card.read() == Reading(0.75, 10**9, 1_024_000.0, 0.0, 350.0, None)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Card.here() is None


def test_advice_says_what_each_change_brings() -> None:
    scenario, evaluation = evaluated({"fetch": 1.0})
    found = advice.advice(scenario, evaluation)
    assert any(
        "keep, recompute or fetch as solve would (resident 100 %)" in one.change for one in found
    )
    assert all(one.saved_s > 0 for one in found)
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
    for one in found:
        assert one.step_s + one.saved_s == pytest.approx(evaluation.step_s)


def test_lower_precision_is_advised_where_memory_is_short() -> None:
    scenario = Scenario(
        model=load_model("opt-6.7b"), hardware=load_hardware("h200"),
        workload=Workload(batch=8, context=4096), budgets=Budgets(hbm_bytes=15 * 10**9),
    )  # fmt: skip
    evaluation = forced(scenario, Schedule(boundary="barrier"), {"fetch": 1.0})
    assert isinstance(evaluation, Evaluation)
    changes = [one.change for one in advice.advice(scenario, evaluation)]
    assert any(change.startswith("--allow int4") for change in changes)
    assert any("as solve would" in change and " %" in change for change in changes)


def test_a_run_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "load_model", lambda name: small_model(grouped=True, rope=True))
    monkeypatch.setattr(harness, "SMALL_POOL", 1 << 20)
    monkeypatch.setattr(harness, "TILE", 1 << 20)
    monkeypatch.setattr(harness, "PART_S", 1e-9)
    case = {"model": "small", "batch": 2, "context": 256, "force": {"fetch": 1.0}}
    grid, file = tmp_path / "grid.json", tmp_path / "k.prom"
    grid.write_text(json.dumps([case]))
    result = run(
        "validate", "--grid", str(grid), "--gpu", "h200", "--device", "cpu", "--pool", "64MiB",
        "--prometheus", str(file), "--live", "--steps", "4", "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    (found,) = json.loads(result.out)["results"]
    assert len(found["samples_s"]) == 4
    text = parsed(file.read_text())
    assert text["kvplan_step_seconds_count"][""] == 4
    assert text["kvplan_cases_total"]['{state="measured"}'] == 1
    assert text["kvplan_step_seconds"]['{quantile="0.5"}'] <= max(found["samples_s"])
    assert "tokens from dram" in result.err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--steps", "-1", "--steps: -1"),
        ("--prometheus-port", "0", "--prometheus-port: 0"),
        ("--prometheus", "/nonexistent/k.prom", "--prometheus"),
    ],
)
def test_bad_options_are_one_line(option: str, value: str, says: str) -> None:
    result = run("validate", "plan.json", option, value)
    assert (result.code, result.out) == (2, "")
    assert says in result.err
    assert result.err.count("\n") == 1
