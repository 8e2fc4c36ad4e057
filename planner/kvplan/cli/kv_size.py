"""``kvplan kv-size``: how large a model's cache is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from kvplan.cli.completion import complete_model
from kvplan.cli.declarations import panel_option
from kvplan.cli.geometry import model_of
from kvplan.cli.options import as_option
from kvplan.cli.output import Json, print_json, say
from kvplan.cli.values import whole_number
from kvplan.errors import InputError
from kvplan.units import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from kvplan.formats import Format
    from kvplan.kv_size import Formats

EPILOG = """
Examples:

\b
  kvplan kv-size --model llama-3.1-8b --context 128k --batch 8
  kvplan kv-size --model deepseek-v3 --context 32k --kv-dtype q8_0
  kvplan kv-size --model gpt-oss-120b --context 128k --pool 5.38GiB
  kvplan kv-size --model qwen3-235b --context 32k --tp 8 --json
  kvplan kv-size --model ./config.json --context 8k --k-dtype q8_0 --v-dtype iq4_nl
  kvplan kv-size --layers 64 --kv-heads 8 --head-dim 128 --context 32k --layers-per-device 41,23
"""

_WHAT, _HOW, _WHERE = "Model, or its geometry", "Cache", "Devices"


# fmt: off
def kv_size(
    model: Annotated[str | None, panel_option(
        _WHAT, "--model", "-m", metavar="NAME|PATH|JSON", autocompletion=complete_model,
        help="Name, a config.json, or its text; `kvplan models` lists names.")] = None,
    layers: Annotated[str | None, panel_option(
        _WHAT, "--layers", metavar="N", help="Layers that cache, without a model.")] = None,
    kv_heads: Annotated[str | None, panel_option(
        _WHAT, "--kv-heads", metavar="N", help="K and V heads of each.")] = None,
    head_dim: Annotated[str | None, panel_option(
        _WHAT, "--head-dim", metavar="N", help="Elements of a K head.")] = None,
    head_dim_v: Annotated[str | None, panel_option(
        _WHAT, "--head-dim-v", metavar="N", help="Elements of a V head. [default: as K]")] = None,
    latent: Annotated[str | None, panel_option(
        _WHAT, "--latent", metavar="RANK+ROPE",
        help="Elements of a latent in place of heads, such as 512+64.")] = None,
    window: Annotated[str | None, panel_option(
        _WHAT, "--window", metavar="TOKENS", help="Sliding window of the layers given.")] = None,
    window_layers: Annotated[str | None, panel_option(
        _WHAT, "--window-layers", metavar="N",
        help="How many of them have the window. [default: all]")] = None,
    hidden: Annotated[str | None, panel_option(
        _WHAT, "--hidden", metavar="N", help="Hidden width, for activations over KV.")] = None,
    context: Annotated[str, panel_option(
        _HOW, "--context", "-c", metavar="TOKENS",
        help="Tokens in the cache per sequence: 4096, 32k, 128k.")] = "4096",
    batch: Annotated[str, panel_option(
        _HOW, "--batch", "-b", metavar="N", help="Samples decoded together.")] = "1",
    kv_dtype: Annotated[str | None, panel_option(
        _HOW, "--kv-dtype", metavar="FORMAT", help="fp16, bf16, fp32, fp8, int8, int4, q8_0, q4_0, "
        "iq4_nl and so on; k=q8_0,v=iq4_nl for each. [default: fp16, or what the model fixes]",
        )] = None,
    k_dtype: Annotated[str | None, panel_option(
        _HOW, "--k-dtype", metavar="FORMAT", help="Format of K and of latents.")] = None,
    v_dtype: Annotated[str | None, panel_option(
        _HOW, "--v-dtype", metavar="FORMAT", help="Format of V.")] = None,
    source_tokens: Annotated[str | None, panel_option(
        _HOW, "--source-tokens", metavar="TOKENS", help="Tokens of the source (text, sound, image) "
        "that cross-attention reads. [default: what the model fixes]")] = None,
    layout: Annotated[str, panel_option(
        _HOW, "--layout", metavar="latent|expanded",
        help="How an engine stores latents: whole, or as K and V of every head.")] = "latent",
    chunk: Annotated[str, panel_option(
        _WHERE, "--chunk", metavar="TOKENS", help="With --pool: most tokens of a prefill, which "
        "engines set aside in every window.")] = "8192",
    pool: Annotated[str | None, panel_option(
        _WHERE, "--pool", metavar="SIZE",
        help="How many tokens fit in so much memory of a rank.")] = None,
    tp: Annotated[str, panel_option(
        _WHERE, "--tp", metavar="N", help="Tensor-parallel ranks; sizes are those of one.")] = "1",
    pp: Annotated[str | None, panel_option(
        _WHERE, "--pp", metavar="N", help="Devices that share the layers evenly.")] = None,
    layers_per_device: Annotated[str | None, panel_option(
        _WHERE, "--layers-per-device", metavar="N,N,…",
        help="Layers that each device holds.")] = None,
    as_json: Json = False,
) -> None:
    """Show how large a model's cache is: per token, in windows, fixed; per rank and device."""
    # fmt: on
    from kvplan.cli.kv_size_answer import answer
    from kvplan.kv_size import MOST_RANKS, KvSize

    if layout not in ("latent", "expanded"):
        raise InputError("--layout", layout, "latent or expanded")
    geometry = {
        "--layers": layers, "--kv-heads": kv_heads, "--head-dim": head_dim,
        "--head-dim-v": head_dim_v, "--latent": latent, "--window": window,
        "--window-layers": window_layers, "--hidden": hidden,
    }  # fmt: skip
    with as_option():
        size = KvSize(
            model=model_of(model, geometry), context=parse_tokens(context, "--context"),
            batch=whole_number(batch, "--batch", 2**24),
            formats=_formats(kv_dtype, k_dtype, v_dtype),
            ranks=whole_number(tp, "--tp", MOST_RANKS), layout=layout,  # type: ignore[arg-type]
            source_tokens=None if source_tokens is None
            else parse_tokens(source_tokens, "--source-tokens"),
        )  # fmt: skip
    split = _split(len(size.model.layers), pp, layers_per_device)
    pool_bytes = None if pool is None else parse_bytes(pool, "--pool")
    found = answer(size, split, pool_bytes, parse_tokens(chunk, "--chunk"))
    if hidden is None and model is None:
        found["act_over_kv"] = None
    if as_json:
        print_json(found)
        return
    for warning in found["warnings"]:
        say("warning", warning)
    from kvplan.cli.kv_size_text import show
    from kvplan.cli.output import console

    show(console(), found)


