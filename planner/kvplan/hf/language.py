"""The language part of a configuration, wherever it is nested."""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.errors import InputError
from kvplan.hf.defaults import class_defaults, nested_type
from kvplan.hf.keys import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, POSITIONS, VOCAB
from kvplan.hf.mlp import ACTIVE, COUNT, EXPERT_WIDTH, SHARED_COUNT, SHARED_WIDTH
from kvplan.limits import printable

NESTED = ("text_config", "language_config", "llm_config", "language_model_config", "lm_config",
          "pretrained_config")  # fmt: skip
"""Keys under which composite models keep their language part."""

WRAPPERS = ("thinker_config",)
"""Keys that hold a composite model of their own."""

SPELLINGS = (
    HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCAB, POSITIONS,
    COUNT, ACTIVE, EXPERT_WIDTH, SHARED_WIDTH, SHARED_COUNT,
)  # fmt: skip
"""Names of one figure: a default under one of them yields to a value under another."""

OUTER = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config", "compression_config")
"""Keys of the outer part that hold for the language part where it does not say otherwise."""


TOWERS = {
    "vision encoder": ("vision_config", "visual", "vision_tower", "mm_vision_tower", "vit_config"),
    "audio encoder": ("audio_config", "audio_encoder_config", "audio_tower"),
    "talker": ("talker_config",),
}
"""Parts whose weights are not counted, and the keys that tell of them."""

DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def uncounted(config: Mapping[str, object], text: Mapping[str, object]) -> tuple[str, ...]:
    """Parts of a model that its weights as read here leave out.

    >>> uncounted({"vision_config": {"depth": 2}}, {"num_nextn_predict_layers": 1})
    ('vision encoder', 'layers of multi-token prediction')
    """
    wrapped = [config[key] for key in WRAPPERS if isinstance(config.get(key), Mapping)]
    found = [
        part
        for part, keys in TOWERS.items()
        if any(isinstance(c, Mapping) and c.get(key) for c in (config, *wrapped) for key in keys)
    ]
    for key in DRAFTS:
        layers = text.get(key, config.get(key))
        if isinstance(layers, int) and layers > 0:
            found.append("layers of multi-token prediction")
            break
    return tuple(found)


def language_part(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The keys of the language model, with class defaults for what a nested part leaves out.

    Args:
        config: the whole configuration.
        name: what to call it in errors.

    Raises:
        InputError: a nested part that is no object, or several different ones.
    """
    for wrapper in WRAPPERS:
        if config.get(wrapper) is not None:
            return language_part(_object(config, wrapper, name), f"{name}: {wrapper}")
    found = [key for key in NESTED if config.get(key) is not None]
    if not found:
        return config
    key = found[0]
    text = _object(config, key, name)
    for other in found[1:]:
        if _object(config, other, name) != text:
            accepted = f"only one language part; {key} is another"
            raise InputError(f"{name}: {other}", printable(config[other]), accepted)
    outer = config.get("model_type")
    inner = text.get("model_type")
    if inner is None:
        inner = nested_type(outer if isinstance(outer, str) else None)
    known = _beside(class_defaults(inner) if isinstance(inner, str) else {}, text)
    passed = {key: config[key] for key in OUTER if key in config}
    return {**known, **passed, **text, **({"model_type": inner} if inner is not None else {})}


def _beside(defaults: Mapping[str, object], text: Mapping[str, object]) -> dict[str, object]:
    """Defaults of figures that a nested part does not give under any of their names."""
    said = {key for names in SPELLINGS if any(one in text for one in names) for key in names}
    return {key: value for key, value in defaults.items() if key not in said}


def _object(config: Mapping[str, object], key: str, name: str) -> Mapping[str, object]:
    value = config[key]
    if not isinstance(value, Mapping):
        raise InputError(f"{name}: {key}", printable(value), "a JSON object")
    return value
