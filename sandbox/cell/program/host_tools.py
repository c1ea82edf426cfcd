"""The `tools` object of a program: each call goes to the host and comes back.

It runs in the program's process and guards nothing: the host decides on each call.
"""

from __future__ import annotations

import _thread
import json
import os
import select
import signal
import sys

from ..wire.contract import ANSWER, MAX_CALL_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_DIGITS = 8
# A thread that waits for an answer looks this often whether its run is over.
_LOOK_SECONDS = 0.2


class ToolError(Exception):
    """A tool was refused or failed.

    `kind`, which is `code` too, says why, as one identifier; `retry_after` in how many
    seconds the same call may succeed, or None.
    """

    def __init__(
        self, message: str, kind: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = self.code = kind
        self.retry_after = retry_after


class HostTools:
    """The tools that the host offers, as attributes that can be called."""

    def __init__(self, names: list[str], bridge: Bridge) -> None:
        for name in names:
            setattr(self, name, HostTool(bridge, name))


class Bridge:
    """The connection to the host, shared by all threads of a run.

    One waiting thread reads for all of them. The others sleep until it has their
    answer, or has its own and hands the reading over.

    Args:
        fd: The socket that leads to the supervisor.
        shared: True if processes that the program forks may call, too. In a session
            they would be there in its next run.
    """

    def __init__(self, fd: int, *, shared: bool) -> None:
        self._fd = fd
        self._pid = 0 if shared else os.getpid()
        self._sent = 0
        self._over = False
        self._reader = 0
        self._turns: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()
        self._state = _thread.allocate_lock()

    def call(self, name: str, arguments: list[Any], options: dict[str, Any]) -> Any:
        """Call a tool and wait for its value. Raises ToolError."""
        request = {"name": name, "args": arguments, "kwargs": options}
        text = json.dumps(request, allow_nan=False).encode()
        if b"\\ud" in text:
            # The host would not answer half a surrogate pair; this line raises for one.
            json.dumps(request, ensure_ascii=False).encode()
        if len(text) > MAX_CALL_BYTES:
            raise ToolError("the arguments are too large", "too_large")
        if self._pid and os.getpid() != self._pid:
            raise ToolError("only a session's own process has tools", "gone")
        with self._writing:
            if self._over:
                raise ToolError("the run of these tools is over", "gone")
            self._sent += 1
            number = self._sent
            _write_all(self._fd, b"%08x%08x%s" % (len(text), number, text))
        return self._result(number)

    def close(self) -> None:
        """End all waiting; threads left behind cannot read answers of the next run."""
        with self._writing, self._reading:
            self._over = True
        with self._state:
            for number in self._turns:
                self._wake(number)

    def _check(self) -> None:
        if self._over:
            # A thread that the run left behind: it ends silently.
            raise SystemExit

    def _result(self, number: int) -> Any:
        turn = _thread.allocate_lock()
        turn.acquire()
        with self._state:
            self._turns[number] = turn
            self._reader = self._reader or number
            sleeps = self._reader != number and number not in self._answers
        answer = None
        try:
            if sleeps:
                turn.acquire()
            while number not in self._answers:
                self._read()
        finally:
            answer = self._take_answer(number)
        if "error" in answer:
            error = answer["error"]
            raise ToolError(error["message"], error["code"], error.get("retry_after"))
        return answer["value"]

    def _take_answer(self, number: int) -> Any:
        """Return the answer, if it came, and let another thread do the reading."""
        with self._state:
            del self._turns[number]
            if self._reader == number:
                left = (turn for turn in self._turns if turn not in self._answers)
                self._reader = next(left, 0)
                self._wake(self._reader)
            return self._answers.pop(number, None)

    def _wake(self, number: int) -> None:
        turn = self._turns.get(number)
        if turn is not None and turn.locked():
            turn.release()

    def _read(self) -> None:
        self._check()
        # Ctrl-C may interrupt the waiting, but never half an answer.
        while not select.select([self._fd], [], [], _LOOK_SECONDS)[0]:
            self._check()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with self._reading:
                self._check()
                text = read_answer(self._fd)
            answer = json.loads(text)
            with self._state:
                self._answers[answer["id"]] = answer
                self._wake(answer["id"])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def read_answer(fd: int, head: bytes = b"") -> bytes:
    """Return the text of an answer whose first bytes, `head`, have been read."""
    head += _read_exactly(fd, 1 + _DIGITS - len(head))
    if head[:1] != ANSWER:
        raise ToolError("the host does not answer", "gone")
    return _read_exactly(fd, int(head[1:], 16))


class HostTool:
    """One tool. In an event loop a call returns an awaitable, elsewhere the value."""

    def __init__(self, bridge: Bridge, name: str) -> None:
        self._bridge = bridge
        self.__name__ = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        call = self._bridge.call
        request = (self.__name__, list(arguments), options)
        if loop is None:
            return call(*request)
        return loop.run_in_executor(None, call, *request)

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
