"""Commands that need a real machine, for ``kvplan`` to load: ``kvplan profile``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.cli.output import Json, check_writable, console, print_json, say
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan_validate.profile import Step

PROFILE_EPILOG = """
Examples:

\b
  kvplan profile -o my.toml && kvplan solve --model llama-7b --gpu ./my.toml
  kvplan profile --only copies,host --budget 30
  kvplan profile --from raw.json -o my.toml
"""

LEAST_BUDGET_S, MOST_BUDGET_S = 0.1, 86400.0


def profile(
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Hardware profile to write (.toml); - is stdout.",
                     rich_help_panel="Output"),
    ] = None,
    raw_output: Annotated[
        str | None,
        typer.Option("--raw", help="Raw results to write (.json).", rich_help_panel="Output"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the profile. [default: after the card]",
                     rich_help_panel="Output"),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="Measurements or groups of them, with commas between. "
                     "[default: all]", rich_help_panel="Measurement"),
    ] = None,
    budget: Annotated[
        float,
        typer.Option("--budget", help="Seconds for everything.", rich_help_panel="Measurement"),
    ] = 110.0,
    scratch: Annotated[
        str | None,
        typer.Option("--scratch", help="Folder on the disk to measure; a temporary file of at "
                     "most 4 GiB. [default: the system's]", rich_help_panel="Measurement"),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", help="Raw results to read instead of measuring.",
                     rich_help_panel="Measurement"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Measure only what the file of --raw does not hold yet, "
                     "after an interrupt.", rich_help_panel="Measurement"),
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure this machine and write a hardware profile; a machine without a GPU does what it can.

    Numbers that could not be measured are marked as assumed, with the rule they follow.
    """
    _check(output, raw_output, budget, scratch)
    if resume and raw_output is None:
        raise InputError("--resume", None, "with --raw FILE, which holds what was measured")
    from kvplan_validate.hardware_document import default_name, residuals, to_toml

    raw = _read(source) if source else _measured(only, budget, scratch, raw_output, resume=resume)
    file = Path(raw_output or source or "raw results, not kept").name
    name = name or default_name(raw)
    text = to_toml(raw, name, f"{raw['machine'].get('card', 'No GPU')}, as measured here", file)
    rows = residuals(raw, file)
    _write(output, text, raw_output, raw)
    if as_json:
        print_json({**raw, "residuals": rows})
        return
    if output == "-":
        sys.stdout.write(text)
        return
    from kvplan_validate.profile_tables import show_measurements, show_residuals

    show_measurements(console(), raw)
    if rows:
        console().print("\nFitted curves, and how far each lies below one of its points:\n")
        show_residuals(console(), rows)
    written = [path for path in (output, raw_output) if path]
    console().print("\n" + (f"Written to {' and '.join(written)}" if written else
                            "Nothing written; -o FILE writes a hardware profile"))  # fmt: skip


def _check(output: str | None, raw: str | None, budget: float, scratch: str | None) -> None:
    """Refuse what cannot work before minutes are spent."""
    check_writable(output, "--output")
    check_writable(raw, "--raw")
    if raw == "-":
        raise InputError("--raw", raw, "a file; --json writes raw results to stdout")
    if not LEAST_BUDGET_S <= budget <= MOST_BUDGET_S:
        raise InputError("--budget", budget, f"{LEAST_BUDGET_S:g} to {MOST_BUDGET_S:g} seconds")
    if scratch is not None and not Path(scratch).is_dir():
        raise InputError("--scratch", scratch, "a folder that exists")


def _measured(
    only: str | None, budget: float, scratch: str | None, raw_output: str | None, *, resume: bool
) -> dict[str, Any]:
    from kvplan_validate.interrupt import unwinding
    from kvplan_validate.profile import run_profile

    done: list[str] = []

    def keep(raw: dict[str, Any]) -> None:
        done[:] = [k for k, entry in raw["measurements"].items() if entry["state"] == "measured"]
        if raw_output:
            _write_raw(raw_output, raw)

    def kept() -> str:
        if raw_output is None:
            return f"{len(done)} measurements were done; --raw FILE would have kept them"
        if not done:
            return "nothing had been measured"
        return f"{raw_output} keeps {len(done)} measurements; --resume goes on from there"

    with unwinding(kept):
        raw = run_profile(
            (only or "").split(","), budget, _show_step, scratch=scratch, keep=keep,
            earlier=_read(raw_output, "--raw") if resume and raw_output else None,
        )  # fmt: skip
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    for key, entry in raw["measurements"].items():
        if entry["state"] == "failed":
            say("warning", f"{key} failed: {entry['reason']}")
    return raw


def _show_step(step: Step) -> None:
    text = f"measuring {step.key} ({step.number} of {step.of}), about {step.left_s:.0f} s left"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    else:
        say("note", text)


def _read(file: str, option: str = "--from") -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(option, file, f"raw results in JSON ({error})") from None
    known = isinstance(raw, dict) and isinstance(raw.get("measurements"), dict)
    if not known or not isinstance(raw.get("machine"), dict):
        raise InputError(option, file, "raw results of kvplan profile")
    return raw


def _write(output: str | None, text: str, raw_output: str | None, raw: dict[str, Any]) -> None:
    """Write both files, each whole or not at all."""
    from kvplan.plan_file import write_text

    if raw_output:
        _write_raw(raw_output, raw)
    if output and output != "-":
        write_text(output, text)


def _write_raw(file: str, raw: dict[str, Any]) -> None:
    from kvplan.plan_file import write_text

    write_text(file, json.dumps(raw, indent=1, allow_nan=False) + "\n")


COMMANDS = {"profile": (profile, PROFILE_EPILOG)}
"""Name to function and epilogue of its help."""
