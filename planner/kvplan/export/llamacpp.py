"""llama.cpp: a script that starts ``llama-server``."""

from __future__ import annotations

from shlex import quote
from typing import Any

from kvplan.errors import InputError
from kvplan.export.command_line import options_of, read_script, script
from kvplan.export.demand import CacheDemand
from kvplan.export.deployment import Deployment, check_host, refuse_one_pool
from kvplan.export.exporter import Export, Exporter, Key, Mapped, ReadBack, Unexpressed
from kvplan.export.pool import round_up
from kvplan.export.prefix_cache import percent, schedule, shares
from kvplan.units import format_bytes

DTYPES = {"fp16": "f16", "bf16": "bf16", "fp32": "f32"}
"""Format of the plan to ``--cache-type-k`` and ``-v``."""

CONTEXT_STEP = 256
"""Cells of the cache come in multiples of this. Source: src/llama-context.cpp, GGML_PAD."""

_HELP = "tools/server/README.md at 00dc805"

KEYS = {
    "-m": Key(kind=str, unit="a GGUF file", source=_HELP),
    "-c": Key(kind=int, unit="tokens of all slots together", source=_HELP, least=1),
    "-np": Key(kind=int, unit="slots, one sequence each", source=_HELP, least=1),
    "-ngl": Key(kind=str, unit="layers of weights in HBM", source=_HELP, words=("all",)),
    "-fit": Key(kind=str, unit="off: nothing is changed to fit", source=_HELP, words=("off",)),
    "-ctk": Key(kind=str, unit="format of K", source=_HELP, words=("f16", "bf16", "f32")),
    "-ctv": Key(kind=str, unit="format of V", source=_HELP, words=("f16", "bf16", "f32")),
    "-kvo": Key(kind=type(None), unit="K and V in HBM (offloaded to the GPU, in its words)",
                source=_HELP),
    "-nkvo": Key(kind=type(None), unit="K and V in host memory, attention on the CPU",
                 source=_HELP),
}  # fmt: skip

PROGRAM = "llama-server"


def export(demand: CacheDemand, deployment: Deployment, file: str) -> Export:
    """Write a script that starts the server.

    Raises:
        InputError: paths or formats llama.cpp has not, several ranks, or streamed weights.
        InfeasibleError: host memory does not hold all of K and V.
    """
    host = _attends_on_host(demand, deployment)
    warnings: list[str] = []
    if host:
        refuse_one_pool(demand, deployment)
        warnings = check_host(
            demand,
            deployment,
            _cells(demand) * demand.token_bytes,
            change="a smaller batch or fewer tokens",
        )
    dtype = demand.dtype_as(DTYPES, "llama.cpp")
    options: dict[str, Any] = {
        "-m": f"{demand.model.name.rpartition('/')[2]}.gguf",
        "-c": _cells(demand),
        "-np": demand.batch,
        "-ngl": "all",
        "-fit": "off",
        "-ctk": dtype,
        "-ctv": dtype,
        "-nkvo" if host else "-kvo": None,
    }
    return Export(
        command=f"sh {quote(file)}",
        text=script(PROGRAM, options, comment=f"llama.cpp {EXPORTER.version}, from kvplan; -m is "
                    "your own GGUF file"),
        mapped=_mapped(demand, options),
        unexpressed=tuple(_unexpressed(demand, host)),
        warnings=tuple(warnings),
    )  # fmt: skip


def _attends_on_host(demand: CacheDemand, deployment: Deployment) -> bool:
    """Whether K and V lie in host memory; refuses plans that are neither there nor in HBM."""
    if deployment.ranks > 1:
        raise InputError("--tp", deployment.ranks, "1: -ts divides a model among GPUs unevenly")
    demand.dtype_as(DTYPES, "llama.cpp")
    if demand.streamed_weights:
        raise InputError(
            "decision.layers.streamed_weights", percent(demand.streamed_weights),
            "none: layers outside HBM are computed on the CPU there; solve with --weights resident",
        )  # fmt: skip
    away = sorted(path for path in demand.path_share if path != "resident")
    if set(away) - {"attend_host"}:
        raise InputError(
            "decision.layers.tokens", ", ".join(away),
            "resident or attend_host alone: llama.cpp never sends K and V back to the GPU, -nkvo "
            "attends them on the CPU; solve with --paths resident,attend_host",
        )  # fmt: skip
    return bool(away)


def _cells(demand: CacheDemand) -> int:
    """Cells of all slots: each slot gets the same number, a multiple of 256."""
    return demand.batch * round_up(demand.tokens, CONTEXT_STEP)


def _mapped(demand: CacheDemand, options: dict[str, Any]) -> tuple[Mapped, ...]:
    size = format_bytes(_cells(demand) * demand.token_bytes)
    meanings = {
        "-c": f"tokens of all slots together; {size} of K and V",
        "-fit": "off: the default lowers whatever was left unset until it fits",
    }
    return tuple(Mapped(n, v, meanings.get(n, KEYS[n].unit)) for n, v in options.items())


def _unexpressed(demand: CacheDemand, host: bool) -> list[Unexpressed]:
    found = [Unexpressed("decode schedule", schedule(demand), "layers run one after the other")]
    resident = shares(demand, "resident")
    if host and resident:
        found.append(
            Unexpressed("resident tokens per layer", f"{percent(resident)} of K and V in HBM",
                        "-nkvo moves all of K and V to host memory, and all attention with it")
        )  # fmt: skip
    return found


def parse(text: str) -> dict[str, Any]:
    """Options of a script."""
    return options_of(read_script(text)[1][1:])


def read_back(text: str, demand: CacheDemand, deployment: Deployment) -> ReadBack:
    """All cells in one place; slots are rounded up to 256 tokens."""
    options = parse(text)
    size = options["-c"] * demand.token_bytes
    step = demand.batch * CONTEXT_STEP * demand.token_bytes
    if "-nkvo" in options:
        return ReadBack(host_bytes=size, block_bytes=step)
    return ReadBack(host_bytes=0.0, block_bytes=step, hbm_bytes=size)


EXPORTER = Exporter(
    name="llamacpp",
    aliases=("llama.cpp", "llama-cpp", "llama-server"),
    title="llama.cpp server",
    version="00dc805",
    file="llama-server.sh",
    keys=KEYS,
    export=export,
    parse=parse,
    read_back=read_back,
)
