"""Configurations that are in no library: what decides their caches, key by key, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from kvplan.errors import InputError
from kvplan.hf import read_cache, read_config
from kvplan.layer import Latent
from kvplan.model import ModelSpec
from kvplan.model_library import model_file

MIB = 2**20

BASE: dict[str, Any] = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "num_hidden_layers": 8, "intermediate_size": 8192, "vocab_size": 1000,
    "max_position_embeddings": 131072,
}  # fmt: skip
"""Eight layers of 4096 bytes per token."""

LATENT: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}


def read(**keys: Any) -> ModelSpec:
    return read_cache({**BASE, **keys}, name="m", source="test")


def growth(model: ModelSpec) -> float:
    """Bytes per token at long context, 16-bit."""
    return (model.kv_bytes(2**26, 2, 0) - model.kv_bytes(2**26 - 2**10, 2, 0)) / 2**10


def windows(model: ModelSpec) -> list[int | None]:
    return [layer.window for layer in model.layers]


def refuses(field: str, says: str = "", **keys: Any) -> None:
    with pytest.raises(InputError) as caught:
        read(**keys)
    assert caught.value.field.startswith(f"m: {field}"), caught.value
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# -- which layers are windowed -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "full"),
    [
        ({"model_type": "gemma3_text", "sliding_window_pattern": 6}, [5]),
        ({"model_type": "gemma3_text"}, [5]),
        ({"model_type": "gemma2"}, [1, 3, 5, 7]),
        ({"model_type": "gpt_oss"}, [1, 3, 5, 7]),
        ({"model_type": "cohere2"}, [3, 7]),
        ({"model_type": "new", "sliding_window_pattern": 4}, [3, 7]),
        ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"}, [3, 7]),
        ({"model_type": "afmoe", "global_attn_every_n_layers": 4}, [3, 7]),
        ({"model_type": "new", "hybrid_layer_pattern": [0, 1, 1, 1, 1, 1, 0, 1],
          "attention_chunk_size": 128}, [0, 6]),
        ({"model_type": "step",
          "layer_types": ["full_attention", *["sliding_attention"] * 7]}, [0]),
        ({"model_type": "mistral"}, []),
        ({"model_type": "phi3", "sliding_window": 2047}, []),
        ({}, []),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 6}, range(6)),
        ({"model_type": "qwen2", "use_sliding_window": False, "max_window_layers": 6}, range(8)),
        ({"model_type": "phi3", "sliding_window": 262144}, range(8)),
        ({"model_type": "mistral", "sliding_window": None}, range(8)),
    ],
)  # fmt: skip
def test_which_layers_are_windowed(keys: dict[str, Any], full: list[int]) -> None:
    model = read(**{"sliding_window": 512, **keys})
    assert [i for i, window in enumerate(windows(model)) if window is None] == list(full)
    assert set(windows(model)) <= {None, 512, keys.get("sliding_window")}


def test_a_window_that_could_be_anywhere_is_an_error() -> None:
    refuses("layer_types", "which layers are windowed", model_type="new", sliding_window=512)


def test_layer_types_of_another_length_or_word() -> None:
    refuses("layer_types", "one for each of 8", layer_types=["full_attention"] * 7)
    refuses("layer_types[2]", "'dreaming'", layer_types=[*["full_attention"] * 2, "dreaming"] * 3)
    refuses("sliding_window", layer_types=["sliding_attention"] * 8)


def test_llama4_attends_in_chunks_except_where_it_is_not_rotated() -> None:
    model = read(model_type="llama4_text", attention_chunk_size=1024)
    assert windows(model) == [1024, 1024, 1024, None] * 2
    assert [layer.chunked for layer in model.layers] == [True, True, True, False] * 2
    given = read(model_type="llama4_text", attention_chunk_size=64, no_rope_layers=[1, 0] * 4)
    assert windows(given) == [64, None] * 4


# -- heads of their own ------------------------------------------------------------------------


def test_mimo_windows_have_more_heads_and_values_are_narrower() -> None:
    """MiMo-V2-Flash: 9 full layers of 4 heads, 39 windowed of 8; K 192, V 128; ratio 9.7."""
    model = read(
        num_hidden_layers=48, num_attention_heads=64, num_key_value_heads=4, head_dim=192,
        v_head_dim=128, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128,
        sliding_window=128, model_type="mimo_v2_flash",
        hybrid_layer_pattern=[0, *([1] * 4 + [0]), *([1] * 5 + [0]) * 7],
    )  # fmt: skip
    assert growth(model) == 9 * 4 * 320 * 2
    assert model.kv_bytes(1, 2) == 9 * 4 * 320 * 2 + 39 * 8 * 320 * 2
    assert round(model.kv_bytes(1, 2) / growth(model), 1) == 9.7


def test_gemma4_global_layers_have_their_own_heads() -> None:
    """gemma-4-26B: 20,480 bytes per token and 209,715,200 in windows."""
    types = ["sliding_attention"] * 5 + ["full_attention"]
    text = {
        "model_type": "gemma4_text", "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": True,
        "head_dim": 256, "global_head_dim": 512, "sliding_window": 1024, "layer_types": types * 5,
    }  # fmt: skip
    model = read_cache({"model_type": "gemma4", "text_config": text}, name="m", source="test")
    assert growth(model) == 20480
    assert model.kv_bytes(2**20, 2) - 2**20 * 20480 == 209715200
    saved = {key: text[key] for key in text if "global" not in key}
    saved["per_layer_config"] = {
        f"{i:02d}": {"head_dim": 512, "num_key_value_heads": 2} for i in range(5, 30, 6)
    }
    again = read_cache({"model_type": "gemma4", "text_config": saved}, name="m", source="test")
    assert [layer.kv_elements for layer in again.layers] == [
        layer.kv_elements for layer in model.layers
    ]


def test_heads_in_lists() -> None:
    model = read(num_attention_heads=[16] * 8, num_key_value_heads=[2, 4] * 4)
    assert [layer.kv_heads for layer in model.layers] == [2, 4] * 4
    refuses("num_key_value_heads", "a list of 8", num_key_value_heads=[2, 4])


def test_blocks_found_by_search() -> None:
    """Nemotron-NAS: heads per group inside each block; null on top means nothing."""
    attention: list[dict[str, Any]] = [
        {"n_heads_in_group": 8}, {"no_op": True}, {"n_heads_in_group": 16},
        {"replace_with_linear": True},
    ] * 2  # fmt: skip
    ffn = [{"ffn_mult": 2.625}, {"no_op": True}] * 4
    blocks = [{"attention": a, "ffn": f} for a, f in zip(attention, ffn, strict=True)]
    keys: dict[str, Any] = {
        "model_type": "nemotron-nas",
        "num_key_value_heads": None,
        "block_configs": blocks,
    }
    model = read(**keys)
    assert [layer.kv_heads for layer in model.layers] == [4, 0, 2, 0] * 2
    assert growth(model) == 2 * (4 + 2) * 256 * 2
    assert model.layers[0].intermediate == 7168  # 2 x 2.625 x 4096 / 3
    attention[0].clear()
    refuses("block_configs[0]: attention: n_heads_in_group", **keys)


# -- latents and indexes -----------------------------------------------------------------------


def test_a_latent_wins_over_heads_and_head_dim() -> None:
    model = read(model_type="new_mla", **LATENT, num_key_value_heads=32)
    assert {layer.latent for layer in model.layers} == {Latent(rank=512, rope=64)}
    assert growth(model) == 8 * 576 * 2
    assert {layer.kv_heads * (layer.head_dim_k + layer.head_dim_v) for layer in model.layers} == {
        32 * 320
    }
    for key in LATENT.keys() - {"kv_lora_rank"}:
        refuses(key, **{**LATENT, key: None})


def test_an_index_in_every_layer_or_in_some() -> None:
    """GLM-5: 576 + 128; GLM-5.2 keeps it in the layers of type full only."""
    assert growth(read(**LATENT, index_head_dim=128)) == 8 * 704 * 2
    some = read(**LATENT, index_head_dim=128, indexer_types=["full", *["shared"] * 3] * 2)
    assert growth(some) == (8 * 576 + 2 * 128) * 2
    typed = ["deepseek_sparse_attention"] * 8
    assert growth(read(**LATENT, index_head_dim=128, layer_types=typed)) == 8 * 704 * 2
    refuses("index_head_dim", **LATENT, layer_types=typed)


def test_an_index_beside_grouped_heads() -> None:
    """MiniMax-M3: sparse layers keep every token and an index."""
    sparse = {"sparse_attention_freq": [0, 0, 0, *[1] * 5], "sparse_index_dim": 128,
              "sparse_num_index_heads": 4}  # fmt: skip
    model = read(model_type="minimax_m3_vl_text", sparse_attention_config=sparse)
    assert growth(model) == 8 * 4096 + 5 * 128 * 2


def test_compressed_entries_from_either_spelling() -> None:
    keys = {"model_type": "deepseek_v4", "num_key_value_heads": 1, "head_dim": 512,
            "sliding_window": 128, "index_head_dim": 128, "qk_rope_head_dim": 64}  # fmt: skip
    old = read(**keys, compress_ratios=[0, 0, 4, 128, 4, 128, 4, 128, 0])
    types = [*["sliding_attention"] * 2, *["compressed_sparse_attention",
             "heavily_compressed_attention"] * 3]  # fmt: skip
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    new = read(**keys, layer_types=types, compress_rates=rates)
    assert old.layers == new.layers
    assert growth(old) == 3 * (512 + 128) * 2 / 4 + 3 * 512 * 2 / 128
    assert old.kv_bytes(128, 2) == 8 * 128 * 1024 + 3 * 32 * 1280 + 3 * 1024


# -- states ------------------------------------------------------------------------------------


def test_nemotron_h_counts_halves() -> None:
    """Nemotron-H-56B: 54 states of 16.9 MB, 10 attentions of 4096 bytes: 870 MiB and 40,960 B."""
    pattern = "M-" * 54 + "*" * 10
    model = read(
        model_type="nemotron_h", num_hidden_layers=None, hybrid_override_pattern=pattern,
        mamba_num_heads=256, mamba_head_dim=64, n_groups=8, ssm_state_size=256, conv_kernel=4,
        time_step_limit=[0.0, float("inf")],
    )  # fmt: skip
    assert len(model.layers) == 118
    assert growth(model) == 40960
    assert round(model.kv_bytes(0, 2) / MIB) == 870
    refuses("hybrid_override_pattern", model_type="nemotron_h", hybrid_override_pattern="MX*-M*M-")


def test_kimi_linear_lists_layers_from_one() -> None:
    """KDA: three convolutions and a square state per head; every fourth layer a latent."""
    linear = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "head_dim": 128,
              "num_heads": 32, "short_conv_kernel_size": 4}  # fmt: skip
    model = read(model_type="kimi_linear", **LATENT, linear_attn_config=linear)
    assert [layer.latent is not None for layer in model.layers] == [False, False, False, True] * 2
    assert growth(model) == 2 * 576 * 2
    assert model.kv_bytes(0, 2) == 6 * (3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4)
    refuses("linear_attn_config: kda_layers", "every layer from 1 to 8 once", **LATENT,
            linear_attn_config={**linear, "kda_layers": [1, 2, 3, 5, 6]})  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "state_layers", "state_bytes"),
    [
        ({"model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2,
          "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}, 6, 8192 * (3 * 2 + 16 * 4)),
        ({"model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_key_heads": 16,
          "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
          "linear_conv_kernel_dim": 4}, 6, 8192 * 3 * 2 + 32 * 128 * 128 * 4),
        ({"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 1] * 2}, 6,
         32 * 128 * 128 * 4),
        ({"model_type": "bamba", "attn_layer_indices": [3], "mamba_n_heads": 64, "mamba_d_head": 64,
          "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4}, 7,
         4352 * 3 * 2 + 4096 * 128 * 4),
        ({"model_type": "falcon_h1", "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_n_groups": 1,
          "mamba_d_state": 128, "mamba_d_conv": 4}, 8, 4352 * 3 * 2 + 4096 * 128 * 4),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 4, "conv_L_cache": 3},
         4, 4096 * 2 * 2),
    ],
)  # fmt: skip
def test_states(keys: dict[str, Any], state_layers: int, state_bytes: int) -> None:
    model = read(**keys)
    found = [layer.state for layer in model.layers if layer.state is not None]
    assert len(found) == state_layers
    assert {state.held_bytes(2) for state in found} == {state_bytes}
    attended = 8 if keys["model_type"] == "falcon_h1" else 8 - state_layers
    assert growth(model) == attended * 4096


def test_states_without_a_list_are_an_error() -> None:
    refuses("layer_types", "beside mamba_d_state", model_type="new", mamba_d_state=16)
    refuses("attn_type_list", model_type="minimax_text_01")
    refuses("layer_types", "whose state", layer_types=["linear_attention", *["full_attention"] * 7])


def test_shared_caches_and_layers_of_another_source() -> None:
    model = read(num_kv_shared_layers=3)
    assert [layer.shared for layer in model.layers] == [False] * 5 + [True] * 3
    assert growth(model) == 5 * 4096
    assert growth(read(kv_source_layers=[0, 0, 2, 2, 4, 4, 6, 6])) == 4 * 4096


def test_cross_attention_layers_hold_no_text() -> None:
    model = read(model_type="mllama_text_model", cross_attention_layers=[1, 5])
    assert growth(model) == 6 * 4096
    assert model.cross_elements == 2 * 2048


def test_two_attentions_in_a_layer() -> None:
    """LongCat-Flash: 28 layers, 56 latents."""
    keys = {**BASE, **LATENT, "model_type": "longcat_flash", "num_layers": 28}
    del keys["num_hidden_layers"]
    assert growth(read_cache(keys, name="m", source="test")) == 56 * 576 * 2


# -- where the language part is ----------------------------------------------------------------


@pytest.mark.parametrize("key", ["text_config", "language_config", "llm_config"])
def test_the_language_part_under_any_name(key: str) -> None:
    outer = {"model_type": "new_vl", key: BASE, "vision_config": {"hidden_size": 1}}
    assert read_cache(outer, name="m", source="test").layers == read().layers


def test_what_a_nested_part_leaves_out_is_that_of_its_class() -> None:
    """gemma-3-4b: heads, their width and positions are the class's; 29 of 34 layers windowed."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "sliding_window": 1024}  # fmt: skip
    model = read_config({"model_type": "gemma3", "text_config": text}, name="m", source="test")
    assert growth(model) == 5 * 4 * 512 * 2
    assert model.kv_bytes(2**20, 2) - 2**20 * 20480 == 29 * 1024 * 4096
    assert (model.max_positions, model.vocab) == (131072, 262208)
    flat = {**text, "model_type": "gemma3_text"}
    with pytest.raises(InputError, match="num_attention_heads"):
        read_config(flat, name="m", source="test")


