"""Commands that other packages bring: entry points of the group ``kvplan.commands``.

An entry point names a function and is loaded only when its command is asked for, so that what it
needs (torch, for one) costs nothing otherwise. The module may hold ``NAME_EPILOG`` for its help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata

import typer

from kvplan.cli.manual import SectionedCommand

GROUP = "kvplan.commands"


def add_asked_for(app: typer.Typer, arguments: Sequence[str], settings: dict[str, object]) -> None:
    """Add the command that the arguments name, if a package brings it."""
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    known = {command.name for command in app.registered_commands}
    if wanted is None or wanted in known:
        return
    for entry in metadata.entry_points(group=GROUP, name=wanted):
        command = entry.load()
        module = sys.modules[command.__module__]
        epilog = getattr(module, f"{wanted.upper()}_EPILOG", None)
        app.command(wanted, cls=SectionedCommand, epilog=epilog, context_settings=settings)(command)
        return
