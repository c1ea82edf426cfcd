"""The error of walls that a kernel does not give, apart from errors that may pass."""

from __future__ import annotations

import contextlib
import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

# A right or a part of the kernel is missing. Others, as for want of memory, may pass.
_REFUSALS = (
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENODEV,  # a file system that the kernel was built without
    errno.ENOENT,  # a device or a file of /proc that is not here
    errno.EOPNOTSUPP,
)


class WallsRefusedError(OSError):
    """The kernel lacks a part of these walls, or does not allow it here."""

    level = ""
    """The isolation level that has these walls, once that is known."""


def refusal(error: OSError, *more: int) -> OSError:
    """Return a `WallsRefusedError` for an error that is one, and others as they are.

    Args:
        error: What the kernel answered.
        more: Further numbers by which it refuses what was asked.
    """
    if error.errno in (*_REFUSALS, *more):
        return WallsRefusedError(error.errno, error.strerror)
    return error


@contextlib.contextmanager
def making_namespaces() -> Iterator[None]:
    """Raise `WallsRefusedError` where namespaces are refused, also by a limit of 0."""
    try:
        yield
    except OSError as error:
        raise refusal(error, errno.ENOSPC) from None
