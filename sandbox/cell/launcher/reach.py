"""Paths that cells of this machine may reach, for rules of Landlock.

In `confined` cells these rules are the wall around the machine's files. Below cells of
namespaces they are a second one: a program that found its own way out mounts, or
something among them that it should not see, could open nothing there.
"""

from __future__ import annotations

import os

from ..kernel import landlock
from ..wire import aliases, trust
from ..wire.contract import SHARED_FOLDERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Iterator

    Reach = list[tuple[str, int]]

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_TERMINALS = ("/dev/tty", "/dev/ptmx", "/dev/pts")
WRITTEN = landlock.READ_FILE | landlock.WRITE_FILE | landlock.TRUNCATE


def of_programs(
    show: Iterable[str], mounts: Iterable[tuple[str, bool]], *, devices: int
) -> Reach:
    """Return what programs of every kind of cell may reach, and the rights there.

    Args:
        show: Paths that they may read and execute.
        mounts: The path of each mount, and True if it is read-only.
        devices: The rights to devices, beside those to terminals.
    """
    return [
        *((path, landlock.RUN) for path in show),
        *((path, landlock.RUN if only else landlock.OWN) for path, only in mounts),
        *((path, devices) for path in _DEVICES),
        *((path, WRITTEN | landlock.IOCTL_DEV) for path in _TERMINALS),
    ]


def without(hidden: list[str], shown: list[str]) -> list[str]:
    """Return the parts of shown paths that leave hidden folders out.

    Rules of Landlock take nothing away. A link is left out: where it leads is shown, or
    is not, for itself.
    """
    parts = []
    for path in shown:
        if path in hidden:
            continue
        if not any(each.startswith(path + "/") for each in hidden):
            parts.append(path)
            continue
        below = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        parts += without(hidden, [each for each in below if not os.path.islink(each)])
    return parts


def of_namespaces(setup: dict[str, Any]) -> Reach:
    """Return what cells of namespaces may reach, which have their own mounts.

    The caller is in their root. The paths have no links.
    """
    show = (*setup["show"], aliases.FOLDER, trust.FOLDER)
    mounts = [(target, read_only) for _, target, read_only in setup["mounts"]]
    own = (setup["workdir"], *SHARED_FOLDERS)
    return _outermost(
        [
            ("/", landlock.READ_DIR),
            # All that is shown of it is below it.
            ("/etc", landlock.RUN),
            ("/proc", landlock.READ),
            # Nothing else is in it, but for links and /dev/shm.
            ("/dev", WRITTEN | landlock.IOCTL_DEV),
            *of_programs(show, mounts, devices=WRITTEN | landlock.IOCTL_DEV),
            *((path, landlock.OWN) for path in own),
        ]
    )


def _outermost(reach: Reach) -> Reach:
    """Leave out what another path, above it, gives: each rule costs each cell 10 µs."""
    found: dict[str, int] = {}
    for path, rights in reach:
        real = os.path.realpath(path)
        found[real] = found.get(real, 0) | rights
    return [
        (path, rights)
        for path, rights in found.items()
        if not any(rights & ~found.get(above, 0) == 0 for above in _above(path))
    ]


def _above(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path
