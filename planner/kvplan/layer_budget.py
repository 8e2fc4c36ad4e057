"""Budgets of tokens per layer: how much of the cache each layer keeps after eviction.

What is kept is decided by others (scores of the last queries); here only how many tokens each
layer keeps matters. Generated tokens come on top. A plan with budgets is not exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvplan.errors import InputError
from kvplan.model import LayerSpec, ModelSpec

PYRAMID_BETA = 20
"""Steepness of the pyramid. Source: PyramidKV's code, arXiv 2406.02069."""

PYRAMID_WINDOW = 32
"""Last tokens that are always kept. Source: SnapKV's code, arXiv 2404.14469."""

ACCEPTED = (
    "a JSON file of tokens (or shares) per layer, pyramid:MEAN such as pyramid:2048 or "
    "pyramid:0.12, or scalekv:MEAN:DRAFTERS such as scalekv:0.1:0,23"
)


def pyramid(mean: int, tokens: int, layers: int, window: int = PYRAMID_WINDOW) -> list[int]:
    """Tokens per layer that PyramidKV keeps: most in the first layer, least in the last.

    Args:
        mean: tokens that a layer keeps on average.
        tokens: tokens there are.
        layers: layers of the model.
        window: last tokens, always kept, part of the mean.

    Source: arXiv 2406.02069 and its code.

    >>> kept = pyramid(mean=2048, tokens=32768, layers=32)
    >>> kept[0], kept[-1], round(sum(kept) / 32)
    (3964, 151, 2058)
    >>> pyramid(mean=2048, tokens=1024, layers=2)
    [1024, 1024]
    """
    if tokens < mean:
        return [tokens] * layers
    least = (mean - window) // PYRAMID_BETA
    most = 2 * (mean - window) - least
    if tokens < 2 * (mean - window):
        return [mean] * layers
    if most >= tokens - window:
        most = tokens - window
        least = 2 * (mean - window) - most
    step = (most - least) // max(layers - 1, 1)
    return [min(most - layer * step + window, tokens) for layer in range(layers)]


