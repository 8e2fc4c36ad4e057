"""``kvplan transfer``: how long bytes take over a machine's link or from its disk."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.cli.declarations import gpu_option
from kvplan.cli.options import as_option
from kvplan.cli.output import Json, console, print_json, say
from kvplan.cli.values import whole_number
from kvplan.units import format_bytes, format_rate, format_seconds, parse_bytes, parse_rate

EPILOG = """
Examples:

\b
  kvplan transfer --gpu a100 --size 1GiB
  kvplan transfer --gpu mi300x --size 512MiB --piece 128KiB --batched
  kvplan transfer --gpu rtx-4090 --link pcie4x8 --size 4GiB --memory pageable
  kvplan transfer --gpu a100-80gb-sxm --size 1GiB --both --gpus 8
  kvplan transfer --gpu h100 --direction disk --size 1GiB --piece 64KiB --depth 16
"""

MOST = 1 << 20


# fmt: off
def transfer(
    gpu: Annotated[str, gpu_option()],
    size: Annotated[str, typer.Option(
        "--size", metavar="SIZE", help="Bytes in all, such as 1GiB.")] = "1GiB",
    piece: Annotated[str | None, typer.Option(
        "--piece", metavar="SIZE", help="Bytes of one piece. [default: all in one]")] = None,
    direction: Annotated[str, typer.Option(
        "--direction", metavar="h2d|d2h|disk", help="Host to GPU, back, or disk to host.")] = "h2d",
    memory: Annotated[str, typer.Option(
        "--memory", metavar="pinned|pageable|far",
        help="The host's memory; far: on the other NUMA node.")] = "pinned",
    both: Annotated[bool, typer.Option(
        "--both", help="The other direction is busy too.")] = False,
    gpus: Annotated[str, typer.Option(
        "--gpus", metavar="N", help="GPUs of this host that copy at once.")] = "1",
    batched: Annotated[bool, typer.Option(
        "--batched", help="All pieces in one call.")] = False,
    depth: Annotated[str, typer.Option(
        "--depth", metavar="N", help="Reads of the disk in flight.")] = "1",
    link: Annotated[str | None, typer.Option(
        "--link", metavar="SLOT", help="PCIe slot of the GPU, such as pcie4x8.")] = None,
    h2d: Annotated[str | None, typer.Option(
        "--h2d", metavar="RATE", help="Link to the GPU, as measured, such as 25GB/s.")] = None,
    as_json: Json = False,
) -> None:
    """Say how long bytes take to or from a GPU, or from a disk, and what slows them."""
    with as_option():
        from kvplan import transfer as model
        from kvplan.hardware import override
        from kvplan.hardware_library import load_hardware
        from kvplan.slot import parse_link

        changed: dict[str, Any] = {}
        if link is not None:
            changed["link_generation"], changed["link_lanes"] = parse_link(link)
        if h2d is not None:
            changed["h2d_bytes_per_s"] = parse_rate(h2d, "--h2d")
        card = override(load_hardware(gpu), **changed)
        moved = model.Transfer(
            size_bytes=parse_bytes(size, "--size"), direction=direction,  # type: ignore[arg-type]
            piece_bytes=None if piece is None else parse_bytes(piece, "--piece"),
            memory=memory, both=both, batched=batched,  # type: ignore[arg-type]
            gpus=whole_number(gpus, "--gpus", MOST), depth=whole_number(depth, "--depth", MOST),
        )
        taken_s = model.seconds(card, moved)
    sources = _sources(card, moved)
    raw = None if direction == "disk" else getattr(card, direction).raw_bytes_per_s
    document: dict[str, Any] = {
        "gpu": card.name, "link": card.links and card.links.slot and str(card.links.slot),
        "direction": direction, "size_bytes": moved.size_bytes, "pieces": moved.pieces,
        "seconds": taken_s, "bytes_per_s": moved.size_bytes / taken_s,
        "seconds_per_piece": taken_s / moved.pieces, "raw_bytes_per_s": raw, "sources": sources,
    }
    if direction == "disk" and card.disk is not None:
        document["deep_enough"] = card.disk.deep_enough(moved.piece_bytes or moved.size_bytes)
    if direction != "disk" and moved.gpus > 1 and card.links and card.links.uplink is None:
        total = moved.gpus * document["bytes_per_s"]
        say("warning", f"{card.name} knows no link that GPUs share, so each is counted alone: "
            f"{format_rate(total)} together, which the host's memory may not carry")  # fmt: skip
    if as_json:
        print_json(document)
        return
    _show(f"{card.title}; here {document['link']}" if link else card.title, document)
# fmt: on


def _sources(card: Any, moved: Any) -> list[dict[str, str]]:
    """Where the numbers are from that the time comes from."""
    from kvplan.transfer import origin

    found = []
    for path in origin(moved):
        for key, mark in card.provenance.items():
            if key == path or key.startswith(f"{path}."):
                found.append({"number": key, "kind": mark.kind, "source": mark.source})
    return found


def _show(title: str, document: dict[str, Any]) -> None:
    out = console()
    count = document["pieces"]
    pieces = f" in {count} pieces" if count > 1 else ""
    out.print(
        f"{format_bytes(document['size_bytes'])}{pieces}: {format_seconds(document['seconds'])}, "
        f"{format_rate(document['bytes_per_s'])}",
        style="bold green",
    )
    out.print()
    out.print(f"machine  {title}")
    if count > 1:
        out.print(f"piece    {format_seconds(document['seconds_per_piece'])} each")
    if document["raw_bytes_per_s"]:
        share = document["bytes_per_s"] / document["raw_bytes_per_s"]
        out.print(f"raw      {format_rate(document['raw_bytes_per_s'])}, of which {share:.0%}")
    if "deep_enough" in document:
        out.print(f"depth    {document['deep_enough']} reads in flight bring nearly all there is")
    for source in document["sources"]:
        out.print(f"from     {source['number']}, {source['kind']}: {source['source']}")
