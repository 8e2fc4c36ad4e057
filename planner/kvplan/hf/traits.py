"""What a class of transformers adds around its matrices: biases, norms, gates, tied heads.

These decide weights to the last digit, never the cache. A class that is not listed is read as a
gated decoder without biases, like Llama.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.hf.keys import Keys

Switch = bool | tuple[str, bool]
"""Fixed by the class, or a key with the class's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How a class differs from a gated decoder without biases.

    Args:
        gated: three MLP matrices instead of two.
        qkv_bias: biases on query, key and value.
        out_bias: bias on the output projection.
        qk_norm: norms of query and key, over a head or over all heads; the latter always, or where
            ``use_qk_norm`` asks for them.
        norms: vectors of hidden width in the layer's norms.
        norm_bias: every norm has a bias beside its scale.
        affine: norms have weights.
        mlp_bias: biases in the dense MLP.
        expert_bias: biases in experts and router.
        router_bias: a correction bias per expert.
        shared_gate: a gate in front of shared experts.
        shared_expert: one expert more that every token visits.
        query_gate: the query projection makes an output gate as well.
        tied: whether the head shares the embedding where the key is missing.
        final_norm: vectors of hidden width behind the last layer.
        head_bias: the head has a bias.
        embed_norm: the embedding has a norm.
        positions: rows that a learned position table has beyond the positions; None for no table.
        inner_ratio: MLP width over hidden width where no key gives it.
        inner_divisor: what a given MLP width is divided by.
        rope: keys are rotated.
    """

    gated: bool = True
    qkv_bias: Switch = ("attention_bias", False)
    out_bias: Switch = ("attention_bias", False)
    qk_norm: Literal["none", "head", "full", "asked", "value"] = "none"
    norms: int = 2
    norm_bias: bool = False
    affine: Switch = True
    mlp_bias: Switch = ("mlp_bias", False)
    expert_bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    shared_expert: bool = False
    query_gate: Switch = False
    tied: bool = False
    final_norm: int = 1
    head_bias: bool = False
    embed_norm: bool = False
    positions: int | None = None
    inner_ratio: int | None = None
    inner_divisor: int = 1
    rope: bool = True


def norm_width(keys: Keys, traits: Traits, hidden: int) -> int:
    """Weights of one norm."""
    return hidden * (2 if traits.norm_bias else 1) * switch(keys, traits.affine)


def switch(keys: Keys, value: Switch) -> bool:
    """A trait that is fixed, or that a key turns on."""
    return value if isinstance(value, bool) else keys.flag(*value)


LLAMA = Traits()
BARE = Traits(qkv_bias=False, out_bias=False, mlp_bias=False)
GEMMA = replace(LLAMA, mlp_bias=False, tied=True)
QWEN2 = replace(BARE, qkv_bias=True)
QWEN3 = replace(LLAMA, mlp_bias=False, qk_norm="head")
OLD = Traits(
    gated=False, qkv_bias=True, out_bias=True, norm_bias=True, mlp_bias=True, inner_ratio=4,
    rope=False,
)  # fmt: skip
"""GPT-2's kind: plain MLP of four times the width, biases and layer norms everywhere."""

