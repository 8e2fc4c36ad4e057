"""A model by its name, or by the geometry of its cache alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvplan.cli.values import whole_number
from kvplan.errors import InputError
from kvplan.limits import MAX_LAYERS, MAX_WIDTH
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    from kvplan.model import ModelSpec


def model_of(name: str | None, geometry: dict[str, str | None]) -> ModelSpec:
    """The model that is named, or one of the layers that options describe.

    Args:
        name: what ``--model`` says.
        geometry: every other option that describes layers, to its text.

    Raises:
        InputError: both, or neither; a number out of range.
    """
    given = [option for option, text in geometry.items() if text is not None]
    if name is not None:
        if given:
            raise InputError(given[0], geometry[given[0]], "left out: --model says it")
        from kvplan.model_library import load_cache

        return load_cache(name)
    if not given:
        raise InputError("--model", None, "a name, a config.json, or --layers and --kv-heads")
    return _explicit(geometry)


def _explicit(geometry: dict[str, str | None]) -> ModelSpec:
    """A model of the layers that options describe."""
    from kvplan.layer import LayerSpec
    from kvplan.layer_parts import Latent
    from kvplan.model import ModelSpec

    def number(option: str, high: int, default: int | None = None) -> int:
        text = geometry[option]
        if text is None:
            if default is None:
                raise InputError(option, None, f"a whole number from 1 to {high}")
            return default
        return whole_number(text, option, high)

    layers, text = number("--layers", MAX_LAYERS), geometry["--latent"]
    hidden = number("--hidden", MAX_WIDTH, 1)
    one = None
    if text is not None:
        match = re.fullmatch(r" *(\d{1,7}) *(?:\+ *(\d{1,7}) *)?", text, re.ASCII)
        if match is None:
            raise InputError("--latent", text, "elements of the latent and of RoPE, such as 512+64")
        one = Latent(rank=int(match[1]), rope=int(match[2] or 0))
    heads = number("--kv-heads", MAX_WIDTH, 1 if one else None)
    dim_k = number("--head-dim", MAX_WIDTH, one.width if one else None)
    window = geometry["--window"]
    tokens = None if window is None else parse_tokens(window, "--window")
    plain = LayerSpec(
        hidden=hidden, query_heads=heads, kv_heads=heads, head_dim_k=dim_k,
        head_dim_v=number("--head-dim-v", MAX_WIDTH, dim_k), latent=one, intermediate=0,
        gated_mlp=False, rope=False, attention_params=0, mlp_params=0,
    )  # fmt: skip
    count = number("--window-layers", layers, layers if tokens is not None else 0)
    if tokens is None and geometry["--window-layers"] is not None:
        raise InputError("--window", None, "tokens of the window that --window-layers have")
    import msgspec

    windowed = plain if tokens is None else msgspec.structs.replace(plain, window=tokens)
    return ModelSpec(
        name=f"{layers} layers", family="explicit", hidden=hidden, vocab=1, embedding_width=1,
        weight_dtype="fp16", layers=(windowed,) * count + (plain,) * (layers - count),
        embedding_params=1, head_params=1, tied=False, source="command line",
    )  # fmt: skip
