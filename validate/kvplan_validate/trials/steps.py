"""Trials of decode steps: copies in series or overlapped, and where recomputing pays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from kvplan import cost
from kvplan.errors import ResourceError
from kvplan.evaluate import Evaluation
from kvplan.forced import forced
from kvplan.graph import Operation
from kvplan.hardware import override
from kvplan.model_library import load_model
from kvplan.scenario import Scenario
from kvplan.schedule import Schedule
from kvplan.workload import Workload
from kvplan_validate.harness import run, running, timed
from kvplan_validate.measure import buffers
from kvplan_validate.measure.copies import ends
from kvplan_validate.trials.base import Finding, Place, Trial
from kvplan_validate.trials.copies import per_copy_s
from kvplan_validate.work import Run, Work

MIB, GIB = 1 << 20, 1 << 30


def fitting(scenario: Scenario, schedule: Schedule, shares: dict[str, float]) -> Evaluation:
    """The allocation, or a refusal."""
    found = forced(scenario, schedule, {path: share for path, share in shares.items() if share})
    if isinstance(found, str):
        raise ResourceError("memory", found, "a larger machine")
    return found


def copy_s(place: Place, size: int) -> float:
    """Measured seconds of one copy to the GPU among many."""
    with ends(place.machine, buffers.registered, size) as both:
        whole = int(both.host.nbytes)
        return per_copy_s(place, both, "h2d", whole) * size / whole


class SerialOrOverlapped(Trial):
    """Sum or maximum."""

    name = "serial_or_overlapped"
    title = "Copies in series add to the step; overlapped, the longer of both remains"
    source = "GenerelSchwerz/llama.cpp#31, #2 (16 layers with KV, K and V of width 1024, batch 1)"
    claim = (
        "step = compute + copies where they are ordered (within 5 %), the larger of both where "
        "they overlap (within 10 %), at 4096, 16384 and 32768 tokens"
    )
    depths: Sequence[int] = (4096, 16384, 32768)
    layers = 16
    model = "llama-3.1-8b"

    def run(self, place: Place) -> Finding:
        """Everything resident, fetched in series, fetched ahead; and the copies alone."""
        rows = [self._row(place, tokens) for tokens in self.depths]
        serial = max(abs(r["serial_s"] / (r["resident_s"] + r["copies_s"]) - 1) for r in rows)
        overlapped = max(
            abs(r["overlapped_s"] / max(r["resident_s"], r["copies_s"]) - 1) for r in rows
        )
        shown = "; ".join(
            f"{r['tokens']} tokens: {r['resident_s'] * 1e3:.2f} resident, "
            f"{r['serial_s'] * 1e3:.2f} in series, {r['overlapped_s'] * 1e3:.2f} overlapped"
            for r in rows
        )
        return Finding(
            here=f"milliseconds per step, {shown}; the sum is off by {serial:.1%} at most, the "
            f"maximum by {overlapped:.1%}",
            holds=serial <= 0.05 and overlapped <= 0.10,
            figures={"rows": rows, "layers": self.layers},
        )

    def _row(self, place: Place, tokens: int) -> dict[str, Any]:
        whole = load_model(self.model)
        model = msgspec.structs.replace(whole, layers=whole.layers[: self.layers])
        scenario = Scenario(
            model=model, hardware=place.hardware, workload=Workload(batch=1, context=tokens)
        )
        plain = Schedule(stages=1, queue_depth=1, boundary="barrier")
        plans = {
            "resident": fitting(scenario, plain, {"resident": 1.0}),
            "serial": fitting(scenario, dataclasses.replace(plain, prefetch=False), {"fetch": 1.0}),
            "overlapped": fitting(
                scenario, dataclasses.replace(plain, stages=4, queue_depth=4), {"fetch": 1.0}
            ),
        }
        moved = plans["serial"].graph.link_bytes(plans["serial"].values)["h2d"]
        row: dict[str, Any] = {"tokens": tokens, "h2d_bytes": moved}
        for name, evaluation in plans.items():
            row[f"{name}_s"] = run(place.bench, scenario, evaluation).median_s
            row[f"predicted_{name}_s"] = evaluation.step_s
        row["copies_s"] = self.layers * copy_s(place, round(moved / self.layers))
        return row


class Slowed(Work):
    """Every copy and every rebuild is done several times: a slower machine."""

    copies = rebuilds = 1

    def do_copy_kv(self, operation: Operation) -> Run:
        """See `Work`."""
        return repeated(super().do_copy_kv(operation), self.copies)

    do_copy_activations = do_copy_kv

    def do_rebuild(self, operation: Operation) -> Run:
        """See `Work`."""
        return repeated(super().do_rebuild(operation), self.rebuilds)


def repeated(work: Run, times: int) -> Run:
    """The same work several times over."""

    def many() -> None:
        for _ in range(times):
            work()

    return many


class RecomputeCurve(Trial):
    """How many tokens to rebuild."""

    name = "recompute_curve"
    title = "Decode time over rebuilt tokens has its best far from both ends"
    source = (
        "AndreaLeang/FlexLLMGen, full-latency decode data set (OPT-6.7B, A100 40GB, 11.6 GB/s "
        "link, about 160 TFLOP/s, context 4096, 2 x 8 sequences)"
    )
    claim = (
        "55.8 s for 15 steps with nothing rebuilt, 32.0 s with 3276 tokens of 4096, 34.2 s with "
        "all; predictions within 20 % at 0, 2048, 3276 and 4096, the chosen split within 5 % of "
        "the best"
    )
    reported_s: Mapping[int, float] = MappingProxyType(
        {0: 55.77, 2048: 36.31, 2867: 33.48, 3276: 32.02, 3686: 33.12, 4096: 34.22}
    )
    """Rebuilt tokens to seconds of 15 steps, as published."""
    judged = (0, 2048, 3276, 4096)
    link_bytes_per_s, flop_per_s = 11.6e9, 160e12
    dram_bytes = 12 * GIB
    model, context, batch, micro_batches = "opt-6.7b", 4096, 16, 2

    def run(self, place: Place) -> Finding:
        """Slow this machine to the published rates, predict with both rates, measure."""
        link, flop = place.hardware.h2d.copy.rate(), cost.flop_per_s(place.hardware, "fp16")
        Slowed.copies = max(round(link / self.link_bytes_per_s), 1)
        Slowed.rebuilds = max(round(flop / self.flop_per_s), 1)
        hardware = override(
            place.hardware, h2d_bytes_per_s=link / Slowed.copies, flop_per_s=flop / Slowed.rebuilds
        )
        scenario = Scenario(
            model=load_model(self.model),
            hardware=hardware,
            workload=Workload(
                batch=self.batch, context=self.context, micro_batches=self.micro_batches
            ),
        )
        rows = [self._row(place, scenario, tokens) for tokens in self.reported_s]
        best = min(row["measured_s"] for row in rows)
        chosen = min(rows, key=lambda row: row["predicted_s"])
        regret = chosen["measured_s"] / best - 1
        worst = max(
            abs(r["predicted_s"] / r["measured_s"] - 1) for r in rows if r["tokens"] in self.judged
        )
        shown = ", ".join(f"{r['tokens']}: {15 * r['measured_s']:.1f}" for r in rows)
        return Finding(
            here=f"with every copy done {Slowed.copies} times and every rebuild {Slowed.rebuilds} "
            f"times, seconds for 15 steps by rebuilt tokens: {shown}; the predicted best, "
            f"{chosen['tokens']}, is {regret:.1%} from the measured best; predictions are off by "
            f"{worst:.1%} at most",
            holds=worst <= 0.20 and regret <= 0.05,
            figures={
                "rows": rows, "copies": Slowed.copies, "rebuilds": Slowed.rebuilds,
                "h2d_bytes_per_s": link / Slowed.copies, "flop_per_s": flop / Slowed.rebuilds,
            },
        )  # fmt: skip

    def _row(self, place: Place, scenario: Scenario, tokens: int) -> dict[str, Any]:
        share = tokens / self.context
        schedule = Schedule(stages=4, queue_depth=4, mode="eager")
        evaluation = fitting(scenario, schedule, {"recompute": share, "fetch": 1 - share})
        with running(place.bench, scenario, evaluation, Slowed) as runtime:
            samples = timed(runtime, 2, warm=1)
        return {
            "tokens": tokens,
            "predicted_s": evaluation.step_s,
            "measured_s": sum(samples) / len(samples),
            "reported_s": self.reported_s[tokens] / 15,
        }
