"""The format of a model's weights: that of its tensors, or of the method that quantised them."""

from __future__ import annotations

from kvplan.hf.keys import Keys

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float8_e4m3fn": "fp8"}
FP8, INT4 = ("fp8", "fbgemm_fp8", "finegrained_fp8"), ("awq", "gptq", "mxfp4", "auto-round", "hqq")
BITS = {8: "int8", 4: "int4"}


def weight_dtype(keys: Keys) -> str:
    """Format of the weights; fp16 when neither a format nor a quantisation is given.

    A quantisation is taken to hold for all weights, though methods leave embeddings, norms and
    often attention as they were.
    """
    quantised = _quantised(keys)
    given = {}
    for key in ("dtype", "torch_dtype"):
        value = keys.config.get(key)
        if value is not None:
            short = value.removeprefix("torch.") if isinstance(value, str) else ""
            if short not in DTYPES:
                keys.refuse(key, f"one of {', '.join(DTYPES)}")
            given[key] = DTYPES[short]
    if len(set(given.values())) > 1:
        keys.refuse("torch_dtype", f"the same as dtype, {keys.config['dtype']}")
    return quantised or next(iter(given.values()), "fp16")


def _quantised(keys: Keys) -> str | None:
    """The format that a quantisation stores weights in; None where there is none."""
    for key in ("quantization_config", "compression_config"):
        part = keys.part(key)
        if part is None or not part.config:
            continue
        method = part.word("quant_method")
        if method in FP8:
            return "fp8"
        bits = _bits(part)
        if bits in BITS:
            floating = bits == 8 and _floating(part)
            return "fp8" if floating else BITS[bits]
        if method in INT4 and bits is None:
            return "int4"
        if part.config.get("load_in_4bit") is True:
            return "int4"
        if part.config.get("load_in_8bit") is True:
            return "int8"
        if keys.weights:
            keys.refuse(key, "a method of 8 or 4 bits that says so (quant_method, bits)")
    return None


def _groups(part: Keys) -> list[dict[str, object]]:
    """What ``config_groups`` says of weights."""
    groups = part.config.get("config_groups")
    found = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict):
            found.append(weights)
    return found


def _bits(part: Keys) -> int | None:
    values = [part.config.get(key) for key in ("bits", "w_bit", "nbits")]
    values += [group.get("num_bits") for group in _groups(part)]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool)), None)


def _floating(part: Keys) -> bool:
    return any(group.get("type") == "float" for group in _groups(part))
