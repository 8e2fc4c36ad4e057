"""Everything kvplan raises on purpose.

KvplanError             exit code 1: the program got something wrong
├── InputError          exit code 2: a field, a value, what would be accepted
├── InfeasibleError     exit code 3: no plan fits; the budget that binds, what would fit
├── ResourceError       exit code 3: a run needs what this machine does not have (left)
└── Interrupted         exit code 128 + signal: someone ended a run; what is kept
"""

from __future__ import annotations

LONGEST_VALUE, LONGEST_PATH = 80, 400
"""Characters of a value that a message shows; a path that is cut says nothing."""


class KvplanError(Exception):
    """Base of the tree; a bare one means a fault of kvplan itself."""

    exit_code = 1


class InputError(KvplanError):
    """A value that was given cannot be used.

    Args:
        field: what was being set: an option, or a file and the key path in it.
        value: what was given; None when something is missing.
        accepted: what would be accepted instead.
    """

    exit_code = 2

    def __init__(self, field: str, value: object, accepted: str) -> None:
        """Put the three parts into one line."""
        self.field, self.value, self.accepted = field, value, accepted
        try:
            shown = repr(value)
        except ValueError:  # an int of thousands of digits
            shown = "a number of thousands of digits"
        most = LONGEST_PATH if "/" in shown and " " not in shown else LONGEST_VALUE
        if len(shown) > most:
            shown = shown[: most - 3] + "..."
        message = f"{field}: {shown} is not accepted: {accepted}"
        super().__init__(" ".join(message.split()))


class InfeasibleError(KvplanError):
    """No plan fits the budgets.

    Args:
        budget: name of the budget that binds, for example ``hbm``.
        reason: one sentence with the numbers.
        change: the smallest change that makes a plan possible.
    """

    exit_code = 3

    def __init__(self, budget: str, reason: str, change: str) -> None:
        """Put the three parts into one line."""
        self.budget, self.reason, self.change = budget, reason, change
        super().__init__(f"no feasible plan: {budget}: {reason}; {change}")


class ResourceError(KvplanError):
    """A run needs what this machine does not have, or has no more of.

    Args:
        resource: what is missing: ``gpu``, ``hbm``, ``dram``, ``pinned`` or ``disk``.
        reason: one sentence with the numbers.
        change: what would let it run.
    """

    exit_code = 3

    def __init__(self, resource: str, reason: str, change: str) -> None:
        """Put the three parts into one line."""
        self.resource, self.reason, self.change = resource, reason, change
        super().__init__(f"cannot run here: {resource}: {reason}; {change}")


class Interrupted(KvplanError):
    """A person or the system ended a run by a signal.

    Args:
        signal_number: which: SIGINT is 2, SIGTERM is 15.
        kept: what is kept of the run, and how to go on; may be empty.

    >>> Interrupted(2, "3 results are in r.json").exit_code
    130
    """

    def __init__(self, signal_number: int, kept: str = "") -> None:
        """Put both parts into one line."""
        self.exit_code = 128 + signal_number
        word = "interrupted" if signal_number == 2 else "terminated"
        super().__init__(f"{word}; {kept}" if kept else word)
