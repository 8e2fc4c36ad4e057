from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.hf import load_config, read_cache, read_config
from kvplan.model import ModelSpec
from kvplan.model_library import load_model, model_file, model_names

LLAMA = model_file("llama-3.1-8b").config
LLAMA1 = model_file("llama-7b").config
OPT = model_file("opt-350m").config
MISTRAL = model_file("mistral-7b-v0.1").config
QWEN2 = model_file("qwen2.5-7b").config
QWEN3 = model_file("qwen3-32b").config
MISSING = object()
MUTATIONS: tuple[object, ...] = (
    MISSING, None, "8", "", -1, 0, 2**40, 10**400, 10**5000, 4096.0, 0.5, True, False, [], [1], {},
    math.nan, math.inf,
)  # fmt: skip


def read(config: object) -> ModelSpec:
    return read_config(config, name="m", source="test")  # type: ignore[arg-type]


def changed(config: Mapping[str, object], **changes: object) -> dict[str, object]:
    merged = {**config, **changes}
    return {key: value for key, value in merged.items() if value is not MISSING}


def reads_or_refuses(config: object) -> None:
    """A model with positive bytes, or one line that names the configuration and a field."""
    for reader in (read_config, read_cache):
        try:
            model = reader(config, name="m", source="test")  # type: ignore[arg-type]
        except InputError as error:
            message = str(error)
            assert message.startswith("m") and "\n" not in message  # noqa: PT018
            assert len(message) < 700
            continue
        assert 0 < model.kv_bytes(4096, 2, 8) < 2**75
        assert 0 < model.params < 2**75


