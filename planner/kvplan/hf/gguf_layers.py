"""Which layer of a GGUF file is what: its per-layer lists and intervals as a ``config.json`` says.

A K and V head count of 0 marks a layer that does not attend. Layers of multi-token prediction are
counted in ``block_count`` and keep no cache of their own.

Source: llama.cpp, ``load_arch_hparams`` of the architectures named below.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from kvplan.errors import InputError
from kvplan.limits import printable

INTERVAL = ("qwen3next", "qwen35", "qwen35moe")
"""Every n-th layer attends, the others are gated delta nets; n is 4 unless a key says otherwise."""

BESIDE = ("falcon-h1",)
"""Every layer attends and keeps a state."""

MAMBA2 = ("granitehybrid", "nemotron_h", "nemotron_h_moe", "falcon-h1", "mamba2", "plamo2")
CONVOLUTIONS = ("lfm2", "lfm2moe")
LETTERS = ("nemotron_h", "nemotron_h_moe")
"""Every layer is one half: a state, an attention, or an MLP alone."""

LLAMA4_CHUNK = 8192
"""Not in the metadata: llama.cpp's llama4 has it as a constant."""


def layer_keys(architecture: str, own: Mapping[str, object], name: str) -> dict[str, object]:
    """Keys of a ``config.json`` that say how many layers there are and what each is.

    Args:
        architecture: ``general.architecture``.
        own: the metadata below it, without its name in front.
        name: what to call the file in errors.

    Raises:
        InputError: layers without K and V heads whose kind is not known.

    >>> layer_keys("lfm2", {"block_count": 2, "attention.head_count_kv": [0, 8],
    ...                     "shortconv.l_cache": 3}, "m")["layer_types"]
    ['conv', 'full_attention']
    """
    found: dict[str, object] = {}
    if "block_count" not in own:
        return found
    layers = _without_mtp(own)
    found["num_hidden_layers"] = layers
    if not isinstance(layers, int) or isinstance(layers, bool):
        return found  # refused by name later
    heads = _per_layer(found, own, layers)
    found |= _states(architecture, own)
    attends = _attending(architecture, own, heads, layers)
    windows = own.get("attention.sliding_window_pattern")
    if isinstance(windows, list) and windows and all(isinstance(one, bool) for one in windows):
        found["layer_types"] = [
            "sliding_attention" if windows[i % len(windows)] else "full_attention"
            for i in range(layers)
        ]
    elif isinstance(windows, int) and windows:
        found["sliding_window_pattern"] = windows
    if architecture == "llama4":
        found["attention_chunk_size"] = own.get("attention.chunk_size", LLAMA4_CHUNK)
    if all(attends) and architecture not in BESIDE:
        return found
    if architecture in LETTERS:
        return found | _letters(own, attends, layers)
    return found | _words(architecture, own, attends, name)


def _without_mtp(own: Mapping[str, object]) -> object:
    layers, extra = own["block_count"], own.get("nextn_predict_layers", 0)
    if isinstance(layers, int) and isinstance(extra, int) and 0 < extra < layers:
        return layers - extra
    return layers


def _per_layer(found: dict[str, object], own: Mapping[str, object], layers: int) -> list[Any]:
    """K and V heads of every layer; zeros in lists are replaced, as those layers have no heads."""
    heads: list[Any] = []
    for key, name in (("attention.head_count_kv", "num_key_value_heads"),
                      ("attention.head_count", "num_attention_heads"),
                      ("feed_forward_length", "intermediate_size")):  # fmt: skip
        value = own.get(key)
        if not isinstance(value, list):
            continue
        value = value[:layers]
        if key == "attention.head_count_kv":
            heads = value
        some = next((one for one in value if one), 1)
        kept = [one or some for one in value]
        found[name] = kept[0] if len(set(map(str, kept))) == 1 else kept
    return heads


