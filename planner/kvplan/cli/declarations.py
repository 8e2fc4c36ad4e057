"""Options that several commands take, each declared once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvplan.cli.completion import complete_gpu, complete_model

MOST_RANKS = 1024
"""Most ranks that one restore, fit or host is asked for."""

ASKED, MEMORY, FIGURES = "Model and machine", "Memory", "Figures of the machine, changed"
"""Headings of the help under which commands put the same options."""

GPU_HELP = "Name, or a .toml profile; `kvplan gpus` lists names."


def panel_option(panel: str | None, *names: str, metavar: str | None = None, **more: Any) -> Any:
    """An option under a heading of the help."""
    return typer.Option(*names, rich_help_panel=panel, metavar=metavar, **more)


def gpu_option(panel: str | None = None, help: str = GPU_HELP) -> Any:
    """A machine."""
    return panel_option(
        panel, "--gpu", "-g", metavar="NAME|PATH", autocompletion=complete_gpu, help=help
    )


def output_option(help: str, metavar: str = "FILE") -> Any:
    """A file to write."""
    return panel_option("Output", "-o", "--output", metavar=metavar, help=help)


def kv_dtype_option(panel: str) -> Any:
    """A format that the cache is read in."""
    return panel_option(
        panel, "--kv-dtype", metavar="FORMAT", help="Format of the cache: fp16, bf16, fp8, fp32."
    )


def mode_option(panel: str) -> Any:
    """How kernels are launched."""
    return panel_option(
        panel, "--mode", metavar="graph|eager",
        help="CUDA graph, or kernels launched one by one.",
    )  # fmt: skip


# fmt: off
Model = Annotated[str, panel_option(
    ASKED, "--model", "-m", metavar="NAME|PATH", autocompletion=complete_model,
    help="Name, or a config.json; `kvplan models` lists names.")]
Gpu = Annotated[str, gpu_option(ASKED)]
PlanOutput = Annotated[str | None, output_option("Write the plan to a file; - is stdout.")]
Hbm = Annotated[str | None, panel_option(
    MEMORY, "--hbm", metavar="SIZE", help="Most GPU memory to use, such as 40GiB.")]
Utilisation = Annotated[str, panel_option(
    MEMORY, "--utilisation", metavar="SHARE", help="Share of the card's memory that may be used.")]
Reserve = Annotated[str, panel_option(
    MEMORY, "--reserve", metavar="SIZE", help="GPU memory kept free on top.")]
H2d = Annotated[str | None, panel_option(
    FIGURES, "--h2d", metavar="RATE", help="Link to the GPU, such as 25GB/s.")]
Flops = Annotated[str | None, panel_option(
    FIGURES, "--flops", metavar="RATE", help="Achieved fp16 rate, such as 250TFLOP/s.")]
HbmBandwidth = Annotated[str | None, panel_option(
    FIGURES, "--hbm-bandwidth", metavar="RATE", help="GPU memory, such as 1.5TB/s.")]
# fmt: on
