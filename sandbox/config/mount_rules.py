"""Rules for the folders and files of this machine that a cell may be shown.

A source is checked twice: when its `Mount` is made, so that a mistake is reported
early, and by the backend, which mounts what the path leads to at that time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.core.paths import last_place_in, places_on_the_way

from ..machine import own_folders

_UNIX = "unix://"
_LOCAL = (_UNIX, "npipe://")
# mountinfo writes spaces and backslashes as \040 and \134.
_ESCAPE = re.compile(r"\\([0-7]{3})")

_SYSTEM = (
    "/boot",
    "/dev",
    "/etc",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/run",
    "/var/spool/cron",
)
_PROGRAMS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
_OWN_TARGETS = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var"),
    *("/node", "/packages", "/python", "/tmp"),  # noqa: S108 - the cell's own
)
NODE_MODULES = "/node_modules"
"""The path of packages of npm in cells: node looks there from every folder."""

_HOMES = ("/home", "/Users")


class Bind(NamedTuple):
    """A mount whose source has been followed to where it leads."""

    source: str
    target: str
    read_only: bool


def why_not_source(source: str, *, read_only: bool) -> str:
    """Return why a path of this machine must not be mounted; empty if it may.

    Args:
        source: An absolute path; its links are followed first.
        read_only: True if programs can only read there.
    """
    if not os.path.isabs(source) or "\0" in source:
        return "must be an absolute path"
    real = os.path.realpath(source)
    try:
        mode = os.stat(real).st_mode
    except OSError as error:
        return f"{source} cannot be used: {error.strerror}"
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        return f"{source} is neither a folder nor a regular file"
    written = os.path.normpath("/" + source.lstrip("/"))
    if path := _shown_by(real) or _shown_by(written):
        return f"{source} would show {path} to programs"
    if home := _home_of_settings(real):
        return f"{source} is among the settings in {home}"
    if path := _mounted_below(real):
        return f"{source} has another file system at {path}; mount each by itself"
    if path := "" if read_only else _changed_by(real):
        return f"{source} would let programs change {path}; mount it read-only"
    return ""


def _shown_by(real: str) -> str:
    for path in _followed(_forbidden_trees()):
        if _inside(real, path) or _inside(path, real):
            return path
    for path in _followed((*_homes(), *_listening())):
        if _inside(path, real):
            return path
    return ""


def _home_of_settings(real: str) -> str:
    for home in _followed(_homes()):
        if _inside(real, home) and os.path.relpath(real, home).startswith("."):
            return home
    return ""


def _mounted_below(real: str) -> str:
    return next((p for p in _mount_points() if p != real and _inside(p, real)), "")


def _changed_by(real: str) -> str:
    for path in _followed((*_PROGRAMS, *_own_programs())):
        if _inside(real, path) or _inside(path, real):
            return path
    return ""


def why_not_target(target: str) -> str:
    """Return why a path of a cell cannot be mounted over; empty if it can."""
    if not target.startswith("/") or target == "/" or "\0" in target:
        return "must be an absolute path below /"
    plain = os.path.normpath(target) == target and not target.startswith("//")
    if not plain or not target.isprintable():
        return "must be written plainly, without '..', '//' or control characters"
    for path in _OWN_TARGETS:
        if _inside(target, path):
            return f"{path} is the cell's own; use a folder such as /data"
    return ""


def why_not_work_dir(work_dir: str, binds: Iterable[Bind]) -> str:
    """Return why a cell cannot have its work dir there; empty if it can."""
    if why := why_not_target(work_dir):
        return f"work_dir: {why}"
    for bind in binds:
        if _inside(bind.target, work_dir) or _inside(work_dir, bind.target):
            return f"mount {bind.target}: {work_dir} is the cell's own work dir"
    return ""


def overlap(binds: Iterable[Bind]) -> str:
    """Return a message about two mounts that overlap; empty if none do."""
    seen: list[Bind] = []
    for bind in binds:
        for other in seen:
            if _inside(bind.target, other.target) or _inside(other.target, bind.target):
                return f"{bind.target} and {other.target} are one inside the other"
            nested = _inside(bind.source, other.source) or _inside(
                other.source, bind.source
            )
            if nested and not (bind.read_only and other.read_only):
                # Programs could put a link where the inner source was.
                return (
                    f"{bind.source} and {other.source} are one inside the other, "
                    "and not both read-only"
                )
        seen.append(bind)
    return ""


def why_not_fixed(binds: Iterable[Bind]) -> str:
    """Return how programs could make a source lead elsewhere; empty if they cannot.

    Args:
        binds: All mounts of a cell, with their sources as they are written.
    """
    binds = list(binds)
    for bind, folder in product(binds, _written(binds)):
        place = last_place_in(Path(folder), places_on_the_way(bind.source))
        if place is not None:
            return (
                f"{bind.source} leads over {place}, which programs could replace: "
                f"they may write in {folder}"
            )
    return ""


def why_not_kept(binds: Iterable[Bind], paths: Iterable[str | Path]) -> str:
    """Return how programs could change what cells are made with; empty if they cannot.

    Args:
        binds: All mounts of a cell, with their sources as they are written.
        paths: Files and folders that programs must not change.
    """
    for path, folder in product(paths, _written(binds)):
        places = [str(place) for place in places_on_the_way(path)]
        if _inside(folder, places[-1]) or any(_inside(p, folder) for p in places):
            return f"{folder} would let programs change {path}; mount it read-only"
    return ""


def _written(binds: Iterable[Bind]) -> list[str]:
    """Return what programs may write to."""
    return [os.path.realpath(bind.source) for bind in binds if not bind.read_only]


def follow(mounts: Iterable[Bind]) -> list[Bind]:
    """Return mounts whose sources are free of links, checked again.

    Raises:
        SandboxUnavailableError: A source is gone, or now leads to a forbidden path.
    """
    found = []
    for bind in mounts:
        real = os.path.realpath(bind.source)
        if why := why_not_source(real, read_only=bind.read_only):
            raise SandboxUnavailableError(
                f"mount {bind.target}: {why}",
                hint="name another source, or make it what it was",
            )
        found.append(bind._replace(source=real))
    if why := overlap(found):
        raise SandboxUnavailableError(
            f"mounts: {why}", hint="choose folders that are not one inside the other"
        )
    return found


def keep_clear_of(binds: Iterable[Bind], paths: Iterable[str]) -> None:
    """Refuse targets that hide, or lie in, a path that the interpreter needs.

    Raises:
        ConfigError: A target does.
    """
    paths = list(paths)
    for bind in binds:
        for path in paths:
            if _inside(bind.target, path) or _inside(path, bind.target):
                raise ConfigError(
                    f"{bind.target} is in the way of {path}, which the interpreter of "
                    "these cells needs",
                    hint="choose another target or work_dir, such as /data",
                )


def is_local(where: str) -> bool:
    """Return True if an engine's address says that it is on this machine."""
    return where.startswith(_LOCAL)


