"""``kvplan fit``: how much context x batch fits on a card beside the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from kvplan.cli.declarations import ASKED, MEMORY, MOST_RANKS, Gpu, Model, panel_option
from kvplan.cli.host import refusal
from kvplan.cli.options import as_option
from kvplan.cli.output import Json, print_json, say
from kvplan.cli.values import share, whole_number
from kvplan.errors import InputError
from kvplan.units import GROUPED, parse_bytes, parse_tokens

if TYPE_CHECKING:
    from kvplan.hardware import HardwareProfile
    from kvplan.host_cache import HostCache

EPILOG = """
Examples:

\b
  kvplan fit --model llama-3.1-8b --gpu l4
  kvplan fit --model llama-3.1-8b --gpu rtx-3090 --context 29000
  kvplan fit --model qwen3-32b --gpu a100-80gb-sxm --tp 4 --context 32k
  kvplan fit --model llama-3.1-70b --gpu h100 --tp 2 --weights-dtype fp8 --batch 16 --json
"""

_LOAD, _HOST = "Workload", "Host"


# fmt: off
def fit(
    model: Model,
    gpu: Gpu,
    tp: Annotated[str, panel_option(
        ASKED, "--tp", metavar="N", help="GPUs that each layer's heads are divided over.")] = "1",
    pp: Annotated[str, panel_option(
        ASKED, "--pp", metavar="N", help="GPUs that the layers are divided over.")] = "1",
    context: Annotated[str | None, panel_option(
        _LOAD, "--context", metavar="TOKENS", help="Tokens per sequence, or several between "
        "commas. [default: the longest that fits]")] = None,
    batch: Annotated[str | None, panel_option(
        _LOAD, "--batch", metavar="N",
        help="Sequences at once. [default: the most that fit]")] = None,
    kv_dtype: Annotated[str, panel_option(
        _LOAD, "--kv-dtype", metavar="FORMAT",
        help="Format of the cache: fp16, fp8, int8, q8_0 ...")] = "fp16",
    source_tokens: Annotated[str | None, panel_option(
        _LOAD, "--source-tokens", metavar="TOKENS", help="Tokens of the source that "
        "cross-attention reads. [default: the model's]")] = None,
    chunk: Annotated[str, panel_option(
        _LOAD, "--chunk", "--chunk-tokens", metavar="TOKENS", help="Most tokens of one prefill, "
        "longer prompts are cut; none: never.")] = "8192",
    chunk_above: Annotated[str, panel_option(
        _LOAD, "--chunk-above", metavar="TOKENS", help="Cut prompts only where the longest "
        "context is above this, as some engines do.")] = "0",
    memory: Annotated[str | None, panel_option(
        MEMORY, "--memory", metavar="SIZE", help="GPU memory as the engine sees it. "
        "[default: of the profile]")] = None,
    utilisation: Annotated[str, panel_option(
        MEMORY, "--utilisation", "--utilization", metavar="SHARE",
        help="Share of the card's memory that the engine takes.")] = "0.9",
    reserve: Annotated[str, panel_option(
        MEMORY, "--reserve", metavar="SIZE", help="Kept free of that share.")] = "0",
    weights_bytes: Annotated[str | None, panel_option(
        MEMORY, "--weights-bytes", metavar="SIZE", help="Weights of all GPUs together, or of one: "
        "7.5GiB/rank. [default: counted from the model]")] = None,
    weights_dtype: Annotated[str | None, panel_option(
        MEMORY, "--weights-dtype", metavar="FORMAT", help="Format of the weights: bf16, fp8, "
        "int8, gptq, awq, nf4, fp4. [default: the model's]")] = None,
    host_cache: Annotated[str | None, panel_option(
        _HOST, "--host-cache", metavar="SIZE", help="Host memory for KV, of all GPUs together; "
        "`kvplan host` says how large it may be.")] = None,
    per_rank: Annotated[bool, panel_option(
        _HOST, "--per-rank", help="--host-cache is of each GPU.")] = False,
    host_memory: Annotated[str | None, panel_option(
        _HOST, "--host-memory", metavar="SIZE", help="Memory the host has free. "
        "[default: of the profile]")] = None,
    activation_peak: Annotated[str | None, panel_option(
        MEMORY, "--activation-peak", metavar="SIZE", help="Activations of the longest prefill. "
        "[default: estimated]")] = None,
    non_torch: Annotated[str, panel_option(
        MEMORY, "--non-torch", metavar="SIZE", help="CUDA context and libraries.")] = "0.4GiB",
    block_size: Annotated[str, panel_option(
        MEMORY, "--block-size", metavar="TOKENS", help="Tokens per block of the cache.")] = "16",
    as_json: Json = False,
) -> None:
    """Say how much context x batch fits on a card beside the weights, and what is the limit.

    With a context it finds the batch, with a batch the context, with both it says yes or no, with
    neither it shows a table. Exit 3 where nothing fits, with the changes that help.
    """
    with as_option():
        from kvplan.cli.fit_answer import Answer
        from kvplan.fit import MOST_BATCH, Fit
        from kvplan.formats import find_format
        from kvplan.hardware_library import load_hardware
        from kvplan.model_library import load_model
        from kvplan.prefill_peak import Chunking
        from kvplan.weights import weight_format

        spec, card = load_model(model), load_hardware(gpu)
        ranks = whole_number(tp, "--tp", MOST_RANKS), whole_number(pp, "--pp", MOST_RANKS)
        if weights_dtype is not None:
            weight_format(weights_dtype)
        asked = Fit(
            model=spec, tp=ranks[0], pp=ranks[1],
            memory_bytes=card.gpu.memory_bytes if memory is None
            else parse_bytes(memory, "--memory"),
            utilisation=share(utilisation, "--utilisation"),
            reserve_bytes=parse_bytes(reserve, "--reserve"),
            weights_bytes=_weights(weights_bytes, ranks[0] * ranks[1]), weights_dtype=weights_dtype,
            peak_bytes=None if activation_peak is None
            else parse_bytes(activation_peak, "--activation-peak"),
            outside_bytes=parse_bytes(non_torch, "--non-torch"),
            source_tokens=None if source_tokens is None
            else parse_tokens(source_tokens, "--source-tokens"),
            kv_dtype=find_format(kv_dtype).name, block=parse_tokens(block_size, "--block-size"),
            chunking=Chunking(tokens=None if chunk == "none" else parse_tokens(chunk, "--chunk"),
                              above=parse_tokens(chunk_above, "--chunk-above")),
        )
        answer = Answer(
            fit=asked, card=card,
            cache=_host_cache(card, host_cache, host_memory, per_rank, ranks[0] * ranks[1]),
            contexts=None if context is None else _contexts(context),
            batch=None if batch is None else whole_number(batch, "--batch", MOST_BATCH),
        )
        document = answer.document()
    if as_json:
        print_json(document)
    if not document["fits"]:
        raise answer.refusal()
    if answer.cache and answer.cache.problems:
        raise refusal(answer.cache)
    for warning in answer.warnings():
        say("warning", warning)
    if not as_json:
        from kvplan.cli.fit_tables import show_fit

        show_fit(answer, document)
# fmt: on


def _weights(text: str | None, ranks: int) -> float | None:
    """Bytes of one rank's weights: ``15GiB`` of all together, ``7.5GiB/rank`` of one."""
    if text is None:
        return None
    size, slash, of = text.partition("/")
    if slash and of.strip().lower() not in ("rank", "gpu"):
        raise InputError("--weights-bytes", text, "a size such as 15GiB, or 7.5GiB/rank")
    return parse_bytes(size, "--weights-bytes") / (1 if slash else ranks)


