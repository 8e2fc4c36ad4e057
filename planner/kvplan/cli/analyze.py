"""``kvplan analyze``: what a profiler trace says about the link."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.declarations import gpu_option
from kvplan.cli.output import Json, print_json, say
from kvplan.cli.values import whole_number
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.analysis import Analysis
    from kvplan.profiler_trace import Profile
    from kvplan.traced_copies import Copies

EPILOG = """
A trace is what `torch.profiler` writes with `export_chrome_trace` (with CUDA activities), an
export of Nsight Systems or XLA in JSON, or one of kvplan's own; .gz is read too.

Examples:

\b
  kvplan analyze trace.json
  kvplan analyze trace.json.gz --gpu h100 --steps 16
  kvplan simulate plan.json --trace - | kvplan analyze - --json
"""

File = Annotated[str, typer.Argument(metavar="TRACE", help="A trace in JSON; - is stdin.")]
Gpu = Annotated[str | None, gpu_option(help="The machine, to say what its link could do.")]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="N", help="Decode steps in the trace. [default: as the profiler marked]"
    ),
]
Device = Annotated[
    str | None,
    typer.Option("--device", metavar="N", help="Which GPU. [default: the one with most copies]"),
]


def analyze(
    trace: File, gpu: Gpu = None, steps: Steps = None, device: Device = None, as_json: Json = False
) -> None:
    """Read a profiler trace: is the link the bottleneck, how well is it hidden, what to change."""
    from kvplan.analyze import analyze as judged
    from kvplan.profiler_trace import read_profile

    count = None if steps is None else whole_number(steps, "--steps", 10**9)
    if device is not None and not device.isdecimal():
        raise InputError("--device", device, "the number of a GPU, such as 0")
    hardware = None
    if gpu is not None:
        from kvplan.hardware_library import load_hardware

        hardware = load_hardware(gpu)
    profile = read_profile(trace, None if device is None else int(device))
    found = judged(profile, count, hardware)
    others = len(profile.devices) - 1
    if others and device is None:
        say("note", f"GPU {profile.device} of {others + 1} in the trace; --device picks another")
    if as_json:
        print_json(_document(profile, found))
        return
    from kvplan.cli.display import show_analysis
    from kvplan.cli.output import console

    show_analysis(console(), profile, found)


def _document(profile: Profile, found: Analysis) -> dict[str, Any]:
    """What ``--json`` prints; sizes are bytes, times seconds over the whole trace."""
    document = asdict(found)
    document["advice"] = [asdict(advice) for advice in found.advice]
    document["step_s"] = found.window_s / found.steps if found.steps else None
    for name, copies in (("h2d", found.h2d), ("d2h", found.d2h)):
        document[name] = _copies(copies)
    return {"device": profile.device, "card": profile.card, **document}


def _copies(copies: Copies) -> dict[str, Any]:
    classes = [
        {"up_to_bytes": limit, "bytes": moved, "seconds": seconds}
        for limit, (moved, seconds) in copies.classes.items()
    ]
    return {**asdict(copies), "bytes_per_s": copies.bytes_per_s, "classes": classes}
