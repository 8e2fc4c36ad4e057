"""Any Hugging Face ``config.json`` to a model: what the file says, or an error by name.

A value that the file must give is never guessed. Class defaults are used only where the class has
one and published files rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvplan.errors import InputError
from kvplan.hf.decoder import read_decoder
from kvplan.hf.defaults import plain_type
from kvplan.hf.gguf import as_config, is_gguf
from kvplan.hf.keys import Keys
from kvplan.hf.language import language_part, uncounted
from kvplan.hf.recurrent import RECURRENT_TYPES, read_recurrent
from kvplan.hf.seq2seq import read_seq2seq
from kvplan.hf.visual import VISUAL_TYPES, read_visual
from kvplan.limits import printable
from kvplan.model import ModelSpec

ENCODERS = frozenset((
    "albert", "bert", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2",
    "distilbert", "electra", "ernie", "esm", "megatron-bert", "modernbert", "mpnet", "nomic_bert",
    "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
))  # fmt: skip
"""Types that read a text at once: unless made a decoder, they cache nothing."""

LOOPED = ("n_recurrent_layers", "loop_layer_index_start", "num_mem_blocks_per_loop")
"""Keys of models that run layers several times, with caches that the configuration does not fix."""

UNREAD = frozenset((
    "based", "comba", "delta_net", "evo2", "gated_deltanet", "gated_deltaproduct", "gla", "gsa",
    "hgrn", "hgrn2", "hyena", "lightnet", "linear_attn", "mesa_net", "rebased", "retnet", "rwkv6",
    "rwkv7", "samba", "stripedhyena", "yoco",
))  # fmt: skip
"""Types whose layers keep something else than K and V of every token, by keys not read here.

Source: the model types of fla-org/flash-linear-attention, and those of their papers.
"""

UNREAD_KEYS = ("attn_layer_idxs", "hyena_layer_idxs", "hcl_layer_idxs", "expand_k",
               "yoco_window_size", "use_yoco")  # fmt: skip
"""Keys of such layers in configurations whose type is not known."""


def read_config(config: Mapping[str, object], *, name: str, source: str) -> ModelSpec:
    """Read a configuration into a model, weights and all.

    Args:
        config: the parsed ``config.json``; keys that do not matter here are ignored. Where a
            model nests its language part under ``text_config``, that part is read.
        name: how to call the model, also in errors.
        source: where the configuration comes from.

    Raises:
        InputError: a key that is missing, malformed, out of range or not known.

    >>> tiny = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    ...         "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 100}
    >>> read_config(tiny, name="tiny", source="example").layers[0].kv_elements  # 4 x (16 + 16)
    128
    """
    return _read(config, name, source, weights=True)


def read_cache(config: Mapping[str, object], *, name: str, source: str) -> ModelSpec:
    """Read what a configuration says of its cache; what only weights need may be missing.

    The weights of the result mean nothing where the configuration leaves them out.

    Args:
        config: the parsed ``config.json``.
        name: how to call the model, also in errors.
        source: where the configuration comes from.

    Raises:
        InputError: as `read_config`.

    >>> old = {"n_layer": 24, "n_embd": 2048, "n_head": 16, "multi_query": True}
    >>> read_cache(old, name="old", source="example").kv_bytes(8192, 2)
    100663296.0
    """
    return _read(config, name, source, weights=False)


def _read(config: Mapping[str, object], name: str, source: str, weights: bool) -> ModelSpec:
    if not isinstance(config, Mapping):
        raise InputError(name, printable(config), "a JSON object, the content of a config.json")
    if is_gguf(config):
        config = as_config(config, name)
    keys = Keys(language_part(config, name), name, weights)
    model = _language_model(keys, source, weights)
    beside = uncounted(config, keys.config)
    return msgspec.structs.replace(model, uncounted=beside) if beside else model


def _language_model(keys: Keys, source: str, weights: bool) -> ModelSpec:
    family = keys.word("model_type")
    plain = plain_type(family)
    if weights and plain is None:
        keys.refuse("model_type", "a text, as it decides biases and norms among the weights")
    if plain in ENCODERS and keys.config.get("is_decoder") is not True:
        keys.refuse("model_type", "a model that generates token by token; this one is an encoder")
    if plain in UNREAD:
        keys.refuse(
            "model_type", "another kind of model: what the layers of this one keep is not read"
        )
    for key in UNREAD_KEYS:
        if keys.config.get(key):
            keys.refuse(key, "another kind of model: what layers with this key keep is not read")
    for key in LOOPED:
        if keys.given(key):
            keys.refuse(key, "null: how often a looped layer caches is not known")
    if plain in VISUAL_TYPES:
        return read_visual(keys, family, source)
    if plain in RECURRENT_TYPES:
        return read_recurrent(keys, family, source)
    if keys.flag("is_encoder_decoder", False) or keys.given("decoder_layers"):
        return read_seq2seq(keys, family, source)
    return read_decoder(keys, family, source)