def _host_cache(
    card: HardwareProfile, size: str | None, memory: str | None, per_rank: bool, ranks: int
) -> HostCache | None:
    """The host cache that is asked for, on the host of the profile or one with this memory."""
    if size is None:
        return None
    from kvplan.hardware import ONE_POOL
    from kvplan.host_cache import HostCache
    from kvplan.host_memory import HostMemory

    if card.unified:
        raise InputError("--host-cache", size, f"no host cache: {ONE_POOL}")
    total = parse_bytes(size, "--host-cache")
    free = card.host.dram_bytes if memory is None else parse_bytes(memory, "--host-memory")
    return HostCache(
        memory=HostMemory(available_bytes=free), ranks=ranks,
        size_bytes=total if per_rank else total // ranks, pin_limit_bytes=card.host.pinned_bytes,
    )  # fmt: skip


def _contexts(text: str) -> tuple[int, ...]:
    if GROUPED.fullmatch(text):
        one, several = text.replace(",", "").strip(), text.replace(",", ", ").strip()
        accepted = f"{one} for one context, or {several!r} for several"
        raise InputError("--context", text, accepted)
    found = tuple(parse_tokens(part, "--context") for part in text.split(","))
    if min(found) < 1:
        raise InputError("--context", text, "1 token or more")
    return found
