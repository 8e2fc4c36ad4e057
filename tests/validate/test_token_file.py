"""The disk tier: real reads past the page cache, of any length; nothing stays behind."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="the runtime needs torch")

from plugin_cli import run  # noqa: E402
from test_runtime import small_model  # noqa: E402

from kvplan.errors import ResourceError  # noqa: E402
from kvplan_validate import cases, harness  # noqa: E402
from kvplan_validate.token_file import ALIGNMENT, TokenFile, aligned  # noqa: E402

CONTENT = random.Random(1).randbytes(3 << 20)


def quiet(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture
def heard() -> list[str]:
    return []


def created(folder: Path, heard: list[str]) -> TokenFile:
    return TokenFile.create(folder, len(CONTENT), memoryview(CONTENT), heard.append)


@pytest.mark.parametrize("needed", [1, 4095, 4096, 100_000, (1 << 20) + 1, 2 << 20])
def test_what_was_written_is_read(tmp_path: Path, heard: list[str], needed: int) -> None:
    file = created(tmp_path, heard)
    buffer = memoryview(mmap.mmap(-1, aligned(needed)))
    offset = 5 * ALIGNMENT
    file.read(buffer, offset, needed)
    assert bytes(buffer[:needed]) == CONTENT[offset : offset + needed]
    assert file.read_bytes == needed
    file.close()


def test_the_file_has_no_name(tmp_path: Path, heard: list[str]) -> None:
    file = created(tmp_path, heard)
    assert list(tmp_path.iterdir()) == []
    file.close()
    file.close()
    assert file.descriptor == -1


def test_where_direct_reads_are_refused_they_are_buffered_and_dropped(
    tmp_path: Path, heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, dropped = os.open, list[int]()

    def refusing(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return plain(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    file = created(tmp_path, heard)
    assert not file.direct
    assert len(heard) == 1
    assert "refuses direct reads" in heard[0]
    monkeypatch.setattr(os, "posix_fadvise", lambda *a: dropped.append(a[3]))
    buffer = memoryview(mmap.mmap(-1, ALIGNMENT))
    file.read(buffer, 0, ALIGNMENT)
    assert bytes(buffer) == CONTENT[:ALIGNMENT]
    assert dropped == [os.POSIX_FADV_DONTNEED]
    file.close()


def test_a_file_that_ends_early_is_an_error_not_a_loop(tmp_path: Path, heard: list[str]) -> None:
    file = created(tmp_path, heard)
    with pytest.raises(OSError, match="the token file ends at"):
        file.read(memoryview(mmap.mmap(-1, 2 * ALIGNMENT)), file.size - ALIGNMENT, 2 * ALIGNMENT)
    file.close()


@pytest.mark.parametrize("when", ["before", "allocating", "writing"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    if when == "before":
        usage = shutil.disk_usage(tmp_path)._replace(free=ALIGNMENT)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    else:
        name = {"allocating": "posix_fallocate", "writing": "write"}[when]
        monkeypatch.setattr(os, name, full)
    with pytest.raises(ResourceError, match=r"disk: .* cannot hold 3\.0 MiB of tokens") as found:
        TokenFile.create(tmp_path, len(CONTENT), memoryview(CONTENT), quiet)
    assert "--disk-folder" in str(found.value)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_with_tokens_on_disk_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "load_model", lambda name: small_model(grouped=True, rope=True))
    monkeypatch.setattr(harness, "SMALL_POOL", 1 << 20)
    monkeypatch.setattr(harness, "TILE", 1 << 20)
    case = {
        "model": "small", "batch": 2, "context": 256, "disk": "1GiB",
        "force": {"fetch_disk": 0.5, "resident": 0.5},
    }  # fmt: skip
    grid, output = tmp_path / "grid.json", tmp_path / "r.json"
    grid.write_text(json.dumps([case]))
    folder = tmp_path / "disk"
    folder.mkdir()
    result = run(
        "validate", "--grid", str(grid), "--gpu", "rtx-4090", "--device", "cpu", "--pool", "64MiB",
        "--disk-folder", str(folder), "-o", str(output),
    )  # fmt: skip
    assert result.code == 0, result.err + result.out
    (found,) = json.loads(output.read_text())["results"]
    assert found["decision"]["shares"] == {"fetch_disk": 0.5, "resident": 0.5}
    assert found["measured_busy_s"]["disk"] > 0
    assert set(found["busy_s"]) - {"launch"} <= set(found["measured_busy_s"])
    assert list(folder.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_line() -> None:
    result = run("validate", "plan.json", "--disk-folder", "/nonexistent")
    assert (result.code, result.out) == (2, "")
    assert "--disk-folder: '/nonexistent' is not accepted: a folder that exists" in result.err
