"""KVPR: FlexGen's script with one recompute length for all layers."""

from __future__ import annotations

from shlex import quote
from typing import Any

from kvplan import cost
from kvplan.errors import InputError
from kvplan.export import flexgen
from kvplan.export.command_line import options_of, read_script, script
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.prefix_cache import (
    host_attention_lost,
    percent,
    precision_lost,
    schedule,
    shares,
)

_SOURCE = "flexgen/flex_opt.py, add_parser_arguments (KVPR)"

KEYS = {
    name: Key(kind=key.kind, unit=key.unit, source=_SOURCE, least=key.least)
    for name, key in flexgen.KEYS.items()
    if name in ("--model", "--prompt-len", "--gen-len", "--gpu-batch-size", "--num-gpu-batches",
                "--percent")
} | {
    "--recompute-len": Key(kind=int, unit="tokens from the start of every sequence, every layer",
                           source=_SOURCE, least=0),
    "--overlap": Key(kind=type(None), unit="on", source=_SOURCE),
    "--pin-weight": Key(kind=type(None), unit="on", source=_SOURCE),
}  # fmt: skip

PROGRAM = "python flexgen/flex_opt.py"


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a script that recomputes the plan's tokens.

    Raises:
        InputError: a model KVPR does not run, grouped heads, or layers that recompute unlike
            numbers of tokens.
        InfeasibleError: host memory is too small.
    """
    flexgen.check_model(demand, deployment, "KVPR")
    length = recompute_length(demand)
    options = _options(demand, length)
    refuse_one_pool(demand, deployment)
    stored = 1.5 * demand.all_bytes  # K and V, and activations of half their size, all on the host
    weights = sum(cost.weight_bytes(demand.model, layer) for layer in demand.model.layers)
    pinned = 2 * options["--percent"][1] / 100 * weights
    warnings = check_host(
        demand, deployment, stored + pinned + flexgen.BUFFER_BYTES, change=flexgen.SMALLER
    )
    return Export(
        command=f"sh {quote(file)}",
        text=script(PROGRAM, options, comment=f"KVPR {EXPORTER.version}, from kvplan; run it in "
                    "a checkout"),
        mapped=_mapped(demand, options),
        unexpressed=tuple(_unexpressed(demand)),
        warnings=(
            *warnings,
            *_elsewhere(demand),
            "without --kv-partial on purpose: it replaces --recompute-len by KVPR's own split, "
            "from 32 GB/s and 312 TFLOP/s whatever the machine",
        ),
    )  # fmt: skip


def recompute_length(demand: CacheDemand) -> int:
    """Tokens that every layer recomputes from host activations, in whole blocks.

    Raises:
        InputError: layers differ by more than a block, or grouped heads.
    """
    for layer in demand.model.layers:
        if layer.kv_heads != layer.query_heads:
            raise InputError(
                "inputs.model.layers.kv_heads", layer.kv_heads,
                f"{layer.query_heads}, as many as query heads: KVPR counts K and V as wide as the "
                "hidden state",
            )  # fmt: skip
    lengths = [layer.tokens.get("recompute", 0) for layer in demand.plan.decision.layers]
    if max(lengths) - min(lengths) > demand.block:
        raise InputError(
            "decision.layers", f"{min(lengths)} to {max(lengths)} recomputed tokens",
            f"layers within one block of {demand.block}: KVPR has one --recompute-len for all; "
            "solve with --good-gap 5%, whose first plan keeps layers alike, or with "
            "--paths fetch,recompute",
        )  # fmt: skip
    mean = sum(lengths) / len(lengths)
    return min(round(mean), demand.plan.inputs.workload.context)


def _options(demand: CacheDemand, length: int) -> dict[str, Any]:
    workload = demand.plan.inputs.workload
    placed = flexgen.percentages_of(demand)
    options: dict[str, Any] = {
        "--model": demand.model.name,
        "--prompt-len": workload.context,
        "--gen-len": max(workload.gen, 1),
        "--gpu-batch-size": workload.batch // workload.micro_batches,
        "--num-gpu-batches": workload.micro_batches,
        "--percent": (placed.weights_gpu, placed.weights_cpu, 0, 100, 0, 100),
        "--recompute-len": length,
    }
    if demand.plan.decision.prefetch:
        options["--overlap"] = None
    if placed.weights_cpu:
        options["--pin-weight"] = None
    return options


def _mapped(demand: CacheDemand, options: dict[str, Any]) -> tuple[Mapped, ...]:
    lengths = [layer.tokens.get("recompute", 0) for layer in demand.plan.decision.layers]
    spread = f"{min(lengths)}" if min(lengths) == max(lengths) else f"{min(lengths)}–{max(lengths)}"
    meanings = {
        "--recompute-len": f"{KEYS['--recompute-len'].unit}; the plan has {spread}",
        "--percent": f"{KEYS['--percent'].unit}; cache and activations all in host memory",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in options.items())


def _elsewhere(demand: CacheDemand) -> list[str]:
    """Say how to get a plan that KVPR can run as it is."""
    others = [path for path in demand.path_share if path not in ("fetch", "recompute")]
    return [
        f"the plan also uses {', '.join(others)}, KVPR only fetch and recompute: `kvplan solve "
        "--paths fetch,recompute` finds the best split of those"
    ] * bool(others)


def _unexpressed(demand: CacheDemand) -> list[Unexpressed]:
    found = [
        Unexpressed("decode schedule", schedule(demand),
                    "two buffers per tensor in turn; there are no stages"),
    ]  # fmt: skip
    for path, why in (
        ("resident", "the whole cache is in host memory and these tokens are fetched"),
        ("recompute_resident", "activations are in host memory; these tokens are fetched"),
        ("fetch_disk", "nothing is on disk; these tokens are fetched from host memory"),
    ):
        share = shares(demand, path)
        if share:
            found.append(Unexpressed(path, f"{percent(share)} of K and V", why))
    found += precision_lost(demand, "recompute and packed blocks do not go together there")
    found += host_attention_lost(demand, "these tokens are fetched")
    return found


def parse(text: str) -> dict[str, Any]:
    """Options of a script."""
    return options_of(read_script(text)[1][len(PROGRAM.split()) :])


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """Bytes of K and V that are fetched, and of activations that stand for the rest."""
    length = parse(text)["--recompute-len"]
    tokens = demand.batch * demand.token_bytes
    fetched = tokens * (demand.tokens - length)
    return ReadBack(host_bytes=fetched + tokens * length / 2, block_bytes=tokens * demand.block)


EXPORTER = Exporter(
    name="kvpr",
    title="KVPR (its FlexGen variant)",
    version="1712a52",
    file="kvpr.sh",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
