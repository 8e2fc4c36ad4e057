"""Rows of a sweep as CSV or Parquet files: appended while it runs, resumed, put in order.

A CSV file grows by a line per row, so a sweep that is interrupted loses nothing; a Parquet file
cannot grow, so its rows wait in ``FILE.part``, a CSV, until the sweep is done.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from kvplan.errors import InputError
from kvplan.plan_file import write_text

FORMATS = (".csv", ".parquet")

Row = dict[str, Any]
Key = tuple[str, ...]


def check_rows(path: str, field: str = "-o") -> None:
    """Refuse a file of another kind, or Parquet where pyarrow is missing.

    >>> check_rows("rows.csv")
    """
    ending = Path(path).suffix.lower()
    if ending not in FORMATS:
        raise InputError(field, path, f"a file that ends in {' or '.join(FORMATS)}")
    if ending == ".parquet":
        _arrow(field, path)


def _arrow(field: str, path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            field, path, "a .csv file, or an installed pyarrow: pip install 'kvplan[parquet]'"
        ) from None
    return pyarrow


def text_of(value: object) -> str:
    """A value as CSV holds it: nothing for None, floats so that they come back the same.

    >>> text_of(None), text_of(0.1), text_of(7), text_of("a100")
    ('', '0.1', '7', 'a100')
    """
    if value is None:
        return ""
    return repr(value) if isinstance(value, float) else str(value)


def value_of(text: str) -> Any:
    """A value from a CSV cell: a number where it reads as one.

    >>> value_of(""), value_of("7"), value_of("1e-3"), value_of("a100"), value_of("4..8")
    (None, 7, 0.001, 'a100', '4..8')
    """
    if not text:
        return None
    if text[0] in "0123456789-.":
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def line(values: Iterable[object]) -> str:
    """One line of CSV."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow([text_of(v) for v in values])
    return stream.getvalue()


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a sweep from CSV or Parquet; a last line that was cut short is left out.

    Raises:
        InputError: no such file, or no rows of a sweep.

    >>> file = os.path.join(tempfile.mkdtemp(), "rows.csv")
    >>> growing = SweepFile(file, ["model", "status", "step_s"], keys=["model"])
    >>> growing.add({"model": "opt-125m", "status": "ok", "step_s": 0.5})
    >>> growing.close()
    >>> read_rows(file)
    [{'model': 'opt-125m', 'status': 'ok', 'step_s': 0.5}]
    """
    file = Path(path)
    try:
        if file.suffix.lower() == ".parquet":
            arrow = _arrow("rows", str(path))
            try:
                found: list[Row] = arrow.parquet.read_table(file).to_pylist()
            except arrow.ArrowInvalid as error:
                raise InputError("rows", str(path), f"a Parquet file ({error})") from None
            return found
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError("rows", str(path), f"rows of a sweep ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError("rows", str(path), "rows of a sweep in UTF-8") from None
    return decode_rows(text, str(path))


def decode_rows(text: str, name: str = "rows") -> list[Row]:
    """Rows of a sweep from the text of a CSV file.

    Raises:
        InputError: no header of a sweep, or a line of another length.
    """
    whole = text[: text.rfind("\n") + 1]
    try:
        lines = list(csv.reader(io.StringIO(whole), strict=True))
    except csv.Error as error:
        raise InputError(name, text[:40], f"rows of a sweep ({error})") from None
    if not lines or not {"model", "status", "step_s"} <= set(lines[0]):
        raise InputError(name, text[:40], "rows that `kvplan sweep` wrote: model, status, step_s …")
    header = lines[0]
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) != len(header):
            raise InputError(f"{name}: line {number}", len(cells), f"{len(header)} cells")
    return [dict(zip(header, map(value_of, cells), strict=True)) for cells in lines[1:]]


class SweepFile:
    """Rows on disk; each added row is saved at once.

    Args:
        path: a .csv or .parquet file; what an earlier sweep left there is continued.
        header: columns of every row.
        keys: the columns that tell rows apart.

    Raises:
        InputError: the file is there and is not a sweep with these columns.
    """

    def __init__(
        self, path: str | os.PathLike[str], header: Sequence[str], keys: Sequence[str]
    ) -> None:
        """Read what is there, and open the file to grow."""
        self.path, self.header, self.keys = Path(path), list(header), list(keys)
        self.parquet = self.path.suffix.lower() == ".parquet"
        self.growing = self.path.with_name(self.path.name + ".part") if self.parquet else self.path
        self.rows: list[Row] = []
        for file in dict.fromkeys((self.path, self.growing)):
            if file.exists():
                self._take(read_rows(file), file)
        self._stream = self._open()

    def _take(self, found: Sequence[Row], file: Path) -> None:
        if found and list(found[0]) != self.header:
            raise InputError("-o", str(file), "a new file, or one of a sweep with the same columns")
        known = self.done()
        self.rows += [row for row in found if self.key(row) not in known]

    def _open(self) -> IO[str]:
        """The growing file, cut back to whole lines."""
        try:
            start = self.rows if not self.parquet else []
            if self.growing.exists() and self.parquet:
                start = read_rows(self.growing)
            write_text(self.growing, self._text(start))
            return self.growing.open("a", encoding="utf-8", newline="")
        except OSError as error:
            accepted = f"a file that can be written ({error.strerror})"
            raise InputError("-o", str(self.growing), accepted) from None

    def _text(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return line(self.header) + "".join(line(row[c] for c in self.header) for row in rows)

    def key(self, row: Mapping[str, Any]) -> Key:
        """What tells a row apart."""
        return tuple(text_of(row[name]) for name in self.keys)

    def done(self) -> set[Key]:
        """Keys of the rows that are there."""
        return {self.key(row) for row in self.rows}

    def add(self, row: Row) -> None:
        """Keep a row and save it."""
        self.rows.append(row)
        self._stream.write(line(row[c] for c in self.header))
        self._stream.flush()

    def close(self, order: Mapping[Key, int] | None = None) -> None:
        """Put rows in order and write the file whole.

        Args:
            order: key to position; rows without one keep their order behind the others. None
                leaves the file as it grew: the sweep is not done.
        """
        self._stream.close()
        if order is None:
            return
        last = len(order)
        self.rows.sort(key=lambda row: order.get(self.key(row), last))
        if not self.parquet:
            write_text(self.path, self._text(self.rows))
            return
        self._write_parquet()
        self.growing.unlink(missing_ok=True)

    def _write_parquet(self) -> None:
        arrow = _arrow("-o", str(self.path))
        values = {c: _like_numbers([row[c] for row in self.rows]) for c in self.header}
        table = arrow.table(values)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
        os.close(handle)
        try:
            arrow.parquet.write_table(table, temporary)
            os.chmod(temporary, 0o644)
            os.replace(temporary, self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _like_numbers(values: list[Any]) -> list[Any]:
    """A column of one type: floats where there is any, texts where numbers and texts meet."""
    kinds = {type(v) for v in values if v is not None}
    if kinds <= {int, float} and float in kinds:
        return [None if v is None else float(v) for v in values]
    if str in kinds and len(kinds) > 1:
        return [None if v is None else text_of(v) for v in values]
    return values
