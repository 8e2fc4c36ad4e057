"""What each layer is: full, windowed, chunked or sparse attention, a state, an MLP alone.

Explicit lists come before patterns, patterns before intervals, and these before a window that
holds for all layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kvplan.errors import InputError
from kvplan.hf.defaults import plain_type
from kvplan.hf.keys import POSITIONS, Keys
from kvplan.limits import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, printable

Attention = Literal["full", "window", "chunk", "compressed", "none"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a layer is.

    Args:
        attention: how it attends.
        state: it keeps a recurrent state, alone or beside attention.
        index: it keeps an index of sparse attention.
        alone: it is one half of a layer: attention, a state or an MLP, without the others.
        mlp: it has an MLP.
        ratio: tokens that a compressed entry stands for.
    """

    attention: Attention = "full"
    state: bool = False
    index: bool = False
    mlp: bool = True
    ratio: int = 1


FULL, WINDOW, CHUNK = Kind(), Kind("window"), Kind("chunk")
STATE, MLP_ONLY = Kind("none", state=True), Kind("none")

WORDS: dict[str, Kind] = {
    "full_attention": FULL, "attention": FULL, "global": FULL, "global_attention": FULL,
    "full": FULL,
    "sliding_attention": WINDOW, "sliding_window_attention": WINDOW, "sliding": WINDOW,
    "local": WINDOW, "local_attention": WINDOW,
    "chunked_attention": CHUNK,
    "linear_attention": STATE, "mamba": STATE, "mamba2": STATE, "recurrent": STATE, "conv": STATE,
    "lightning_attention": STATE,
    "hybrid": Kind("full", state=True), "hybrid_sliding": Kind("window", state=True),
    "indexed_attention": Kind(index=True), "deepseek_sparse_attention": Kind(index=True),
    "minimax_m3_sparse": Kind(index=True),
    "moe": MLP_ONLY, "mlp": MLP_ONLY,
}  # fmt: skip
"""Words of ``layer_types`` and its older spellings."""

HALVES = {
    "M": replace(STATE, mlp=False),
    "*": replace(FULL, mlp=False),
    "-": MLP_ONLY,
    "E": MLP_ONLY,
}
"""Letters of ``hybrid_override_pattern``: each is a state, an attention or an MLP alone.

Source: transformers 5.24, NemotronHConfig.
"""

ALTERNATING = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma4": 6, "cohere2": 4, "exaone4": 4,
               "vaultgemma": 2}  # fmt: skip
"""Types whose class makes every n-th layer full where the pattern is left out.

Source: transformers 5.24, the classes' ``__post_init__``; gpt_oss alternates, gemma-2 and gpt-oss
starting with a window.
"""

PATTERN = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")

EVERYWHERE = ("mistral", "mixtral", "starcoder2", "phi3", "ministral", "voxtral_realtime", "phimoe",
              "pixtral", "mistral3", "devstral")  # fmt: skip
"""Types in which a window holds for every layer."""


def with_one_window(keys: Keys) -> Keys:
    """Keys in which a window listed for every layer is one number, and its layers are told apart.

    Raises:
        InputError: windows of several sizes, or something else than numbers and null.
    """
    windows = keys.config.get("sliding_window")
    if not isinstance(windows, list):
        return keys
    sizes = {one for one in windows if one is not None}
    if len(sizes) > 1 or any(isinstance(one, bool) or not isinstance(one, int) for one in sizes):
        keys.refuse("sliding_window", "one number of tokens, or a list of it and null")
    changed: dict[str, object] = {"sliding_window": next(iter(sizes), None)}
    if not any(keys.given(key) for key in READERS):
        words = ("full_attention", "sliding_attention")
        changed["layer_types"] = [words[one is not None] for one in windows]
    return Keys({**keys.config, **changed}, keys.name, keys.weights)


def read_kinds(keys: Keys, family: str | None, layers: int) -> list[Kind]:
    """What every layer is.

    Raises:
        InputError: the configuration does not say, or says something that is not known.
    """
    for key, reader in READERS.items():
        if keys.given(key):
            kinds = reader(keys, layers)
            if kinds is not None:
                return _with_index(keys, kinds, layers)
    plain = plain_type(family) or ""
    if plain.startswith("minimax") and family not in ("minimax_m2",) and "m3" not in plain:
        keys.refuse("attn_type_list", "a list that tells states from attention")
    return _by_window(keys, plain, layers)


