"""The disk tier: one preallocated file of cached tokens, read past the page cache.

The file has no name once it is open, so that nothing stays behind whatever ends the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvplan.errors import ResourceError
from kvplan.units import format_bytes

ALIGNMENT = 4096
"""Bytes: offsets, lengths and addresses of direct reads are multiples of it."""

THREADS = 4
"""Reads in flight of one piece; a drive needs several for its best rate."""

LEAST_PART = 2**20
"""Bytes of a piece below which it is not cut further."""

SYNCED = 256 * 2**20
"""Bytes written before they are sent to the disk."""


def aligned(size: int) -> int:
    """Bytes that a piece takes in the file.

    >>> aligned(1), aligned(4096)
    (4096, 4096)
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


class TokenFile:
    """An open file of tokens.

    Args:
        descriptor: of the open file; closed with it.
        size: bytes.
        direct: whether reads bypass the page cache.
    """

    def __init__(self, descriptor: int, size: int, *, direct: bool = False) -> None:
        """Take over the descriptor."""
        self.descriptor, self.size, self.direct = descriptor, size, direct
        self._workers = ThreadPoolExecutor(THREADS, "kvplan-disk")
        self.read_bytes = 0

    @classmethod
    def create(
        cls, folder: Path, size: int, tile: memoryview, notice: Callable[[str], None]
    ) -> TokenFile:
        """A file on the disk of a folder, filled with a tile over and over.

        Args:
            folder: where; the file has no name in it.
            size: bytes, rounded up to whole pages.
            tile: what to write.
            notice: takes a sentence if reads cannot bypass the page cache.

        Raises:
            ResourceError: the disk has no room, or the folder cannot be written.
        """
        size = aligned(max(size, ALIGNMENT))
        try:
            free = shutil.disk_usage(folder).free
            if free < size:
                raise OSError(errno.ENOSPC, f"{format_bytes(free)} are free")
            handle, path = tempfile.mkstemp(dir=folder, prefix=".kvplan-tokens-")
        except OSError as error:
            raise _refused(folder, size, error) from None
        try:
            _fill(handle, size, tile)
            descriptor, direct = _opened(path)
        except OSError as error:
            raise _refused(folder, size, error) from None
        finally:
            os.close(handle)
            os.unlink(path)
        if not direct:
            notice(
                f"{folder} refuses direct reads: reads are buffered and dropped from the page "
                "cache, which costs the CPU a copy"
            )
        return cls(descriptor, size, direct=direct)

    def read(self, view: memoryview, offset: int, needed: int) -> None:
        """Fill a buffer from an offset.

        Args:
            view: page-aligned memory, whole pages.
            offset: bytes into the file.
            needed: bytes that must arrive; what follows is padding.

        Raises:
            OSError: the file ends before, or the disk fails.
        """
        part = max(aligned(-(-len(view) // THREADS)), LEAST_PART)
        begins = range(0, len(view), part)
        if len(begins) == 1:
            self._read(view, offset, needed)
        else:
            jobs = [
                self._workers.submit(self._read, view[b : b + part], offset + b, needed - b)
                for b in begins
            ]
            for job in jobs:
                job.result()
        self.read_bytes += needed

    def _read(self, view: memoryview, offset: int, needed: int) -> None:
        done = 0
        while done < min(needed, len(view)):
            got = os.preadv(self.descriptor, [view[done:]], offset + done)
            if got == 0:
                raise OSError(errno.EIO, f"the token file ends at {offset + done}")
            done += got
        if not self.direct and hasattr(os, "posix_fadvise"):
            # The next step must find the tokens on the disk again.
            os.posix_fadvise(self.descriptor, offset, len(view), os.POSIX_FADV_DONTNEED)

    def write(self, view: memoryview, offset: int) -> None:
        """Write whole pages at an offset of whole pages.

        Raises:
            OSError: the disk is full or fails.
        """
        done = 0
        while done < len(view):
            done += os.pwritev(self.descriptor, [view[done:]], offset + done)

    def close(self) -> None:
        """Give the space back."""
        self._workers.shutdown()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _refused(folder: Path, size: int, error: OSError) -> ResourceError:
    return ResourceError(
        "disk",
        f"{folder} cannot hold {format_bytes(size)} of tokens ({error.strerror})",
        "free some space, or name another folder with --disk-folder",
    )


def _fill(handle: int, size: int, tile: memoryview) -> None:
    """Allocate first, so that a full disk shows before minutes of writing; then write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    written = unsynced = 0
    while written < size:
        count = os.write(handle, tile[: min(len(tile), size - written)])
        written, unsynced = written + count, unsynced + count
        if unsynced >= SYNCED:
            os.fsync(handle)
            unsynced = 0
    os.fsync(handle)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def _opened(path: str) -> tuple[int, bool]:
    """The file, and whether it is read directly: where the first direct read is not refused."""
    if hasattr(os, "O_DIRECT"):
        import mmap

        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
            try:
                os.preadv(descriptor, [mmap.mmap(-1, ALIGNMENT)], 0)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor, True
    return os.open(path, os.O_RDWR), False
