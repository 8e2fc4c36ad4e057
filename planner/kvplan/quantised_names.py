"""Names of quantised models: the model they were made from, and the format of its weights.

Source of the endings: names of repositories on the Hugging Face hub, tags of ollama, and file names
of llama.cpp.
"""

from __future__ import annotations

import re

WEIGHTS = {
    "fp8": r"fp8(?:[-_.](?:dynamic|static|block|kv|e4m3|tensorwise))*",
    "int8": r"gptq[-_.](?:int8|8bit)|(?:quantized[-_.])?w8a(?:8|16)|int8|8bit|q8_0|bnb[-_.]8bit",
    "int4": r"(?:awq|gptq)(?:[-_.](?:marlin|int4|4bit|w4a16|q4))?|(?:int4|4bit)[-_.](?:awq|gptq)"
    r"|(?:quantized[-_.])?w4a(?:16|8)|int4|4bit|(?:unsloth[-_.])?bnb[-_.]4bit|nf4|nvfp4|mxfp4|fp4"
    r"|i?q4_(?:0|1|k(?:_[sml])?|nl|xs)",
    "fp16": "fp16|f16",
    "bf16": "bf16",
    "": r"i?q[12356]_?(?:0|1|k|s|m|xs|xxs)?(?:_[smlx]+)?|exl[23]|gguf|ggml|mlx",
}
"""Format of the weights to how names end; none for those of other widths."""

_ENDINGS = {
    dtype: re.compile(rf"(.+?)[-_.: ](?:(?:{pattern}))", re.I) for dtype, pattern in WEIGHTS.items()
}


def without_quantisation(name: str) -> tuple[str, str] | None:
    """A name without the quantisation it ends with, and the format of the weights.

    Returns:
        None where the name does not end so; an empty format for one that no weights here have,
        such as six bits, or that the name does not tell, such as GGUF.

    >>> without_quantisation("Qwen/Qwen2.5-7B-Instruct-AWQ")
    ('Qwen/Qwen2.5-7B-Instruct', 'int4')
    >>> without_quantisation("llama3.1:8b-instruct-q4_K_M"), without_quantisation("opt-13b")
    (('llama3.1:8b-instruct', 'int4'), None)
    """
    for dtype, pattern in _ENDINGS.items():
        match = pattern.fullmatch(name.strip())
        if match:
            again = without_quantisation(match[1])
            if again is not None:  # such as -GPTQ-Int4, or -Q4_K_M-GGUF
                return again[0], dtype or again[1]
            return match[1], dtype
    return None
