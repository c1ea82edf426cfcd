"""The limit on open files of the launcher and of supervisors."""

from __future__ import annotations

import resource

_OPEN_FILES = 1024
_LEAST_OPEN_FILES = 32


class TooFewFilesError(Exception):
    """The limit on open files of this process is too low for cells."""


def raise_open_files() -> None:
    """Raise the limit on open files as far as the launcher and a supervisor need.

    Raises:
        TooFewFilesError: The hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = _OPEN_FILES if unlimited else min(hard, _OPEN_FILES)
    if wanted < _LEAST_OPEN_FILES:
        raise TooFewFilesError(
            f"this process may open {hard} files at once, and cells need "
            f"{_LEAST_OPEN_FILES}: raise the hard limit, `ulimit -Hn`"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
