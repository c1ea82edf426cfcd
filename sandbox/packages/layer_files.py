"""The files of a layer: checks, permissions, and hashes by which a change is seen."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from toolcell.core import PackageError

# Both ways in which uv names the interpreter in a command; one is for long paths.
_STARTS = re.compile(
    rb"#!%b[^\n]*\n|#!/bin/sh\n'''exec' [^\n]*\n' '''\n"
    % re.escape(os.fsencode(sys.executable))
)


def _walk(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield relative paths and their status, sorted; links are not followed."""
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted((*folders, *files)):
            each = os.path.join(folder, name)
            yield os.path.relpath(each, path), os.lstat(each)


def too_large(size: int, max_bytes: int) -> PackageError:
    """Return the error for a set that is larger than `package_rules.layer_mib`."""
    return PackageError(
        f"the packages have {-(-size // 2**20)} MiB or more, the limit is "
        f"{max_bytes >> 20}",
        hint="raise package_rules.layer_mib",
        details={"reason": "too_large"},
    )


def settle(path: Path) -> int:
    """Refuse links and special files; make files fit for the programs of all cells.

    Everybody may read them, and commands start the interpreter of their cell.

    Returns:
        The bytes of all files.

    Raises:
        PackageError: It holds something else than files and folders.
    """
    (path / ".lock").unlink(missing_ok=True)
    path.chmod(0o755)
    _free_commands(path / "bin")
    size = 0
    for name, found in _walk(path):
        if stat.S_ISDIR(found.st_mode):
            os.chmod(path / name, 0o755)  # noqa: S103 - programs read it
        elif stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.chmod(path / name, 0o444 | (found.st_mode & 0o111))
            size += found.st_size
        else:
            raise PackageError(
                f"a package holds {name!r}, which is no plain file",
                hint="use a version of it without links and special files",
                details={"reason": "not_a_file"},
            )
    return size


def _free_commands(folder: Path) -> None:
    """Have commands start the `python3` of PATH, not this process's interpreter."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if found := _STARTS.match(content):
            path.write_bytes(b"#!/usr/bin/env python3\n" + content[found.end() :])


def signature(path: Path) -> tuple[str, int]:
    """Return a hash over the status of all files, and their total size.

    It covers change times, which the kernel sets and no user can set back.
    """
    digest, size = hashlib.blake2b(digest_size=16), 0
    try:
        for name, found in _walk(path):
            line = (name, found.st_mode, found.st_size, found.st_ctime_ns)
            is_folder = stat.S_ISDIR(found.st_mode)
            digest.update(repr(line[:2] if is_folder else line).encode())
            size += 0 if is_folder else found.st_size
    except OSError:
        return "", 0
    return digest.hexdigest(), size


def content(path: Path) -> str:
    """Return a hash over the names, modes and bytes of all files; empty if one is gone.

    It reads all files, so it is for a layer that is new or was copied.
    """
    digest = hashlib.sha256()
    try:
        for name, found in _walk(path):
            if stat.S_ISDIR(found.st_mode):
                digest.update(repr((name, found.st_mode)).encode())
            elif stat.S_ISREG(found.st_mode):
                with open(path / name, "rb") as file:
                    inner = hashlib.file_digest(file, "sha256").hexdigest()
                digest.update(repr((name, found.st_mode, inner)).encode())
            else:
                return ""
    except OSError:
        return ""
    return digest.hexdigest()


def remove_tree(path: Path) -> None:
    """Remove a file or folder; one that is gone already is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
