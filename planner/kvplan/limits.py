"""How large the numbers of a model may be, and reading whole numbers strictly."""

from __future__ import annotations

from kvplan.errors import InputError

MAX_LAYERS = 10_000
MAX_WIDTH = 2**20
MAX_VOCAB = 2**24
MAX_TOKENS = 2**31
MAX_EXPERTS = 2**16
MAX_PARAMS = 2**60


def require_whole(field: str, value: object, low: int, high: int) -> int:
    """Accept a whole number in a range, and nothing that only looks like one.

    Args:
        field: what to name in the error.
        value: what was given; ``True``, ``8.0`` and ``"8"`` are refused.
        low: smallest accepted value.
        high: largest accepted value.

    Raises:
        InputError: not an integer, or out of range.

    >>> require_whole("layers", 32, 1, 10_000)
    32
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(field, printable(value), f"a whole number from {low} to {high}")
    return value


def printable(value: object) -> object:
    """A value that an error can always show: huge integers and containers become a phrase.

    >>> printable(8), printable([1, 2]), printable(10**5000)
    (8, 'a list', 'an integer of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return f"a {type(value).__name__}"
