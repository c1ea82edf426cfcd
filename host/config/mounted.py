"""Checks the mounts of all cells of a host together, and beside its own files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from toolcell.core.paths import last_place_in, places_on_the_way

_BESIDE = "sitecustomize.py"
"""A file that an interpreter loads from the folder that it runs in."""


class Mounted(NamedTuple):
    """A folder or file that cells show."""

    where: str
    """The key of the configuration that says so."""

    way: list[Path]
    """The places that its path leads over; the last is what is mounted."""

    read_only: bool
    """False if programs write there."""


def why_not_mounted(
    mounts: Iterable[Mounted], private: Iterable[Path], trusted: Iterable[Path]
) -> str:
    """Return why cells cannot have these mounts; empty if they can.

    Args:
        mounts: The mounts of all cells.
        private: Files and folders of the host that programs must neither read nor
            change.
        trusted: Those that programs must not change.
    """
    mounts = list(mounts)
    hidden = [places_on_the_way(path) for path in private]
    kept = [*hidden, *(places_on_the_way(path) for path in trusted)]
    for mount in mounts:
        source = mount.way[-1]
        for way in hidden:
            if _overlap(source, way[-1]):
                return f"{mount.where}: {source} would show {way[-1]} to programs"
        for way in () if mount.read_only else kept:
            if place := _place_changed(source, way):
                return (
                    f"{mount.where}: {source} would let programs change {place}; "
                    "mount it read-only, or another one"
                )
    for outer, inner in product(mounts, repeat=2):
        place = last_place_in(outer.way[-1], inner.way)
        if place and not outer.read_only:
            # Programs could put a link there.
            return (
                f"{inner.where}: {place} is inside of {outer.way[-1]}, where "
                f"programs of {outer.where} may write"
            )
    return ""


def why_no_folder(mounts: Iterable[Mounted], servers: Iterable[str]) -> str:
    """Return why servers on the host need a folder; empty if they do not.

    Args:
        mounts: The mounts of all cells.
        servers: The names of those that run where this process was started.
    """
    name = next(iter(servers), "")
    way = places_on_the_way(_BESIDE)
    for mount in mounts if name else ():
        source = mount.way[-1]
        if not mount.read_only and _place_changed(source, way):
            return (
                f"{mount.where}: {source} would let programs change what lies in "
                f"{Path.cwd()}, where this program was started; for the server "
                f"{name}: give it a `folder`"
            )
    return ""


def _place_changed(source: Path, way: Sequence[Path]) -> Path | None:
    """Return the place of a way that who writes to a source can change, if any."""
    return way[-1] if _overlap(source, way[-1]) else last_place_in(source, way)


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
