"""Checks the mounts of all cells of a host together, and beside its own files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import NamedTuple


class Mounted(NamedTuple):
    """A folder or file that cells show."""

    where: str
    """The key of the configuration that says so."""

    source: Path
    """Its path, links followed."""

    read_only: bool
    """False if programs write there."""


def why_not_mounted(
    mounts: Iterable[Mounted], private: Iterable[Path], trusted: Iterable[Path]
) -> str:
    """Return why cells cannot have these mounts; empty if they can.

    Args:
        mounts: The mounts of all cells.
        private: Files and folders of the host that programs must not read.
        trusted: Those that programs must not change.
    """
    mounts = list(mounts)
    hidden, kept = _places(private), _places(trusted)
    for each in mounts:
        for path in hidden:
            if _overlap(each.source, path):
                return f"{each.where}: {each.source} would show {path} to programs"
        for path in () if each.read_only else kept:
            if _overlap(each.source, path):
                return (
                    f"{each.where}: {each.source} would let programs change {path}; "
                    "mount it read-only, or another one"
                )
    for outer, inner in permutations(mounts, 2):
        is_inside = outer.source in inner.source.parents
        if is_inside and not outer.read_only:
            # Programs could put a link where the inner source was.
            return (
                f"{inner.where}: {inner.source} is inside of {outer.source}, where "
                f"programs of {outer.where} may write"
            )
    return ""


def _places(paths: Iterable[Path]) -> list[Path]:
    """Return where files are, and where the links to them are."""
    paths = list(paths)
    links = [path.parent.resolve() / path.name for path in paths]
    return [*(path.resolve() for path in paths), *links]


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)