def _formats(both: str | None, key: str | None, value: str | None) -> Formats:
    """Formats of K and V, from one option or from one each."""
    from kvplan.formats import find_format
    from kvplan.kv_size import Formats

    def read(text: str | None, option: str) -> Format | None:
        if text is None or text.strip().lower() == "auto":
            return None
        return find_format(text, option)

    if both is not None and "/" in both:  # K and V, as benchmarks write them
        both = "k={},v={}".format(*both.split("/", 1))
    if both is not None and "=" in both:
        named: dict[str, str] = {}
        for pair in both.split(","):
            name, _, text = (part.strip() for part in pair.partition("="))
            if name not in ("k", "v") or name in named or not text:
                raise InputError("--kv-dtype", both, "a format, or k=FORMAT,v=FORMAT")
            named[name] = text
        k, v = (read(named.get(name), "--kv-dtype") for name in ("k", "v"))
    else:
        k = v = read(both, "--kv-dtype")
    return Formats(k=read(key, "--k-dtype") or k, v=read(value, "--v-dtype") or v)


def _split(layers: int, pp: str | None, counts: str | None) -> list[int] | None:
    """Layers on each device; None where they are not divided."""
    if pp is not None and counts is not None:
        raise InputError("--pp", pp, "left out: --layers-per-device says it")
    if pp is not None:
        devices = whole_number(pp, "--pp", layers)
        each, more = divmod(layers, devices)
        return [each + (index < more) for index in range(devices)]
    if counts is None:
        return None
    if re.fullmatch(r" *\d{1,6} *(, *\d{1,6} *)*", counts, re.ASCII) is None:
        accepted = "whole numbers between commas, such as 41,23"
        raise InputError("--layers-per-device", counts, accepted)
    found = [int(part) for part in counts.split(",")]
    if sum(found) != layers or 0 in found:
        accepted = f"counts from 1 on that add up to {layers} layers"
        raise InputError("--layers-per-device", counts, accepted)
    return found
