"""Where cached tokens wait: a piece per layer, stage, path and micro-batch.

A piece is contiguous, so that one copy brings it: K and V token-major ``[n, B, 2, KV, D]``,
activations ``[n, B, h]``, or packed codes with their scales behind them. Blocks that the CPU
attends lie head-major.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvplan.allocation import Allocation
from kvplan.dtypes import QUANTISED_GROUP, SCALE_BYTES
from kvplan.errors import InputError
from kvplan.model import LayerSpec
from kvplan_validate import kernels
from kvplan_validate.token_file import TokenFile

BITS = {"fetch_int8": 8, "fetch_int4": 4}

Key = tuple[int, "int | None", str, int]
"""(layer, stage, path, micro-batch)."""


@dataclass(slots=True)
class Piece:
    """Tokens of one layer, stage, path and micro-batch.

    Args:
        begin: position of the first token.
        count: tokens.
        data: flat bytes, or for host attention ``[2, B, KV, n, D]``.
        offset: bytes into the disk file, for tokens on disk.
    """

    begin: int
    count: int
    data: Tensor | None = None
    offset: int = 0


def piece_bytes(path: str, spec: LayerSpec, count: int, batch: int, item: int) -> int:
    """Bytes of a piece in the layout of its path.

    Args:
        path: name of the path.
        spec: shapes.
        count: tokens.
        batch: sequences.
        item: bytes per element of the cache.
    """
    elements = count * batch * spec.kv_elements
    if path.startswith("recompute"):
        return count * batch * spec.hidden * item
    if path in BITS:
        group = min(QUANTISED_GROUP, spec.head_dim_k)
        return elements * BITS[path] // 8 + elements // group * SCALE_BYTES
    return elements * item


def unpack(
    path: str, spec: LayerSpec, flat: Tensor, count: int, batch: int
) -> tuple[Tensor, Tensor]:
    """Codes and scales of a quantised piece's bytes."""
    bits, group = BITS[path], min(QUANTISED_GROUP, spec.head_dim_k)
    width = spec.head_dim_k * bits // 8
    codes_bytes = count * batch * 2 * spec.kv_heads * width
    codes = flat[:codes_bytes].view(count, batch, 2, spec.kv_heads, width)
    scales = flat[codes_bytes:].view(torch.float16)
    return codes, scales.view(count, batch, 2, spec.kv_heads, spec.head_dim_k // group, 2)


@dataclass(slots=True)
class Store:
    """All pieces of a plan.

    Args:
        pieces: by key.
        file: file of the tokens on disk, or None; whoever opened it closes it.
    """

    pieces: dict[Key, Piece] = field(default_factory=dict)
    file: TokenFile | None = None

    def close(self) -> None:
        """Close the disk file."""
        if self.file is not None:
            self.file.close()
            self.file = None


def layout(allocation: Allocation, micro_batches: int) -> dict[Key, Piece]:
    """Empty pieces of an allocation.

    Raises:
        InputError: a stage in which one path holds two separate runs of tokens.
    """
    pieces: dict[Key, Piece] = {}
    for layer, segments in enumerate(allocation):
        for segment in segments:
            for micro_batch in range(micro_batches):
                key = (layer, segment.stage, segment.path, micro_batch)
                if key in pieces:
                    raise InputError(
                        f"decision.layers[{layer}] {segment.path}",
                        segment.begin,
                        "one run of tokens per path and stage",
                    )
                pieces[key] = Piece(segment.begin, segment.tokens)
    return pieces


Source = Callable[[int, int, int, int], tuple[Tensor, Tensor]]
"""(layer, micro-batch, begin, count) to activations ``[n, B, h]`` and K, V ``[n, B, 2, KV, D]``."""


def fill(
    pieces: Mapping[Key, Piece],
    specs: tuple[LayerSpec, ...],
    take: Callable[[int], Tensor],
    device: torch.device,
    source: Source,
) -> None:
    """Store real tokens in every piece (but those on disk keep their bytes in ``data`` too).

    Args:
        pieces: from `layout`.
        specs: layers of the model.
        take: bytes to a flat host tensor.
        device: of the pieces that stay resident.
        source: where tokens come from.
    """
    for (layer, _, path, micro_batch), piece in pieces.items():
        activations, tokens = source(layer, micro_batch, piece.begin, piece.count)
        if path == "resident":
            piece.data = tokens.to(device).contiguous()
        elif path == "recompute_resident":
            piece.data = activations.to(device).contiguous()
        elif path == "attend_host":
            piece.data = tokens.permute(2, 1, 3, 0, 4).contiguous().cpu()
        else:
            piece.data = _packed(path, specs[layer], activations, tokens, take)


def _packed(
    path: str, spec: LayerSpec, activations: Tensor, tokens: Tensor, take: Callable[[int], Tensor]
) -> Tensor:
    count, batch = tokens.shape[:2]
    flat = take(piece_bytes(path, spec, count, batch, tokens.element_size()))
    if path in BITS:
        codes, scales = kernels.quantise(tokens, BITS[path])
        kept_codes, kept_scales = unpack(path, spec, flat, count, batch)
        kept_codes.copy_(codes)
        kept_scales.copy_(scales)
    else:
        kept = activations if path == "recompute" else tokens
        flat.view(kept.dtype).copy_(kept.reshape(-1))
    return flat
