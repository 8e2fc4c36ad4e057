"""Strict access to the keys of one configuration: right type, right range, or an error by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from kvplan.errors import InputError
from kvplan.hf.defaults import class_defaults
from kvplan.limits import printable, require_whole

Spellings = str | tuple[str, ...]
"""One key, or the names that different classes give to the same figure."""

HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "dim", "embed_dim", "model_dim")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads",
         "attention_heads")  # fmt: skip
KV_HEADS = (
    "num_key_value_heads", "num_key_value_heads_per_layer", "num_kv_heads", "n_head_kv",
    "n_kv_heads", "num_query_groups", "num_attention_groups",
)  # fmt: skip
HEAD_DIM = ("head_dim", "attention_head_dim", "d_kv", "d_head", "dim_head", "head_size")
CHANNELS = "kv_channels"
"""Width of a head where none of the above gives it."""

INNER = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "dim_ff",
         "ff_intermediate_size")  # fmt: skip
VOCAB = ("vocab_size", "padded_vocab_size", "n_vocab")
POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "n_ctx",
    "seq_length", "model_max_length", "context_length", "max_context_length", "max_length_tokens",
)  # fmt: skip


class Keys:
    """The keys of one configuration, read strictly.

    Args:
        config: the parsed JSON object.
        name: what to call the configuration in errors.
        weights: whether figures that only weights need must be there.
    """

    def __init__(self, config: Mapping[str, object], name: str, weights: bool = True) -> None:
        """Keep what was given."""
        self.config, self.name, self.weights = config, name, weights

    def refuse(self, key: str, accepted: str) -> NoReturn:
        """Raise the error that a key's value is not what is accepted."""
        if key not in self.config:
            accepted += " (the key is missing)"
        raise InputError(f"{self.name}: {key}", printable(self.config.get(key)), accepted)

    def given(self, key: str) -> bool:
        """Whether a key is there and not null."""
        return self.config.get(key) is not None

    def spelled(self, keys: Spellings) -> str | None:
        """The spelling that is given; None where none is.

        Raises:
            InputError: two spellings are given and differ.
        """
        found = [key for key in ((keys,) if isinstance(keys, str) else keys) if self.given(key)]
        for other in found[1:]:
            if self.config[other] != self.config[found[0]]:
                self.refuse(other, f"the same as {found[0]}, {printable(self.config[found[0]])}")
        return found[0] if found else None

    def whole(self, keys: Spellings, high: int, default: int | None = None, low: int = 1) -> int:
        """A whole number; where the key is missing the default, if there is one.

        Raises:
            InputError: missing without a default, null, not whole or out of range.
        """
        key = self.spelled(keys)
        if key is None:
            names = (keys,) if isinstance(keys, str) else keys
            family = self.config.get("model_type")
            usual = class_defaults(family if isinstance(family, str) else None)
            key = next((name for name in names if name in self.config), None) or next(
                (name for name in names if name in usual), names[0]
            )
            if default is None or key in self.config:
                self.refuse(key, f"a whole number from {low} to {high}")
            return default
        return require_whole(f"{self.name}: {key}", self.config[key], low, high)

    def maybe(self, keys: Spellings, high: int, low: int = 1) -> int | None:
        """A whole number, or None where no spelling is given."""
        key = self.spelled(keys)
        return None if key is None else self.whole(key, high, low=low)

    def weight(self, keys: Spellings, high: int) -> int:
        """A whole number that only weights need: 1 where it is missing and they are not asked."""
        if not self.weights and self.spelled(keys) is None:
            return 1
        return self.whole(keys, high)

    def uniform(self, keys: Spellings, high: int, low: int = 1) -> int | None:
        """A whole number that is the same for all layers, though it may be listed for each."""
        key = self.spelled(keys)
        if key is None:
            return None
        value = self.config[key]
        if not isinstance(value, list):
            return self.whole(key, high, low=low)
        found = set(self.wholes(key, high, low))
        if len(found) != 1:
            self.refuse(key, "the same number for every layer")
        return found.pop()

    def flag(self, key: str, default: bool) -> bool:
        """True or false; missing gives the default."""
        value = self.config.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def items(self, key: str, count: int | None = None) -> Sequence[object]:
        """A list, of so many entries where a count is given."""
        value = self.config.get(key)
        if not isinstance(value, list) or (count is not None and len(value) != count):
            wanted = "a list" if count is None else f"a list of {count}, one for each layer"
            if isinstance(value, list):
                raise InputError(f"{self.name}: {key}", f"a list of {len(value)}", wanted)
            self.refuse(key, wanted)
        return value

    def wholes(
        self, key: str, high: int, low: int = 0, count: int | None = None
    ) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(
            require_whole(f"{self.name}: {key}[{index}]", item, low, high)
            for index, item in enumerate(self.items(key, count))
        )

    def per_layer(self, keys: Spellings, layers: int, high: int, low: int = 1) -> list[int] | None:
        """One whole number for each layer, from a scalar or a list; None where none is given."""
        key = self.spelled(keys)
        if key is None:
            return None
        if isinstance(self.config[key], list):
            return list(self.wholes(key, high, low, layers))
        return [self.whole(key, high, low=low)] * layers

    def part(self, key: str) -> Keys | None:
        """The keys of a nested object; None where it is absent or null."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(key, "a JSON object")
        return Keys(value, f"{self.name}: {key}", self.weights)

    def word(self, key: str) -> str | None:
        """A text; None where it is absent or null."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(key, "a text")
        return value
