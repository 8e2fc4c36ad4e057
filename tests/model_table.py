"""Figures of every built-in model that did not come from kvplan.

Parameters were counted on the model classes of transformers; cache bytes are those of a 16-bit
cache and one sequence: per token while every window fills, per token at long context, and in
total at 4096 and 32768 tokens (None where the model is not made for so many).
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    name: str
    params_billion: float
    kv_bytes_per_token: int
    kv_bytes_per_token_marginal: int
    total_4k_mib: float | None
    total_32k_mib: float | None


ROWS = (
    Row("huggyllama/llama-7b", 6.738, 524288, 524288, None, None),
    Row("huggyllama/llama-13b", 13.016, 819200, 819200, None, None),
    Row("huggyllama/llama-30b", 32.529, 1597440, 1597440, None, None),
    Row("huggyllama/llama-65b", 65.286, 2621440, 2621440, None, None),
    Row("meta-llama/Llama-2-7b-hf", 6.738, 524288, 524288, 2048.0, None),
    Row("meta-llama/Llama-2-13b-hf", 13.016, 819200, 819200, 3200.0, None),
    Row("meta-llama/Llama-2-70b-hf", 68.977, 327680, 327680, 1280.0, None),
    Row("meta-llama/Meta-Llama-3-8B", 8.03, 131072, 131072, 512.0, None),
    Row("meta-llama/Meta-Llama-3.1-8B", 8.03, 131072, 131072, 512.0, 4096.0),
    Row("meta-llama/Meta-Llama-3.1-70B", 70.554, 327680, 327680, 1280.0, 10240.0),
    Row("meta-llama/Meta-Llama-3.1-405B", 405.853, 516096, 516096, 2016.0, 16128.0),
    Row("meta-llama/Llama-3.2-1B", 1.236, 32768, 32768, 128.0, 1024.0),
    Row("meta-llama/Llama-3.2-3B", 3.213, 114688, 114688, 448.0, 3584.0),
    Row("meta-llama/Llama-3.3-70B-Instruct", 70.554, 327680, 327680, 1280.0, 10240.0),
    Row("facebook/opt-125m", 0.125, 36864, 36864, None, None),
    Row("facebook/opt-350m", 0.331, 98304, 98304, None, None),
    Row("facebook/opt-1.3b", 1.316, 196608, 196608, None, None),
    Row("facebook/opt-2.7b", 2.652, 327680, 327680, None, None),
    Row("facebook/opt-6.7b", 6.658, 524288, 524288, None, None),
    Row("facebook/opt-13b", 12.853, 819200, 819200, None, None),
    Row("facebook/opt-30b", 29.975, 1376256, 1376256, None, None),
    Row("facebook/opt-66b", 65.72, 2359296, 2359296, None, None),
    Row("facebook/opt-175b", 174.604, 4718592, 4718592, None, None),
    Row("mistralai/Mistral-7B-v0.1", 7.242, 131072, 0, 512.0, 512.0),
    Row("mistralai/Mistral-7B-v0.3", 7.248, 131072, 131072, 512.0, 4096.0),
    Row("Qwen/Qwen2.5-3B", 3.086, 36864, 36864, 144.0, 1152.0),
    Row("Qwen/Qwen2.5-7B-Instruct", 7.616, 57344, 57344, 224.0, 1792.0),
    Row("Qwen/Qwen2.5-32B-Instruct", 32.764, 262144, 262144, 1024.0, 8192.0),
    Row("Qwen/Qwen2.5-72B-Instruct", 72.706, 327680, 327680, 1280.0, 10240.0),
    Row("Qwen/Qwen3-0.6B", 0.596, 114688, 114688, 448.0, 3584.0),
    Row("Qwen/Qwen3-1.7B", 1.721, 114688, 114688, 448.0, 3584.0),
    Row("Qwen/Qwen3-8B", 8.191, 147456, 147456, 576.0, 4608.0),
    Row("Qwen/Qwen3-14B", 14.768, 163840, 163840, 640.0, 5120.0),
    Row("Qwen/Qwen3-32B", 32.762, 262144, 262144, 1024.0, 8192.0),
)
