"""Sizes that engines and their users reported, asked as those users would ask."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cli_runner import run

GIB, MIB = 2**30, 2**20

ASKED: list[tuple[str, str, str, float, float]] = [
    ("LMCache/LMCache#1739, pool of 6.51 GiB", "--model Qwen/Qwen3-14B --pool 6.51GiB",
     "uniform.tokens_in_pool", 42_656, 1e-3),
    ("LMCache/LMCache#1739, stored 8192 tokens", "--model qwen3-14b --context 8192",
     "total_bytes", 1.25 * GIB, 0),
    ("LMCache/LMCache#2901, 50 GB are GiB", "--model llama-3.1-8b --pool 50GiB",
     "tokens_in_pool", 409_600, 0),
    ("vllm-project/vllm#21348, SGLang's K and V of 8.23 GiB, tp 4",
     "--model Qwen/Qwen3-235B-A22B-FP8 --tp-size 4 --context 367404", "total_bytes",
     16.46 * GIB, 1e-3),
    ("vllm-project/vllm#34076, needed",
     "--model Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8 --max-model-len 262,144", "total_bytes",
     24 * GIB, 0),
    ("vllm-project/vllm#34076, longest in 3.18 GiB",
     "--model Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8 --pool 3.18GiB", "tokens_in_pool", 34_736,
     1.6e-3),
    ("unslothai/unsloth#4757, Gemma-3 27B", "--model google/gemma-3-27b-it --ctx-size 131072",
     "total_bytes", 10.41 * GIB, 5e-4),
    ("unslothai/unsloth#4757, DeepSeek-V3.1", "--model deepseek-ai/DeepSeek-V3.1 -c 163840",
     "total_bytes", 10.72 * GIB, 5e-4),
    ("unslothai/unsloth#4757, Kimi-K2.5", "--model moonshotai/Kimi-K2.5 -c 262144",
     "total_bytes", 17.16 * GIB, 5e-4),
    ("unslothai/unsloth#4757, Qwen3-0.6B", "--model qwen3:0.6b -c 40960",
     "total_bytes", 4.375 * GIB, 0),
    ("alvarobartt/hf-mem#70, windows", "--model gpt-oss:20b --max-model-len 8192 --batch-size 32",
     "total_bytes", 6.09 * GIB, 1e-3),
    ("alvarobartt/hf-mem#70, uniform",
     "--model openai/gpt-oss-20b --ctx 8k --max-num-seqs 32 --kv-cache-dtype bfloat16",
     "uniform.total_bytes", 12 * GIB, 0),
    ("manjunathshiva/turboquant-mlx#52", "--model qwen3.5-35b-a3b -c 128k",
     "bytes_per_token", 20_480, 0),
    ("GenerelSchwerz/llama.cpp#62, 39 of 52 layers windowed", "--layers 52 --kv-heads 2 "
     "--head-dim 128 --window 2048 --window-layers 39 --kv-dtype q8_0 -c 32k",
     "bytes_per_token", 7_072, 0),
    ("lablup/mlxcel#172, Gemma-3 1B", "--model google/gemma-3-1b-it -c 32768",
     "total_bytes", 139 * MIB, 0),
    ("Osmantic/ODS#3375, 32K", "--layers 36 --kv-heads 8 --head-dim 128 --ctx 32k",
     "total_bytes", 4.5 * GIB, 0),
    ("jy-yuan/KIVI#17", "--model meta-llama/Llama-2-7b-hf -c 4196",
     "total_bytes", 2.05 * GIB, 1e-3),
    ("vllm-project/vllm#22291, not 1.53 MB a token",
     "--model Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8 --context 3072", "bytes_per_token", 57_344, 0),
    ("NVIDIA/Model-Optimizer#2482, head_dim given",
     "--model mistralai/Mistral-Small-24B-Instruct-2501", "bytes_per_token",
     40 * 8 * 128 * 2 * 2, 0),
]  # fmt: skip
"""Where it was reported, the question, the key of the answer, what was reported, and how far the
report is rounded."""


@pytest.mark.parametrize(("where", "asked", "key", "reported", "rounded"), ASKED,
                         ids=[row[0] for row in ASKED])  # fmt: skip
def test_reported(where: str, asked: str, key: str, reported: float, rounded: float) -> None:
    result = run("kv-size", "--json", *asked.split())
    assert result.code == 0, result.err
    found: Any = json.loads(result.out)
    for part in key.split("."):
        found = found[part]
    assert found == pytest.approx(reported, rel=rounded, abs=0), where


def test_states_of_a_hybrid_given_by_its_keys() -> None:
    """Qwen3.5-4B: "~51 MB" of state per sequence. Source: sgl-project/sglang#39851."""
    config = {
        "model_type": "qwen3_5_text", "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
        "full_attention_interval": 4, "linear_num_value_heads": 32, "linear_num_key_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    found = json.loads(run("kv-size", "--model", json.dumps(config), "--json").out)
    assert found["fixed_bytes"] == pytest.approx(51e6, rel=0.02)


def test_24_of_93_layers_keep_a_latent() -> None:
    """Kimi-K3: 27,648 bytes a token. Source: inference-sim/inference-sim#1635 and #1644."""
    full = [*range(4, 93, 4), 93]
    linear = [index for index in range(1, 94) if index not in full]
    text = {
        "model_type": "kimi_linear", "hidden_size": 7168, "num_hidden_layers": 93,
        "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "linear_attn_config": {"full_attn_layers": full, "kda_layers": linear, "num_heads": 96,
                               "head_dim": 128, "short_conv_kernel_size": 4},
    }  # fmt: skip
    config = json.dumps({"model_type": "kimi_k3", "text_config": text})
    found = json.loads(run("kv-size", "--model", config, "--tp", "64", "--json").out)
    assert (found["bytes_per_token"], found["kv_layers"]) == (27_648, 24)
