"""Options as other programs spell them, read as the option here that means the same."""

from __future__ import annotations

from collections.abc import Container, Sequence

from kvplan.errors import InputError

SPELLINGS = {
    "--context": (
        "ctx", "ctx-size", "ctx-len", "context-length", "context-len", "context-size", "seq-len",
        "seqlen", "seq-length", "sequence-length", "max-model-len", "max-seq-len", "n-ctx",
        "num-ctx", "tokens",
    ),
    "--batch": ("batch-size", "bs", "batchsize", "max-num-seqs", "max-batch-size", "concurrency"),
    "--gen": ("gen-len", "max-tokens", "max-new-tokens", "output-len", "n-predict"),
    "--tp": ("tp-size", "tensor-parallel", "tensor-parallel-size"),
    "--pp": ("pp-size", "pipeline-parallel", "pipeline-parallel-size"),
    "--kv-dtype": ("kv-cache-dtype", "cache-dtype", "kv-type", "kv-format", "kv-cache-type"),
    "--k-dtype": ("cache-type-k", "ctk", "type-k"),
    "--v-dtype": ("cache-type-v", "ctv", "type-v"),
    "--utilisation": (
        "utilization", "gpu-memory-utilization", "gpu-memory-utilisation", "gpu-util", "mem-util",
    ),
    "--weights-dtype": ("weight-dtype", "weights-format", "quantization", "quant"),
    "--gpu": ("device", "hardware", "card", "gpu-type"),
    "--model": ("model-path", "model-id", "hf-model", "config"),
    "--prefix": ("prefix-len", "prefix-length", "prompt-len", "prompt", "context"),
    "--source-tokens": ("encoder-tokens", "source-len"),
    "--chunk": ("max-num-batched-tokens", "chunked-prefill-size", "chunk-size"),
    "--dram": ("cpu-memory", "host-memory", "ram", "kv-offloading-size"),
    "--hbm": ("gpu-memory", "vram", "memory"),
    "--memory": ("gpu-memory", "vram", "hbm"),
    "--ranks": ("tp", "tp-size", "tensor-parallel", "tensor-parallel-size", "world-size", "gpus"),
    "--gpus": ("num-gpus", "gpu-count", "tp", "tp-size"),
    "--cache": ("host-cache", "cpu-cache"),
    "--good-gap": ("gap", "mip-gap", "tolerance"),
    "--piece": ("block-size", "chunk", "chunk-size", "page-size"),
    "--block-size": ("page-size", "tokens-per-block", "block"),
}  # fmt: skip
"""Option here to what vLLM, SGLang, llama.cpp, TensorRT-LLM and others call it, without dashes."""

FLAGS = {
    "pageable": "--memory=pageable", "pinned": "--memory=pinned", "bidirectional": "--both",
    "duplex": "--both", "d2h": "--direction=d2h",
}  # fmt: skip
"""Flags that mean a value of an option here."""

MEANINGS = {
    "cpu-offload-gb": "it moves weights, not KV: --weights streamed plans that, --dram is the host "
    "memory for KV",
    "mem-fraction-static": "it counts weights and KV without activations: give --hbm, or "
    "--utilisation for all of them",
    "swap-space": "it is GiB of each GPU: --dram, in fit --host-cache, is host memory of all GPUs, "
    "such as 4GiB",
    "max-local-cpu-size": "it is GiB of each rank: --dram, in host --cache with --per-rank, has a "
    "size such as 5GiB",
    "hicache-size": "it is GB of each rank: --dram, in host --cache with --per-rank, takes a size "
    "such as 30GB",
    "dtype": "--kv-dtype is the format of the cache; weights have that of the model",
    "n-gpu-layers": "kvplan places KV, not layers: --hbm says how much GPU memory there is",
    "ngl": "kvplan places KV, not layers: --hbm says how much GPU memory there is",
}
"""Options of other programs that mean something else, and what to give instead."""

_GIGABYTES = ("kv-offloading-size",)
"""Spelled so, a bare number is a number of GiB."""


def respelled(arguments: Sequence[str], known: Container[str]) -> list[str]:
    """Arguments with options of other programs replaced by the command's own.

    Args:
        arguments: what was typed after the command.
        known: the command's options, with their dashes.

    Raises:
        InputError: an option of another program that has no counterpart here.

    >>> respelled(["--max-model-len", "32k", "--kv_dtype=fp8"], {"--context", "--kv-dtype"})
    ['--context', '32k', '--kv-dtype=fp8']
    """
    found = list(arguments)
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        name, equals, value = argument.partition("=")
        word = name.lstrip("-").replace("_", "-").lower()
        if not name.startswith("-") or name in known or not word or word[0].isdigit():
            continue
        own = _own(word, known)
        if own is not None:
            found[index] = f"{own}{equals}{value}"
            if word in _GIGABYTES:
                at = index if equals else index + 1
                if at < len(found) and found[at].rpartition("=")[2].isdigit():
                    found[at] += "GiB"
        elif word in FLAGS and FLAGS[word].partition("=")[0] in known and not equals:
            found[index] = FLAGS[word]
        elif word in MEANINGS:
            following = [a for a in arguments[index + 1 : index + 2] if not a.startswith("-")]
            raise InputError(name, value or " ".join(following), f"left out: {MEANINGS[word]}")
    return found


def _own(word: str, known: Container[str]) -> str | None:
    """The command's option that a word means; None where there is none."""
    if f"--{word}" in known:
        return f"--{word}"
    for option, words in SPELLINGS.items():
        if option in known and word in words:
            return option
    return None
