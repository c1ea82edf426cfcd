"""Folders as bytes, for uploads and downloads through a node.

Both ends made the folder that they read: a driver reads its own, and a node one that
`Session.download` wrote, which has neither symbolic links nor special files. What the
other end sends is taken if it has none either.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from toolcell.core import InvalidInputError

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Debian 12 has 3.11.2, whose archives know no filters
    from backports import tarfile  # type: ignore[no-redef]

if TYPE_CHECKING:
    from _typeshed import StrOrBytesPath

_BLOCK_BYTES = 64 * 1024


def pack_folder(folder: Path, archive: Path) -> None:
    """Write a folder's regular files, hard links and folders into an archive.

    Raises:
        InvalidInputError: It is no folder, or cannot be read.
    """
    if not folder.is_dir():
        raise InvalidInputError(
            f"{folder} is not a folder",
            hint="pass the path of a folder",
            details={"reason": "not_folder"},
        )
    try:
        with tarfile.open(archive, mode="w") as packed:
            for path in sorted(folder.rglob("*")):
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
                    name = str(path.relative_to(folder))
                    packed.add(path, name, recursive=False)
    except OSError as error:
        raise InvalidInputError(
            f"cannot read {folder}: {error.strerror}", hint="look at its permissions"
        ) from None


def unpack_folder(archive: Path, folder: Path) -> None:
    """Write a packed folder into a new one, its owner's alone; zeros become holes.

    Raises:
        InvalidInputError: It exists, or cannot be written.
    """
    require_new(folder)
    try:
        folder.mkdir(mode=0o700)
        with _Archive(archive) as packed:
            packed.extractall(folder, filter=_private)  # noqa: S202 - filtered
    except (OSError, tarfile.TarError) as error:
        raise InvalidInputError(
            f"cannot write {folder}: {error}", hint="use a new folder with room"
        ) from None


def require_new(place: Path, kind: str = "folder") -> None:
    """Raise InvalidInputError if something stands where a new one is to be made."""
    if os.path.lexists(place):
        raise InvalidInputError(
            f"cannot make the {kind} {place}: File exists",
            hint="use a new name",
            details={"reason": "exists"},
        )


class _Archive(tarfile.TarFile):
    """An archive that leaves holes where a file has blocks of zeros."""

    def makefile(self, tarinfo: tarfile.TarInfo, targetpath: StrOrBytesPath) -> None:
        source = self.extractfile(tarinfo)
        assert source is not None
        with open(targetpath, "xb") as file:
            while block := source.read(_BLOCK_BYTES):
                if block.count(0) == len(block):
                    file.seek(len(block), os.SEEK_CUR)
                else:
                    file.write(block)
            file.truncate(tarinfo.size)


def _private(member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
    packed = member.isreg() or member.isdir() or member.islnk()
    if not packed or member.issparse():
        # A sparse file of some bytes may have any size.
        raise tarfile.SpecialFileError(member)
    safe = tarfile.data_filter(member, place)
    return safe.replace(mode=0o700) if safe is not None and safe.isdir() else safe