def test_flat_configurations_with_a_vision_part() -> None:
    model = read(model_type="qwen2_vl", vision_config={"hidden_size": 3584, "depth": 32})
    assert growth(model) == 8 * 4096


def test_omni_models_wrap_twice() -> None:
    outer = {"model_type": "omni", "thinker_config": {"text_config": BASE}}
    assert read_cache(outer, name="m", source="test").layers == read().layers


# -- other spellings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        {"d_model": 4096, "n_heads": 32, "n_layers": 8, "model_type": "mpt", "vocab_size": 1,
         "attn_config": {"kv_n_heads": 8, "attn_type": "grouped_query_attention"}},
        {"dim": 4096, "n_heads": 32, "n_layers": 8, "n_kv_heads": 8},
        {"hidden_size": 4096, "num_attention_heads": 32, "num_layers": 8, "kv_channels": 128,
         "multi_query_attention": True, "multi_query_group_num": 8, "model_type": "chatglm"},
        {"general.architecture": "llama", "llama.block_count": 8, "llama.embedding_length": 4096,
         "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
         "llama.attention.key_length": 128, "llama.attention.value_length": 128,
         "llama.rope.dimension_count": 128},
    ],
)  # fmt: skip
def test_spellings(keys: dict[str, Any]) -> None:
    model = read_cache(keys, name="m", source="test")
    assert growth(model) == 8 * 4096


