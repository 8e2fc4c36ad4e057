"""Help texts: options under the headings of their panels, in plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class SectionedCommand(TyperCommand):
    """A command whose help lists its options under headings."""

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
