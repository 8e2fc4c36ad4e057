"""Read a Hugging Face ``config.json`` into a ModelSpec: what the file says, or an error.

A value that the file must give is never guessed. Class defaults are used only where the
transformers class has one and published files rely on it; each is named below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from kvplan.errors import InputError
from kvplan.model import (
    MAX_LAYERS,
    MAX_TOKENS,
    MAX_VOCAB,
    MAX_WIDTH,
    LayerSpec,
    ModelSpec,
    printable,
    require_whole,
)

MODEL_TYPES = ("llama", "mistral", "opt", "qwen2", "qwen3")
MAX_FILE_BYTES = 2**26

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_NOT_YET = {
    "kv_lora_rank": "latent attention",
    "num_experts": "mixture of experts",
    "num_local_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "full_attention_interval": "hybrid layers",
    "linear_attn_config": "linear attention",
    "attention_chunk_size": "chunked attention",
    "cross_attention_layers": "cross-attention",
    "is_encoder_decoder": "encoder-decoder",
    "num_kv_shared_layers": "layers that share a cache",
    "block_configs": "layers of different shape",
    "quantization_config": "quantised weights (dtype does not tell their bytes)",
    "compression_config": "quantised weights (dtype does not tell their bytes)",
}
_OUTER_KEYS = (*_NOT_YET, "torch_dtype", "dtype", "tie_word_embeddings")


class _Keys:
    """The keys of one configuration, read strictly."""

    def __init__(self, config: Mapping[str, object], name: str) -> None:
        self.config, self.name = config, name

    def refuse(self, key: str, accepted: str) -> NoReturn:
        if key not in self.config:
            accepted += " (the key is missing)"
        raise InputError(f"{self.name}: {key}", printable(self.config.get(key)), accepted)

    def whole(self, key: str, high: int, default: int | None = None, low: int = 1) -> int:
        """A whole number; a missing key gives the default, where there is one."""
        if key not in self.config:
            if default is None:
                self.refuse(key, f"a whole number from {low} to {high}")
            return default
        return require_whole(f"{self.name}: {key}", self.config[key], low, high)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value


def read_config(config: Mapping[str, object], *, name: str, source: str) -> ModelSpec:
    """Read the configuration of a llama, mistral, opt, qwen2 or qwen3 model.

    Args:
        config: the parsed ``config.json``; keys that do not matter here are ignored. Where a
            model nests its language part under ``text_config``, that part is read.
        name: how to call the model, also in errors.
        source: where the configuration comes from.

    Raises:
        InputError: a key that is missing, malformed, out of range or not supported yet.

    >>> tiny = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    ...         "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    >>> read_config(tiny, name="tiny", source="example").layers[0].kv_elements  # 4 x (16 + 16)
    128
    """
    if not isinstance(config, Mapping):
        raise InputError(name, printable(config), "a JSON object, the content of a config.json")
    keys = _Keys(_language_part(config, name), name)
    family = keys.config.get("model_type")
    if not isinstance(family, str) or family not in MODEL_TYPES:
        keys.refuse("model_type", f"one of {', '.join(MODEL_TYPES)}; others are not supported yet")
    for key, what in _NOT_YET.items():
        if keys.config.get(key):
            keys.refuse(key, f"null; {what}: not supported yet")
    return (_opt if family == "opt" else _gated)(keys, family, source)


def _language_part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    text = config.get("text_config")
    if text is None:
        return config
    if not isinstance(text, Mapping):
        raise InputError(f"{name}: text_config", printable(text), "a JSON object")
    return {key: config[key] for key in _OUTER_KEYS if key in config} | dict(text)


def _weight_dtype(keys: _Keys) -> str:
    """``dtype`` or its older name ``torch_dtype``; fp16 when neither is given."""
    given = {}
    for key in ("dtype", "torch_dtype"):
        value = keys.config.get(key)
        if value is not None:
            short = value.removeprefix("torch.") if isinstance(value, str) else ""
            if short not in _DTYPES:
                keys.refuse(key, f"one of {', '.join(_DTYPES)}")
            given[key] = _DTYPES[short]
    if len(set(given.values())) > 1:
        keys.refuse("torch_dtype", f"the same as dtype, {keys.config['dtype']}")
    return next(iter(given.values()), "fp16")


def _max_positions(keys: _Keys) -> int | None:
    if keys.config.get("max_position_embeddings") is None:
        return None
    return keys.whole("max_position_embeddings", MAX_TOKENS)


def _heads(keys: _Keys, family: str, hidden: int) -> tuple[int, int, int]:
    """Query heads, KV heads and head size, with the defaults of the classes.

    ``num_key_value_heads`` absent: as many as query heads for llama (files older than grouped
    heads), 8 for mistral. ``head_dim`` absent or null: hidden size over heads, except that a
    qwen3 without the key means 128 in its class.
    """
    heads = keys.whole("num_attention_heads", MAX_WIDTH)
    default = {"llama": heads, "mistral": 8}.get(family)
    kv_heads = keys.whole("num_key_value_heads", MAX_WIDTH, default)
    if heads % kv_heads:
        keys.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    if keys.config.get("head_dim") is not None:
        head_dim = keys.whole("head_dim", MAX_WIDTH)
    elif hidden % heads:
        keys.refuse("head_dim", f"given, as hidden_size / num_attention_heads = {hidden / heads:g}")
    elif family == "qwen3" and "head_dim" not in keys.config and hidden != heads * 128:
        keys.refuse("head_dim", f"given: hidden_size / heads is {hidden // heads}, not 128")
    else:
        head_dim = hidden // heads
    if heads * head_dim > MAX_WIDTH:
        keys.refuse("head_dim", f"at most {MAX_WIDTH} elements over {heads} heads")
    return heads, kv_heads, head_dim


def _windows(keys: _Keys, family: str, layers: int) -> list[int | None]:
    """Window of every layer in tokens, None where all tokens are attended.

    mistral: ``sliding_window`` absent means 4096 in its class, null means none. qwen2, qwen3:
    only with ``use_sliding_window``, from layer ``max_window_layers`` on. ``layer_types``
    decides layer by layer where it is given.
    """
    window = None
    if family == "mistral":
        if keys.config.get("sliding_window", 4096) is not None:
            window = keys.whole("sliding_window", MAX_TOKENS, 4096)
    elif family in ("qwen2", "qwen3"):
        if keys.flag("use_sliding_window", False):
            window = keys.whole("sliding_window", MAX_TOKENS)
    elif keys.config.get("sliding_window") is not None:
        keys.refuse("sliding_window", f"null: windows are not supported in a {family}")
    types = keys.config.get("layer_types")
    if types is not None:
        return _typed_windows(keys, types, layers, window)
    first = 0
    if window is not None and family != "mistral":
        first = keys.whole("max_window_layers", MAX_LAYERS, low=0)
    return [window if index >= first else None for index in range(layers)]


def _typed_windows(keys: _Keys, types: object, layers: int, window: int | None) -> list[int | None]:
    if not isinstance(types, list) or len(types) != layers:
        keys.refuse("layer_types", f"a list of {layers} layer types")
    meaning = {"full_attention": None, "sliding_attention": window}
    for kind in types:
        if not isinstance(kind, str) or kind not in meaning:
            accepted = f"only {' and '.join(meaning)}: other layers are not supported yet"
            raise InputError(f"{keys.name}: layer_types", printable(kind), accepted)
        if kind == "sliding_attention" and window is None:
            keys.refuse("layer_types", "no sliding_attention, as the sliding window is off")
    return [meaning[kind] for kind in types]


def _gated(keys: _Keys, family: str, source: str) -> ModelSpec:
    """llama, mistral, qwen2, qwen3: RMS norms, rotary positions, gated MLP."""
    hidden = keys.whole("hidden_size", MAX_WIDTH)
    inner = keys.whole("intermediate_size", MAX_WIDTH)
    layers = keys.whole("num_hidden_layers", MAX_LAYERS)
    vocab = keys.whole("vocab_size", MAX_VOCAB)
    heads, kv_heads, head_dim = _heads(keys, family, hidden)
    windows = _windows(keys, family, layers)
    biased = keys.flag("attention_bias", False) if family in ("llama", "qwen3") else False
    qkv = (heads + 2 * kv_heads) * head_dim
    attention = hidden * qkv + heads * head_dim * hidden + hidden
    attention += qkv if biased or family == "qwen2" else 0  # qwen2: on Q, K, V only, always
    attention += hidden if biased else 0
    attention += 2 * head_dim if family == "qwen3" else 0  # norms of Q and K
    mlp = 3 * hidden * inner + hidden
    mlp += 2 * inner + hidden if family == "llama" and keys.flag("mlp_bias", False) else 0
    specs = {
        window: LayerSpec(
            hidden=hidden,
            query_heads=heads,
            kv_heads=kv_heads,
            head_dim_k=head_dim,
            head_dim_v=head_dim,
            window=window,
            intermediate=inner,
            gated_mlp=True,
            rope=True,
            attention_params=attention,
            mlp_params=mlp,
        )
        for window in dict.fromkeys(windows)
    }
    return ModelSpec(
        name=keys.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        embedding_width=hidden,
        max_positions=_max_positions(keys),
        weight_dtype=_weight_dtype(keys),
        layers=tuple(specs[window] for window in windows),
        embedding_params=vocab * hidden,
        head_params=vocab * hidden + hidden,
        tied=keys.flag("tie_word_embeddings", False),
        source=source,
    )


def _opt(keys: _Keys, family: str, source: str) -> ModelSpec:
    """opt: layer norms with bias, learned positions (two rows more than tokens), plain MLP."""
    hidden = keys.whole("hidden_size", MAX_WIDTH)
    inner = keys.whole("ffn_dim", MAX_WIDTH)
    layers = keys.whole("num_hidden_layers", MAX_LAYERS)
    vocab = keys.whole("vocab_size", MAX_VOCAB)
    heads = keys.whole("num_attention_heads", MAX_WIDTH)
    if hidden % heads:
        keys.refuse("num_attention_heads", f"a divisor of hidden_size = {hidden}")
    positions = keys.whole("max_position_embeddings", MAX_TOKENS)
    width = keys.whole("word_embed_proj_dim", MAX_WIDTH, hidden)
    _windows(keys, family, layers)
    bias = int(keys.flag("enable_bias", True))
    norm = 2 * hidden * int(keys.flag("layer_norm_elementwise_affine", True))
    removed = keys.flag("_remove_final_layer_norm", False)
    last = keys.flag("do_layer_norm_before", True) and not removed
    spec = LayerSpec(
        hidden=hidden,
        query_heads=heads,
        kv_heads=heads,
        head_dim_k=hidden // heads,
        head_dim_v=hidden // heads,
        intermediate=inner,
        gated_mlp=False,
        rope=False,
        attention_params=4 * hidden * hidden + 4 * hidden * bias + norm,
        mlp_params=2 * hidden * inner + (inner + hidden) * bias + norm,
    )
    projections = 2 * width * hidden if width != hidden else 0
    return ModelSpec(
        name=keys.name,
        family=family,
        hidden=hidden,
        vocab=vocab,
        embedding_width=width,
        max_positions=positions,
        weight_dtype=_weight_dtype(keys),
        layers=(spec,) * layers,
        embedding_params=vocab * width + (positions + 2) * hidden + projections,
        head_params=vocab * width + (norm if last else 0),
        tied=keys.flag("tie_word_embeddings", True),
        source=source,
    )


def load_config(path: str | os.PathLike[str]) -> ModelSpec:
    """Read a ``config.json``, or the one in a folder.

    Args:
        path: a JSON file, or a folder that holds ``config.json``; becomes the model's name.

    Raises:
        InputError: the file cannot be read, or ``read_config`` refuses its content.
    """
    return read_config(read_json(path), name=os.fspath(path), source=f"file {os.fspath(path)}")


def read_json(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read one JSON object; ``NaN`` and ``Infinity`` pass, as Hugging Face writes them.

    Args:
        path: a file, or a folder that holds ``config.json``.

    Raises:
        InputError: missing, unreadable, above 64 MiB, not UTF-8, not JSON or not an object.
    """
    name = os.fspath(path)
    file = Path(name, "config.json") if os.path.isdir(name) else Path(name)
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError("model", str(file), f"a readable JSON file ({reason})") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(name, f"over {MAX_FILE_BYTES} bytes", "a config.json, a few KiB")
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(name, content[:40], f"one JSON object in UTF-8 ({error})") from None
    if not isinstance(value, dict):
        raise InputError(name, printable(value), "one JSON object")
    return value
