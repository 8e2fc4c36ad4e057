"""Signals that end a run: Ctrl-C and SIGTERM both unwind it, so that what it holds is released."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """SIGTERM; unwinds like Ctrl-C does."""


@contextmanager
def unwinding(kept: Callable[[], str]) -> Iterator[None]:
    """Turn SIGINT and SIGTERM inside the block into `Interrupted`, after everything is unwound.

    Args:
        kept: says what is kept and how to go on; called when the block has been left.

    Raises:
        Interrupted: a signal came.
    """
    from kvplan.errors import Interrupted

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if main else None
    try:
        yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        raise Interrupted(number, kept()) from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
