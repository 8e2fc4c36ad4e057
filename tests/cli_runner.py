"""The command line in this process: arguments in; exit code, stdout and stderr out."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from unittest import mock

from kvplan.cli import main


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str


def run(*argv: str, stdin: bytes = b"") -> Result:
    """Run ``kvplan ARGV`` with some bytes on stdin."""
    out, err = io.StringIO(), io.StringIO()
    given = io.TextIOWrapper(io.BytesIO(stdin))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", given),
    ):
        code = main(argv)
    return Result(code, out.getvalue(), err.getvalue())
