"""Everything kvplan raises on purpose.

KvplanError             exit code 1: the program got something wrong
├── InputError          exit code 2: a field, a value, what would be accepted
└── InfeasibleError     exit code 3: no plan fits; the budget that binds, what would fit
"""

from __future__ import annotations


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
        if len(shown) > 80:
            shown = shown[:77] + "..."
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