def _with_index(keys: Keys, kinds: list[Kind], layers: int) -> list[Kind]:
    """Kinds with the index that ``indexer_types`` or a width without types gives them."""
    if keys.given("indexer_types"):
        own = [kind.index for kind in _sparse(keys, layers) or kinds]
        return [
            replace(kind, index=index and kind.attention == "full")
            for kind, index in zip(kinds, own, strict=True)
        ]
    return kinds


def window_of(keys: Keys) -> int | None:
    """Tokens of the sliding window; None where it is null, off, or never binds.

    A window no smaller than the positions the model was made for cuts nothing off.
    """
    if keys.given("use_sliding_window") and not keys.flag("use_sliding_window", False):
        return None
    window = keys.maybe(WINDOWS, MAX_TOKENS)
    positions = next((keys.config[k] for k in POSITIONS if keys.given(k)), None)
    if window is not None and isinstance(positions, int) and window >= positions:
        return None
    return window


def _by_types(keys: Keys, layers: int) -> list[Kind] | None:
    key = next(k for k in ("layer_types", "layers_block_type", "block_types") if keys.given(k))
    words = keys.items(key)
    if key == "block_types":
        words = [words[index % len(words)] for index in range(layers)] if words else []
    if len(words) < layers:
        accepted = f"one for each of {layers} layers"
        raise InputError(f"{keys.name}: {key}", f"a list of {len(words)}", accepted)
    kinds = []
    window = window_of(keys)
    halves = {"moe", "mlp"} & {w for w in words if isinstance(w, str)}
    for index, word in enumerate(words[:layers]):
        if isinstance(word, str) and "compressed" in word:
            kinds.append(_compressed(keys, word))
            continue
        if not isinstance(word, str) or word not in WORDS:
            known = ", ".join(WORDS)
            raise InputError(f"{keys.name}: {key}[{index}]", printable(word), f"one of {known}")
        kind = WORDS[word]
        if key == "block_types" and kind is FULL and keys.given("attention_window_size"):
            kind = WINDOW
        if halves and kind is not MLP_ONLY:
            kind = replace(kind, mlp=False)
        if kind.attention == "window" and window is None:
            kind = _never_binds(keys, kind)
        kinds.append(kind)
    return kinds


def _never_binds(keys: Keys, kind: Kind) -> Kind:
    """A windowed layer whose window is off or larger than the positions: full attention."""
    if keys.given("use_sliding_window") and not keys.flag("use_sliding_window", False):
        keys.refuse("layer_types", "no sliding_attention, as use_sliding_window is false")
    if keys.spelled(WINDOWS) is None:
        keys.refuse("sliding_window", "a whole number, as some layers are windowed")
    return replace(kind, attention="full")


def _compressed(keys: Keys, word: str) -> Kind:
    rates = keys.part("compress_rates")
    if rates is None:
        keys.refuse("compress_rates", "an object with the ratio of every compressed kind")
    ratio = rates.whole(word, MAX_TOKENS, low=2)
    return Kind("compressed", index=word == "compressed_sparse_attention", ratio=ratio)


def _by_ratios(keys: Keys, layers: int) -> list[Kind]:
    """DeepSeek-V4: 0 is a window alone, 4 keeps an index beside; one entry more is for MTP.

    Source: models of the family's configuration, checked against transformers 5.24's cache.
    """
    ratios = keys.wholes("compress_ratios", MAX_TOKENS)
    if len(ratios) < layers:
        keys.refuse("compress_ratios", f"one ratio for each of {layers} layers")
    kinds = []
    for ratio in ratios[:layers]:
        if ratio == 0:
            kinds.append(WINDOW)
        else:
            kinds.append(Kind("compressed", index=ratio == 4, ratio=ratio))
    return kinds


def _by_letters(keys: Keys, layers: int) -> list[Kind]:
    letters = keys.word("hybrid_override_pattern") or ""
    if len(letters) != layers:
        keys.refuse("hybrid_override_pattern", f"{layers} letters, one for each layer")
    for letter in letters:
        if letter not in HALVES:
            keys.refuse("hybrid_override_pattern", f"letters among {' '.join(HALVES)}")
    return [HALVES[letter] for letter in letters]


def _by_numbers(key: str, meaning: tuple[Kind, Kind]) -> Callable[[Keys, int], list[Kind]]:
    """A list of 0 and 1, one for each layer."""

    def read(keys: Keys, layers: int) -> list[Kind]:
        return [meaning[number] for number in keys.wholes(key, 1, count=layers)]

    return read


