"""Reads the metadata of untrusted wheels."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import NamedTuple

MAX_DIRECTORY_BYTES = 8 * 1024 * 1024
"""Bytes of a wheel's directory, enough for some 80,000 files. When it is reached the
wheel is refused."""

MAX_NEEDS = 1_000
"""Dependencies of a wheel. When it is reached the wheel is refused."""

_MAX_METADATA_BYTES = 1024 * 1024


class WheelError(ValueError):
    """A wheel cannot be read."""


class Metadata(NamedTuple):
    """The dependencies and the extras of a wheel."""

    needs: tuple[str, ...]
    extras: tuple[str, ...]


def read_metadata(wheel: Path) -> Metadata:
    """Return the metadata of a wheel. Blocks.

    Raises:
        WheelError: It has no metadata, or too much.
    """
    from packaging.metadata import parse_email

    try:
        with _Archive(wheel) as file, zipfile.ZipFile(file) as archive:
            [entry] = [member for member in archive.infolist() if _is_metadata(member)]
            with archive.open(entry) as data:
                found, _ = parse_email(data.read(_MAX_METADATA_BYTES))
    except Exception as error:  # noqa: BLE001 - parsers that a stranger feeds
        raise WheelError(f"its wheel has no metadata: {error}") from None
    needs = found.get("requires_dist", [])
    if len(needs) > MAX_NEEDS:
        raise WheelError(f"its wheel needs more than {MAX_NEEDS} packages")
    return Metadata(tuple(needs), tuple(found.get("provides_extra", [])))


class _Archive(io.FileIO):
    """A file that refuses reads larger than a directory may be."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            size = os.fstat(self.fileno()).st_size - self.tell()
        if size > MAX_DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its directory is too large")
        return super().read(size)


def _is_metadata(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.endswith(".dist-info/METADATA")
