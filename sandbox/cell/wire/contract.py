"""Constants that host, supervisor and program agree on, besides the frames."""

from __future__ import annotations

import errno

CELL_UID = 10_001
"""The uid, and the gid, of untrusted code inside every cell that has a user of its
own."""

USER_NAME = "user"
"""The name of that user."""

FILE_NAME = "main.py"
BASH_NAME = "main.sh"
NODE_NAME = "main.js"
"""The file names of programs that have none of their own."""

SESSION_BASH_NAME = ".main.sh"
"""The file of a bash program in a session's work dir, while it runs."""

SECRETS = "$secrets"
"""Key among the inputs of a request, which no input can have: environment variables of
this run alone."""

ARGV = "$argv"
"""Key among the inputs of a request, which no input can have: `sys.argv`."""

STDIN = "$stdin"
"""Key among the inputs of a request, which no input can have: the bytes of standard
input, in base 64."""

MERGED = "$merged"
"""Key among the inputs of a request, which no input can have: standard error goes into
standard output."""

INSTALLED = "$installed"
"""Key among the inputs of a request, which no input can have: what came of each `pip
install` in the program's text. The host installs before the run."""

CELL_END = "\0"
"""The end of each cell of a notebook that runs as one program: no Python holds it."""

RESULT_FD = 3
"""The program's end of the socket that its outputs and its report go to."""

REQUEST_FD = 4
"""The program's end of the socket that requests come from."""

OUTPUT = b"o"
"""The first byte of an output on that socket; a report begins with a brace."""

MEDIA_TYPE = r"[A-Za-z0-9][\w!#$&^.+-]{0,63}/[A-Za-z0-9][\w!#$&^.+-]{0,63}"
"""A pattern for the names of media types, of ASCII alone."""

MAX_OUTPUTS = 256
MAX_OUTPUT_BYTES = 4 * 1024 * 1024
MAX_OUTPUTS_BYTES = 16 * 1024 * 1024
"""Outputs of one run: their number, the bytes of each and of all together, pictures in
base 64. A representation that makes one larger is left out of it and named; past the
other two an output is left out whole, and counted in a warning."""

MAX_PREVIEW_SIDE = 1568
MAX_PREVIEW_BYTES = 1024 * 1024
"""Pixels of the longer side, and bytes, of pictures that models get. A larger one comes
with a smaller copy, or is named and not sent."""

WARM_UP = b"?"
"""Sent in place of a request: there is time to warm up before one comes."""

FORK = b"f"
"""Sent in place of a request: a JSON line follows, and the descriptors of a branch."""

ANSWER = b"a"
"""The first byte of an answer, so that a late one is not taken for a request."""

MAX_CALL_BYTES = 1024 * 1024
"""Bytes of JSON of one call of a host's tool. When they are exceeded the call fails."""

MAX_RESULT_VALUES = 100_000
"""Values in a program's last value: texts, numbers, lists, objects; a number of 4,000
digits counts as 1,600. When it is reached the value is described instead."""

BESIDE = ("exec_", "file_", "port_", "reach_", "usage_", "watch_")
"""Beginnings of the types of frames that pass beside runs: of commands, of files, of
ports, of the network of commands, of what the cell uses and of watched folders."""

CHANGES_AT_ONCE = 100
"""Changes of a watched folder in one frame; the host asks for the next ones."""

WINDOW_BYTES = 512 * 1024
"""Bytes of one stream that may be in flight or buffered, in each direction. When it is
reached the sender waits for credit."""

CREDIT_BYTES = WINDOW_BYTES // 2
"""Bytes of one stream that a reader takes before it gives the sender credit for them:
few frames of credit, and the sender has half a window meanwhile."""

PIECE_BYTES = 256 * 1024
"""Largest piece of a stream in one frame, in bytes."""

ARTIFACTS = "artifacts"
"""The folder of the work dir whose files come back with the result."""

SHARED_FOLDERS = ("/tmp", "/dev/shm")
"""The folders beside the work dir that programs can write to, and that live in memory
where cells have their own file systems."""

BRANCHES = ".branches"
"""The folder of the work dirs of forked sessions, in the cell's /tmp."""

OWN_USER, SHARED_USER = "own", "shared"
"""The user of the programs of a `confined` cell: nobody else has it, or the host."""

RENEWAL_SECONDS = 0.05
"""Seconds in which what a program could change must be made new. When they are over the
cell is destroyed. The order for the next fork is not in them: a fork alone can take as
long on gVisor. With it come a new namespace of IPC and, if the network was used, one of
the network, which the kernel may delay; the host waits a second for all."""

MOUNTS, FOLDERS = "mounts", "folders"
"""The two ways to make a cell new between programs: its supervisor makes namespaces and
file systems anew, or, where it may not, empties folders; then programs may call nothing
that leaves something elsewhere."""

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
    """Return the identifier of the reason for which a system call on a file failed."""
    return _REASONS.get(error.errno or 0, "failed")


LOOPBACK = "127.0.0.1"
ASKED = b"to "
"""The address of relays, in their cell's own network or, without one, for the cell's
programs alone."""

OFFLINE = {"npm_config_offline": "true", "UV_OFFLINE": "1"}
"""Variables of commands and bash programs without a network. npx, npm and uv else try
for minutes to fetch what is not there."""
