"""From a request to a confined process that has become the command."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

from ..kernel import signals
from ..kernel.confine import ConfineError, confine, limit_processes, narrow
from ..kernel.descriptors import close_from, move_fds, output_pipe
from ..relays import call_door
from ..wire.contract import OFFLINE
from .process import Process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SETUP_FD = 3
_MAX_REASON_BYTES = 1000


def spawn(
    request: dict[str, Any], settings: dict[str, Any], door: list[int]
) -> Process:
    """Start a command; return when it runs.

    Args:
        request: The fields of `exec_start`: `argv`, `env`, `folder`, `cwd`, `stdin`,
            `pty`, `timeout`.
        settings: Its confinement.
        door: Its end of the door for calls of the host, if it may make any.

    Raises:
        OSError: It cannot be started; the error says why.
    """
    size = request["pty"]
    uid = settings["uid"]
    ends = _open_terminal(uid, size) if size else _open_pipes(uid, request)
    inside, stdin, outputs = ends
    setup_r, setup_w = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _become([*inside, setup_w, *door], request, settings)
    finally:
        for fd in {*inside, setup_w}:
            os.close(fd)
    # It closes its end by becoming the command.
    with open(setup_r, "rb") as setup:
        why = setup.read(_MAX_REASON_BYTES)
    if why:
        os.waitpid(pid, 0)
        for fd in {*outputs, *([] if stdin is None else [stdin])}:
            os.close(fd)
        number, _, text = why.decode("utf-8", "replace").partition(" ")
        raise OSError(int(number), text)
    timeout = request["timeout"]
    process = Process(request["id"], pid, stdin, outputs, bool(size), timeout)
    if settings["paths"]:
        from ..kernel import landlock

        process.shown = landlock.files_of(pid)
    return process


def _open_pipes(
    uid: int | None, request: dict[str, Any]
) -> tuple[list[int], int | None, dict[int, str]]:
    """Return the command's ends of its streams, and ours."""
    stdin: int | None = None
    if request["stdin"]:
        stdin_r, stdin = os.pipe()
        os.set_blocking(stdin, False)
    else:
        stdin_r = os.open(os.devnull, os.O_RDONLY)
    stdout_r, stdout_w = output_pipe(uid)
    stderr_r, stderr_w = output_pipe(uid)
    for fd in (stdout_r, stderr_r):
        os.set_blocking(fd, False)
    return (
        [stdin_r, stdout_w, stderr_w],
        stdin,
        {stdout_r: "stdout", stderr_r: "stderr"},
    )


def _open_terminal(
    uid: int | None, size: list[int]
) -> tuple[list[int], int | None, dict[int, str]]:
    """Return both ends of a new terminal that belongs to the command's user."""
    own = os.geteuid()
    if uid is not None:
        os.seteuid(uid)
    try:
        master, slave = os.openpty()
    finally:
        os.seteuid(own)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    os.set_blocking(master, False)
    inside = [slave, os.dup(slave), os.dup(slave)]
    return inside, os.dup(master), {master: "stdout"}


def _become(
    fds: list[int], request: dict[str, Any], settings: dict[str, Any]
) -> NoReturn:
    """Become the command, in a fresh fork; or tell why not, and end."""
    try:
        narrow(settings)
        signals.forget_parent()
        signals.as_new()
        os.setsid()
        move_fds(fds, _SETUP_FD)
        close_from(len(fds), but=settings["notifier"])
        if request["pty"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.umask(0o022)
        confine(settings)
        if settings["confined"]:
            limit_processes(settings["more_processes"])
        os.chdir(os.path.join(request["folder"], request["cwd"]))
        argv, env = request["argv"], {**settings["env"], **request["env"]}
        if request["network"] is None:
            env = {**OFFLINE, **env}
        if request["tools"]:
            env.update(call_door.offered(_SETUP_FD + 1))
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError, ConfineError) as error:
        number = getattr(error, "errno", None) or 0
        why = getattr(error, "strerror", None) or str(error)
        name = _named(error, request["argv"][0])
        text = f"{number} {name}: {why}" if name else f"{number} {why}"
        os.write(_SETUP_FD, text.encode("utf-8", "replace")[:_MAX_REASON_BYTES])
    finally:
        os._exit(127)


def _named(error: Exception, program: str) -> str:
    """Return the file that an error is about; a program as it was asked for."""
    name = os.fsdecode(getattr(error, "filename", None) or "")
    # Of a program that is nowhere in PATH the error names the last place.
    return program if os.path.basename(name) == program else name
