"""Hardware files: TOML to `HardwareProfile`. Units are converted here, once.

The format is described in ``hwprofiles/README.md``. Every number is a table with its value, unit
and provenance; key sets are exact, so that a typing error cannot pass unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from typing import Any

from kvplan.disk import Queue
from kvplan.errors import InputError
from kvplan.hardware import (
    DTYPES,
    KINDS,
    AttentionCurve,
    Disk,
    GemmCurve,
    Gpu,
    HardwareProfile,
    Host,
    LinearCurve,
    Link,
    Links,
)
from kvplan.hardware_parts import LINEAR_SHAPES
from kvplan.hardware_table import DEPTH, FLOP, RATE, SHARE, SIZE, TIME, TOKENS, Table
from kvplan.link import Pieces, Uplink
from kvplan.peer import Peer
from kvplan.slot import C2C, Slot, parse_link
from kvplan.tier import ATTENDED_BY, Tier

SCHEMA = 1
"""Version of the file format."""

_MAX_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


def read_hardware_file(path: str | os.PathLike[str]) -> HardwareProfile:
    """Read one hardware file.

    Args:
        path: a TOML file in the format of ``hwprofiles/README.md``.

    Returns:
        The profile, in SI units.

    Raises:
        InputError: the file cannot be read, is no TOML, or a key in it is unknown, missing or
            out of range; one line that names the file and the key path.
    """
    file = os.fspath(path)
    try:
        with open(file, "rb") as stream:
            content = stream.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(file, "file", f"a TOML file that can be read ({reason})") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError(file, "file", f"at most {_MAX_FILE_BYTES} bytes")
    try:
        return parse_hardware(content.decode("utf-8"), file)
    except UnicodeDecodeError as error:
        raise InputError(file, "content", f"text in UTF-8 (byte {error.start} is not)") from None


def parse_hardware(text: str, file: str = "hardware") -> HardwareProfile:
    """Read the text of a hardware file; ``file`` names it in errors.

    Raises:
        InputError: as `read_hardware_file`.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(file, "content", f"valid TOML ({error})") from None
    return from_document(document, file)


def from_document(document: dict[str, Any], file: str = "hardware") -> HardwareProfile:
    """Read the parsed content of a hardware file; ``file`` names it in errors.

    Raises:
        InputError: as `read_hardware_file`.
    """
    try:
        canonical = json.dumps(document, sort_keys=True, default=str)
    except (ValueError, RecursionError) as error:  # such as a hexadecimal of 5000 digits
        raise InputError(file, "content", f"plain numbers and texts ({error})") from None
    top = Table(file, "", document, {}, {})
    if "schema" in document and repr(document["schema"]) != str(SCHEMA):
        raise top.error("schema", document["schema"], f"{SCHEMA}, the known format")
    unified = "unified" in document
    top.keys(
        "schema name title kind date gpu host" + " unified" * unified + " h2d d2h" * (not unified),
        "aliases disk peer tier" + " link" * (not unified),
    )
    if unified and document["unified"] is not True:
        raise top.error("unified", document["unified"], "true, or left out")
    name = top.text("name")
    if not _NAME.fullmatch(name):
        raise top.error("name", name, "lower-case letters, digits, '.' and '-'")
    fields: dict[str, Any] = {
        "name": name,
        "title": top.text("title"),
        "aliases": tuple(top.texts("aliases")),
        "kind": top.choice("kind", KINDS),
        "gpu": _gpu(top),
        "links": None if unified else _links(top),
        "host": _host(top, unified),
        "disk": _disk(top) if "disk" in document else None,
        "peer": _peer(top) if "peer" in document else None,
        "tier": _tier(top) if "tier" in document else None,
        "date": top.date("date"),
    }
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return top.build(
        HardwareProfile, **fields, provenance=top.provenance, residuals=top.residuals, digest=digest
    )


