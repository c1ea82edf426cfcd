"""Runs inside a cell, standard library only: the file actions of a workspace.

The host adds a last line that calls `answer`. Works on Python 3.8 and newer.
"""

from __future__ import annotations

import os
import re
from typing import Any, Iterator  # noqa: UP035 - Python 3.8

_LONGEST_LINE = 2_000
_LONGEST_FILE = 10_000_000


class _Refused(Exception):
    """A refusal, in words for the model."""


def _inside(path: str) -> str:
    """Return the real path of a name in the work dir."""
    root = os.path.realpath(".")
    if "\0" in path:
        raise _Refused("a path holds no NUL character")
    real = os.path.realpath(os.path.join(root, path))
    if real != root and not real.startswith(root + os.sep):
        raise _Refused("the path leads out of the workspace")
    return real


def _text_of(path: str) -> str:
    real = _inside(path)
    if not os.path.isfile(real):
        raise _Refused("there is no such file")
    if os.path.getsize(real) > _LONGEST_FILE:
        raise _Refused("the file is too large to be read")
    with open(real, "rb") as file:
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Refused("the file is not UTF-8 text") from None


def _put(path: str, text: str) -> dict[str, Any]:
    real = _inside(path)
    if os.path.isdir(real):
        raise _Refused("there is a folder of this name")
    data = text.encode()
    os.makedirs(os.path.dirname(real), exist_ok=True)
    with open(real, "wb") as file:
        file.write(data)
    return {"path": path, "bytes": len(data)}


def _read_file(path: str, first_line: int, lines: int) -> dict[str, Any]:
    found = _text_of(path).splitlines(keepends=True)
    shown = found[first_line - 1 : first_line - 1 + lines]
    return {"text": "".join(shown), "first_line": first_line, "lines": len(found)}


def _write_file(path: str, text: str) -> dict[str, Any]:
    return _put(path, text)


def _edit_file(path: str, old: str, new: str) -> dict[str, Any]:
    text = _text_of(path)
    times = text.count(old) if old else 0
    if times != 1:
        raise _Refused(f"`old` occurs {times} times, it has to occur once")
    return _put(path, text.replace(old, new))


def _files_beneath(path: str) -> Iterator[str]:
    top = _inside(path)
    if os.path.isfile(top):
        yield top
    elif not os.path.isdir(top):
        raise _Refused("there is no such folder")
    for folder, folders, names in os.walk(top):
        folders.sort()
        for name in sorted(names):
            yield os.path.join(folder, name)


def _relative(real: str) -> str:
    return os.path.relpath(real, os.path.realpath("."))


def _list_files(path: str, max_entries: int) -> dict[str, Any]:
    files: list[Any] = []
    for real in _files_beneath(path):
        if len(files) == max_entries:
            return {"files": files, "more": True}
        files.append({"path": _relative(real), "bytes": os.lstat(real).st_size})
    return {"files": files, "more": False}


def _search_files(pattern: str, path: str, max_entries: int) -> dict[str, Any]:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise _Refused(f"the pattern is no regular expression: {error}") from None
    matches: list[Any] = []
    for real in _files_beneath(path):
        try:
            text = _text_of(_relative(real))
        except (_Refused, OSError):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if wanted.search(line) is None:
                continue
            if len(matches) == max_entries:
                return {"matches": matches, "more": True}
            matches.append(
                {"path": _relative(real), "line": number, "text": line[:_LONGEST_LINE]}
            )
    return {"matches": matches, "more": False}


def answer(action: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Do one action; return its content, or the error that a model may read."""
    actions: dict[str, Any] = {
        "read_file": _read_file,
        "write_file": _write_file,
        "edit_file": _edit_file,
        "list_files": _list_files,
        "search_files": _search_files,
    }
    try:
        return {"content": actions[action](**inputs)}
    except _Refused as refused:
        return {"error": str(refused)}
    except OSError as error:
        return {"error": error.strerror}