def test_gguf_of_a_latent() -> None:
    """DeepSeek V3 as llama.cpp writes it: K of 576 is the latent's row, 192 the head's."""
    one = "deepseek2"
    keys = {
        "general.architecture": one, f"{one}.block_count": 61, f"{one}.embedding_length": 7168,
        f"{one}.attention.head_count": 128, f"{one}.attention.head_count_kv": 1,
        f"{one}.attention.kv_lora_rank": 512, f"{one}.attention.q_lora_rank": 1536,
        f"{one}.attention.key_length": 576, f"{one}.attention.value_length": 512,
        f"{one}.attention.key_length_mla": 192, f"{one}.attention.value_length_mla": 128,
        f"{one}.rope.dimension_count": 64,
    }  # fmt: skip
    assert growth(read_cache(keys, name="m", source="test")) == 70272


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "retnet"},
        {"model_type": "gla", "expand_k": 0.5},
        {"model_type": "rwkv7"},
        {"model_type": "stripedhyena", "attn_layer_idxs": [1, 3]},
        {"model_type": "new", "hyena_layer_idxs": [0]},
    ],
)
def test_layers_that_keep_something_else_are_never_read_as_attention(
    config: dict[str, Any],
) -> None:
    with pytest.raises(InputError, match="another kind of model"):
        read_cache({**BASE, **config}, name="m", source="test")


