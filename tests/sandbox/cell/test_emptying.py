"""Folders are emptied whatever is in them, and nothing beside them is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from toolcell.sandbox.cell.workdir.emptying import Folders


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    # The space of a disk that others use changes meanwhile.
    space = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: space)
    (tmp_path / "scratch").mkdir(mode=0o700)
    paths = [str(tmp_path / name) for name in ("scratch", "missing")]
    return Folders(paths, os.getuid())


def test_all_is_removed_and_nothing_else(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("x")
    scratch = tmp_path / "scratch"
    (scratch / "link").symlink_to(tmp_path / "kept")
    (scratch / "a/b/c").mkdir(parents=True)
    (scratch / "a/b/c/link").symlink_to(tmp_path / "kept")
    (scratch / "a/empty").mkdir()
    (scratch / "a/d/e").mkdir(parents=True)
    (scratch / os.fsdecode(b"\xff\n")).write_text("x")
    os.mkfifo(scratch / "pipe")
    for folder in ("a/b/c", "a/b", "a", ""):
        (scratch / folder).chmod(0)

    folders.empty(time.monotonic() + 60)

    assert os.listdir(scratch) == []
    assert scratch.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kept/file").read_text() == "x"


def test_folders_in_folders_need_no_long_path(folders: Folders, tmp_path: Path) -> None:
    here = os.open(tmp_path / "scratch", os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)

    folders.empty(time.monotonic() + 60)

    assert os.listdir(tmp_path / "scratch") == []


def test_it_gives_up_in_time(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "scratch/file").write_text("x")

    with pytest.raises(TimeoutError):
        folders.empty(time.monotonic() - 1)


def test_a_file_system_that_is_not_as_it_was_is_noticed(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = os.statvfs(tmp_path)
    fewer = os.statvfs_result([*before[:3], before.f_bfree - 1, *before[4:]])
    monkeypatch.setattr(os, "statvfs", lambda _: fewer)

    with pytest.raises(OSError, match="something is left"):
        folders.empty(time.monotonic() + 60)
