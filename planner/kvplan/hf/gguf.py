"""Metadata of a GGUF file, as tools print it, under the names of a ``config.json``.

Source: the GGUF specification, llama.cpp's ``gguf-py/gguf/constants.py`` for the keys and the
``load_arch_hparams`` of its models for what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.errors import InputError
from kvplan.hf.gguf_layers import layer_keys
from kvplan.limits import printable

ARCHITECTURE = "general.architecture"
METADATA = "metadata"
"""Where ``gguf-dump --json`` keeps the keys, each an object with a ``value``."""

NAMES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "v_head_dim",
    "attention.key_length_swa": "swa_head_dim",
    "attention.value_length_swa": "swa_v_head_dim",
    "attention.sliding_window": "sliding_window",
    "attention.shared_kv_layers": "num_kv_shared_layers",
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

FILE_TYPES = {
    **dict.fromkeys((2, 3, 14, 15, 25, 30, 38, 39), 4), 7: 8,
    **dict.fromkeys((8, 9, 16, 17), 5), 18: 6, **dict.fromkeys((11, 12, 13, 22, 23, 26, 27), 3),
    **dict.fromkeys((10, 19, 20, 21, 28, 29), 2), **dict.fromkeys((24, 31), 1),
}  # fmt: skip
"""``general.file_type`` to the bits of most weights. Source: llama.cpp, ``enum llama_ftype``."""

PLAIN_FILES = {0: "float32", 1: "float16", 32: "bfloat16"}

TYPES = {
    "deepseek2": "deepseek_v3", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe",
    "gptneox": "gpt_neox", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe", "starcoder2": "starcoder2",
    "qwen3next": "qwen3_next", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
    "lfm2moe": "lfm2_moe", "granitehybrid": "granitemoehybrid", "nemotron_h_moe": "nemotron_h",
    "falcon-h1": "falcon_h1", "kimi-linear": "kimi_linear", "minimax-m2": "minimax_m2",
    "llama4": "llama4_text", "ernie4_5-moe": "ernie4_5_moe", "hunyuan-moe": "hunyuan_v1_moe",
}  # fmt: skip
"""Architecture to the ``model_type`` of the same class, where the two are spelled apart."""


def is_gguf(config: Mapping[str, object]) -> bool:
    """Whether these are metadata of a GGUF file, flat or as ``gguf-dump --json`` prints them."""
    nested = config.get(METADATA)
    return ARCHITECTURE in config or (isinstance(nested, Mapping) and ARCHITECTURE in nested)


def as_config(config: Mapping[str, object], name: str) -> dict[str, object]:
    """The metadata under the names of a ``config.json``; what has no such name is left out.

    Raises:
        InputError: an architecture that is no text, or layers that the metadata do not tell apart.

    >>> as_config({"general.architecture": "llama", "llama.block_count": 32}, "m")
    {'model_type': 'llama', 'num_hidden_layers': 32}
    """
    if ARCHITECTURE not in config:
        config = _values(config[METADATA])
    architecture = config[ARCHITECTURE]
    if not isinstance(architecture, str):
        raise InputError(f"{name}: {ARCHITECTURE}", printable(architecture), "a text")
    own = {
        key.removeprefix(f"{architecture}."): value
        for key, value in config.items()
        if key.startswith(f"{architecture}.")
    }
    found: dict[str, object] = {"model_type": TYPES.get(architecture, architecture)}
    found |= {NAMES[key]: value for key, value in own.items() if key in NAMES}
    found |= layer_keys(architecture, own, name)
    kind = config.get("general.file_type")
    if kind in PLAIN_FILES:
        found["torch_dtype"] = PLAIN_FILES[kind]
    elif kind in FILE_TYPES:
        bits = FILE_TYPES[kind]
        found["quantization_config"] = {"quant_method": "gguf", "bits": bits}
    tokens = config.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and "vocab_size" not in found:
        found["vocab_size"] = len(tokens)
    for key in ("v_head_dim", "swa_v_head_dim"):
        if "kv_lora_rank" not in found and found.get(key) == found.get(key.replace("v_", "")):
            found.pop(key, None)
    rope = found.get("qk_rope_head_dim")
    if "kv_lora_rank" not in found:
        found.pop("qk_rope_head_dim", None)
        return found
    width = found.pop("qk_head_dim", found.get("head_dim"))
    if isinstance(width, int) and isinstance(rope, int):
        found["qk_nope_head_dim"] = width - rope
    return found


def _values(dumped: object) -> dict[str, object]:
    """Keys with their values, out of what ``gguf-dump --json`` says of each."""
    assert isinstance(dumped, Mapping)
    return {
        str(key): entry.get("value") if isinstance(entry, Mapping) else entry
        for key, entry in dumped.items()
    }
