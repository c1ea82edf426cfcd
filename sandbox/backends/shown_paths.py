"""The paths of this machine that subprocess cells see: its software, and no secret.

All of `/usr` is software, but for folders in which people write settings, and tokens
with them. `/etc` has settings of software and secrets of the machine:
an entry of it is shown if all of it still is as a Debian package brought it, which is
public. Whatever somebody wrote or changed there, such as a password, hides the whole
entry. A few names are always shown.
"""

from __future__ import annotations

import functools
import os

from toolcell.core.paths import interpreter_folders

_ALWAYS = (
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr",
    # Made by this machine's tools from what is public, and used by all programs.
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/fonts",
    # The system's public certificates, for programs with a network.
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/localtime",
    "/etc/mime.types",
    # The public names of ports and protocols.
    "/etc/services",
    "/etc/protocols",
)
PRIVATE = ("/usr/local/etc", "/usr/etc")
"""Settings of this machine below `/usr`: npm's, say, with the token of a registry."""

_PACKAGES = "/var/lib/dpkg/status"
_KEY = b"PRIVATE KEY"
_READ_BY_ALL, _ENTERED_BY_ALL = 0o004, 0o005


def shown_paths(python: str) -> list[str]:
    """Return the host's paths that a cell with this interpreter sees, and no others."""
    found = [*_ALWAYS, *public_settings(), *map(str, interpreter_folders(python))]
    return [path for path in dict.fromkeys(found) if not path.startswith("/usr/")]


def hidden_paths() -> list[str]:
    """Return the folders below shown paths that cells do not see."""
    # A folder that is a link may lead out of what is shown.
    found = dict.fromkeys(map(os.path.realpath, PRIVATE))
    return [path for path in found if path.startswith("/usr/") and _has_files(path)]


def _has_files(folder: str) -> bool:
    """Return True if there may be files in a folder."""
    try:
        return bool(os.listdir(folder))
    except PermissionError:
        return True
    except OSError:
        return False


@functools.cache
def public_settings(root: str = "") -> tuple[str, ...]:
    """Return the entries of `/etc` that hold only what Debian's packages brought.

    There is none where packages are not Debian's.

    Args:
        root: The folder of another system than this one's.
    """
    shipped = _shipped(root)
    names = {path.split("/", 3)[2] for path in shipped}
    try:
        with os.scandir(f"{root}/etc") as entries:
            found = [entry for entry in entries if entry.name in names]
    except OSError:
        return ()
    return tuple(
        sorted(
            each.path
            for each in found
            if not each.is_symlink() and _is_public(each, root, shipped)
        )
    )


def _shipped(root: str) -> dict[str, str]:
    """Return the MD5 of each file of `/etc` as its package brought it."""
    try:
        with open(root + _PACKAGES, encoding="utf-8", errors="replace") as file:
            parts = file.read().split("\n /etc/")[1:]
    except OSError:
        return {}
    lines = (part.partition("\n")[0].split(" ") for part in parts)
    return {f"/etc/{line[0]}": line[1] for line in lines if len(line) > 1}


def _is_public(entry: os.DirEntry[str], root: str, shipped: dict[str, str]) -> bool:
    """Return True if all of it may be read by everybody, and is as it was brought."""
    # Where a link leads to is shown, or is not, for itself.
    if entry.is_symlink():
        return True
    try:
        if entry.is_dir(follow_symlinks=False):
            if entry.stat().st_mode & _ENTERED_BY_ALL != _ENTERED_BY_ALL:
                return False
            with os.scandir(entry.path) as entries:
                return all(_is_public(each, root, shipped) for each in entries)
        expected = shipped.get(entry.path.removeprefix(root))
        if expected is None or not entry.is_file(follow_symlinks=False):
            return False
        return bool(entry.stat().st_mode & _READ_BY_ALL) and _holds(entry, expected)
    except OSError:
        return False


def _holds(entry: os.DirEntry[str], expected: str) -> bool:
    """Return True if a file has this MD5, and holds no key. Raises OSError."""
    import hashlib

    with open(entry.path, "rb", buffering=0) as file:
        content = file.read()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return found == expected and _KEY not in content
