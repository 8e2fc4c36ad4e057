"""Recurrent layers: the state of each kind, and the weights that make it.

Convolutions keep ``kernel - 1`` inputs in the cache's format; recurrent states are fp32.
"""

from __future__ import annotations

from kvplan.hf.keys import HEADS, HIDDEN, Keys
from kvplan.layer import State
from kvplan.limits import MAX_WIDTH

Recurrent = tuple[State, int]
"""The state of one sequence, and the weights of the layer's mixer."""

MAMBA_HEADS = ("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
MAMBA_DIM = ("mamba_d_head", "mamba_head_dim", "mamba_headdim")
MAMBA_STATE = ("mamba_d_state", "ssm_state_size")
MAMBA_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
KERNEL = ("mamba_d_conv", "conv_kernel", "conv_kernel_size")


def read_state(keys: Keys, family: str | None, hidden: int) -> Recurrent:
    """The recurrent mixer of a layer, told by the keys that describe it.

    Raises:
        InputError: no keys of a known kind.
    """
    if keys.given("linear_num_value_heads"):
        return _gated_delta(keys, hidden)
    if keys.given("linear_attn_config") or keys.given("linear_num_heads"):
        return _kimi_delta(keys, hidden)
    if keys.given("conv_L_cache"):
        return _short_convolution(keys, hidden)
    if keys.spelled(MAMBA_DIM) or (keys.spelled(MAMBA_HEADS) and family != "zamba"):
        return _mamba2(keys, hidden)
    if keys.given("mamba_d_state"):
        return _mamba1(keys, hidden, jamba=family == "jamba")
    if keys.given("lru_width") or keys.given("conv1d_width"):
        return _gated_linear(keys, hidden)
    if keys.given("attn_type_list") or (family or "").startswith("minimax"):
        return _lightning(keys, hidden)
    keys.refuse("layer_types", "layers whose state the configuration describes")


def _gated_delta(keys: Keys, hidden: int) -> Recurrent:
    """Gated delta net (Qwen3-Next, Qwen3.5).

    Source: transformers 5.24, Qwen3NextGatedDeltaNet.
    """
    key_heads = keys.whole("linear_num_key_heads", MAX_WIDTH)
    value_heads = keys.whole("linear_num_value_heads", MAX_WIDTH)
    dim_k = keys.whole("linear_key_head_dim", MAX_WIDTH)
    dim_v = keys.whole("linear_value_head_dim", MAX_WIDTH)
    kernel = keys.whole("linear_conv_kernel_dim", MAX_WIDTH)
    keyed, valued = key_heads * dim_k, value_heads * dim_v
    conv = 2 * keyed + valued
    state = State(
        conv=conv * (kernel - 1), recurrent=value_heads * dim_k * dim_v, heads=value_heads
    )
    params = hidden * (2 * keyed + 2 * valued) + 2 * hidden * value_heads
    params += conv * kernel + 2 * value_heads + dim_v + valued * hidden
    return state, params


def _kimi_delta(keys: Keys, hidden: int) -> Recurrent:
    """Kimi delta attention: three convolutions, one square state per head.

    Source: Kimi Linear, arXiv 2510.26692; transformers 5.24, KimiLinear.
    """
    nested = keys.part("linear_attn_config")
    if nested is not None:
        heads = nested.whole("num_heads", MAX_WIDTH)
        dim = nested.whole("head_dim", MAX_WIDTH)
        kernel = nested.whole("short_conv_kernel_size", MAX_WIDTH)
    else:
        heads = keys.whole("linear_num_heads", MAX_WIDTH)
        dim = keys.whole("linear_head_dim", MAX_WIDTH)
        kernel = keys.whole("linear_conv_kernel_dim", MAX_WIDTH)
    inner = heads * dim
    state = State(conv=3 * inner * (kernel - 1), recurrent=heads * dim * dim, heads=heads)
    gates = 2 * (hidden * dim + dim * inner) + hidden * heads
    params = 4 * hidden * inner + 3 * inner * kernel + gates + inner + heads + dim
    return state, params


def _short_convolution(keys: Keys, hidden: int) -> Recurrent:
    """Gated short convolution (LFM2): no recurrent state."""
    kernel = keys.whole("conv_L_cache", MAX_WIDTH, low=2)
    bias = hidden if keys.flag("conv_bias", False) else 0
    params = 3 * hidden * hidden + hidden * kernel + hidden * hidden + bias * 5
    return State(conv=hidden * (kernel - 1), recurrent=0, heads=hidden), params


def _mamba2(keys: Keys, hidden: int) -> Recurrent:
    """Mamba-2: convolution over inner width and both groups' states, one state per head.

    Source: Mamba-2, arXiv 2405.21060; transformers 5.24, NemotronHMamba2Mixer.
    """
    heads = keys.whole(MAMBA_HEADS, MAX_WIDTH)
    size = keys.whole(MAMBA_STATE, MAX_WIDTH)
    groups = keys.whole(MAMBA_GROUPS, MAX_WIDTH)
    kernel = keys.whole(KERNEL, MAX_WIDTH)
    if keys.config.get("mamba_d_head") == "auto":
        inner = hidden * keys.whole("mamba_expand", 64)
        if inner % heads:
            keys.refuse("mamba_d_head", f"a whole number, as {inner} / {heads} is none")
        dim = inner // heads
    else:
        dim = keys.whole(MAMBA_DIM, MAX_WIDTH)
    return mamba2(keys, hidden, heads, dim, size, groups, kernel)


def mamba2(
    keys: Keys, hidden: int, heads: int, dim: int, size: int, groups: int, kernel: int
) -> Recurrent:
    """A Mamba-2 mixer of these dimensions.

    >>> state, _ = mamba2(Keys({}, "m"), 2688, heads=64, dim=64, size=128, groups=8, kernel=4)
    >>> state.held_bytes(2)  # 6144 channels x 3 x 2 bytes, 64 x 64 x 128 x 4 bytes
    2134016
    """
    inner = heads * dim
    conv = inner + 2 * groups * size
    state = State(conv=conv * (kernel - 1), recurrent=heads * dim * size, heads=heads)
    biased = keys.config.get("use_conv_bias", keys.config.get("mamba_conv_bias", True))
    params = hidden * (2 * inner + 2 * groups * size + heads) + conv * (kernel + bool(biased))
    params += 3 * heads + inner + inner * hidden
    return state, params


def _mamba1(keys: Keys, hidden: int, jamba: bool) -> Recurrent:
    """Mamba-1 in a hybrid (Jamba adds norms of step, B and C).

    Source: transformers 5.24, JambaMambaMixer.
    """
    size = keys.whole("mamba_d_state", MAX_WIDTH)
    inner = hidden * keys.whole("mamba_expand", 64)
    rank = keys.weight("mamba_dt_rank", MAX_WIDTH)
    state, params = mamba1(hidden, inner, size, keys.whole("mamba_d_conv", MAX_WIDTH), rank)
    return state, params + (rank + 2 * size if jamba else 0)


def mamba1(hidden: int, inner: int, size: int, kernel: int, rank: int) -> Recurrent:
    """A Mamba-1 mixer of these dimensions.

    >>> mamba1(2560, 5120, 16, 4, 160)[0].held_bytes(2)
    358400
    """
    state = State(conv=inner * (kernel - 1), recurrent=inner * size, heads=inner)
    params = hidden * 2 * inner + inner * (kernel + 1) + inner * (rank + 2 * size)
    params += rank * inner + inner + inner * size + inner + inner * hidden
    return state, params


def _gated_linear(keys: Keys, hidden: int) -> Recurrent:
    """Gated linear recurrence (RecurrentGemma): one fp32 number per channel."""
    width = keys.maybe("lru_width", MAX_WIDTH) or hidden
    kernel = keys.whole("conv1d_width", MAX_WIDTH)
    heads = keys.whole(HEADS, MAX_WIDTH)
    state = State(conv=width * (kernel - 1), recurrent=width, heads=width)
    blocks = 2 * (width * width // heads + width)
    params = 3 * hidden * width + 2 * width + hidden + width * (kernel + 1) + blocks + width
    return state, params


def _lightning(keys: Keys, hidden: int) -> Recurrent:
    """Lightning attention (MiniMax-Text-01): one square state per head, no convolution.

    Source: MiniMax-01, arXiv 2501.08313; transformers 5.24, MiniMaxLightningAttention.
    """
    heads = keys.whole(HEADS, MAX_WIDTH)
    dim = keys.maybe("head_dim", MAX_WIDTH)
    if dim is None:
        if hidden % heads:
            keys.refuse("head_dim", f"given, as hidden size / heads = {hidden / heads:g}")
        dim = hidden // heads
    inner = heads * dim
    state = State(conv=0, recurrent=inner * dim, heads=heads)
    return state, 5 * hidden * inner + inner


def rwkv_state(keys: Keys) -> State:
    """RWKV-4, -5: the shifted token of both halves, and a state per head or per channel.

    RWKV-4 keeps three fp32 numbers per channel, RWKV-5 a square per head.
    """
    hidden = keys.whole(HIDDEN, MAX_WIDTH)
    inner = keys.maybe("attention_hidden_size", MAX_WIDTH) or hidden
    if not keys.given("head_size"):
        return State(conv=2 * hidden, recurrent=3 * inner, heads=inner)
    size = keys.whole("head_size", MAX_WIDTH)
    if inner % size:
        keys.refuse("head_size", f"a divisor of {inner}")
    return State(conv=2 * hidden, recurrent=inner * size, heads=inner // size)
