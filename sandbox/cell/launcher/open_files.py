"""The limit on open files of the launcher and of supervisors."""

from __future__ import annotations

import resource

_OPEN_FILES = 1024
LEAST_OPEN_FILES = 32


class TooFewFilesError(Exception):
    """The limit on open files of this process is too low for cells."""


def raise_open_files(least: int = LEAST_OPEN_FILES) -> None:
    """Raise the limit on open files as far as the launcher and a supervisor need.

    Args:
        least: The limit that they need.

    Raises:
        TooFewFilesError: The hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = _OPEN_FILES if unlimited else min(hard, _OPEN_FILES)
    if wanted < least:
        raise TooFewFilesError(
            f"this process may open {hard} files at once, and cells need "
            f"{least}: raise the hard limit, `ulimit -Hn`"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
