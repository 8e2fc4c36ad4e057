"""FlexGen (FlexLLMGen): a script with its six percentages."""

from __future__ import annotations

from shlex import quote
from typing import Any

from kvplan import cost
from kvplan.errors import InputError
from kvplan.export.command_line import options_of, read_script, script
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.prefix_cache import (
    host_attention_lost,
    percent,
    precision_lost,
    recompute_lost,
    schedule,
    shares,
)
from kvplan.flexgen import SIX_PERCENTAGES, Percentages, cache_sequences, rounded_percentages
from kvplan.units import GIB, format_bytes

_POLICY = "flexgen/flex_opt.py, add_parser_arguments"

BUFFER_BYTES = 2 * GIB
"""Pinned buffer that copies are relayed through: 2^30 elements of two bytes.

Source: flexgen/pytorch_backend.py, copy_worker_func; FMInference/FlexLLMGen#44.
"""

KEYS = {
    "--model": Key(kind=str, unit="an OPT model", source=_POLICY),
    "--prompt-len": Key(kind=int, unit="tokens", source=_POLICY, least=1),
    "--gen-len": Key(kind=int, unit="tokens", source=_POLICY, least=1),
    "--gpu-batch-size": Key(kind=int, unit="sequences", source=_POLICY, least=1),
    "--num-gpu-batches": Key(kind=int, unit="micro-batches", source=_POLICY, least=1),
    "--percent": Key(
        kind=tuple, source=_POLICY,
        unit="whole percent: weights in HBM and host, cache in HBM and host, activations in HBM "
        "and host; the rest of each on disk",
    ),
    "--overlap": Key(kind=str, unit="on or off", source=_POLICY, words=("true", "false")),
    "--pin-weight": Key(kind=str, unit="on or off", source=_POLICY, words=("true", "false")),
    "--cpu-cache-compute": Key(kind=type(None), unit="attention on the CPU", source=_POLICY),
    "--compress-cache": Key(kind=type(None), unit="4 bits, groups of 64", source=_POLICY),
    "--offload-dir": Key(kind=str, unit="folder", source=_POLICY),
}  # fmt: skip

SMALLER = "a smaller batch or fewer tokens"
"""What to change where the placement does not fit the host."""

PROGRAM = "python -m flexgen.flex_opt"


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a script that runs the plan's placement.

    Raises:
        InputError: not an OPT model, several ranks, a format FlexGen has not, too many tokens,
            or a disk share without a folder.
        InfeasibleError: host memory is too small.
    """
    check_model(demand, deployment, "FlexGen")
    options = _options(demand, deployment)
    percents = options["--percent"]
    warnings = []
    if percents[3] or percents[1]:
        refuse_one_pool(demand, deployment)
        warnings = check_host(demand, deployment, _host_bytes(demand, percents), change=SMALLER)
    return Export(
        command=f"sh {quote(file)}",
        text=script(PROGRAM, options, comment=f"FlexGen {EXPORTER.version}, from kvplan"),
        mapped=_mapped(demand, options),
        unexpressed=tuple(_unexpressed(demand, options)),
        warnings=(*warnings, *_warnings(demand, options)),
    )


def check_model(demand: CacheDemand, deployment: Deployment, runtime: str) -> None:
    """Refuse what FlexGen and its descendants cannot run.

    Raises:
        InputError: another model family, several ranks, another format, too many tokens.
    """
    model = demand.model
    if model.family != "opt" or "350m" in model.name:
        raise InputError(
            "inputs.model.name", model.name, f"an OPT model other than 350m: {runtime} has no other"
        )
    if deployment.ranks > 1:
        raise InputError("--tp", deployment.ranks, f"1: {runtime} here uses one GPU")
    if demand.kv_dtype != "fp16":
        raise InputError("inputs.workload.kv_dtype", demand.kv_dtype, f"fp16 for {runtime}")
    longest = model.max_positions
    if longest is not None and demand.tokens > longest:
        raise InputError(
            "inputs.workload.context", demand.tokens,
            f"at most {longest} tokens, those to be generated included; {runtime} does not check",
        )  # fmt: skip


def percentages_of(demand: CacheDemand) -> Percentages:
    """The plan's placement of weights and cache in whole percents."""
    streamed, total = demand.streamed_weights, demand.all_bytes
    hbm, host, disk = (demand.place_bytes[place] / total for place in ("hbm", "host", "disk"))
    return rounded_percentages((1 - streamed, streamed, 0.0), (hbm, host, disk))


