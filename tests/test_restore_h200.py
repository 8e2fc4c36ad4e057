"""23 restores measured on one H200 beside their predictions; nothing is fitted to them.

The built-in profile predicts; of the same day's run only the rate of the attention kernel is taken,
measured by itself (flash attention 2; the kernels in use are slower than what the planner assumes).
"""

from __future__ import annotations

import json
from statistics import median

from kvplan.datafiles import data_dir
from kvplan.hardware import override
from kvplan.hardware_library import load_hardware
from kvplan.model_library import load_model
from kvplan.prefix import Prefix
from kvplan.restoration import Restoration
from kvplan.restored import Restored, Split, judge

FILE = data_dir("hwprofiles") / "measurements" / "h200-2026-11-29" / "prefill_restore.json"
ATTENTION_FLOP_PER_S = 340e12
"""Of a chunk of 2048 tokens behind 14k and more, from ``attention`` in the file."""


def predicted(name: str, case: dict[str, float]) -> Restored:
    machine = load_hardware("h200")
    if case["times"] > 1:  # every byte was copied so often, as on a slower link
        machine = override(machine, h2d_bytes_per_s=machine.h2d.copy.rate() / case["times"])
    tokens, front = int(case["n"]), int(case["front"])
    found = Restoration(
        model=load_model(name), hardware=machine,
        prefix=Prefix(tokens=tokens, suffix=int(case["suffix"]), kv_dtype="bf16", mode="eager",
                      attention_flop_per_s=ATTENTION_FLOP_PER_S),
    )  # fmt: skip
    layers = range(len(found.model.layers))
    rebuilt = tuple(tokens if index < case["rebuilt"] else 0 for index in layers)
    depth = len(layers) if front else 0
    return judge(found, Split(front=front, depth=depth, rebuilt=rebuilt))


def test_measured_restores() -> None:
    errors: dict[str, list[float]] = {"h2d": [], "gpu": []}
    for name, content in json.loads(FILE.read_text(encoding="utf-8")).items():
        for case in content["restore"] if isinstance(content, dict) else ():
            restored = predicted(name, case)
            seconds = restored.ttft_s
            error = seconds * 1e3 / case["ms"] - 1
            errors[restored.simulation.bottleneck].append(abs(error))
            print(f"{name:14} {case} {seconds * 1e3:7.1f} ms {error:+.1%}")
    assert (len(errors["h2d"]), len(errors["gpu"])) == (12, 11)
    assert max(errors["h2d"]) < 0.01
    assert median(errors["gpu"]) < 0.10
    assert max(errors["gpu"]) < 0.13
