"""Commands as people use them: help under headings, options as other programs spell them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from kvplan.cli.spelling import respelled


class SectionedCommand(TyperCommand):
    """A command whose help lists its options under headings, and that knows other spellings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read arguments; options may be spelled as other programs do."""
        known = {name for one in self.get_params(ctx) for name in (*one.opts, *one.secondary_opts)}
        try:
            return super().parse_args(ctx, respelled(args, known))
        except Exception as error:
            message = getattr(error, "message", "")
            if "unexpected extra argument" in message and "--model" in known:
                error.message = f"{message}: a model is given as --model NAME"  # type: ignore[attr-defined]
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then every panel of options in the order of first use."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None)
                kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(panel or kind, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)
