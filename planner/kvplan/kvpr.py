"""KVPR's split of a layer's tokens, in both of its readings.

The method's own cost model: bytes over one link rate, FLOP over one matrix rate, no overheads.

Source: KVPR, arXiv 2411.17089, equations 6-11; the serial reading is what its code (commit
1712a52) minimises, trying every split. The pipelined reading prefetches the next layer's
activations during this layer. Both are stated here for any number of KV heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvplan.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What the split depends on.

    Args:
        batch: sequences.
        hidden: width of the activations.
        kv_elements: K and V elements per token (2h for MHA).
        element_bytes: bytes per element of both.
        tokens: s', tokens in the cache at the step that is planned.
        prompt: s, tokens whose activations exist; the split is at most this.
        link_bytes_per_s: v_com.
        flop_per_s: v_gpu.
    """

    batch: int
    hidden: int
    kv_elements: int
    element_bytes: float
    tokens: int
    prompt: int
    link_bytes_per_s: float
    flop_per_s: float

    def __post_init__(self) -> None:
        """Check that every rate and size is above zero."""
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "a number above 0")

    def send_s(self, split: int) -> float:
        """Seconds to send the activations of the first tokens."""
        size = self.batch * split * self.hidden * self.element_bytes
        return size / self.link_bytes_per_s

    def rest_s(self, split: int) -> float:
        """Seconds to send K and V of the other tokens."""
        size = self.batch * (self.tokens - split) * self.kv_elements * self.element_bytes
        return size / self.link_bytes_per_s

    def rebuild_s(self, split: int) -> float:
        """Seconds to rebuild K and V of the first tokens: two projections, 4hw FLOP per token."""
        return 2.0 * self.batch * split * self.hidden * self.kv_elements / self.flop_per_s

    def serial_s(self, split: int) -> float:
        """Activations first, then the rebuild beside the rest of the transfer."""
        return self.send_s(split) + max(self.rebuild_s(split), self.rest_s(split))

    def pipelined_s(self, split: int) -> float:
        """All transfers beside all rebuilds, activations having been prefetched."""
        return max(self.send_s(split) + self.rest_s(split), self.rebuild_s(split))


def serial_split(layer: Layer) -> int:
    """Tokens to recompute in the serial reading: where rebuild and rest take equally long.

    OPT-6.7B, batch 32, 1024 tokens, 32 GB/s, 312 TFLOP/s:

    >>> serial_split(Layer(batch=32, hidden=4096, kv_elements=8192, element_bytes=2, tokens=1024,
    ...     prompt=1024, link_bytes_per_s=32e9, flop_per_s=312e12))
    721
    """
    per_token_s = layer.rest_s(0) / layer.tokens
    crossing = layer.rest_s(0) / (layer.rebuild_s(1) + per_token_s)
    return _best(layer, crossing, layer.serial_s)


def pipelined_split(layer: Layer) -> int:
    """Tokens to recompute in the pipelined reading: where rebuild and all transfers meet.

    >>> pipelined_split(Layer(batch=32, hidden=7168, kv_elements=14336, element_bytes=2,
    ...     tokens=1024, prompt=1024, link_bytes_per_s=32e9, flop_per_s=312e12))
    829
    """
    saved_s = layer.rest_s(0) / layer.tokens - layer.send_s(1)
    crossing = layer.rest_s(0) / (layer.rebuild_s(1) + saved_s)
    return _best(layer, crossing, layer.pipelined_s)


def _best(layer: Layer, crossing: float, seconds: Callable[[int], float]) -> int:
    """The best whole split: each cost is convex and bends only at the crossing."""
    most = min(layer.prompt, layer.tokens)
    near = {0, most}
    if 0 <= crossing <= most:
        near |= {int(crossing), min(int(crossing) + 1, most)}
    return min(sorted(near), key=seconds)
