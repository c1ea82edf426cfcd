"""What host, supervisor and program agree on, beside the frames."""

from __future__ import annotations

import errno

CELL_UID = 10_001
"""The uid, and the gid, of untrusted code inside every cell that has a user of its
own."""

FILE_NAME = "main.py"
"""The file name of a program, in its tracebacks."""

SECRETS = "$secrets"
"""Among the inputs of a request, where no input can be: environment variables of
this run alone."""

ARGV = "$argv"
"""The same: `sys.argv`."""

STDIN = "$stdin"
"""The same: what standard input holds, in base 64."""

WARM_UP = b"?"
"""In place of a request: there is time to warm up before one comes."""

FORK = b"f"
"""In place of a request: a JSON line follows, and the descriptors of a branch."""

ANSWER = b"a"
"""The first byte of an answer: none that came too late is taken for a request."""

MAX_CALL_BYTES = 1024 * 1024
"""Bytes of one call of a host's tool, as JSON, at most."""

MAX_RESULT_VALUES = 100_000
"""Values in a program's last value: texts, numbers, lists, objects. When it is reached
the value is described instead."""

WINDOW_BYTES = 512 * 1024
"""Bytes of one stream and direction that are under way or kept."""

PIECE_BYTES = 128 * 1024
"""Bytes of one frame of a stream, at most."""

ARTIFACTS = "artifacts"
"""The folder of the work dir whose files come back with the result."""

BRANCHES = "/tmp/.branches"
"""The folder of the work dirs of forked sessions."""

_REASONS = {
    errno.ENOENT: "missing",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.EISDIR: "is_folder",
    errno.ENOTDIR: "not_folder",
    errno.ELOOP: "link",
    errno.ENXIO: "not_regular",
    errno.EFBIG: "too_large",
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EEXIST: "exists",
    errno.ENAMETOOLONG: "invalid_path",
    errno.EINVAL: "invalid_path",
}


def reason_of(error: OSError) -> str:
    """Return why a system call on a file failed, as one identifier."""
    return _REASONS.get(error.errno or 0, "failed")
