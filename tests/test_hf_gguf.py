"""GGUF files and their metadata: what llama.cpp allocates for them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run

from kvplan.errors import InputError
from kvplan.hf import read_cache
from kvplan.hf.gguf_file import read_gguf_file
from kvplan.kv_size import KvSize
from kvplan.model_library import load_cache

GEMMA4: dict[str, Any] = {
    "block_count": 60, "embedding_length": 5376, "attention.head_count": 32,
    "attention.head_count_kv": [16, 16, 16, 16, 16, 4] * 10, "attention.key_length": 512,
    "attention.value_length": 512, "attention.key_length_swa": 256,
    "attention.value_length_swa": 256, "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": [True] * 5 + [False],
}  # fmt: skip


def metadata(architecture: str, **keys: object) -> dict[str, object]:
    """Metadata with an architecture's name in front of each key, dots for double underscores."""
    named = {f"{architecture}.{k.replace('__', '.')}": v for k, v in keys.items()}
    return {"general.architecture": architecture, **named}


def size(config: dict[str, object], context: int = 32768) -> KvSize:
    return KvSize(model=read_cache(config, name="m", source="test"), context=context)


def test_heads_of_zero_are_convolutions() -> None:
    """LFM2-1.2B: six of sixteen layers cache, 384 MiB at 32768 in fp16.

    Source: gpustack/gguf-parser-go issues 31 and 35, which print the metadata.
    """
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    keys = metadata("lfm2", block_count=16, embedding_length=2048, attention__head_count=32,
                    attention__head_count_kv=heads, shortconv__l_cache=3)  # fmt: skip
    found = size(keys)
    assert found.growing_bytes == 384 * 2**20
    assert found.fixed_bytes == 10 * 2048 * 2 * 2


def test_every_fourth_layer_attends() -> None:
    """Qwen3.6-35B-A3B: ten of forty layers cache.

    Source: gpustack/gguf-parser-go issue 28; states, llama.cpp's n_embd_r and n_embd_s.
    """
    keys = metadata(
        "qwen35moe", block_count=40, embedding_length=2048, attention__head_count=16,
        attention__head_count_kv=2, attention__key_length=256, attention__value_length=256,
        full_attention_interval=4, ssm__conv_kernel=4, ssm__state_size=128, ssm__group_count=16,
        ssm__time_step_rank=32, ssm__inner_size=4096,
    )  # fmt: skip
    found = size(keys)
    assert found.bytes_per_token == 10 * 2 * (256 + 256) * 2
    assert found.fixed_bytes == 30 * ((4096 + 2 * 16 * 128) * 3 * 2 + 128 * 4096 * 4)


def test_windows_with_heads_of_their_own() -> None:
    """Gemma 4 31B: 50 windowed layers of 16 x 256, 10 full ones of 4 x 512.

    Source: ikawrakow/ik_llama.cpp issue 1607, for layers and window; google's configuration (in
    models/) for the widths.
    """
    keys = {f"gemma4.{key}": value for key, value in GEMMA4.items()}
    found = size({"general.architecture": "gemma4", **keys})
    assert found.bytes_per_token == 10 * 4 * 512 * 2 * 2
    assert found.window_bytes == 50 * 16 * 256 * 2 * 2 * 1024


def test_layers_that_share_and_layers_of_drafts_cache_nothing() -> None:
    """Source: llama.cpp, ``n_layer_kv_from_start`` and ``nextn_predict_layers``."""
    plain: dict[str, Any] = {"embedding_length": 4096, "attention__head_count": 32,
                             "attention__head_count_kv": 8}  # fmt: skip
    whole = size(metadata("glm4moe", block_count=46, **plain))
    drafts = size(metadata("glm4moe", block_count=47, nextn_predict_layers=1, **plain))
    assert whole.total_bytes == drafts.total_bytes
    shared = size(metadata("llama", block_count=46, attention__shared_kv_layers=6, **plain))
    assert shared.kv_layers == 40


