"""The `tools` object of a program: each call goes to the host and comes back.

It is the program's own: whoever calls, and what may be called, the host decides.
"""

from __future__ import annotations

import _thread
import json
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


MAX_CALL_BYTES = 1024 * 1024
ANSWER = b"a"
"""The first byte of an answer: none that came too late is taken for a request."""

_DIGITS = 8


class ToolError(Exception):
    """A tool was refused or failed; `code` says why in one word."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Tools:
    """The tools that the host offers, as functions."""

    def __init__(self, names: list[str], fd: int) -> None:
        bridge = Bridge(fd)
        for name in names:
            setattr(self, name, Tool(bridge, name))


class Bridge:
    """The way to the host, shared by the tools of a program."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._sent = 0
        self._answers: dict[int, Any] = {}
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()

    def call(self, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        """Call a tool and wait. Raises ToolError."""
        wish = {"name": name, "args": arguments, "kwargs": options}
        with self._writing:
            self._sent += 1
            number = self._sent
            text = json.dumps({**wish, "id": number}, allow_nan=False).encode()
            if len(text) > MAX_CALL_BYTES:
                raise ToolError("the arguments are too large", "too_large")
            _write_all(self._fd, b"%08x" % len(text) + text)
        return self._result(number)

    def _result(self, number: int) -> Any:
        while True:
            with self._reading:
                # Another thread may have read it for us.
                if number not in self._answers:
                    answer = self._read()
                    self._answers[answer["id"]] = answer
                if number not in self._answers:
                    continue
                answer = self._answers.pop(number)
            if "error" in answer:
                raise ToolError(answer["error"]["message"], answer["error"]["code"])
            return answer["value"]

    def _read(self) -> Any:
        # Ctrl-C may interrupt the waiting, but never half an answer.
        select.select([self._fd], [], [])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return json.loads(read_answer(self._fd, _read_exactly(self._fd, 1)))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def read_answer(fd: int, first: bytes) -> bytes:
    """Return an answer whose first byte has been read."""
    if first != ANSWER:
        raise ToolError("the host does not answer", "gone")
    return _read_exactly(fd, int(_read_exactly(fd, _DIGITS), 16))


class Tool:
    """One tool: call it, or await the call inside an event loop."""

    def __init__(self, bridge: Bridge, name: str) -> None:
        self._bridge = bridge
        self.__name__ = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        call = self._bridge.call
        wish = (self.__name__, list(arguments), options)
        if loop is None:
            return call(*wish)
        return loop.run_in_executor(None, call, *wish)

    def __repr__(self) -> str:
        return f"<tool {self.__name__}>"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(fd, size)
        if not part:
            raise ToolError("the host is gone", "gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