def _attending(
    architecture: str, own: Mapping[str, object], heads: list[Any], layers: int
) -> list[bool]:
    if architecture in INTERVAL:
        every = own.get("full_attention_interval", 4)
        if isinstance(every, int) and every > 0:
            return [(index + 1) % every == 0 for index in range(layers)]
    if len(heads) == layers:
        return [head != 0 for head in heads]
    return [own.get("attention.head_count_kv") != 0] * layers


def _letters(own: Mapping[str, object], attends: list[bool], layers: int) -> dict[str, object]:
    wide = own.get("feed_forward_length")
    mlp = wide if isinstance(wide, list) else [0] * layers
    letters = ["*" if a else "-" if w else "M" for a, w in zip(attends, mlp, strict=False)]
    return {"hybrid_override_pattern": "".join(letters)}


def _words(
    architecture: str, own: Mapping[str, object], attends: list[bool], name: str
) -> dict[str, object]:
    if architecture == "kimi-linear":
        numbers = list(range(1, len(attends) + 1))
        return {"linear_attn_config": {
            "full_attn_layers": [n for n in numbers if attends[n - 1]],
            "kda_layers": [n for n in numbers if not attends[n - 1]],
            "num_heads": own.get("attention.head_count"), "head_dim": own.get("kda.head_dim"),
            "short_conv_kernel_size": own.get("ssm.conv_kernel"),
        }}  # fmt: skip
    if architecture in CONVOLUTIONS:
        other = "conv"
    elif architecture in INTERVAL:
        other = "linear_attention"
    elif "ssm.state_size" in own:
        other = "mamba"
    else:
        _unknown(own, name)
    if architecture in BESIDE:
        return {"layer_types": ["hybrid"] * len(attends)}
    if architecture in ("mamba", "mamba2"):
        return {}
    return {"layer_types": ["full_attention" if a else other for a in attends]}


def _unknown(own: Mapping[str, object], name: str) -> NoReturn:
    accepted = "heads in every layer, or an architecture whose other layers are known"
    value = printable(own.get("attention.head_count_kv"))
    raise InputError(f"{name}: attention.head_count_kv", value, accepted)


def _states(architecture: str, own: Mapping[str, object]) -> dict[str, object]:
    """Dimensions of recurrent layers; what is missing is refused by name when it is needed."""
    inner, heads = own.get("ssm.inner_size"), own.get("ssm.time_step_rank")
    size, kernel = own.get("ssm.state_size"), own.get("ssm.conv_kernel")
    groups = own.get("ssm.group_count")
    whole = isinstance(inner, int) and isinstance(heads, int) and heads > 0
    dim = inner // heads if whole else None  # type: ignore[operator]
    if architecture in INTERVAL:
        return {
            "linear_num_value_heads": heads, "linear_num_key_heads": groups,
            "linear_key_head_dim": size, "linear_value_head_dim": dim,
            "linear_conv_kernel_dim": kernel,
        }  # fmt: skip
    if architecture in CONVOLUTIONS:
        return {"conv_L_cache": own.get("shortconv.l_cache")}
    if architecture == "mamba":
        return {"intermediate_size": inner, "state_size": size, "conv_kernel": kernel,
                "time_step_rank": heads}  # fmt: skip
    if architecture == "mamba2":
        return {"num_heads": heads, "head_dim": dim, "state_size": size, "n_groups": groups,
                "conv_kernel": kernel}  # fmt: skip
    if architecture in MAMBA2:
        return {"mamba_n_heads": heads, "mamba_d_head": dim, "mamba_d_state": size,
                "mamba_n_groups": groups, "mamba_d_conv": kernel}  # fmt: skip
    if architecture == "jamba":
        hidden = own.get("embedding_length")
        whole = isinstance(inner, int) and isinstance(hidden, int) and hidden > 0
        expand = inner // hidden if whole else None  # type: ignore[operator]
        return {"mamba_d_state": size, "mamba_d_conv": kernel, "mamba_expand": expand,
                "mamba_dt_rank": heads}  # fmt: skip
    return {}
