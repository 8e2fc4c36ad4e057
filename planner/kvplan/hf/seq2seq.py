"""Encoder-decoders: the decoder's layers, with cross-attention over the source's tokens.

The decoder's step is planned; the encoder runs once, before it, and only takes memory.
"""

from __future__ import annotations

from kvplan.hf.decoder import attention_params, model_around
from kvplan.hf.heads import Heads
from kvplan.hf.keys import HEAD_DIM, HEADS, HIDDEN, LAYERS, Keys
from kvplan.hf.traits import BARE, OLD
from kvplan.layer import LayerSpec
from kvplan.limits import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH
from kvplan.model import ModelSpec

LEARNED = ("bart", "mbart", "mvp", "plbart")
"""Types with learned position tables, of two rows more than positions, in encoder and decoder."""

T5 = ("t5", "mt5", "umt5", "longt5", "switch_transformers")


def read_seq2seq(keys: Keys, family: str | None, source: str) -> ModelSpec:
    """Read the decoder of an encoder-decoder model."""
    hidden = keys.whole(HIDDEN, MAX_WIDTH)
    t5 = family in T5 or keys.given("d_kv")
    if t5:
        layers = keys.maybe("num_decoder_layers", MAX_LAYERS) or keys.whole(LAYERS, MAX_LAYERS)
        heads = keys.whole(HEADS, MAX_WIDTH)
    else:
        layers = keys.whole(("decoder_layers", "num_decoder_layers"), MAX_LAYERS)
        heads = keys.whole(("decoder_attention_heads", "num_decoder_attention_heads"), MAX_WIDTH)
    dim = _head_dim(keys, hidden, heads)
    both = Heads(heads, heads, dim, dim)
    traits = BARE if t5 else OLD
    gated = "gated" in (keys.word("feed_forward_proj") or "") if t5 else False
    inner = keys.weight(("d_ff", "decoder_ffn_dim"), MAX_WIDTH)
    attention = attention_params(keys, traits, hidden, both)
    norm = hidden if t5 else 2 * hidden
    layer = LayerSpec(
        hidden=hidden, query_heads=heads, kv_heads=heads, head_dim_k=dim, head_dim_v=dim,
        cross=2 * heads * dim, intermediate=inner, gated_mlp=gated, rope=False,
        attention_params=2 * (attention + norm),
        mlp_params=hidden * inner * (3 if gated else 2) + (0 if t5 else inner + hidden) + norm,
    )  # fmt: skip
    named = {**keys.config}
    named.setdefault("tie_word_embeddings", True)
    if keys.given("max_target_positions"):
        named["max_position_embeddings"] = keys.whole("max_target_positions", MAX_TOKENS)
    other = _encoder(keys, t5, layer, hidden, inner)
    around = Keys(named, keys.name, keys.weights)
    fixed = keys.maybe("max_source_positions", MAX_TOKENS) if family == "whisper" else None
    return model_around(around, family, source, [layer] * layers, hidden, source_tokens=fixed,
                        other_params=other)  # fmt: skip


def _encoder(keys: Keys, t5: bool, decoder: LayerSpec, hidden: int, inner: int) -> int:
    """Weights of the encoder, alike to the decoder but for cross-attention, and of its inputs.

    Source: transformers 5.24, T5, Bart and Whisper classes.
    """
    layers = keys.maybe("num_layers" if t5 else "encoder_layers", MAX_LAYERS) or 0
    wide = inner if t5 else keys.maybe("encoder_ffn_dim", MAX_WIDTH) or inner
    mlp = decoder.mlp_params * wide // inner if wide != inner else decoder.mlp_params
    total = layers * (decoder.attention_params // 2 + mlp)
    mels = keys.maybe("num_mel_bins", MAX_WIDTH)
    if mels is not None:  # two convolutions of three taps, in front of sinusoidal positions
        total += 3 * hidden * (mels + hidden) + 2 * hidden
        total += (keys.maybe("max_source_positions", MAX_TOKENS) or 0) * hidden
    positions = keys.maybe("max_position_embeddings", MAX_TOKENS)
    if keys.config.get("model_type") in LEARNED and positions is not None:
        total += 2 * (positions + 2) * hidden + 2 * 2 * hidden
    return total + (hidden if t5 else 2 * hidden)


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    dim = keys.maybe(HEAD_DIM, MAX_WIDTH)
    if dim is None:
        if hidden % heads:
            keys.refuse("d_kv", f"given, as hidden size / heads = {hidden / heads:g}")
        dim = hidden // heads
    if heads * dim > MAX_WIDTH:
        key = keys.spelled(HEAD_DIM) or "d_kv"
        keys.refuse(key, f"at most {MAX_WIDTH} elements over {heads} heads")
    return dim
