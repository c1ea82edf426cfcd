"""The program `tools` of a cell: calls of the host from bash and from commands.

It stands alone, as cells keep it compiled in a folder of PATH. Like `host_tools` it
guards nothing: the host decides on each call.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_VARIABLE = "TOOLCELL_TOOLS"
_DIGITS = 8
_USAGE = """\
usage: tools list
       tools describe NAME
       tools NAME [--KEY VALUE]...
       tools NAME --json OBJECT   (- reads it from standard input)
"""
_HELP = """\
A VALUE that is JSON, such as 5, true or [1, 2], is that; any other is text. `tools call
NAME ...` calls a tool whose name is `list` or `describe`. The result is JSON on
standard output. Exit codes: 1 failed, 2 wrong usage, 3 refused, 124 too late.
"""
_FAILED, _MISUSED, _REFUSED, _TOO_LATE = 1, 2, 3, 124
_REFUSALS = ("denied", "guard.denied", "too_many")
_TIMEOUTS = ("timeout", "tool.timeout")


class UsageError(Exception):
    """The arguments make no call."""


class NoToolsError(Exception):
    """The host cannot be called from here."""


def main() -> int:
    """Make the call of the command line; return the exit code."""
    words = sys.argv[1:]
    if words[:1] in (["--help"], ["-h"]):
        print(_USAGE + "\n" + _HELP, end="")
        return 0
    try:
        answer = _answer(_request(words))
    except UsageError as error:
        print("tools: %s\n%s" % (error, _USAGE), end="", file=sys.stderr)
        return _MISUSED
    except NoToolsError as error:
        print("tools: %s" % error, file=sys.stderr)
        return _FAILED
    if "error" in answer:
        return _tell(answer["error"])
    value = answer["value"]
    if words == ["list"]:
        print("".join(each + "\n" for each in value), end="")
    else:
        print(json.dumps(value, ensure_ascii=False))
    return 0


def _tell(error: dict[str, Any]) -> int:
    code, seconds = error["code"], error.get("retry_after")
    later = "" if seconds is None else " (retry after %g s)" % seconds
    print("tools: %s: %s%s" % (code, error["message"], later), file=sys.stderr)
    if code in _REFUSALS:
        return _REFUSED
    return _TOO_LATE if code in _TIMEOUTS else _FAILED


def _request(words: list[str]) -> bytes:
    try:
        return json.dumps(_request_fields(words)).encode()
    except RecursionError:
        raise UsageError("the arguments are nested too deeply") from None


def _request_fields(words: list[str]) -> dict[str, Any]:
    """Return what the words ask the host for."""
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        raise UsageError("the arguments are not UTF-8") from None
    if words == ["list"]:
        return {"describe": None}
    if words[:1] == ["describe"]:
        if len(words) != 2:
            raise UsageError("`describe` takes one name")
        return {"describe": words[1]}
    if words[:1] == ["call"]:
        words = words[1:]
    if not words or words[0].startswith("-"):
        raise UsageError("which tool?")
    return {"name": words[0], "args": [], "kwargs": _arguments(words[1:])}


def _arguments(words: list[str]) -> dict[str, Any]:
    if words[:1] == ["--json"]:
        if len(words) != 2:
            raise UsageError("`--json` takes one object, and nothing beside it")
        return _object(sys.stdin.read() if words[1] == "-" else words[1])
    found: dict[str, Any] = {}
    left = iter(words)
    for word in left:
        key, sign, value = word.partition("=")
        if not key.startswith("--") or key == "--":
            raise UsageError("%r is no --KEY" % word)
        text = value if sign else next(left, None)
        if text is None:
            raise UsageError("%s has no value" % key)
        found[key[2:]] = _value(text)
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        found = _parsed(text)
    except ValueError as error:
        raise UsageError("`--json` is no JSON: %s" % error) from None
    if not isinstance(found, dict):
        raise UsageError("`--json` takes an object")
    return found


def _value(text: str) -> Any:
    try:
        return _parsed(text)
    except ValueError:
        return text


def _parsed(text: str) -> Any:
    """Return the value of JSON whose numbers are finite. Raises ValueError."""
    found = json.loads(text)
    json.dumps(found, allow_nan=False)
    return found


def _answer(text: bytes) -> dict[str, Any]:
    """Return the host's answer. Raises NoToolsError."""
    number = os.environ.get(_VARIABLE, "")
    if not (number.isascii() and number.isdigit()):
        raise NoToolsError("no tools were offered to this program")
    try:
        with socket.socket(fileno=os.dup(int(number))) as door:
            own = _socket_of(door)
    except (OSError, OverflowError):
        raise NoToolsError(
            "descriptor %s was closed on the way here, or its run is over; a program"
            " between must keep it (in Python: subprocess.run(..., close_fds=False))"
            % number
        ) from None
    with own, own.makefile("rb") as answers:
        try:
            own.sendall(b"%08x%s" % (len(text), text))
            size = int(answers.read(_DIGITS) or b"0", 16)
            answer = answers.read(size)
        except OSError:
            answer, size = b"", 1
    if not size or len(answer) < size:
        raise NoToolsError("the run of these tools is over, or the call is too large")
    found: dict[str, Any] = json.loads(answer)
    return found


def _socket_of(door: socket.socket) -> socket.socket:
    """Return a socket for one call, which others cannot read.

    Raises:
        NoToolsError: None can be opened now.
        OSError: The other end is closed, or not there.
    """
    door.sendall(b"?")
    found = array.array("i")
    data, ancillary, _, _ = door.recvmsg(1, socket.CMSG_SPACE(found.itemsize))
    for _, _, packed in ancillary:
        found.frombytes(packed[: found.itemsize])
        return socket.socket(fileno=found[0])
    if data:
        raise NoToolsError("no descriptor is left for a call; see `limits.open_files`")
    raise OSError("the end")


if __name__ == "__main__":
    sys.exit(main())
