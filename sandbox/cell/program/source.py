"""The file of a program: it has the program's name, and is where tracebacks say.

Alone in its cell a program lies in the work dir, as a file that is run by name does. In
a session it would be one more among the session's own files, so there it lies in a
folder of its own, and only if it defines what other processes may look for in it.
"""

from __future__ import annotations

import io
import linecache
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_MAX_NAME = 200
_DEFINES = (b"def ", b"class ", b"__file__")
# Of the runs of this interpreter in a session.
_count = 0
_last = ""


def place(code: bytes, folder: str, name: str) -> str:
    """Write a program into a folder, unless it is there; return its path.

    A file of that name with another text stays, and the program gets the next name.

    Raises:
        OSError: It cannot be written.
    """
    stem, suffix = os.path.splitext(os.path.basename(name)[:_MAX_NAME])
    stem, suffix = stem or "main", ".py" if suffix == ".ipynb" else suffix
    number = 0
    while True:
        path = os.path.join(folder, stem + (f"-{number}" if number else "") + suffix)
        try:
            _write(path, code)
            return path
        except FileExistsError:
            if _holds(path, code):
                return path
        number += 1


def place_run(code: bytes, namespace: dict[str, Any], stem: str = "main") -> str:
    """Return the path of one run of a session, and write it if others may read it."""
    global _count, _last
    _count += 1
    folder = os.path.join(os.environ.get("TMPDIR", "/tmp"), f".runs/{os.getpid()}")
    path = f"{folder}/{stem}-{_count}.py"
    if any(word in code for word in _DEFINES):
        try:
            os.makedirs(folder, exist_ok=True)
            _write(path, code)
        except BaseException:
            # There is no room, or an audit hook of the program forbids it.
            return path
        # Its text is still known here; only this run can start who reads it.
        forget_last()
        _last = namespace["__file__"] = path
    return path


def forget_last() -> None:
    """Remove the file of the last run, if it has one."""
    if _last:
        forget(_last)


def forget(path: str) -> None:
    """Remove a file that was written here."""
    try:
        os.unlink(path)
    except BaseException:
        # As in `place_run`.
        return


def remember(path: str, code: bytes) -> None:
    """Keep the lines of a program for its tracebacks and for `inspect`."""
    text = code.decode("utf-8", "replace")
    # Split as the parser does: str.splitlines knows more line ends.
    lines = list(io.StringIO(text, newline=None))
    if lines and lines[-1][-1:] != "\n":
        # As of files: where marks below a line begin is counted from its end.
        lines[-1] += "\n"
    # Without a time of change it is not compared with the file.
    linecache.cache[path] = (len(text), None, lines, path)


def _write(path: str, code: bytes) -> None:
    descriptor = os.open(path, _NEW, 0o644)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            view = memoryview(code)
            while view:
                view = view[file.write(view) :]
    except BaseException:
        # A part of a program is none.
        forget(path)
        raise


def _holds(path: str, code: bytes) -> bool:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(len(code) + 1) == code
    except OSError:
        return False
