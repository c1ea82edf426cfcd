"""Entries of archives that come from cells, or from strangers."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator


def entries_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of an archive that is not trusted, each behind the last.

    Raises:
        ValueError: A negative size leads backwards, where a reader never ends.
        tarfile.TarError: A header cannot be read.
        RecursionError: Too many headers are about one entry.
        OverflowError: A number in a header is too large.
    """
    before = -1
    while (entry := archive.next()) is not None:
        if entry.size < 0 or entry.offset <= before:
            raise ValueError("an entry has no size")
        before = entry.offset
        yield entry
