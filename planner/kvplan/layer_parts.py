"""What a layer keeps in place of, or beside, K and V heads, and the experts of its MLP."""

from __future__ import annotations

import msgspec

from kvplan.errors import InputError
from kvplan.limits import MAX_EXPERTS, MAX_PARAMS, MAX_WIDTH, require_whole

RECURRENT_BYTES = 4
"""Bytes of one element of a recurrent state: fp32.

Source: transformers 5.24 keeps the recurrent states of Mamba, gated delta and lightning layers in
fp32 and their convolution states in the cache's own format.
"""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what layers are made of: an unknown key is an error."""


class Latent(_Part, frozen=True, kw_only=True):
    """Multi-head latent attention: one vector per token from which all heads get K and V.

    Args:
        rank: elements of the compressed K and V.
        rope: elements of the rotated key beside it, shared by all heads.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    rank: int
    rope: int

    def __post_init__(self) -> None:
        """Check ranges."""
        require_whole("latent.rank", self.rank, 1, MAX_WIDTH)
        require_whole("latent.rope", self.rope, 0, MAX_WIDTH)

    @property
    def width(self) -> int:
        """Elements cached per token.

        >>> Latent(rank=512, rope=64).width
        576
        """
        return self.rank + self.rope


class State(_Part, frozen=True, kw_only=True):
    """What a recurrent layer (Mamba, gated delta, lightning, RWKV) keeps of a sequence.

    Args:
        conv: elements of the last inputs of a convolution (or shifted tokens), in the cache's
            format.
        recurrent: elements of the recurrent state, in fp32.
        heads: equal parts that tensor parallelism can divide it into.
    """

    conv: int
    recurrent: int
    heads: int

    def __post_init__(self) -> None:
        """Check ranges."""
        require_whole("state.conv", self.conv, 0, MAX_PARAMS)
        require_whole("state.recurrent", self.recurrent, 0, MAX_PARAMS)
        require_whole("state.heads", self.heads, 1, MAX_WIDTH)
        if not self.conv + self.recurrent:
            raise InputError("state", 0, "at least one element")

    def held_bytes(self, bytes_per_element: float) -> float:
        """Bytes of one sequence.

        Mamba-1 of 5120 channels, 16 states each, kernel of 4:

        >>> State(conv=3 * 5120, recurrent=16 * 5120, heads=5120).held_bytes(2)
        358400
        """
        return self.conv * bytes_per_element + self.recurrent * RECURRENT_BYTES


class Experts(_Part, frozen=True, kw_only=True):
    """Experts of a sparse MLP, of which a router picks some for every token.

    Args:
        count: experts of the layer, shared ones not counted.
        active: experts that each token visits.
        params: weights of one expert.
    """

    count: int
    active: int
    params: int

    def __post_init__(self) -> None:
        """Check ranges."""
        require_whole("experts.count", self.count, 1, MAX_EXPERTS)
        require_whole("experts.active", self.active, 1, self.count)
        require_whole("experts.params", self.params, 1, MAX_PARAMS)

    def touched(self, tokens: int) -> float:
        """Experts that a step over so many tokens reads, expected under uniform routing.

        ``count * (1 - (1 - active / count) ** tokens)``: each token picks ``active`` different
        experts, independently of the others. Real routers are less even, so fewer are touched.

        >>> Experts(count=8, active=2, params=1).touched(1)
        2.0
        >>> round(Experts(count=8, active=2, params=1).touched(16), 3)
        7.92
        """
        return self.count * (1.0 - (1.0 - self.active / self.count) ** tokens)
