"""Metadata of a GGUF file, as tools print it, under the names of a ``config.json``.

Source: the GGUF specification and llama.cpp's ``gguf-py/gguf/constants.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.errors import InputError
from kvplan.limits import printable

ARCHITECTURE = "general.architecture"

NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.key_length_mla": "qk_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "attention.indexer.key_length": "index_head_dim",
    "attention.indexer.head_count": "index_n_heads",
    "rope.dimension_count": "qk_rope_head_dim",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "vocab_size": "vocab_size",
}


def is_gguf(config: Mapping[str, object]) -> bool:
    """Whether these are metadata of a GGUF file."""
    return ARCHITECTURE in config


def as_config(config: Mapping[str, object], name: str) -> dict[str, object]:
    """The metadata under the names of a ``config.json``; what has no such name is left out.

    >>> as_config({"general.architecture": "llama", "llama.block_count": 32}, "m")
    {'model_type': 'llama', 'num_hidden_layers': 32}
    """
    architecture = config[ARCHITECTURE]
    if not isinstance(architecture, str):
        raise InputError(f"{name}: {ARCHITECTURE}", printable(architecture), "a text")
    found: dict[str, object] = {"model_type": TYPES.get(architecture, architecture)}
    for key, value in config.items():
        own = NAMES.get(key.removeprefix(f"{architecture}.")) if "." in key else None
        if own is not None:
            found[own] = value
    for key in ("tokenizer.ggml.tokens",):
        tokens = config.get(key)
        if isinstance(tokens, list) and "vocab_size" not in found:
            found["vocab_size"] = len(tokens)
    if "kv_lora_rank" not in found:
        found.pop("qk_rope_head_dim", None)
        if found.get("v_head_dim") == found.get("head_dim"):
            found.pop("v_head_dim", None)
        return found
    width, rope = found.pop("qk_head_dim", found.get("head_dim")), found.get("qk_rope_head_dim")
    if isinstance(width, int) and isinstance(rope, int):
        found["qk_nope_head_dim"] = width - rope
    return found


TYPES = {
    "deepseek2": "deepseek_v3", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe",
    "gptneox": "gpt_neox", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe", "starcoder2": "starcoder2",
}  # fmt: skip
