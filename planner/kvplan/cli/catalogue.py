"""Lists of what comes with kvplan, or one of them in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from kvplan.cli.output import console, print_json
from kvplan.errors import InputError


def one_name(words: list[str] | None) -> str | None:
    """The name in ``[show] NAME``, or None where all are asked for.

    Raises:
        InputError: no name after ``show``, or several.

    >>> one_name(["show", "l4"]), one_name(["list"]), one_name(None)
    ('l4', None, None)
    """
    given = list(words or ())
    if given == ["list"] or not given:
        return None
    if given[0] == "show":
        del given[0]
    if len(given) != 1:
        raise InputError("NAME", " ".join(given), "one name or path")
    return given[0]


def show_catalogue(
    key: Literal["gpus", "models"],
    words: list[str] | None,
    as_json: bool,
    *,
    rows: Callable[[], list[dict[str, Any]]],
    detail: Callable[[str], dict[str, Any]],
) -> None:
    """Print a list, or one of it.

    Args:
        key: of the list in JSON.
        words: what was typed, ``[show] [NAME]``.
        as_json: one JSON document, no table.
        rows: all of the list, a row each.
        detail: a name or path to all that is known of it.
    """
    wanted = one_name(words)
    found = rows() if wanted is None else [detail(wanted)]
    if as_json:
        print_json({key: found} if wanted is None else found[0])
        return
    from kvplan.cli import tables

    of_all, of_one = {
        "gpus": (tables.show_gpus, tables.show_gpu),
        "models": (tables.show_models, tables.show_model),
    }[key]
    show = of_all if wanted is None else of_one
    show(console(), found)
