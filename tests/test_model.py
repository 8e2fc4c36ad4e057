from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_table import ROUGH, ROWS, UNTIED, VISION, Row

from kvplan.errors import InputError
from kvplan.model import LayerSpec, ModelSpec, printable, require_whole
from kvplan.model_library import load_model, model_names

MIB = 2**20
LAYER = LayerSpec(hidden=4096, query_heads=32, kv_heads=32, head_dim_k=128, head_dim_v=128,
                  intermediate=11008, gated_mlp=True, rope=True, attention_params=67_112_960,
                  mlp_params=135_270_400)  # fmt: skip
MODEL = ModelSpec(name="m", family="llama", hidden=4096, vocab=32000, embedding_width=4096,
                  weight_dtype="fp16", layers=(LAYER,) * 32, embedding_params=131_072_000,
                  head_params=131_076_096, tied=False, source="test")  # fmt: skip


def by_name(row: Row) -> str:
    return row.name


def test_table_covers_every_model() -> None:
    assert sorted(row.name for row in ROWS) == list(model_names())


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_parameters_agree(row: Row) -> None:
    """To the printed digits, but for what the table names (vision towers, ties, rough figures)."""
    counted = load_model(row.name).params + UNTIED.get(row.name, 0)
    billions = counted / 1e9
    if row.name in VISION:
        assert 0.9 * row.params_billion < billions < row.params_billion
    elif row.name in ROUGH:
        assert billions == pytest.approx(row.params_billion, rel=ROUGH[row.name])
    else:
        digits = 3 if row.basis == "meta-device count" else 2
        assert abs(billions - row.params_billion) <= 0.6 * 10**-digits


@pytest.mark.parametrize("row", ROWS, ids=by_name)
def test_cache_bytes_agree_exactly(row: Row) -> None:
    """At 4k, 32k and 128k; per token at either end; states; cross-attention per source token."""
    model = load_model(row.name)
    assert 2 * model.cross_elements == row.cross_bytes
    states = [layer.state for layer in model.layers if layer.state is not None]
    assert sum(state.held_bytes(2) for state in states) == row.state_bytes
    assert model.max_positions == row.max_positions
    for tokens, total in row.totals_mib.items():
        assert round(model.kv_bytes(tokens, 2, 0) / MIB, 2) == pytest.approx(total, abs=0.006)
    if model.scales:  # the table's 16-bit column; the marginal one is per image, in their formats
        elements = sum(layer.kv_elements for layer in model.layers)
        assert 2 * elements == row.kv_bytes_per_token
        image = model.sequences_per_sample * sum(layer.kv_bytes(2) for layer in model.layers)
        assert image == row.kv_bytes_per_token_marginal
        return
    far = model.kv_bytes(2**26, 2, 0) - model.kv_bytes(2**26 - 2**10, 2, 0)
    assert far == 2**10 * row.kv_bytes_per_token_marginal
    if any(layer.compression > 1 for layer in model.layers):
        return  # entries of several tokens: totals and growth say it
    assert model.kv_bytes(1, 2, 0) - row.state_bytes == row.kv_bytes_per_token
    for tokens in (4096, 32768, 131072):
        assert model.kv_bytes(tokens, 2, 0) == row.total_bytes(tokens)


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("llama-2-7b", 0.5),
        ("opt-6.7b", 0.5),
        ("llama-3-8b", 2.0),
        ("llama-3.1-8b", 2.0),
        ("llama-2-70b", 4.0),
        ("llama-3.1-70b", 4.0),
        ("qwen3-0.6b", 0.5),
    ],
)
def test_activation_over_cache(name: str, ratio: float) -> None:
    for layer in load_model(name).layers:
        assert layer.act_over_kv(2) == layer.act_over_kv() == ratio
        assert layer.act_over_kv(1, 2) == 2 * ratio


def test_rebuild_of_equal_heads_is_4hw() -> None:
    assert LAYER.rebuild_flop == 4 * 4096 * 4096


def test_tied_matrix_counts_once() -> None:
    tied = msgspec.structs.replace(MODEL, tied=True)
    assert MODEL.params == 6_738_415_616
    assert MODEL.params - tied.params == 32000 * 4096


def test_layer_classes_keep_order_and_indices() -> None:
    windowed = msgspec.structs.replace(LAYER, window=128)
    model = msgspec.structs.replace(MODEL, layers=(windowed, LAYER, LAYER, windowed))
    assert model.layer_classes == ((windowed, 2, (0, 3)), (LAYER, 2, (1, 2)))
    assert not model.uniform
    assert MODEL.uniform
    assert model.kv_bytes(1000, 2) == 2 * (128 + 1000) * 16384


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 2**31))
def test_cache_grows_with_context_and_stops_at_the_window(a: int, b: int, window: int) -> None:
    layer = msgspec.structs.replace(LAYER, window=window)
    low, high = sorted((a, b))
    assert 0 < layer.cached_tokens(low) <= layer.cached_tokens(high) <= window
    assert layer.cached_tokens(low) <= low == LAYER.cached_tokens(low)


def test_key_and_value_heads_may_differ() -> None:
    assert msgspec.structs.replace(LAYER, kv_heads=4, head_dim_k=192).kv_elements == 4 * 320


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden", 0),
        ("hidden", 4096.0),
        ("query_heads", True),
        ("kv_heads", 5),
        ("kv_heads", "8"),
        ("head_dim_k", -1),
        ("head_dim_v", 2**20 + 1),
        ("head_dim_v", 2**16),
        ("window", 0),
        ("intermediate", None),
        ("gated_mlp", 1),
        ("attention_params", 10**400),
    ],
)
def test_bad_layers_name_the_field(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field) as caught:
        msgspec.structs.replace(LAYER, **{field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", ()),
        ("vocab", 2**24 + 1),
        ("hidden", 0),
        ("embedding_width", None),
        ("max_positions", 0),
        ("weight_dtype", "int3"),
        ("embedding_params", -1),
        ("head_params", 1.5),
    ],
)
def test_bad_models_name_the_field(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        msgspec.structs.replace(MODEL, **{field: value})


def test_specs_round_trip_through_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MODEL), type=ModelSpec) == MODEL


@given(st.one_of(st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.none()))
def test_whole_numbers_only(value: object) -> None:
    whole = type(value) is int and 1 <= value <= 100
    if whole:
        assert require_whole("n", value, 1, 100) == value
    else:
        with pytest.raises(InputError, match=r"^n: "):
            require_whole("n", value, 1, 100)


def test_anything_can_be_shown() -> None:
    for value in (10**5000, -(10**5000), [10**5000], {"a": 1}, "text", None, 1.5):
        assert str(printable(value))
