"""The MLP of every layer: dense, or experts of which a router picks some."""

from __future__ import annotations

from typing import NamedTuple

from kvplan.errors import InputError
from kvplan.hf.keys import INNER, Keys
from kvplan.hf.traits import Traits, switch
from kvplan.layer import Experts
from kvplan.limits import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH, printable

COUNT = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
ACTIVE = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_topk", "moe_k",
    "top_k_experts", "moe_top_k",
)  # fmt: skip
EXPERT_WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size")
SHARED_WIDTH = (
    "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size", "share_expert_dim",
)  # fmt: skip
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
                "num_shared_expert")  # fmt: skip


class Mlp(NamedTuple):
    """Width that one token goes through, weights of all of it, and its experts.

    Matrices that are not as wide as the layer count by their products: the width is that of an MLP
    with as many.
    """

    intermediate: int
    params: int
    experts: Experts | None


NONE = Mlp(0, 0, None)


def read_mlps(keys: Keys, traits: Traits, hidden: int, layers: int) -> list[Mlp]:
    """The MLP of every layer, without its norm.

    Raises:
        InputError: a width or count that is missing or malformed.
    """
    nested = keys.part("ffn_config")  # DBRX keeps them there
    if nested is not None:
        keys = Keys({**nested.config, **keys.config}, keys.name, keys.weights)
    count = keys.maybe(COUNT, MAX_EXPERTS, low=0)
    sparse = _sparse_layers(keys, layers) if count else [False] * layers
    moe = _experts(keys, traits, hidden, count) if count and any(sparse) else NONE
    if all(sparse):
        return [moe] * layers
    widths = _widths(keys, traits, hidden, layers, bool(count))
    dense = {width: _dense(keys, traits, hidden, width) for width in dict.fromkeys(widths)}
    return [moe if s else dense[w] for s, w in zip(sparse, widths, strict=True)]


def _widths(keys: Keys, traits: Traits, hidden: int, layers: int, beside: bool) -> list[int]:
    if beside:
        for key in ("intermediate_size_mlp", "dense_intermediate_size"):
            if keys.given(key):
                return [keys.whole(key, MAX_WIDTH)] * layers
    inner = keys.spelled(INNER)
    if inner is None and traits.inner_ratio is not None:
        return [traits.inner_ratio * hidden] * layers
    if inner is None:
        return [keys.weight(INNER, MAX_WIDTH)] * layers
    widths = keys.per_layer(INNER, layers, MAX_WIDTH)
    assert widths is not None
    if keys.flag("use_double_wide_mlp", False):  # Gemma 4: in layers that share another's cache
        own = layers - (keys.maybe("num_kv_shared_layers", layers, low=0) or 0)
        widths = [width * (1 if index < own else 2) for index, width in enumerate(widths)]
    return [width // traits.inner_divisor for width in widths]


def dense_beside(keys: Keys, traits: Traits, hidden: int) -> Mlp:
    """The dense MLP of a layer that has experts as well."""
    return _dense(keys, traits, hidden, keys.weight(INNER, MAX_WIDTH))


def _dense(keys: Keys, traits: Traits, hidden: int, width: int) -> Mlp:
    bias = switch(keys, traits.mlp_bias)
    up = 2 if traits.gated else 1
    return Mlp(width, hidden * width * (up + 1) + bias * (up * width + hidden), None)


def _experts(keys: Keys, traits: Traits, hidden: int, count: int) -> Mlp:
    """Experts, in the layer's width or in a latent of it, and what every token visits beside them.

    Source of the latent: Nemotron 3 Super; transformers 5.24, NemotronHMoE. Of the MLP beside all
    experts: Gemma 4; transformers 5.24, Gemma4TextDecoderLayer.
    """
    active = keys.uniform(ACTIVE, count)
    if active is None:
        active = keys.whole(ACTIVE, count) if keys.weights else 1
    width = keys.uniform(EXPERT_WIDTH, MAX_WIDTH) or keys.weight(INNER, MAX_WIDTH)
    matrices = 3 if traits.gated else 2
    latent = keys.maybe("moe_latent_size", MAX_WIDTH)
    inner = latent or hidden
    each = inner * width * matrices + traits.expert_bias * ((matrices - 1) * width + inner)
    routed = count + (keys.maybe("zero_expert_num", MAX_EXPERTS, low=0) or 0)
    router = hidden * routed + routed * (traits.expert_bias or traits.router_bias)
    shared = width if traits.shared_expert else _shared_width(keys, width)
    around = hidden * shared * matrices + (hidden if traits.shared_gate and shared else 0)
    met = active * width + shared
    if latent:
        around += 2 * hidden * latent
        met = shared + -(-(active * width * latent * matrices + 2 * hidden * latent)
                         // (hidden * matrices))  # fmt: skip
    if keys.flag("enable_moe_block", False):
        beside = dense_beside(keys, traits, hidden)
        around += beside.params + 4 * hidden + count  # three norms and the router's two scales
        met += beside.intermediate
    experts = Experts(count=count, active=active, params=each)
    return Mlp(met, count * each + router + around, experts)


def _shared_width(keys: Keys, width: int) -> int:
    count = keys.uniform(SHARED_COUNT, MAX_EXPERTS, low=0)
    given = keys.maybe(SHARED_WIDTH, MAX_WIDTH, low=0)
    if given is not None:
        return given
    return (count or 0) * width


def _sparse_layers(keys: Keys, layers: int) -> list[bool]:
    """Which layers have experts; all, unless a key says otherwise."""
    indices = range(layers)
    if keys.given("mlp_layer_types"):
        words = keys.items("mlp_layer_types", layers)
        for index, word in enumerate(words):
            if word not in ("dense", "sparse", "moe", "hash_moe"):
                where = f"{keys.name}: mlp_layer_types[{index}]"
                raise InputError(where, printable(word), "dense or sparse")
        return [word != "dense" for word in words]
    if isinstance(keys.config.get("moe_layer_freq"), list):
        return [bool(one) for one in keys.wholes("moe_layer_freq", 1, count=layers)]
    if keys.given("moe_layers"):
        chosen = keys.wholes("moe_layers", layers - 1)
        return [index in chosen for index in indices]
    if keys.given("interleave_moe_layer_step"):
        step = keys.whole("interleave_moe_layer_step", MAX_LAYERS)
        return [(index + 1) % step == 0 for index in indices]
    if keys.given("expert_layer_period"):
        period = keys.whole("expert_layer_period", MAX_LAYERS)
        offset = keys.whole("expert_layer_offset", MAX_LAYERS, low=0)
        return [index % period == offset for index in indices]
    first = keys.maybe(("first_k_dense_replace", "num_dense_layers"), MAX_LAYERS, low=0) or 0
    every = keys.maybe(("moe_layer_freq", "decoder_sparse_step", "moe_layer_interval"), MAX_LAYERS)
    if keys.given("moe_layer_start_index"):
        first = keys.whole("moe_layer_start_index", MAX_LAYERS, low=0)
    if every is None:
        every = 1
    dense = keys.wholes("mlp_only_layers", MAX_LAYERS) if keys.given("mlp_only_layers") else ()
    if keys.given("decoder_sparse_step"):
        return [index not in dense and (index + 1) % every == 0 for index in indices]
    return [index >= first and index not in dense and index % every == 0 for index in indices]
