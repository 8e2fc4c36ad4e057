"""Forgiving names: what people type, matched to the one canonical name it means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence

from kvplan.errors import InputError

_LISTED_BY = {"model": "kvplan models", "gpu": "kvplan gpus"}
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s.:-]")
_SUFFIXES = ("hf", "instruct")
_SEPARATORS = re.compile(r"[-_\s/:]+")
MOST_LISTED = 6


def resolve(
    text: str, names: Mapping[str, Sequence[str]], field: str, partial: bool = False
) -> str:
    """Find the canonical name that a text means.

    Case and the separators ``-_.: `` do not matter, but a separator between two numbers does:
    ``opt-1.3b`` is never ``opt-13b``. An organisation in front, and ``-hf`` or ``-instruct``
    behind, may be left out or be another as long as one name remains.

    Args:
        text: what was typed.
        names: canonical name to its aliases.
        field: what to name in the error; ``model`` and ``gpu`` also tell how to list all.
        partial: whether some of a name's words are enough, in any order.

    Raises:
        InputError: no name or several fit; the candidates or the nearest names are listed.

    >>> names = {"meta-llama/Llama-2-7b-hf": ["llama2-7b"], "facebook/opt-1.3b": []}
    >>> resolve("Llama_2 7B", names, "model"), resolve("opt-1.3b", names, "model")
    ('meta-llama/Llama-2-7b-hf', 'facebook/opt-1.3b')
    >>> resolve("a100 80gb", {"a100-80gb-pcie": [], "a100-40gb-pcie": []}, "gpu", partial=True)
    'a100-80gb-pcie'
    """
    if not isinstance(text, str):
        raise InputError(field, text, "a name")
    if text in names:
        return text
    for key in (_whole, _without_organisation, _without_suffix):
        wanted = key(text)
        found = [
            canonical
            for canonical, aliases in names.items()
            if wanted and wanted in (key(canonical), *map(key, aliases))
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(field, text, f"one of the names it could mean: {', '.join(found)}")
    found = _with_words(text, names) if partial else []
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(found[:MOST_LISTED]) + ", ..." * (len(found) > MOST_LISTED)
        raise InputError(field, text, f"one of the names it could mean: {listed}")
    raise InputError(field, text, _suggestion(text, names, field))


def _with_words(text: str, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that have all words of a text, words being what separators divide."""
    wanted = {word for word in _SEPARATORS.split(text.casefold()) if word}
    return [
        canonical
        for canonical, aliases in names.items()
        if wanted
        and any(wanted <= {*_SEPARATORS.split(n.casefold())} for n in (canonical, *aliases))
    ]


def _whole(name: str) -> tuple[str, ...]:
    """Runs of letters and runs of digits, so that separators and case do not matter."""
    return tuple(_WORD.findall(name.casefold()))


def _without_organisation(name: str) -> tuple[str, ...]:
    return _whole(name.rpartition("/")[2])


def _without_suffix(name: str) -> tuple[str, ...]:
    words = _without_organisation(name)
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words = words[:-1]
    return words


def _suggestion(text: str, names: Mapping[str, Sequence[str]], field: str) -> str:
    """What to type instead: up to three nearest names, and the command that lists all."""
    spelled: dict[str, str] = {}
    for canonical, aliases in names.items():
        for name in (canonical, *aliases):
            spelled.setdefault(" ".join(_without_organisation(name)), canonical)
    wanted = " ".join(_without_organisation(text[:100]))
    near = difflib.get_close_matches(wanted, spelled, n=8, cutoff=0.6)
    nearest = list(dict.fromkeys(spelled[name] for name in near))[:3]
    command = _LISTED_BY.get(field.strip("-"))
    parts = []
    if nearest:
        parts.append(f"did you mean {' or '.join(nearest)}?")
    if command:
        parts.append(f"`{command}` lists all names")
    return " ".join(parts) or f"one of {', '.join(names)}"