def _by_linear_config(keys: Keys, layers: int) -> list[Kind] | None:
    """Kimi: lists of 1-based layer numbers."""
    nested = keys.part("linear_attn_config")
    if nested is None or not nested.config:
        return None
    full = nested.wholes("full_attn_layers", layers, 1)
    linear = nested.wholes("kda_layers", layers, 1)
    if sorted((*full, *linear)) != list(range(1, layers + 1)):
        accepted = f"with full_attn_layers every layer from 1 to {layers} once"
        raise InputError(f"{nested.name}: kda_layers", "a list", accepted)
    return [FULL if number in full else STATE for number in range(1, layers + 1)]


def _by_interval(keys: Keys, layers: int) -> list[Kind]:
    interval = keys.whole("full_attention_interval", MAX_LAYERS)
    return [STATE if (index + 1) % interval else FULL for index in range(layers)]


def _by_group(keys: Keys, layers: int) -> list[Kind]:
    """Bailing: the last layer of every group attends, as do those beyond the last whole group.

    Source: transformers 5.24, BailingHybridConfig.
    """
    size = keys.whole("layer_group_size", MAX_LAYERS)
    whole = layers // size * size
    return [FULL if (i + 1) % size == 0 or i >= whole else STATE for i in range(layers)]


def _by_period(keys: Keys, layers: int) -> list[Kind]:
    period = keys.whole("attn_layer_period", MAX_LAYERS)
    offset = keys.whole("attn_layer_offset", MAX_LAYERS, low=0)
    if offset >= period:
        keys.refuse("attn_layer_offset", f"less than attn_layer_period = {period}")
    return [FULL if index % period == offset else STATE for index in range(layers)]


def _by_indices(keys: Keys, layers: int) -> list[Kind]:
    full = keys.wholes("attn_layer_indices", layers - 1)
    return [FULL if index in full else STATE for index in range(layers)]


def _by_decoders(keys: Keys, layers: int) -> list[Kind]:
    """SambaY: states between attention, windowed in the first half; one full layer after it.

    Layers behind that one attend its cache, or a gated memory unit takes a state's place, which
    keeps nothing and whose weights are not read.

    Source: arXiv 2507.06607, section 3; vLLM's Phi4Flash and its ``layers_block_type``.
    """
    every = keys.whole("mb_per_layer", MAX_LAYERS)
    if keys.weights:
        keys.refuse("mb_per_layer", "null: weights of gated memory units are not read")
    half = layers // 2
    attends = [WINDOW if index < half else FULL for index in range(layers)]
    return [
        attends[index] if index % every else STATE if index <= half else MLP_ONLY
        for index in range(layers)
    ]


def _by_chunk(keys: Keys, layers: int) -> list[Kind] | None:
    """Llama 4: layers with RoPE attend within a chunk, every fourth one everywhere."""
    if keys.given("hybrid_layer_pattern"):
        return None
    keys.whole("attention_chunk_size", MAX_TOKENS)
    rotated = keys.config.get("no_rope_layers")
    if rotated:
        ones = keys.wholes("no_rope_layers", 1, count=layers)
    else:
        interval = keys.whole("no_rope_layer_interval", MAX_LAYERS, 4)
        ones = tuple(int((index + 1) % interval != 0) for index in range(layers))
    return [CHUNK if one else FULL for one in ones]


def _by_local_types(keys: Keys, layers: int) -> list[Kind]:
    """GPT-Neo: ``attention_layers``, or ``attention_types`` as [[kinds], times]."""
    words: list[object] = []
    if keys.given("attention_layers"):
        words = list(keys.items("attention_layers", layers))
    else:
        for run in keys.items("attention_types"):
            if not (isinstance(run, list) and len(run) == 2 and isinstance(run[0], list)
                    and isinstance(run[1], int) and 0 < run[1] <= MAX_LAYERS):  # fmt: skip
                keys.refuse("attention_types", "a list of [[kinds], times]")
            words += run[0] * run[1]
    if len(words) != layers or any(w not in ("global", "local") for w in words):
        keys.refuse("attention_types", f"global or local for each of {layers} layers")
    keys.whole("window_size", MAX_TOKENS)
    return [FULL if word == "global" else WINDOW for word in words]


