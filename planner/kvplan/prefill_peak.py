"""Activation memory of a prefill at its peak, as engines measure it before they size their cache.

An engine runs the longest prefill it will ever do and gives the KV cache what is left. Until a
prompt is cut into chunks that peak grows with the longest context, so a shorter limit may fail
where a longer one, which switches chunks on, fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.dtypes import element_bytes
from kvplan.errors import InputError
from kvplan.model import ModelSpec

ALIVE = 3
"""Hidden states alive at the peak: residual, the layer's input, its normed copy."""

LOGIT_BYTES = 4
"""Logits are fp32 when tokens are sampled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunking:
    """How prompts are cut.

    Args:
        tokens: most tokens of one prefill; None: a prompt is never cut.
        above: cut only where the longest context is above this.
    """

    tokens: int | None = None
    above: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        if self.tokens is not None and self.tokens < 1:
            raise InputError("chunk", self.tokens, "a whole number of tokens, 1 or more")

    def prefill_tokens(self, context: int) -> int:
        """Tokens of the longest prefill where the longest context is this.

        >>> old = Chunking(tokens=512, above=32768)
        >>> [old.prefill_tokens(c) for c in (20000, 32768, 35000)]
        [20000, 32768, 512]
        """
        if self.tokens is None or context <= self.above:
            return context
        return min(context, self.tokens)

    def turns(self) -> tuple[int, ...]:
        """Contexts above which the peak stops growing or falls."""
        return () if self.tokens is None else tuple(sorted({self.above, self.tokens}))


def activation_peak_bytes(model: ModelSpec, tokens: int, sequences: int = 1, tp: int = 1) -> float:
    """Bytes of activations at the peak of a prefill, on one rank.

    The MLP of the widest layer: its input matrices' output (twice ``intermediate`` where gated, one
    rank's part), what the activation makes of it, and `ALIVE` hidden states; or the logits of every
    sequence, whichever is more. Embeddings and weights are not counted.

    Args:
        model: the whole model, not one rank's.
        tokens: of the longest prefill, all sequences together.
        sequences: whose next token is sampled.
        tp: ranks the MLP is divided over.

    Source: counted from the operations of a decoder layer. For Llama-3.1-8B it gives 110,592 bytes
    per token; vllm-project/vllm issue 10517 reports 2.07 GiB at 20,000 tokens and 2.99 GiB at
    29,000, issue 11251 2.53 GiB at 40,000 on two ranks.

    >>> from kvplan.model_library import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> [round(activation_peak_bytes(llama, t) / 2**30, 2) for t in (20000, 29000)]
    [2.06, 2.99]
    >>> round(activation_peak_bytes(llama, 40000, tp=2) / 2**30, 2)
    2.52
    """
    wide = max(
        layer.intermediate * (3 if layer.gated_mlp else 2) / tp + ALIVE * layer.hidden
        for layer in model.layers
    )
    size = max(element_bytes(model.weight_dtype), 2.0)  # activations of quantised weights
    layer_bytes = tokens * wide * size
    return max(layer_bytes, sequences * model.vocab * LOGIT_BYTES)