@pytest.mark.parametrize(
    ("config", "key", "value"),
    [
        (LLAMA, "hidden_size", MISSING),
        (LLAMA, "hidden_size", None),
        (LLAMA, "hidden_size", "4096"),
        (LLAMA, "hidden_size", 4096.0),
        (LLAMA, "hidden_size", math.nan),
        (LLAMA, "hidden_size", 2**20 + 1),
        (LLAMA, "hidden_size", 10**400),
        (LLAMA, "num_hidden_layers", 0),
        (LLAMA, "num_hidden_layers", True),
        (LLAMA, "num_hidden_layers", 10_001),
        (LLAMA, "num_attention_heads", [32]),
        (LLAMA, "num_key_value_heads", 0),
        (LLAMA, "num_key_value_heads", 5),
        (LLAMA, "num_key_value_heads", 64),
        (LLAMA, "head_dim", 0),
        (LLAMA, "head_dim", 2**19),
        (LLAMA, "vocab_size", 2**24 + 1),
        (LLAMA, "intermediate_size", MISSING),
        (LLAMA, "max_position_embeddings", -1),
        (LLAMA, "tie_word_embeddings", "false"),
        (LLAMA, "attention_bias", None),
        (LLAMA, "mlp_bias", 1),
        (LLAMA, "torch_dtype", "int8"),
        (LLAMA, "torch_dtype", 16),
        (LLAMA, "quantization_config", {"quant_method": "new"}),
        (LLAMA, "layer_types", ["full_attention"] * 31),
        (LLAMA, "layer_types", ["linear_attention"] * 32),
        (LLAMA, "model_type", MISSING),
        (LLAMA, "model_type", None),
        (LLAMA, "text_config", []),
        (MISTRAL, "sliding_window", 0),
        (QWEN2, "num_key_value_heads", MISSING),
        (QWEN2, "use_sliding_window", "yes"),
        (QWEN3, "num_key_value_heads", MISSING),
        (QWEN3, "head_dim", MISSING),
        (OPT, "ffn_dim", MISSING),
        (OPT, "max_position_embeddings", MISSING),
        (OPT, "word_embed_proj_dim", 0),
        (OPT, "do_layer_norm_before", 0),
    ],
)
def test_malformed_configs_name_the_key(
    config: Mapping[str, object], key: str, value: object
) -> None:
    with pytest.raises(InputError) as caught:
        read(changed(config, **{key: value}))
    assert str(caught.value).startswith(f"m: {key}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.exit_code == 2


def test_explicit_head_dim_wins() -> None:
    model = read(QWEN3)
    layer = model.layers[0]
    assert (layer.head_dim_k, model.hidden // layer.query_heads) == (128, 80)
    assert layer.act_over_kv(2) == 5120 / 2048


@pytest.mark.parametrize("value", [None, MISSING])
def test_head_dim_null_or_absent_is_hidden_over_heads(value: object) -> None:
    assert read(changed(LLAMA, head_dim=value)).layers[0].head_dim_k == 128
    with pytest.raises(InputError, match=r"head_dim: .*42\.6667"):
        read(changed(LLAMA, head_dim=value, num_attention_heads=96))


def test_qwen3_without_head_dim_is_read_where_both_readings_agree() -> None:
    config = changed(QWEN3, head_dim=MISSING, num_attention_heads=40)
    assert read(config).layers[0].head_dim_k == 128


def test_absent_kv_heads() -> None:
    assert read(LLAMA1).layers[0].kv_heads == 32
    assert read(OPT).layers[0].kv_heads == 16
    assert read(changed(MISTRAL, num_key_value_heads=MISSING)).layers[0].kv_heads == 8


@pytest.mark.parametrize(("value", "window"), [(4096, 4096), (MISSING, 4096), (None, None)])
def test_mistral_window_absent_is_not_null(value: object, window: int | None) -> None:
    layers = read(changed(MISTRAL, sliding_window=value)).layers
    assert {layer.window for layer in layers} == {window}


def test_qwen_window_is_off_unless_switched_on() -> None:
    assert read(QWEN2).uniform
    assert read(changed(QWEN2, use_sliding_window=MISSING)).layers[0].window is None
    on = changed(QWEN2, use_sliding_window=True, sliding_window=512, max_window_layers=20)
    assert [layer.window for layer in read(on).layers] == [None] * 20 + [512] * 8
    for key in ("sliding_window", "max_window_layers"):
        for value in (None, MISSING):
            with pytest.raises(InputError, match=key):
                read(changed(on, **{key: value}))


def test_layer_types_decide() -> None:
    types = ["full_attention", "sliding_attention"] * 14
    on = changed(QWEN2, use_sliding_window=True, sliding_window=512, layer_types=types)
    assert [layer.window for layer in read(on).layers] == [None, 512] * 14
    with pytest.raises(InputError, match="layer_types"):
        read(changed(on, use_sliding_window=False))
    assert read(changed(LLAMA, layer_types=["full_attention"] * 32)) == read(LLAMA)


@pytest.mark.parametrize(
    ("config", "tied"),
    [(LLAMA, False), (MISTRAL, False), (QWEN2, False), (QWEN3, False), (OPT, True)],
)
def test_tied_when_not_said(config: Mapping[str, object], tied: bool) -> None:
    assert read(changed(config, tie_word_embeddings=MISSING)).tied is tied


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({}, "fp16"),
        ({"torch_dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float32"}, "fp32"),
        ({"dtype": "torch.float16", "torch_dtype": "float16"}, "fp16"),
        ({"dtype": "bfloat16", "torch_dtype": None}, "bf16"),
    ],
)
def test_weight_dtype(keys: dict[str, object], dtype: str) -> None:
    config = changed(LLAMA, torch_dtype=MISSING)
    assert read(config | keys).weight_dtype == dtype


def test_weight_dtypes_that_disagree() -> None:
    with pytest.raises(InputError, match="torch_dtype"):
        read(changed(LLAMA, dtype="float32"))


def test_biases_and_norms_are_counted() -> None:
    def grown(config: Mapping[str, object], **changes: object) -> int:
        return read(changed(config, **changes)).layers[0].params - read(config).layers[0].params

    assert grown(LLAMA, attention_bias=True) == (32 + 2 * 8) * 128 + 4096
    assert grown(LLAMA, mlp_bias=True) == 2 * 14336 + 4096
    assert grown(QWEN2, model_type="mistral", sliding_window=None) == -(28 + 2 * 4) * 128
    assert grown(OPT, enable_bias=False) == -(4 * 1024 + 4096 + 1024)
    assert grown(OPT, layer_norm_elementwise_affine=False) == -4 * 1024
    assert read(changed(OPT, do_layer_norm_before=True)).params - read(OPT).params == 2 * 1024


def test_opt_positions_and_projection() -> None:
    model = read(OPT)
    assert model.embedding_params == 50272 * 512 + (2048 + 2) * 1024 + 2 * 512 * 1024
    assert model.head_params == 50272 * 512
    assert not model.layers[0].rope
    assert not model.layers[0].gated_mlp


