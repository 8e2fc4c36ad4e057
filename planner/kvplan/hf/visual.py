"""Visual autoregressive models: an image is generated scale by scale, each scale at once.

Source: VAR, arXiv 2404.02905, table 2 and its repository's models; Infinity, arXiv 2412.04431, and
its repository's launch scripts. ``k_cache_dtype`` and ``v_cache_dtype`` say what is cached where
the format does not follow the weights (Infinity normalises K in fp32).
"""

from __future__ import annotations

from kvplan.hf.decoder import model_around
from kvplan.hf.keys import Keys
from kvplan.layer import LayerSpec
from kvplan.limits import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH
from kvplan.model import ModelSpec

VISUAL_TYPES = ("infinity", "var")
SCALES = ("patch_nums", "scale_schedule_1m_square")
FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MOST_SIDE = 2**12


def read_visual(keys: Keys, family: str | None, source: str) -> ModelSpec:
    """Read a visual autoregressive model; ``scales`` holds the tokens of each scale."""
    hidden, heads = keys.whole("embed_dim", MAX_WIDTH), keys.whole("num_heads", MAX_WIDTH)
    dim = keys.maybe("head_dim", MAX_WIDTH)
    if dim is None:
        if hidden % heads:
            keys.refuse("head_dim", f"given, as embed_dim / num_heads = {hidden / heads:g}")
        dim = hidden // heads
    if heads * dim > MAX_WIDTH:
        keys.refuse("head_dim", f"at most {MAX_WIDTH} elements over {heads} heads")
    key = keys.spelled(SCALES)
    if key is None:
        keys.refuse(SCALES[0], "a list with the side of every scale in tokens")
    scales = tuple(side * side for side in keys.wholes(key, MOST_SIDE, 1))
    if not scales or sum(scales) > MAX_TOKENS:
        keys.refuse(key, f"one scale or more, of at most {MAX_TOKENS} tokens in all")
    inner = hidden * keys.whole("mlp_ratio", 64)
    cross = keys.given("text_encoder")
    shared = keys.flag("shared_aln", False)  # one conditioning for all layers, in VAR-d36
    conditioning = 1 if cross else 0 if shared else 6
    attention = hidden * heads * dim * 4 * (2 if cross else 1) + conditioning * hidden * hidden
    layer = LayerSpec(
        hidden=hidden, query_heads=heads, kv_heads=heads, head_dim_k=dim, head_dim_v=dim,
        dtype_k=_format(keys, "k_cache_dtype"), dtype_v=_format(keys, "v_cache_dtype"),
        intermediate=inner, gated_mlp=False, rope=False, attention_params=attention,
        mlp_params=2 * hidden * inner + inner + hidden,
    )  # fmt: skip
    named = {"vocab_size": 4096, **keys.config, "max_position_embeddings": sum(scales)}
    guided = keys.maybe("cfg_batch_factor", 2) or 1
    return model_around(
        Keys(named, keys.name, keys.weights), family, source,
        [layer] * keys.whole("depth", MAX_LAYERS), hidden, scales=scales,
        sequences_per_sample=guided,
    )  # fmt: skip


def _format(keys: Keys, key: str) -> str | None:
    word = keys.word(key)
    if word is not None and word not in FORMATS:
        keys.refuse(key, f"one of {', '.join(FORMATS)}")
    return FORMATS[word] if word else None