def _peer(top: Table) -> Peer:
    peer = top.table("peer", "bandwidth latency")
    return peer.build(
        Peer, bytes_per_s=peer.number("bandwidth", RATE), latency_s=peer.number("latency", TIME)
    )


def _tier(top: Table) -> Tier:
    tier = top.table("tier", "name capacity bandwidth latency attended_by")
    return tier.build(
        Tier,
        name=tier.text("name"),
        capacity_bytes=tier.size("capacity"),
        bytes_per_s=tier.number("bandwidth", RATE),
        latency_s=tier.number("latency", TIME),
        attended_by=tier.choice("attended_by", ATTENDED_BY),
    )


def _gpu(top: Table) -> Gpu:
    gpu = top.table(
        "gpu",
        "name memory hbm_bandwidth flop kernel launch",
        "hbm_efficiency gemm attention attention_points linear linear_points graph_launch "
        "dequantise_bandwidth gemm_sustained edge wait sample",
    )
    nominal = gpu.number("hbm_bandwidth", RATE)
    kind = gpu.provenance["gpu.hbm_bandwidth"].kind
    if kind == "datasheet" and "hbm_efficiency" not in gpu.raw:
        raise gpu.error("hbm_efficiency", None, "needed beside a bandwidth from a datasheet")
    if kind == "measured" and "hbm_efficiency" in gpu.raw:
        raise gpu.error("hbm_efficiency", "given", "left out: a measured bandwidth is usable as is")
    return gpu.build(
        Gpu,
        name=gpu.text("name"),
        memory_bytes=gpu.size("memory"),
        hbm_bytes_per_s=nominal * (gpu.optional("hbm_efficiency", SHARE) or 1.0),
        flop_per_s=gpu.per_dtype("flop", FLOP),
        gemm=_gemm(gpu),
        attention=gpu.curve("attention") if "attention" in gpu.raw else None,
        kernel_s=gpu.number("kernel", TIME),
        launch_s=gpu.number("launch", TIME),
        graph_launch_s=gpu.optional("graph_launch", TIME),
        dequantise_bytes_per_s=gpu.per_dtype("dequantise_bandwidth", RATE),
        attention_shapes=_attention_shapes(gpu),
        linear=gpu.curve("linear") if "linear" in gpu.raw else None,
        linear_shapes=_linear_shapes(gpu),
        gemm_sustained=gpu.optional("gemm_sustained", SHARE),
        edge_s=gpu.optional("edge", TIME),
        wait_s=gpu.optional("wait", TIME),
        sample_s=gpu.optional("sample", TIME),
    )


def _gemm(gpu: Table) -> tuple[GemmCurve, ...]:
    curves = []
    for index, raw in enumerate(_rows(gpu, "gemm")):
        row = gpu.inner(f"gemm.{index}", raw, "inputs outputs dtype time")
        shape = {key: row.whole(key) for key in ("inputs", "outputs")}
        dtype = row.choice("dtype", DTYPES)
        time = row.table("time", "points kind source", "note date")
        curves.append(row.build(GemmCurve, **shape, dtype=dtype, seconds=time.points(TOKENS)))
    return tuple(curves)


def _attention_shapes(gpu: Table) -> tuple[AttentionCurve, ...]:
    names = ("sequences", "kv_heads", "group", "head_dim")
    curves = []
    for index, raw in enumerate(_rows(gpu, "attention_points")):
        row = gpu.inner(f"attention_points.{index}", raw, " ".join((*names, "time")))
        shape = {key: row.whole(key) for key in names}
        time = row.table("time", "points kind source", "note date")
        curves.append(row.build(AttentionCurve, **shape, seconds=time.points(SIZE)))
    return tuple(curves)


def _linear_shapes(gpu: Table) -> tuple[LinearCurve, ...]:
    curves = []
    for index, raw in enumerate(_rows(gpu, "linear_points")):
        row = gpu.inner(f"linear_points.{index}", raw, "tokens time", "shape")
        time = row.table("time", "points kind source", "note date")
        shape = row.choice("shape", LINEAR_SHAPES) if "shape" in row.raw else "any"
        tokens, seconds = row.whole("tokens"), time.points(SIZE)
        curves.append(row.build(LinearCurve, tokens=tokens, seconds=seconds, shape=shape))
    return tuple(curves)