def _options(demand: CacheDemand, deployment: Deployment) -> dict[str, Any]:
    workload, placed = demand.plan.inputs.workload, percentages_of(demand)
    options: dict[str, Any] = {
        "--model": demand.model.name,
        "--prompt-len": workload.context,
        "--gen-len": max(workload.gen, 1),
        "--gpu-batch-size": workload.batch // workload.micro_batches,
        "--num-gpu-batches": workload.micro_batches,
        "--percent": placed.numbers,
        "--overlap": "true" if demand.plan.decision.prefetch else "false",
        "--pin-weight": "true" if placed.weights_cpu else "false",
    }
    away = {path for path in demand.path_share if path != "resident"}
    if away == {"attend_host"}:
        options["--cpu-cache-compute"] = None
    if away == {"fetch_int4"} and placed.cache_gpu == 0:
        options["--compress-cache"] = None
    if placed.cache_gpu + placed.cache_cpu < 100:
        if not deployment.disk_path:
            size = format_bytes(demand.place_bytes["disk"])
            raise InputError("--disk-path", None, f"a folder for the {size} the plan keeps on disk")
        options["--offload-dir"] = deployment.disk_path
    return options


def _host_bytes(demand: CacheDemand, percents: tuple[int, ...]) -> float:
    """Cache and weights in host memory, and the buffer; pinned weights exist twice for a while.

    Source: FMInference/FlexLLMGen#4 for the weights.
    """
    weights = sum(cost.weight_bytes(demand.model, layer) for layer in demand.model.layers)
    return percents[3] / 100 * demand.all_bytes + 2 * percents[1] / 100 * weights + BUFFER_BYTES


def _mapped(demand: CacheDemand, options: dict[str, Any]) -> tuple[Mapped, ...]:
    wanted = percent(1 - demand.away_share)
    meanings = {
        "--percent": f"{KEYS['--percent'].unit}; the plan has {wanted} of the cache in HBM, here "
        "rounded down to whole percents, and by FlexGen to whole sequences",
        "--gpu-batch-size": "sequences of one micro-batch",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in options.items())


def _unexpressed(demand: CacheDemand, options: dict[str, Any]) -> list[Unexpressed]:
    found = [
        Unexpressed("decode schedule", schedule(demand),
                    "FlexGen fetches one whole layer ahead; there are no stages"),
        Unexpressed("resident tokens per layer", f"{percent(1 - demand.away_share)} on average",
                    "one percentage for all layers, and it divides sequences and heads, not "
                    "tokens: some sequences lie in HBM whole, others in host memory"),
    ]  # fmt: skip
    found += recompute_lost(demand, "K and V of these tokens are stored and fetched instead")
    if "--compress-cache" not in options:
        found += precision_lost(
            demand, "FlexGen packs the whole cache or nothing, and not a cache in two places"
        )
    if "--cpu-cache-compute" not in options:
        found += host_attention_lost(demand, "these tokens are fetched")
    return found


def _warnings(demand: CacheDemand, options: dict[str, Any]) -> list[str]:
    if not options["--percent"][3] or shares(demand, "attend_host"):
        return []
    return [
        "FlexGen does not pin its cache: it crosses the link through a relay buffer, slower than "
        "the link's rate that the plan counts on"
    ]


def parse(text: str) -> dict[str, Any]:
    """Options of a script; percentages that are no placement are refused.

    Raises:
        InputError: not six percentages, or pairs above 100: FlexGen takes both silently.
    """
    options = options_of(read_script(text)[1][len(PROGRAM.split()) :])
    placed(options)
    return options


def placed(options: dict[str, Any]) -> Percentages:
    """The percentages among some options.

    Raises:
        InputError: they are no placement.
    """
    given = options["--percent"]
    if len(given) != 6:
        raise InputError("--percent", given, SIX_PERCENTAGES)
    return Percentages(*given)


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Bytes as FlexGen places them: whole sequences of each GPU batch."""
    options = parse(text)
    batch = options["--gpu-batch-size"]
    each = demand.all_bytes / batch  # one sequence of every GPU batch
    gpu, cpu, disk = cache_sequences(placed(options), batch)
    return ReadBack(
        host_bytes=cpu * each,
        block_bytes=(1 + batch / 100) * each,
        hbm_bytes=gpu * each,
        disk_bytes=disk * each,
    )


EXPORTER = Exporter(
    name="flexgen",
    aliases=("flexllmgen",),
    title="FlexGen",
    version="0.1.8",
    file="flexgen.sh",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