def test_nested_text_config() -> None:
    outer = {"model_type": "llava", "hidden_size": 1, "torch_dtype": "float32",
             "text_config": changed(LLAMA, torch_dtype=MISSING)}  # fmt: skip
    model = read(outer)
    assert model.layers == read(LLAMA).layers
    assert model.weight_dtype == "fp32"
    part = changed(LLAMA, hidden_size=MISSING, num_key_value_heads=MISSING)
    incomplete = read(changed(outer, text_config=part))
    assert (incomplete.hidden, incomplete.layers[0].kv_heads) == (4096, 32)  # those of the class
    with pytest.raises(InputError, match="m: hidden_size"):
        read(part)  # a flat file is saved whole
    bare = {"model_type": "llava", "text_config": {"vocab_size": 32064}}
    assert read(bare).kv_bytes(1, 2) == 524288
    quantised = changed(outer, quantization_config={"quant_method": "awq", "bits": 4})
    assert read(quantised).weight_dtype == "int4"


def kinds_of_configs() -> list[str]:
    """One built-in model for each ``model_type``."""
    found: dict[object, str] = {}
    for name in model_names():
        found.setdefault(model_file(name).config.get("model_type"), name)
    return sorted(found.values())


@pytest.mark.parametrize("name", kinds_of_configs())
def test_every_field_mutated(name: str) -> None:
    """Field by field, nested ones too, each with a third of the mutations in turn."""
    config = model_file(name).config
    extra = ("layer_types", "text_config", "head_dim", "sliding_window", "dtype", "kv_lora_rank")
    for number, key in enumerate((*config, *extra)):
        for value in MUTATIONS[number % 3 :: 3]:
            reads_or_refuses(changed(config, **{key: value}))
        nested = config.get(key)
        if isinstance(nested, dict):
            for place, inner in enumerate(nested):
                for value in MUTATIONS[place % 3 :: 3]:
                    reads_or_refuses(changed(config, **{key: changed(nested, **{inner: value})}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = sorted({key for name in model_names() for key in model_file(name).config})


TYPES = sorted({str(model_file(name).config["model_type"]) for name in model_names()})


@given(JSON)
def test_arbitrary_json(value: object) -> None:
    reads_or_refuses(value)


@given(
    st.sampled_from((LLAMA, LLAMA1, OPT, MISTRAL, QWEN2, QWEN3)),
    st.dictionaries(st.sampled_from(KEYS), JSON | st.integers(0, 2**32), max_size=3),
    st.sampled_from(TYPES),
)
def test_arbitrary_values(
    config: Mapping[str, object], changes: dict[str, object], family: str
) -> None:
    reads_or_refuses({**config, "model_type": family, **changes})


@pytest.mark.parametrize(
    "content",
    [
        b"", b"   ", b"{", b"[]", b"3", b"null", b"\xff\xfe{}", b"{'a': 1}", b"[" * 100_000,
        b'{"hidden_size": ' + b"9" * 5000 + b"}", b'{"a": 1} trailing', b"\x00",
    ],
)  # fmt: skip
def test_files_that_are_no_config(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b"), Path("x" * 5000)):
        with pytest.raises(InputError) as caught:
            load_config(path)
        assert "\n" not in str(caught.value)


def test_infinity_nan_byte_order_mark_and_repeated_keys_are_read(tmp_path: Path) -> None:
    text = json.dumps(changed(LLAMA, time_step_limit=[0.0, math.inf], other=math.nan))
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf" + b'{"vocab_size": 3, ' + text.encode()[1:])
    model = load_config(tmp_path)
    assert model.layers == read(LLAMA).layers
    assert model.vocab == 128256
    path.write_text(text.replace("4096", "NaN"))
    with pytest.raises(InputError, match="hidden_size: nan"):
        load_config(path)


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="bytes"):
        load_config("/dev/zero")


def test_parts_that_are_not_counted_are_named() -> None:
    """Vision towers and drafts have weights that the language model's do not include."""
    assert load_model("qwen2.5-vl-7b").uncounted == ("vision encoder",)
    assert load_model("glm-4.5-air").uncounted == ("layers of multi-token prediction",)
    assert load_model("llama-3.1-8b").uncounted == ()