def test_mamba_hybrids() -> None:
    """States in layers without heads (Granite 4, Nemotron-H), beside them (Falcon-H1)."""
    ssm: dict[str, Any] = {
        "ssm__conv_kernel": 4, "ssm__state_size": 128, "ssm__group_count": 1,
        "ssm__time_step_rank": 48, "ssm__inner_size": 3072, "embedding_length": 1536,
        "attention__head_count": 12,
    }  # fmt: skip
    state = (3072 + 2 * 128) * 3 * 2 + 3072 * 128 * 4
    granite = size(
        metadata("granitehybrid", block_count=4, attention__head_count_kv=[0, 0, 4, 0], **ssm)
    )
    assert (granite.bytes_per_token, granite.fixed_bytes) == (4 * 128 * 2 * 2, 3 * state)
    nemotron = metadata("nemotron_h", block_count=4, attention__head_count_kv=[0, 4, 0, 0],
                        feed_forward_length=[0, 0, 6144, 0], **ssm)  # fmt: skip
    assert size(nemotron).fixed_bytes == 2 * state
    falcon = size(metadata("falcon-h1", block_count=4, attention__head_count_kv=4, **ssm))
    assert (falcon.kv_layers, falcon.fixed_bytes) == (4, 4 * state)


def test_mamba_alone() -> None:
    keys = metadata("mamba", block_count=64, embedding_length=2560, attention__head_count=0,
                    ssm__conv_kernel=4, ssm__state_size=16, ssm__inner_size=5120,
                    ssm__time_step_rank=160)  # fmt: skip
    assert size(keys).total_bytes == 64 * (5120 * 3 * 2 + 5120 * 16 * 4)


def test_latents_between_delta_attention() -> None:
    keys = metadata(
        "kimi-linear", block_count=27, embedding_length=2304, attention__head_count=32,
        attention__head_count_kv=[0, 0, 0, 1] * 6 + [0, 0, 1], attention__kv_lora_rank=512,
        attention__key_length_mla=192, attention__value_length_mla=128, rope__dimension_count=64,
        kda__head_dim=128, ssm__conv_kernel=4,
    )  # fmt: skip
    assert size(keys).bytes_per_token == 7 * 576 * 2


def test_layers_of_an_unknown_kind_are_an_error() -> None:
    keys = metadata("nonesuch", block_count=2, embedding_length=64, attention__head_count=4,
                    attention__head_count_kv=[0, 4])  # fmt: skip
    with pytest.raises(InputError, match="head_count_kv"):
        size(keys)


# -- files ---------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def packed(value: object) -> bytes:
    """Type and bytes of one value, as the GGUF specification lays them out."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    assert isinstance(value, list)
    parts = [packed(one) for one in value]
    return struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(value)) + b"".join(
        part[4:] for part in parts
    )  # fmt: skip


def write_gguf(path: Path, keys: dict[str, object]) -> Path:
    body = b"".join(text(key) + packed(value) for key, value in keys.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)) + body)
    return path


LLAMA: dict[str, Any] = {
    "block_count": 32, "embedding_length": 4096, "attention__head_count": 32,
    "attention__head_count_kv": 8, "feed_forward_length": 14336, "context_length": 131072,
}  # fmt: skip


def test_a_gguf_file_and_what_gguf_dump_prints_of_it(tmp_path: Path) -> None:
    keys = metadata("llama", **LLAMA) | {
        "tokenizer.ggml.tokens": ["a", "b"], "general.file_type": 15,
    }  # fmt: skip
    path = write_gguf(tmp_path / "Meta-Llama-3.1-8B-Q4_K_M.gguf", keys)
    assert read_gguf_file(path) == {**keys, "tokenizer.ggml.tokens": ["", ""]}
    model = load_cache(str(path))
    assert (model.kv_bytes(1, 2), model.vocab, model.weight_dtype) == (131072, 2, "int4")
    result = run("kv-size", "--model", str(path), "--context", "32k", "--json")
    assert json.loads(result.out)["total_bytes"] == 4 * 2**30
    dumped = {"metadata": {key: {"type": "x", "value": value} for key, value in keys.items()}}
    assert load_cache(json.dumps(dumped)).kv_bytes(1, 2) == 131072


@pytest.mark.parametrize("left", [3, 20, 60, -1])
def test_a_gguf_file_that_is_cut_off(tmp_path: Path, left: int) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata("llama", **LLAMA))
    path.write_bytes(path.read_bytes()[:left])
    result = run("kv-size", "--model", str(path))
    assert result.code == 2, result.err
    assert str(path) in result.err
    assert result.err.count("\n") == 1


def test_a_missing_gguf_file_is_named(tmp_path: Path) -> None:
    result = run("kv-size", "--model", str(tmp_path / "missing.gguf"))
    assert result.code == 2
    assert "missing.gguf" in result.err