TRAITS: dict[str, Traits] = {
    "llama": LLAMA,
    "mistral": BARE,
    "mixtral": BARE,
    "qwen2": QWEN2,
    "qwen2_moe": replace(QWEN2, shared_gate=True),
    "qwen2_vl": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_vl": QWEN3,
    "qwen3_vl_moe": QWEN3,
    "qwen3_next": replace(QWEN3, shared_gate=True, query_gate=True),
    "qwen3_5": replace(QWEN3, shared_gate=True, query_gate=True),
    "qwen3_5_moe": replace(QWEN3, shared_gate=True, query_gate=True),
    "qwen": replace(BARE, qkv_bias=True, inner_divisor=2),
    "mimo": QWEN2,
    "baichuan": BARE,
    "chatglm": replace(BARE, qkv_bias=("add_qkv_bias", False)),
    "cohere": replace(GEMMA, norms=1, qk_norm="asked"),
    "cohere2": replace(GEMMA, norms=1),
    "olmo": replace(LLAMA, mlp_bias=False, affine=False),
    "olmo2": replace(LLAMA, mlp_bias=False, qk_norm="full"),
    "olmo3": replace(LLAMA, mlp_bias=False, qk_norm="full"),
    "minimax_m2": replace(BARE, qk_norm="full", router_bias=True),
    "minimax_text_01": BARE,
    "minimax": BARE,
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms=4),
    "gemma3": replace(GEMMA, norms=4, qk_norm="head"),
    "gemma3n": replace(GEMMA, norms=4, qk_norm="head"),
    "gemma4": replace(GEMMA, norms=4, qk_norm="head"),
    "phi3": BARE,
    "phi3small": replace(BARE, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True,
                         tied=True),
    "recurrent_gemma": replace(GEMMA, qkv_bias=("attention_bias", False), out_bias=True,
                               mlp_bias=True, inner_divisor=2),
    "glm4": replace(BARE, norms=4, qkv_bias=("attention_bias", False)),
    "glm4_moe": replace(BARE, qkv_bias=("attention_bias", False), router_bias=True),
    "gpt_oss": replace(BARE, qkv_bias=True, out_bias=True, expert_bias=True),
    "stablelm": replace(BARE, qkv_bias=("use_qkv_bias", False), norm_bias=True),
    "starcoder2": replace(OLD, qkv_bias=("use_bias", True), out_bias=("use_bias", True),
                          mlp_bias=("use_bias", True), inner_ratio=None, tied=True, rope=True),
    "deepseek_v2": BARE,
    "deepseek_v3": replace(BARE, router_bias=True),
    "deepseek_v32": replace(BARE, router_bias=True),
    "kimi_k2": replace(BARE, router_bias=True),
    "glm_moe_dsa": replace(BARE, router_bias=True),
    "kimi_linear": replace(BARE, router_bias=True),
    "jamba": BARE,
    "nemotron": replace(BARE, gated=False, norm_bias=True, qkv_bias=("attention_bias", False),
                        out_bias=("attention_bias", False), mlp_bias=("mlp_bias", False)),
    "nemotron_h": replace(BARE, gated=False, norms=1, router_bias=True,
                          qkv_bias=("attention_bias", False), out_bias=("attention_bias", False),
                          mlp_bias=("mlp_bias", False)),
    "llama4": replace(LLAMA, mlp_bias=False, shared_expert=True),
    "mllama": BARE,
    "gpt2": replace(OLD, tied=True, positions=0),
    "gpt_bigcode": replace(OLD, tied=True, positions=0),
    "gpt_neo": replace(OLD, qkv_bias=False, tied=True, positions=0),
    "gptj": replace(OLD, qkv_bias=False, out_bias=False, norms=1, head_bias=True, rope=True),
    "codegen": replace(OLD, qkv_bias=False, out_bias=False, norms=1, head_bias=True, rope=True),
    "gpt_neox": replace(OLD, inner_ratio=None, rope=True),
    "phi-msft": replace(OLD, norms=1, head_bias=True, rope=True),
    "phi": replace(OLD, norms=1, head_bias=True, inner_ratio=None, rope=True),
    "bloom": replace(OLD, tied=True, embed_norm=True),
    "falcon": replace(OLD, qkv_bias=("bias", False), out_bias=("bias", False),
                      mlp_bias=("bias", False), tied=True, rope=True),
    "mpt": replace(OLD, qkv_bias=False, out_bias=False, mlp_bias=False, norm_bias=False, tied=True),
    "opt": replace(OLD, qkv_bias=("enable_bias", True), out_bias=("enable_bias", True),
                   mlp_bias=("enable_bias", True), affine=("layer_norm_elementwise_affine", True),
                   inner_ratio=None, tied=True, positions=2),
}  # fmt: skip
"""Model type, without the suffix of a nested part, to its traits.

Source: the classes of transformers 5.24 and the remote code of those it does not have; checked
against parameter counts of the classes on the meta device (tests/model_table.py).
"""
