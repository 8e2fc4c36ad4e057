"""Figures of every built-in model that did not come from kvplan (`model_table.csv`).

Parameters: "meta-device count" instantiated the class of transformers 5.24.0 on the meta device;
"published" is the authors' figure; "formula" sums the
matrices of the paper by hand. Cache bytes are those of a 16-bit cache and one sequence, found
by running that class and summing its cache tensors where it exists, and by the published formula
of its kind where not: per token while every window fills, per token at long context, what full
windows hold, states, and cross-attention per source token; totals are rounded to 0.01 MiB and blank
beyond the positions of the model. Visual models: the marginal column is per image, with both
sequences of classifier-free guidance.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """One model."""

    name: str
    params_billion: float
    basis: str
    kv_bytes_per_token: float
    kv_bytes_per_token_marginal: int
    window: int
    window_bytes: int
    state_bytes: int
    cross_bytes: int
    totals_mib: dict[int, float]
    max_positions: int | None

    def total_bytes(self, context: int) -> float:
        """Bytes of one sequence: what grows, what windows hold, and states."""
        filling = self.window_bytes * min(context, self.window) // max(self.window, 1)
        return self.kv_bytes_per_token_marginal * context + filling + self.state_bytes


def _row(line: dict[str, str]) -> Row:
    totals = {4096: "total_4k_MiB", 32768: "total_32k_MiB", 131072: "total_128k_MiB"}
    return Row(
        line["model"], float(line["params_B"]), line["params_basis"],
        float(line["kv_B_per_tok_fp16"]), int(line["kv_B_per_tok_marginal"]),
        int(line["window"] or 0), int(line["window_cap_B"] or 0), int(line["state_B"] or 0),
        int(line["cross_B_per_src_tok"] or 0),
        {tokens: float(line[key]) for tokens, key in totals.items() if line[key]},
        int(line["max_positions"]) if line["max_positions"].isdigit() else None,
    )  # fmt: skip


with Path(__file__).with_name("model_table.csv").open(encoding="utf-8") as _file:
    ROWS = tuple(_row(line) for line in csv.DictReader(_file))

VISION = {
    "Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
    "google/gemma-3-12b-it", "google/gemma-3-27b-it", "llava-hf/llava-1.5-7b-hf",
    "nvidia/Gemma-4-31B-IT-NVFP4",
}  # fmt: skip
"""Counted with their vision tower, which kvplan does not read."""

UNTIED = {
    "tiiuae/falcon-7b": 65024 * 4544, "tiiuae/falcon-40b": 65024 * 8192,
    "google/flan-t5-xxl": -32128 * 4096,
}  # fmt: skip
"""Weights by which the counted class differs in whether the head shares the embedding."""

ROUGH = {
    "deepseek-ai/DeepSeek-V4-Flash": 0.002, "deepseek-ai/DeepSeek-V4-Pro": 0.002,
    "google/gemma-3n-E2B": 0.008, "google/gemma-3n-E4B": 0.008,
    "FoundationVision/Infinity-2B": 0.05, "FoundationVision/var-d36": 0.02,
    "FoundationVision/var-d30": 0.005, "stepfun-ai/Step-3.7-Flash": 0.0001,
}  # fmt: skip
"""Relative difference of the rest: hyper-connections and hash tables (V4), alternating updates
(gemma-3n), gates of heads (Step), adaptive norms and tables of visual models beside a figure
published in two digits."""