def test_cross_layer_attention_caches_once_for_each_group() -> None:
    """Hunyuan-Large: 64 layers, two share one cache.

    Source: arXiv 2411.02265, section 2.1 and table 1 (80 heads, 8 of K and V, width 6400).
    """
    keys = {
        **BASE, "model_type": "hunyuan", "hidden_size": 6400, "num_hidden_layers": 64,
        "num_attention_heads": 80, "head_dim": 80, "use_cla": True, "cla_share_factor": 2,
        "num_experts": 16, "moe_topk": [1] * 64, "num_shared_expert": [1] * 64,
    }  # fmt: skip
    model = read_config(keys, name="m", source="test")
    assert growth(model) == 32 * 2 * 8 * 80 * 2
    assert growth(read_cache({**keys, "use_cla": False}, name="m", source="t")) == 2 * growth(model)


def test_experts_listed_for_every_layer_must_be_alike() -> None:
    keys = {**BASE, "model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2, 1] * 4}
    with pytest.raises(InputError, match=r"moe_topk: .* the same number for every layer"):
        read_config(keys, name="m", source="test")


def test_minicpm3_leaves_out_the_width_of_v() -> None:
    """Its class has hidden size over heads. Source: transformers 5.24, MiniCPM3Config."""
    keys = {
        "model_type": "minicpm3", "hidden_size": 2560, "num_hidden_layers": 62,
        "num_attention_heads": 40, "num_key_value_heads": 40, "kv_lora_rank": 256,
        "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    }  # fmt: skip
    model = read_cache(keys, name="m", source="test")
    assert growth(model) == 62 * (256 + 32) * 2
    assert model.layers[0].head_dim_v == 64


def test_a_default_under_another_name_yields_to_what_is_given() -> None:
    """Qwen3-VL-235B gives ``num_experts``, its class defaults ``num_local_experts``.

    Source: github ai-dynamo/aiconfigurator@51ecbbbc, Qwen3-VL-235B-A22B-Thinking's configuration.
    """
    config = model_file("Qwen/Qwen3-VL-235B-A22B-Thinking").config
    model = read_config(config, name="m", source="test")
    assert growth(model) == 94 * 4 * 128 * 2 * 2
    experts = model.layers[0].experts
    assert experts is not None
    assert (experts.count, experts.active) == (128, 8)


def test_experts_per_modality_do_not_matter_to_the_cache() -> None:
    """ERNIE 4.5 VL lists the widths of text and vision experts; its weights stay an error.

    Source: transformers 5.24, Ernie4_5_VLMoeTextConfig.
    """
    keys = {**BASE, "model_type": "ernie4_5_vl_moe", "moe_intermediate_size": [1536, 512],
            "moe_num_experts": [64, 64], "moe_k": 6}  # fmt: skip
    assert growth(read_cache(keys, name="m", source="test")) == 8 * 4096
    with pytest.raises(InputError, match="moe_num_experts"):
        read_config(keys, name="m", source="test")


@pytest.mark.parametrize("listed", [False, True])
def test_a_second_decoder_attends_one_cache(listed: bool) -> None:
    """Phi-4-mini-flash: 16 of 32 layers are attention; 8 windowed, 1 full, 7 share that one.

    Source: arXiv 2507.06607; vLLM, phi4flash.py: ``kv_sharing_target_layer_name``.
    """
    window = [512 if i < 16 and i % 2 else None for i in range(32)] if listed else 512
    keys = {
        "model_type": "phi4flash", "hidden_size": 2560, "num_hidden_layers": 32,
        "num_attention_heads": 40, "num_key_value_heads": 20, "mb_per_layer": 2,
        "sliding_window": window, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
        "max_position_embeddings": 262144,
    }  # fmt: skip
    model = read_cache(keys, name="m", source="test")
    each = 20 * 64 * 2 * 2
    assert growth(model) == each
    assert sum(layer.window == 512 for layer in model.layers) == 8
    assert sum(layer.shared for layer in model.layers) == 7
    assert sum(layer.state is not None for layer in model.layers) == 9
    assert model.layers[17].kv_elements == each // 2
    with pytest.raises(InputError, match="gated memory units"):
        read_config(keys | {"vocab_size": 100, "intermediate_size": 10240}, name="m", source="t")


def test_a_window_listed_for_every_layer() -> None:
    model = read(sliding_window=[None, 64, None, 64, None, 64, None, 64])
    assert windows(model) == [None, 64] * 4
    refuses("sliding_window", "one number", sliding_window=[None, 64, 32, 64] * 2)
    refuses("sliding_window", "one number", sliding_window=["64"] * 8)


def test_openelm_has_heads_of_its_own_in_every_layer() -> None:
    """Source: apple/OpenELM-270M, configuration_openelm.py's names."""
    keys = {
        "model_type": "openelm", "model_dim": 1280, "num_transformer_layers": 4, "head_dim": 64,
        "num_query_heads": [12, 12, 16, 20], "num_kv_heads": [3, 3, 4, 5],
    }  # fmt: skip
    assert growth(read_cache(keys, name="m", source="test")) == (3 + 3 + 4 + 5) * 64 * 2 * 2


def test_the_configuration_of_a_tensorrt_engine() -> None:
    """``pretrained_config`` nests the model; ``head_size`` is its width of a head."""
    inner = {
        "architecture": "GemmaForCausalLM", "num_hidden_layers": 8, "hidden_size": 3072,
        "num_attention_heads": 16, "num_key_value_heads": 16, "head_size": 256,
    }  # fmt: skip
    model = read_cache({"pretrained_config": inner, "build_config": {}}, name="m", source="test")
    assert growth(model) == 8 * 16 * 256 * 2 * 2


def test_spellings_that_disagree_are_an_error() -> None:
    refuses("n_embd", "the same as hidden_size", n_embd=2048)


def test_encoders_cache_nothing() -> None:
    refuses("model_type", "an encoder", model_type="bert")
    assert growth(read(model_type="bert", is_decoder=True)) == 8 * 4096


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_what_must_be_there(key: str) -> None:
    keys = {k: v for k, v in BASE.items() if k != key}
    with pytest.raises(InputError, match=key):
        read_cache(keys, name="m", source="test")


# -- weights -----------------------------------------------------------------------------------


def test_weights_need_a_type_and_a_cache_does_not() -> None:
    with pytest.raises(InputError, match="model_type"):
        read_config(BASE, name="m", source="test")
    assert growth(read()) == 8 * 4096


def test_active_weights_of_known_models() -> None:
    """Published in the names: 35B of 480B, 22B of 235B, 3B of 30B, 37B of 671B, 32B of 1T."""
    for name, billions in (
        ("qwen3-coder-480b", 35), ("qwen3-235b-a22b", 22), ("qwen3-30b-a3b", 3.0),
        ("deepseek-v3", 37), ("kimi-k2", 32), ("mixtral-8x7b", 12.9), ("gpt-oss-120b", 5.1),
    ):  # fmt: skip
        file = model_file(name)
        model = read_config(file.config, name=name, source="test")
        active = model.active_params + model.vocab * model.hidden
        assert active / 1e9 == pytest.approx(billions, rel=0.15), name


@pytest.mark.parametrize(
    ("quantised", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"), ({"quant_method": "mxfp4"}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"), ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups":
          {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
    ],
)  # fmt: skip
def test_quantised_weights(quantised: dict[str, Any], dtype: str) -> None:
    assert read(quantization_config=quantised).weight_dtype == dtype


@pytest.mark.parametrize(
    ("more", "weights"),
    [
        ({}, 4 * 3 * 64 * 32),
        ({"moe_latent_size": 16}, 4 * 3 * 16 * 32 + 2 * 64 * 16),
        ({"enable_moe_block": True}, 4 * 3 * 64 * 32 + 3 * 64 * 128 + 4 * 64 + 4),
        ({"share_expert_dim": 8}, 4 * 3 * 64 * 32 + 3 * 64 * 8),
    ],
)
def test_experts_of_a_latent_and_what_stands_beside_them(
    more: dict[str, Any], weights: int
) -> None:
    """Experts, router and two norms; then projections into a latent, a dense MLP, a shared one."""
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    keys = {**BASE, **moe, "model_type": "llama", "hidden_size": 64, "intermediate_size": 128}
    layer = read_config({**keys, **more}, name="m", source="test").layers[0]
    assert layer.mlp_params == weights + 64 * 4 + 64
    assert layer.experts is not None
    assert layer.intermediate >= 2 * 32 * more.get("moe_latent_size", 64) // 64


def test_layers_that_share_a_cache_may_have_an_mlp_twice_as_wide() -> None:
    keys = {**BASE, "model_type": "gemma4_text", "num_hidden_layers": 6, "num_kv_shared_layers": 2}
    keys |= {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 512}
    model = read_config({**keys, "use_double_wide_mlp": True}, name="m", source="test")
    assert [layer.intermediate for layer in model.layers] == [8192] * 4 + [16384] * 2


def test_two_attentions_share_the_experts_of_their_layer() -> None:
    keys = {**BASE, **LATENT, "model_type": "longcat_flash", "num_layers": 2, "moe_topk": 2}
    keys |= {"q_lora_rank": 1024, "n_routed_experts": 4, "expert_ffn_hidden_size": 32}
    del keys["num_hidden_layers"]
    layers = read_config({**keys, "zero_expert_num": 2}, name="m", source="test").layers
    dense = 3 * 4096 * 8192 + 4096
    experts = 4 * 3 * 4096 * 32 + 4096 * (4 + 2)
    assert [layer.mlp_params for layer in layers] == [dense + experts, dense] * 2
    assert [layer.experts is not None for layer in layers] == [True, False] * 2
