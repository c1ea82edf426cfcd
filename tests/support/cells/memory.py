"""The memory and files of the processes of cells, searched from outside."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from ..process_tree import below

_PIECE = 1 << 24
_NEVER_TOUCHED = 1 << 30


def found_in_cells(*texts: bytes, containers: Collection[str] = ()) -> set[bytes]:
    """Return which texts a process of a cell has, in its memory or its files.

    Args:
        texts: What to search for.
        containers: The cells that are no children of this process, by their ids.
    """
    found: set[bytes] = set()
    for pid in {*below(os.getpid()), *_in_containers(containers)} - {os.getpid()}:
        for data in _bytes_of(Path("/proc", str(pid)), max(map(len, texts))):
            found |= {text for text in texts if text in data}
    return found


def found_below(folder: Path, texts: Collection[bytes]) -> set[str]:
    """Return the files of a folder that have one of some texts."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and any(text in path.read_bytes() for text in texts)
    }


def _in_containers(ids: Collection[str]) -> Iterator[int]:
    """Yield the processes of containers, and of the kernel that gVisor gives them."""
    for folder in Path("/proc").glob("[0-9]*") if ids else ():
        with contextlib.suppress(OSError):
            told = (folder / "cgroup").read_bytes() + (folder / "cmdline").read_bytes()
            if any(each.encode() in told for each in ids):
                yield int(folder.name)


def _bytes_of(process: Path, longest: int) -> Iterator[bytes]:
    """Yield all that a process has: its memory, and the files where it works."""
    with (
        contextlib.suppress(OSError),
        open(process / "maps") as maps,
        open(process / "mem", "rb", 0) as memory,
    ):
        for line in maps:
            area, rights, *_ = line.split()
            first, last = (int(each, 16) for each in area.split("-"))
            if rights.startswith("r") or last - first < _NEVER_TOUCHED:
                with contextlib.suppress(OSError, OverflowError, ValueError):
                    yield from _pieces(memory.fileno(), first, last, longest)
    for path in (process / "cwd").glob("*"):
        with contextlib.suppress(OSError):
            yield _content(path)


def _content(path: Path) -> bytes:
    """Return what is in a plain file, and nothing for others: a pipe may never end.

    Raises:
        OSError: It cannot be read.
    """
    # Without O_NONBLOCK, to open a named pipe waits for somebody who writes.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            return b""
        with open(number, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(number)


def _pieces(memory: int, first: int, last: int, longest: int) -> Iterator[bytes]:
    """Yield an area of memory in pieces that have each text whole."""
    while first < last:
        data = os.pread(memory, min(_PIECE, last - first), first)
        if not data:
            return
        yield data
        first += max(len(data) - longest, 1) if first + len(data) < last else len(data)
