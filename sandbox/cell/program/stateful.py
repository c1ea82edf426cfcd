"""An interpreter that keeps its state: one request after the other, and forks.

This runs in the program's process, so the program can forge all that it says.
"""

from __future__ import annotations

import builtins
import json
import os
import socket
import stat
import sys
import time
from operator import is_, itemgetter

from ..kernel import signals
from ..kernel.descriptors import move_fds, receive_fds
from . import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable


_FIRST_FILE = 5
_MAX_COPIED = 4096
_plain = dict(vars(builtins))
_all_of = itemgetter(*_plain)
_GONE = object()


class PlainBuiltins:
    """Python's own builtins, for our steps between programs that replaced some.

    Our modules have theirs anyway, but not those of the standard library that they use.
    What it puts back is what it has found, as threads may replace some at any time.
    It gives True if there was any.
    """

    def __enter__(self) -> bool:
        self._theirs = _replaced()
        if self._theirs:
            vars(builtins).update(_plain)
        return bool(self._theirs)

    def __exit__(self, *_: object) -> None:
        for name, value in self._theirs.items():
            if value is _GONE:
                vars(builtins).pop(name, None)
            else:
                vars(builtins)[name] = value


def _replaced() -> dict[str, Any]:
    """Return what the program has in place of Python's own builtins."""
    found = vars(builtins)
    try:
        if all(map(is_, _all_of(found), _plain.values())):
            return {}
    except KeyError:
        # It has deleted one.
        pass
    now = {name: found.get(name, _GONE) for name in _plain}
    return {name: value for name, value in now.items() if value is not _plain[name]}


def interruptible(function: Callable[[], Any]) -> Any:
    """Call a function that SIGINT may interrupt; None if SIGINT came after its end."""
    try:
        try:
            signals.as_python()
            streams.note_start()
            return function()
        finally:
            signals.await_program()
    except KeyboardInterrupt:
        return None


def receive_fork(request_fd: int) -> tuple[dict[str, Any], list[int]]:
    """Read a request to fork, and the four descriptors of the new branch."""
    sock = socket.socket(fileno=request_fd)
    try:
        data, fds = receive_fds(sock, 64 * 1024, 4)
    finally:
        sock.detach()
    request: dict[str, Any] = json.loads(data)
    return request, fds


def fork(request: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
    """Fork; return None in the old process, the announcement to send in the new one.

    Args:
        request: `to`, the branch's folder, `from`, the folder to copy, and whether
            other threads may be lost.
        fds: The branch's stdout, stderr, result and request.
    """
    announcement: dict[str, Any] = {"warnings": []}
    try:
        refuse_threads(request["allow_threads"], announcement)
        here = fork_sibling()
    except (ImportError, OSError, ValueError) as error:
        os.write(fds[2], json.dumps({"error": str(error)}).encode() + b"\n")
        here = True
    if here:
        for fd in fds:
            os.close(fd)
        return None
    null = os.open(os.devnull, os.O_RDWR)
    move_fds([null, *fds], 3)
    for fd in (null, *fds):
        if fd >= _FIRST_FILE:
            os.close(fd)
    announcement["pid"], announcement["home"] = os.getpid(), request["to"]
    announcement["warnings"] += shared_files()
    try:
        move_to_copy(request["from"], request["to"], announcement)
    except OSError as error:
        return {"error": f"the work dir cannot be copied: {error}"}
    return announcement


def fork_sibling() -> bool:
    """Fork a sibling: a child of this process's parent. True in the old process.

    Raises:
        OSError: The kernel refused.
    """
    from ..kernel import linux

    parent = os.getppid()
    pid = linux.clone(linux.CLONE_PARENT)
    if pid == 0 and os.getppid() != parent:
        # gVisor makes a child all the same. An orphan of it becomes the supervisor's.
        if os.fork():
            os._exit(0)
        while os.getppid() != parent:
            time.sleep(0.0005)
        return False
    if pid:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
    return bool(pid)


def refuse_threads(allowed: bool, announcement: dict[str, Any]) -> None:
    """Raise ValueError if Python threads live that a fork would lose."""
    threading = sys.modules.get("threading")
    if threading is None:
        return
    main = threading.main_thread()
    lost = [each.name for each in threading.enumerate() if each is not main]
    if lost and not allowed:
        raise ValueError(f"live threads would be lost: {', '.join(lost[:5])}")
    announcement["warnings"] += [f"the thread {name} was lost" for name in lost]


def shared_files() -> list[str]:
    """Return a warning for each open file that the branch shares with its origin."""
    found = []
    for fd in _open_descriptors():
        if fd < _FIRST_FILE:
            continue
        try:
            target = os.readlink("/proc/self/fd/%d" % fd)
        except OSError:
            continue
        if target.startswith("/") and not target.startswith("/proc/"):
            found.append(f"the open file {target} is shared")
    return found


def _open_descriptors() -> Iterable[int]:
    try:
        return map(int, os.listdir("/proc/self/fd"))
    except OSError:
        # Landlock lets a process look at each of them, and not list them.
        return range(os.sysconf("SC_OPEN_MAX"))


def move_to_copy(source: str, target: str, announcement: dict[str, Any]) -> None:
    """Copy the work dir, and change to the same folder in the copy."""
    here = os.getcwd()
    inside = os.path.relpath(here, source)
    os.makedirs(target, mode=0o700)
    # Not by `fchmod`, which needs a helper where programs have the host's user.
    umask = os.umask(0)
    copied = 0
    for folder, folders, files in os.walk(source):
        place_in = os.path.join(target, os.path.relpath(folder, source))
        os.makedirs(place_in, mode=0o755, exist_ok=True)
        for name in files + [each for each in folders if _is_link(folder, each)]:
            copied += 1
            if copied > _MAX_COPIED:
                raise OSError(f"more than {_MAX_COPIED} files")
            _copy(
                os.path.join(folder, name), os.path.join(place_in, name), announcement
            )
    os.umask(umask)
    os.chdir(target if inside.startswith("..") else os.path.join(target, inside))
    if inside.startswith(".."):
        announcement["warnings"].append(
            f"the current folder {here} is not in the work dir"
        )
    sys.path[:] = [moved(path, source, target) for path in sys.path]


def moved(path: str, source: str, target: str) -> str:
    """Return the path of the same thing in a copy of a folder."""
    inside = path == source or path.startswith(source + "/")
    return target + path[len(source) :] if inside else path


def _is_link(folder: str, name: str) -> bool:
    return os.path.islink(os.path.join(folder, name))


def _copy(source: str, target: str, announcement: dict[str, Any]) -> None:
    found = os.lstat(source)
    if stat.S_ISLNK(found.st_mode):
        if not os.path.lexists(target):
            os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(found.st_mode):
        read_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
        mode = stat.S_IMODE(found.st_mode)
        write_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        while os.sendfile(write_fd, read_fd, None, 1 << 30):
            pass
        os.close(read_fd)
        os.close(write_fd)
    else:
        announcement["warnings"].append(f"{source} is no file and was not copied")