def require_local(where: str) -> None:
    """Refuse an engine on another machine: its files under these paths differ.

    Raises:
        ConfigError: The engine is reached over a network.
    """
    if not is_local(where):
        raise ConfigError(
            "mounts and packages of npm need an engine on this machine, not "
            f"{where.partition('://')[0]}",
            hint="use an engine behind a Unix socket, or pass data as inputs or files",
        )


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _followed(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        yield path
        real = os.path.realpath(path)
        if real != path:
            yield real


def _forbidden_trees() -> Iterator[str]:
    yield from _SYSTEM
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Root's packages are in the second one if its home is closed to others.
    yield from (os.path.join(each, "toolcell") for each in (cache, "/var/cache"))
    yield from map(str, own_folders.all_folders())
    engine = os.environ.get("DOCKER_HOST", "")
    if engine.startswith(_UNIX):
        yield engine.removeprefix(_UNIX)


def _homes() -> Iterator[str]:
    """Yield the home folders of this machine, and the folders that hold them."""
    own = os.path.expanduser("~")
    if own not in ("~", "/"):
        yield own
    for parent in _HOMES:
        with contextlib.suppress(OSError):
            yield from (f"{parent}/{name}" for name in os.listdir(parent))
        yield parent


def _listening() -> Iterator[str]:
    """Yield the Unix sockets of this machine that have a path."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            _, slash, path = line.partition(" /")
            if slash and not path.endswith(" (deleted)"):
                yield f"/{path}"


def _mount_points() -> Iterator[str]:
    """Yield the mount points of this machine; each may have its own flags."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            yield _ESCAPE.sub(lambda m: chr(int(m[1], 8)), line.split()[4])


def _own_programs() -> Iterator[str]:
    """Yield the folders that this very process runs from."""
    yield from (sys.prefix, sys.base_prefix)
    # The folder that holds all rooms of toolcell, however deep this module lies.
    yield str(Path(__file__).resolve().parents[__name__.count(".") - 1])
