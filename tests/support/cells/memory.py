"""The memory and files of the processes of cells, searched from outside."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from ..process_tree import below

_PIECE = 1 << 24
_PAGE = resource.getpagesize()
_NEVER_TOUCHED = 1 << 30
_NO_FILE = "0"
# Of an entry of /proc/PID/pagemap, the highest byte says "present" and "swapped".
_HAS_CONTENT = re.compile(rb"[\x40-\xff]+")


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
        open(process / "pagemap", "rb", 0) as pages,
    ):
        for line in maps:
            area, rights, _, _, inode, *_ = line.split()
            first, last = (int(each, 16) for each in area.split("-"))
            if not rights.startswith("r") and last - first >= _NEVER_TOUCHED:
                continue
            parts: Iterable[tuple[int, int]] = [(first, last)]
            if inode == _NO_FILE:
                parts = _written(pages.fileno(), first, last)
            for part in parts:
                with contextlib.suppress(OSError, OverflowError, ValueError):
                    yield from _pieces(memory.fileno(), *part, longest)
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


def _written(pages: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of an area without a file that are more than zeros.

    Go and gVisor keep room for gigabytes, of which they write a little.
    """
    entries = os.pread(pages, (last - first) // _PAGE * 8, first // _PAGE * 8)
    for found in _HAS_CONTENT.finditer(entries[7::8]):
        yield first + found.start() * _PAGE, first + found.end() * _PAGE


def _pieces(memory: int, first: int, last: int, longest: int) -> Iterator[bytes]:
    """Yield an area of memory in pieces that have each text whole."""
    while first < last:
        data = os.pread(memory, min(_PIECE, last - first), first)
        if not data:
            return
        yield data
        first += max(len(data) - longest, 1) if first + len(data) < last else len(data)
