"""Errors about files, each with a reason from a closed set."""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from toolcell.core import InvalidInputError

from ..cell.wire.contract import reason_of

FileReason = Literal[
    "missing",
    "denied",
    "is_folder",
    "not_folder",
    "link",
    "not_regular",
    "too_large",
    "too_many",
    "no_space",
    "exists",
    "invalid_path",
    "invalid_data",
    "busy",
    "failed",
]
"""`details["reason"]` of an error about a file."""

_HINTS: dict[FileReason, str] = {
    "missing": "look with list_files()",
    "denied": "its mode, that of a folder on the way, or a read-only root forbids it",
    "is_folder": "name a file in it",
    "not_folder": "name a folder, or another path",
    "link": "links are not followed; name what it leads to",
    "not_regular": "only regular files are read and written",
    "too_large": "raise max_bytes, or take a smaller file",
    "too_many": "take a smaller folder, or pack it into one archive",
    "no_space": "remove files, or raise limits.disk_mib",
    "exists": "take a new name, or remove what is there",
    "invalid_path": "write a path below the work dir, such as 'data/a.csv'",
    "invalid_data": "pass bytes, or text that is valid Unicode",
    "busy": "try again when no program moves files there",
    "failed": "try again in a new cell",
}
_LOOK = "look at the path on this machine"
_HOST_HINTS: dict[FileReason, str] = {
    "missing": _LOOK,
    "failed": _LOOK,
    "invalid_path": _LOOK,
    "no_space": "make room on this machine's disk",
    "too_large": "make room, or raise this process's limit on the size of files",
}


def file_error(message: str, reason: FileReason) -> InvalidInputError:
    """Return the error of a file that cannot be used for this reason."""
    return InvalidInputError(message, hint=_HINTS[reason], details={"reason": reason})


def host_error(what: str, error: OSError) -> InvalidInputError:
    """Return the error of a file of the host that the system refused."""
    why = os.strerror(error.errno) if error.errno else str(error)
    reason = known(reason_of(error))
    hint = _HOST_HINTS.get(reason, _HINTS[reason])
    return InvalidInputError(f"{what}: {why}", hint=hint, details={"reason": reason})


def known(reported: Any) -> FileReason:
    """Return the reason that a cell gave; an unknown one is `failed`."""
    for reason in get_args(FileReason):
        if reported == reason:
            found: FileReason = reason
            return found
    return "failed"
