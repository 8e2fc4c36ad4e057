"""The command line: ``kvplan COMMAND``. Commands import what they need when they run.

Exit codes: 0 fine, 2 bad input, 3 no feasible plan or a machine that cannot run it, 1 a fault of
kvplan, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import gc
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

import kvplan
from kvplan.cli import (
    analyze,
    compare,
    export,
    fit,
    gpus,
    host,
    kv_size,
    models,
    plot,
    plugins,
    report,
    restore,
    schema,
    segments,
    simulate,
    solve,
    sweep,
    transfer,
)
from kvplan.cli.manual import SectionedCommand
from kvplan.cli.output import say
from kvplan.errors import KvplanError

_EPILOG = """
Examples:

\b
  kvplan solve --model llama-7b --gpu a100
  kvplan compare --model llama-3.1-8b --gpu h100 --context 32k
  kvplan solve --model opt-30b --gpu a100 -o plan.json && kvplan simulate plan.json --gpu h100

On a machine with torch, `kvplan profile` measures it and `kvplan validate` runs plans on it.
"""

_SETTINGS = {"help_option_names": ["--help", "-h"], "terminal_width": 100}

app = typer.Typer(
    name="kvplan", rich_markup_mode=None, context_settings=_SETTINGS, epilog=_EPILOG,
    pretty_exceptions_enable=False,
)  # fmt: skip

for _name, _command, _epilog in (
    ("solve", solve.solve, solve.EPILOG),
    ("compare", compare.compare, compare.EPILOG),
    ("simulate", simulate.simulate, simulate.EPILOG),
    ("kv-size", kv_size.kv_size, kv_size.EPILOG),
    ("restore", restore.restore, restore.EPILOG),
    ("segments", segments.segments, segments.EPILOG),
    ("sweep", sweep.sweep, sweep.EPILOG),
    ("plot", plot.plot, plot.EPILOG),
    ("report", report.report, report.EPILOG),
    ("analyze", analyze.analyze, analyze.EPILOG),
    ("fit", fit.fit, fit.EPILOG),
    ("host", host.host, host.EPILOG),
    ("transfer", transfer.transfer, transfer.EPILOG),
    ("models", models.models, models.EPILOG),
    ("gpus", gpus.gpus, gpus.EPILOG),
    ("export", export.export, export.EPILOG),
    ("schema", schema.schema, schema.EPILOG),
):
    app.command(_name, cls=SectionedCommand, epilog=_epilog, context_settings=_SETTINGS)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvplan {kvplan.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kvplan(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere on the line.")
    ] = False,
) -> None:
    """Plan KV-cache offload: which tokens stay, are fetched or recomputed, and how fast it is."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments after the program's name; None takes those of the process.

    Returns:
        The exit code.
    """
    if argv is None:
        _as_a_program()
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        plugins.add_asked_for(app, arguments, _SETTINGS)
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="kvplan", standalone_mode=False) or 0
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        code, message = explained(error)
        say("error", message)
        return code
    if code == 130:
        say("error", "interrupted")
    return int(code)


def _as_a_program() -> None:
    """What only a process of its own may change: broken pipes end it, odd terminals do not, and it
    looks for circles of unused objects seldom.
    """
    gc.set_threshold(100_000, 20, 20)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def explained(error: BaseException) -> tuple[int, str]:
    """Exit code and one sentence for anything that ended a command.

    >>> from kvplan.errors import InputError
    >>> explained(InputError("--batch", 0, "1 or more"))
    (2, '--batch: 0 is not accepted: 1 or more')
    """
    if isinstance(error, KvplanError):
        return error.exit_code, str(error)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return 130, "interrupted"
    usage = getattr(error, "format_message", None)  # of typer's and click's usage errors
    if usage is not None:
        place = getattr(error, "ctx", None)
        hint = f" (`{place.command_path} --help` shows what there is)" if place else ""
        return 2, f"{usage()}{hint}"
    detail = f"{type(error).__name__}: {error}"
    return 1, f"internal error ({detail[:200]}); run with --debug to see where"
