"""Forgiving names: what people type, matched to the one canonical name it means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from kvplan.errors import InputError

_LISTED_BY = {"model": "kvplan models", "gpu": "kvplan gpus"}
_GIVEN_AS = {"model": "a path to its config.json", "gpu": "a path to its .toml profile"}
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s.:-]")
_SUFFIXES = ("hf", "instruct", "chat", "it", "latest")
_BASE = "base"
"""A suffix only behind a size: ``Qwen3-8B-Base``, never ``whisper-base``."""

_NOISE = frozenset(
    ("nvidia", "corporation", "geforce", "tesla", "gpu", "graphics", "amd", "quadro")
)
"""Words that drivers put around the name of a card."""

_BRACKETED = re.compile(r".*\[([^\]]+)\].*")
_SHORT_SIZE = re.compile(r"(\d+)g", re.I)
_SEPARATORS = re.compile(r"[-_\s/:]+")
MOST_LISTED = 6


def resolve(
    text: str, names: Mapping[str, Sequence[str]], field: str, partial: bool = False
) -> str:
    """Find the canonical name that a text means.

    Case and the separators ``-_.: `` do not matter, but a separator between two numbers does:
    ``opt-1.3b`` is never ``opt-13b``. An organisation in front, and ``-hf``, ``-instruct``,
    ``-chat`` or ``-it`` behind, may be left out or be another as long as one name remains.

    Args:
        text: what was typed.
        names: canonical name to its aliases.
        field: what to name in the error; ``model`` and ``gpu`` also tell how to list all.
        partial: whether some of a name's words are enough, in any order, without a maker's; and
            of a line of ``lspci`` what stands in brackets.

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
    """Names that have all words of a text, words being what separators divide.

    Where a word too many leaves none, such as a card's memory that no name has, an error lists the
    nearest.
    """
    inside = _BRACKETED.fullmatch(text)
    wanted = _card_words(inside[1] if inside else text)
    if not wanted:
        return []
    spelled = {name: (name, *aliases) for name, aliases in names.items()}
    same = [n for n, known in spelled.items() if any(wanted == _card_words(one) for one in known)]
    return same or [
        n for n, known in spelled.items() if any(wanted <= _card_words(one) for one in known)
    ]


def _card_words(text: str) -> frozenset[str]:
    """Words of a card's name, ``80g`` as ``80gb``, without its maker's.

    >>> sorted(_card_words("NVIDIA A100-SXM4-80G"))
    ['80gb', 'a100', 'sxm4']
    """
    words = (_SHORT_SIZE.sub(r"\1gb", w) if _SHORT_SIZE.fullmatch(w) else w
             for w in _SEPARATORS.split(text.casefold()))  # fmt: skip
    return frozenset(word for word in words if word) - _NOISE


def _whole(name: str) -> tuple[str, ...]:
    """Runs of letters and runs of digits, so that separators and case do not matter."""
    return tuple(_WORD.findall(name.casefold()))


def _without_organisation(name: str) -> tuple[str, ...]:
    return _whole(name.rpartition("/")[2])


def _without_suffix(name: str) -> tuple[str, ...]:
    words = _without_organisation(name)
    while len(words) > 1 and (words[-1] in _SUFFIXES or _is_base(words)):
        words = words[:-1]
    return words


def _is_base(words: tuple[str, ...]) -> bool:
    return len(words) > 3 and words[-1] == _BASE and words[-2] == "b" and words[-3].isdigit()


def _suggestion(text: str, names: Mapping[str, Sequence[str]], field: str) -> str:
    """What to type instead: the nearest names, and the command that lists all."""
    spelled: dict[str, str] = {}
    for canonical, aliases in names.items():
        for name in (canonical, *aliases):
            spelled.setdefault(" ".join(_without_organisation(name)), canonical)
    wanted = " ".join(_without_organisation(text[:100]))
    begun = {
        n for spelling, n in spelled.items() if wanted and f"{spelling} ".startswith(f"{wanted} ")
    }
    if len(begun) > 1:
        return (
            f"one of {', '.join(sorted(begun)[:MOST_LISTED])}{', ...' * (len(begun) > MOST_LISTED)}"
        )
    nearest = _of_family(wanted, spelled) or _alike(wanted, spelled)
    command = _LISTED_BY.get(field.strip("-"))
    other = _GIVEN_AS.get(field.strip("-"))
    parts = []
    if nearest:
        parts.append(f"did you mean {' or '.join(nearest)}?")
    if command:
        parts.append(f"`{command}` lists all names")
    if other:
        parts[-1] += f"; or give {other}"
    return " ".join(parts) or f"one of {', '.join(names)}"


def _of_family(wanted: str, spelled: Mapping[str, str]) -> list[str]:
    """Names that begin with the most of a text's words, the nearest first; none without its first.

    >>> _of_family("qwen 3 7 b", {"qwen 2 7 b": "Qwen2", "qwen 3 8 b": "Qwen3"})
    ['Qwen3']
    >>> _of_family("opt 14 b", {"opt 13 b": "13b", "opt 1 3 b": "1.3b", "phi 2": "phi"})
    ['13b', '1.3b']
    """
    words = wanted.split()
    shared = {s: _words_begun(words, s.split()) for s in spelled}
    most = max(shared.values(), default=0)
    if not most or len(words[0]) == 1:
        return []
    near = sorted(
        (spelling for spelling, count in shared.items() if count == most),
        key=lambda spelling: -difflib.SequenceMatcher(None, spelling, wanted).ratio(),
    )
    return list(dict.fromkeys(spelled[spelling] for spelling in near))[:MOST_LISTED]


def _words_begun(wanted: Sequence[str], known: Sequence[str]) -> int:
    pairs = zip(wanted, known, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _alike(wanted: str, spelled: Mapping[str, str]) -> list[str]:
    """Up to three names of nearly the same letters: what a slip of the finger meant."""
    near = difflib.get_close_matches(wanted, spelled, n=8, cutoff=0.65)
    return list(dict.fromkeys(spelled[name] for name in near))[:3]