def _rows(table: Table, key: str) -> list[Any]:
    rows = table.raw.get(key, [])
    if not isinstance(rows, list):
        raise table.error(key, rows, f"a list of tables, [[{table.at(key)}]]")
    return rows


def _links(top: Table) -> Links:
    slot = uplink = None
    if "link" in top.raw:
        link = top.table("link", "slot", "uplink")
        slot = _slot(link)
        uplink = _uplink(link) if "uplink" in link.raw else None
    return top.build(Links, h2d=_link(top, "h2d"), d2h=_link(top, "d2h"), slot=slot, uplink=uplink)


def _slot(link: Table) -> Slot:
    text = link.text("slot")
    if text == C2C:
        return Slot()
    try:
        generation, lanes = parse_link(text)
    except InputError as error:
        raise link.error("slot", text, f"{error.accepted}, or {C2C}") from None
    return Slot(generation=generation, lanes=lanes)


def _uplink(link: Table) -> Uplink:
    table = link.table("uplink", "gpus h2d_bandwidth d2h_bandwidth")
    return table.build(
        Uplink,
        gpus=table.whole("gpus"),
        h2d_bytes_per_s=table.number("h2d_bandwidth", RATE),
        d2h_bytes_per_s=table.number("d2h_bandwidth", RATE),
    )


def _link(top: Table, key: str) -> Link:
    link = top.table(
        key,
        "raw_bandwidth copy latency",
        "duplex_bandwidth pageable_bandwidth far_bandwidth loop batch",
    )
    return link.build(
        Link,
        raw_bytes_per_s=link.number("raw_bandwidth", RATE),
        copy=link.curve("copy"),
        latency_s=link.number("latency", TIME),
        duplex_bytes_per_s=link.optional("duplex_bandwidth", RATE),
        pageable_bytes_per_s=link.optional("pageable_bandwidth", RATE),
        far_bytes_per_s=link.optional("far_bandwidth", RATE),
        loop=_pieces(link, "loop"),
        batch=_pieces(link, "batch"),
    )


def _pieces(link: Table, key: str) -> Pieces | None:
    if key not in link.raw:
        return None
    table = link.table(key, "points kind source", "note date")
    return table.build(Pieces, points=tuple(table.pairs(SIZE, TIME)))


def _disk(top: Table) -> Disk:
    disk = top.table("disk", "read capacity", "queue")
    queues = []
    for index, raw in enumerate(_rows(disk, "queue")):
        row = disk.inner(f"queue.{index}", raw, "size points kind source", "note date")
        size = int(row.bare("size", SIZE))
        pairs = tuple((int(depth), rate) for depth, rate in row.pairs(DEPTH, RATE))
        queues.append(row.build(Queue, size_bytes=size, points=pairs))
    return disk.build(
        Disk, read=disk.curve("read"), capacity_bytes=disk.size("capacity"), queues=tuple(queues)
    )


def _host(top: Table, unified: bool) -> Host:
    host = top.table(
        "host",
        "attention_latency" if unified else "dram attention_latency",
        "attention_bandwidth attention_gqa_bandwidth copy_share copy_share_gqa"
        + " pinned" * (not unified),
    )
    return host.build(
        Host,
        dram_bytes=0 if unified else host.size("dram"),
        pinned_bytes=host.size("pinned") if "pinned" in host.raw else None,
        attention_bytes_per_s=host.per_dtype("attention_bandwidth", RATE),
        attention_gqa_bytes_per_s=host.per_dtype("attention_gqa_bandwidth", RATE),
        attention_latency_s=host.number("attention_latency", TIME),
        copy_share=host.optional("copy_share", SHARE),
        copy_share_gqa=host.optional("copy_share_gqa", SHARE),
    )
