"""The names of backends: toolcell's own, and those that installed packages offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "toolcell.backends"
"""The group of entry points by which packages offer backends."""

OWN = ("docker", "subprocess", "process")
"""Toolcell's own backends. No package can take their names, or `auto`."""


def offered() -> dict[str, list[EntryPoint]]:
    """Return what installed packages offer, by name; nothing of it is loaded."""
    from importlib.metadata import entry_points

    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        if entry.name not in ("auto", *OWN):
            found.setdefault(entry.name, []).append(entry)
    return found


def package_of(entry: EntryPoint) -> str:
    """Return the name and version of the package that offers a backend."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def known_backend(name: str) -> str:
    """Return the name of a backend.

    Raises:
        ValueError: There is none of this name, or there are several.
    """
    if name in ("auto", *OWN):
        return name
    found = offered()
    if name not in found:
        there_are = ", ".join(("auto", *OWN, *sorted(found)))
        raise ValueError(f"there is no backend {name!r}; there are {there_are}")
    if len(found[name]) > 1:
        packages = ", ".join(sorted(map(package_of, found[name])))
        raise ValueError(f"several packages offer a backend {name!r}: {packages}")
    return name