READERS: dict[str, Callable[[Keys, int], list[Kind] | None]] = {
    "hybrid_override_pattern": _by_letters,
    "compress_ratios": _by_ratios,
    "layer_types": _by_types,
    "layers_block_type": _by_types,
    "block_types": _by_types,
    "attn_type_list": _by_numbers("attn_type_list", (STATE, FULL)),
    "hybrid_layer_pattern": _by_numbers("hybrid_layer_pattern", (FULL, WINDOW)),
    "linear_attn_config": _by_linear_config,
    "full_attention_interval": _by_interval,
    "layer_group_size": _by_group,
    "attn_layer_period": _by_period,
    "mb_per_layer": _by_decoders,
    "attn_layer_indices": _by_indices,
    "attention_chunk_size": _by_chunk,
    "attention_layers": _by_local_types,
    "attention_types": _by_local_types,
}
"""In this order: the first key that is given decides."""


RECURRENT = ("mamba_d_state", "mamba_num_heads", "linear_num_value_heads", "linear_num_heads",
             "lru_width", "conv_L_cache")  # fmt: skip
"""Keys of recurrent layers: with them, something must say which layers those are."""


def _by_window(keys: Keys, family: str, layers: int) -> list[Kind]:
    """Which layers a sliding window holds for, where no list says so."""
    if family == "mistral" and "sliding_window" not in keys.config:
        return [WINDOW] * layers  # MistralConfig: 4096 when the key is missing
    if family == "falcon_h1":
        return [WORDS["hybrid"]] * layers
    for key in RECURRENT:
        if keys.given(key):
            keys.refuse("layer_types", f"a list that tells states from attention, beside {key}")
    window = window_of(keys)
    if keys.given("use_sliding_window") and not keys.flag("use_sliding_window", False):
        return [FULL] * layers
    sparse = _sparse(keys, layers)
    if sparse is not None:
        return sparse
    pattern = _pattern(keys, family, layers)
    if window is None:
        bound = keys.spelled(WINDOWS)
        if pattern is not None and bound is None and keys.given("use_sliding_window"):
            keys.refuse("sliding_window", "a whole number, as use_sliding_window is true")
        if family in ALTERNATING and bound is None and "sliding_window" not in keys.config:
            keys.refuse("sliding_window", f"a whole number, as a {family} has windowed layers")
        return [FULL] * layers
    if pattern is not None:
        return pattern
    if family in EVERYWHERE or not family or keys.given("attention_window_size"):
        return [WINDOW] * layers
    keys.refuse("layer_types", "a list that says which layers are windowed")


def _pattern(keys: Keys, family: str, layers: int) -> list[Kind] | None:
    """Every n-th layer full, from a pattern or the class's; windowed from a layer on (Qwen)."""
    key = keys.spelled(PATTERN)
    if key is not None and isinstance(keys.config[key], str):
        return _letters_of_windows(keys, key, layers)
    if key is not None:
        every = keys.whole(key, MAX_LAYERS)
        return [WINDOW if (index + 1) % every else FULL for index in range(layers)]
    if family in ALTERNATING:
        every = ALTERNATING[family]
        kinds = [WINDOW if (index + 1) % every else FULL for index in range(layers)]
        return [*kinds[:-1], FULL] if family == "gemma4" else kinds
    if family == "gpt_oss":
        return [FULL if index % 2 else WINDOW for index in range(layers)]
    if keys.given("use_sliding_window"):
        first = keys.whole("max_window_layers", MAX_LAYERS, low=0)
        return [WINDOW if index >= first else FULL for index in range(layers)]
    return None


def _letters_of_windows(keys: Keys, key: str, layers: int) -> list[Kind]:
    letters = keys.word(key) or ""
    if not letters or set(letters) - {"L", "G"}:
        keys.refuse(key, "a number, or letters L (local) and G (global)")
    last = [WINDOW if letters[i % len(letters)] == "L" else FULL for i in range(layers)]
    return last


def _sparse(keys: Keys, layers: int) -> list[Kind] | None:
    """Which layers keep an index, where ``layer_types`` does not say so."""
    nested = keys.part("sparse_attention_config")
    if nested is not None and nested.given("sparse_attention_freq"):
        ones = nested.wholes("sparse_attention_freq", 1, count=layers)
        return [Kind(index=bool(one)) for one in ones]
    if keys.maybe("index_head_dim", MAX_WIDTH) is None:
        return None
    if keys.given("indexer_types"):
        words = keys.items("indexer_types", layers)
        for index, word in enumerate(words):
            if word not in ("full", "shared"):
                where = f"{keys.name}: indexer_types[{index}]"
                raise InputError(where, printable(word), "full or shared")
        return [Kind(index=word == "full") for word in words]
    return [Kind(index=True)] * layers