def scalekv(mean: int, tokens: int, layers: int, drafters: Sequence[int], most: int) -> list[int]:
    """Tokens per layer that ScaleKV keeps: drafters nearly all, refiners what is left.

    ``drafters * most + (layers - drafters) * least = layers * mean``.

    Args:
        mean: tokens that a layer keeps on average.
        tokens: tokens there are; where they are no more than the mean all are kept.
        layers: layers of the model.
        drafters: layers that need much of the cache.
        most: tokens that a drafter keeps.

    Source: derived from the two budget files of StargazerX0/ScaleKV eb0615a1 (arXiv 2505.19602),
    which it reproduces exactly.

    Before the last scale of Infinity-2B there are 6425 tokens; layer 0 drafts:

    >>> kept = scalekv(650, 6425, 32, [0], 6385)
    >>> kept[0], kept[1], sum(kept) / 32
    (6385, 465, 650.0)
    """
    if tokens <= mean:
        return [tokens] * layers
    most = min(most, tokens)
    others = layers - len(drafters)
    left = layers * mean - len(drafters) * most
    least = min(max(left // others, 0) if others else 0, tokens)
    return [most if layer in drafters else least for layer in range(layers)]


def parse_budget(text: str, layers: int, tokens: int, field: str = "layer_budget") -> list[int]:
    """Tokens per layer of a budget given in words: ``pyramid:...`` or ``scalekv:...``.

    Args:
        text: such as ``pyramid:0.12``, ``pyramid:2048:64`` (window) or ``scalekv:0.1:0,23``.
        layers: layers of the model.
        tokens: tokens of the context.
        field: what to name in errors.

    Raises:
        InputError: another word, a mean out of range, or drafters that the model does not have.
    """
    word, *parts = text.split(":")
    if word not in ("pyramid", "scalekv") or not 1 <= len(parts) <= 2:
        raise InputError(field, text, ACCEPTED)
    mean = amount(_number(parts[0], field, text), tokens, field)
    if word == "pyramid":
        window = int(_number(parts[1], field, text)) if len(parts) > 1 else PYRAMID_WINDOW
        if not 0 <= window < mean:
            raise InputError(field, text, f"a window below the mean of {mean} tokens")
        return pyramid(mean, tokens, layers, window)
    if len(parts) < 2:
        raise InputError(field, text, "the layers that draft, such as scalekv:0.1:0,23")
    drafters = _layers(parts[1], layers, field, text)
    if layers * mean < len(drafters) * tokens:
        accepted = f"a mean that leaves tokens to the {layers - len(drafters)} refiners"
        raise InputError(field, text, accepted)
    return scalekv(mean, tokens, layers, drafters, tokens)


def _number(text: str, field: str, whole: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(field, whole, ACCEPTED) from None
    if not 0 < value < 2**40:
        raise InputError(field, whole, ACCEPTED)
    return value


def _layers(text: str, layers: int, field: str, whole: str) -> list[int]:
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) >= layers:
            raise InputError(field, whole, f"layers from 0 to {layers - 1} between commas")
        found.append(int(part))
    return sorted(set(found))


def amount(value: float, tokens: int, field: str) -> int:
    """Tokens given as a number, or as a share of the context where at most 1.

    >>> amount(0.1, 6425, "--layer-budget"), amount(650.0, 6425, "--layer-budget")
    (642, 650)
    """
    if value <= 1:
        return max(int(value * tokens), 1)
    if value != int(value):
        raise InputError(field, value, "whole tokens, or a share of at most 1")
    return int(value)


def from_document(raw: bytes, layers: int, tokens: int, field: str) -> list[int]:
    """Tokens per layer of a JSON document: a list, one under ``layers``, or a table by layer.

    Args:
        raw: the document.
        layers: layers of the model.
        tokens: tokens of the context, for shares.
        field: what to name in errors.

    Raises:
        InputError: not JSON, another shape, or not one number above 0 for every layer.

    >>> from_document(b'{"0": 100, "1": 0.5}', 2, 1000, "--layer-budget")
    [100, 500]
    """
    accepted = f"JSON with one number of tokens, or share, for each of {layers} layers"
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InputError(field, raw[:40].decode(errors="replace"), accepted) from None
    if isinstance(found, dict) and "layers" in found:
        found = found["layers"]
    if isinstance(found, dict):
        if sorted(found) != sorted(str(layer) for layer in range(layers)):
            raise InputError(field, f"{len(found)} keys", accepted)
        found = [found[str(layer)] for layer in range(layers)]
    if not isinstance(found, list) or len(found) != layers:
        count = len(found) if isinstance(found, list) else type(found).__name__
        raise InputError(field, count, accepted)
    kept = []
    for layer, value in enumerate(found):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**40:
            raise InputError(f"{field} layer {layer}", value, "tokens, or a share of at most 1")
        kept.append(value if isinstance(value, int) else amount(value, tokens, field))
    return kept


def budgeted_layer(layer: LayerSpec, kept: int) -> LayerSpec:
    """A layer that keeps at most so many tokens; one without K and V, or with entries that stand
    for several tokens, stays as it is.
    """
    if not layer.kv_elements or layer.compression > 1:
        return layer
    window = kept if layer.window is None else min(layer.window, kept)
    return msgspec.structs.replace(layer, window=window)


def budgeted_model(model: ModelSpec, kept: Sequence[int]) -> ModelSpec:
    """A model whose layers keep at most so many tokens each.

    Raises:
        InputError: not one number for every layer.
    """
    if len(kept) != len(model.layers):
        raise InputError("layer_tokens", len(kept), f"{len(model.layers)} layers")
    known: dict[tuple[LayerSpec, int], LayerSpec] = {}
    layers = []
    for layer, tokens in zip(model.layers, kept, strict=True):
        if (layer, tokens) not in known:
            known[layer, tokens] = budgeted_layer(layer, tokens)
        layers.append(known[layer, tokens])
    return msgspec.structs.replace(model, layers=tuple(layers))
