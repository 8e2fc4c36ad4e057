"""``kvplan export``: a plan in the words and units of a runtime."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.completion import complete_runtime
from kvplan.cli.declarations import output_option
from kvplan.cli.output import Json, check_writable, print_json, say
from kvplan.cli.values import size
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.export.deployment import Deployment
    from kvplan.export.exporter import Export, Exporter
    from kvplan.plan import Plan

EPILOG = """
Examples:

\b
  kvplan export plan.json --to vllm
  kvplan export plan.json --to lmcache --tp 4 --host 768GB -o lmcache.yaml
  kvplan export plan.json --to sglang --pool 100GiB/rank --tp 4 --host here --json

The file is written with -o; beside it goes FILE.notes.txt with what the runtime cannot express.
"""

_PLACE = "Where it will run"


# fmt: off
def _option(*names: str, metavar: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=_PLACE, **more)


PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file; - is stdin.")]
To = Annotated[str, typer.Option(
    "--to", metavar="RUNTIME", autocompletion=complete_runtime,
    help="Such as vllm, lmcache or sglang; any other word lists all.")]
Output = Annotated[str | None, output_option(
    "Write the file, or its usual name into a folder. [default: only print]", "FILE|DIR")]
Ranks = Annotated[int | None, _option(
    "--tp", "--ranks", metavar="N", help="Tensor-parallel ranks on this host that share the plan's "
    "K and V. [default: the plan's]")]
Replicas = Annotated[int, _option(
    "--replicas", metavar="N", help="Engines on this host, each with its own pool.")]
Pool = Annotated[str, _option(
    "--pool", metavar="plan|all|SIZE", help="Host pool of an engine: what the plan keeps outside "
    "HBM, the whole batch, 40GiB of all ranks, or 10GiB/rank.")]
Host = Annotated[str | None, _option(
    "--host", metavar="SIZE|here", help="Host memory that is free; here measures this machine and "
    "its container. [default: the plan's host budget]")]
Container = Annotated[str | None, _option(
    "--container", metavar="SIZE", help="Memory limit of the container.")]
Used = Annotated[str, _option(
    "--container-used", metavar="SIZE", help="What already counts against that limit.")]
Reserve = Annotated[str | None, _option(
    "--reserve", metavar="SIZE", help="Host memory for everything else. [default: the runtime's "
    "own: 10GiB for sglang, else 0]")]
Shm = Annotated[str | None, _option("--shm", metavar="SIZE", help="Size of /dev/shm.")]
DiskPath = Annotated[str | None, _option(
    "--disk-path", metavar="DIR", help="Folder for what the plan keeps on disk.")]
OnePool = Annotated[bool, typer.Option(
    "--unified-memory", rich_help_panel=_PLACE, help="CPU and GPU share one memory.")]
# fmt: on


def export(
    file: PlanFile, to: To, output: Output = None, tp: Ranks = None, replicas: Replicas = 1,
    pool: Pool = "plan", host: Host = None, container: Container = None,
    container_used: Used = "0", reserve: Reserve = None, shm: Shm = None,
    disk_path: DiskPath = None, unified_memory: OnePool = False, as_json: Json = False,
) -> None:  # fmt: skip
    """Write a plan as the configuration of a runtime, and say what that cannot express."""
    from kvplan.export.registry import export_plan, find

    exporter = find(to)
    path = _target(output, exporter)
    plan = _read(file)
    deployment = _deployment(
        ranks=plan.inputs.workload.tp if tp is None else tp,
        replicas=replicas, pool=pool, host=host, container=container,
        container_used=container_used, reserve=reserve, shm=shm, disk_path=disk_path,
        one_pool=unified_memory,
    )  # fmt: skip
    made = export_plan(plan, exporter.name, deployment, path)
    if path is not None:
        _write(path, plan, exporter, made)
    for warning in made.warnings:
        say("warning", warning)
    if as_json:
        print_json(document(exporter, made, path))
        return
    from kvplan.cli.exports import show_export
    from kvplan.cli.output import console

    show_export(console(), exporter, made, path)


def document(exporter: Exporter, made: Export, path: str | None) -> dict[str, Any]:
    """What ``--json`` prints."""
    pool = made.pool
    return {
        "runtime": exporter.name,
        "title": exporter.title,
        "version": exporter.version,
        "file": path or exporter.file,
        "written": path is not None,
        "text": made.text,
        "command": made.command,
        "other_commands": [{"for": what, "command": line} for what, line in made.others],
        "mapped": [
            {"option": m.option, "value": m.value, "meaning": m.meaning} for m in made.mapped
        ],
        "not_expressed": [{"what": u.what, "plan": u.plan, "why": u.why} for u in made.unexpressed],
        "warnings": list(made.warnings),
        "pool": None
        if pool is None
        else {
            "asked_bytes": pool.asked_bytes,
            "total_bytes": pool.total_bytes,
            "rank_bytes": pool.rank_bytes,
            "ranks": pool.ranks,
            "chunk_tokens": pool.chunk_tokens,
            "chunk_bytes": pool.chunk_bytes,
            "chunks": pool.chunks,
        },
    }


def _read(file: str) -> Plan:
    from kvplan.plan_file import decode, read_plan

    return decode(sys.stdin.buffer.read(), "stdin") if file == "-" else read_plan(file)


def _target(output: str | None, exporter: Exporter) -> str | None:
    """The file to write; its notes go beside it."""
    if output is None:
        return None
    folder = output.endswith(os.sep) or (output != "" and Path(output).is_dir())
    path = str(Path(output) / exporter.file) if folder else output
    for each in (path, notes_of(path)):
        check_writable(each, "-o")
    if output == "-":
        raise InputError("-o", output, "a file or a folder; without -o the file is printed")
    return path


def notes_of(path: str) -> str:
    """Name of the notes beside a file.

    >>> notes_of("vllm.yaml")
    'vllm.yaml.notes.txt'
    """
    return f"{path}.notes.txt"


def _write(path: str, plan: Plan, exporter: Exporter, made: Export) -> None:
    from kvplan.cli.exports import notes
    from kvplan.plan_file import write_text

    write_text(notes_of(path), notes(plan, exporter, made))
    write_text(path, made.text)


def _deployment(
    *, ranks: int, replicas: int, pool: str, host: str | None, container: str | None,
    container_used: str, reserve: str | None, shm: str | None, disk_path: str | None,
    one_pool: bool,
) -> Deployment:  # fmt: skip
    from kvplan.export.deployment import Deployment
    from kvplan.units import parse_bytes

    limit, used = size(container, "--container"), parse_bytes(container_used, "--container-used")
    free: int | None
    found_shm: int | None
    if host == "here":
        from kvplan.export.here import measure

        here = measure()
        free, found_shm = here.free_bytes, here.shm_bytes
        if container is None:
            limit, used = here.limit_bytes, here.used_bytes
    else:
        free, found_shm = size(host, "--host"), None
    return Deployment(
        ranks=ranks,
        replicas=replicas,
        pool=_pool(pool, ranks),
        host_bytes=free,
        limit_bytes=limit,
        used_bytes=used,
        reserve_bytes=size(reserve, "--reserve"),
        shm_bytes=size(shm, "--shm") if shm is not None else found_shm,
        disk_path=disk_path,
        one_pool=one_pool,
    )


def _pool(text: str, ranks: int) -> str | int:
    from kvplan.units import parse_bytes

    if text in ("plan", "all"):
        return text
    number, each, rest = text.partition("/rank")
    if rest:
        raise InputError("--pool", text, "plan, all, or a size such as 40GiB or 10GiB/rank")
    asked = parse_bytes(number, "--pool")
    return asked * ranks if each else asked
