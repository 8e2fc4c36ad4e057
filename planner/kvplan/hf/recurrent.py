"""Models without any attention: Mamba and RWKV."""

from __future__ import annotations

from kvplan.hf.decoder import count_layers, model_around, state_layer, traits_of
from kvplan.hf.keys import HIDDEN, INNER, Keys
from kvplan.hf.mlp import NONE, Mlp
from kvplan.hf.states import mamba1, mamba2, rwkv_state
from kvplan.limits import MAX_WIDTH
from kvplan.model import ModelSpec

RECURRENT_TYPES = ("mamba", "falcon_mamba", "mamba2", "rwkv", "rwkv5", "rwkv5_2")


def read_recurrent(keys: Keys, family: str | None, source: str) -> ModelSpec:
    """Read a model whose layers all keep a state."""
    hidden, layers, traits = keys.whole(HIDDEN, MAX_WIDTH), count_layers(keys), traits_of(family)
    mlp = NONE
    if family in ("mamba", "falcon_mamba"):
        inner = keys.maybe("intermediate_size", MAX_WIDTH)
        if inner is None:
            inner = hidden * keys.whole("expand", 64)
        size, kernel = keys.whole("state_size", MAX_WIDTH), keys.whole("conv_kernel", MAX_WIDTH)
        rank = keys.config.get("time_step_rank")
        rank = -(-hidden // 16) if rank == "auto" else keys.weight("time_step_rank", MAX_WIDTH)
        state, mixer = mamba1(hidden, inner, size, kernel, rank)
    elif family == "mamba2":
        heads, dim = keys.whole("num_heads", MAX_WIDTH), keys.whole("head_dim", MAX_WIDTH)
        size, groups = keys.whole("state_size", MAX_WIDTH), keys.whole("n_groups", MAX_WIDTH)
        kernel = keys.whole("conv_kernel", MAX_WIDTH)
        state, mixer = mamba2(keys, hidden, heads, dim, size, groups, kernel)
    else:
        state = rwkv_state(keys)
        inner = keys.maybe("attention_hidden_size", MAX_WIDTH) or hidden
        gated = keys.given("head_size")
        mixer = (5 if gated else 4) * hidden * inner + 6 * hidden
        wide = keys.maybe(INNER, MAX_WIDTH)
        if wide is None:  # three and a half times the width with a gate, four times without
            wide = int(hidden * 3.5) // 32 * 32 if gated else 4 * hidden
        mlp = Mlp(wide, 2 * hidden * wide + hidden * hidden + 2 * hidden, None)
    named = dict(keys.config)
    if family in ("mamba", "falcon_mamba", "mamba2"):
        named.setdefault("tie_word_embeddings", True)
    else:  # RWKV has a head of its own, whatever its files say
        named["tie_word_embeddings"] = False
    keys = Keys(named, keys.name, keys.weights)
    return model_around(
        keys, family, source, [state_layer(traits, hidden, state, mixer, mlp)] * layers
    )
