"""Serves one MCP client on standard input and output.

The library's own reader blocks a thread that nothing can stop, and accepts lines of any
length. This one can be stopped, and answers lines over the limits with an error.
"""

from __future__ import annotations

import json
import os
import re
import select
import uuid
from collections import deque
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import mcp_types as types
from mcp.server.stdio import stdio_server

from ..http.bodies import BodyError, Bounds
from ..http.serving import until_signal
from ..runtime.host import Host
from ..terminal.user_name import account_name, user_name
from .caller import Caller
from .json_rpc import is_request
from .server import MCPServer

_CHUNK = 65_536
_ANSWERED = re.compile(
    r'\{"jsonrpc":"2\.0","id":("(?:[^"\\]|\\.)*"|-?\d+),"(?:result|error)"'
)


class StdioStream:
    """Lines of JSON-RPC on two file descriptors, for the library's `stdio_server`.

    Args:
        read_fd: The descriptor of requests.
        write_fd: The descriptor of answers.
        bounds: The size of a line. When its bytes are reached the line is skipped, and
            answered with an error; when its values are, it is answered unparsed.
        drain_seconds: Seconds that the end of the input waits for answers. When it is
            reached the calls that run are cancelled.
    """

    def __init__(
        self,
        read_fd: int,
        write_fd: int,
        *,
        bounds: Bounds,
        drain_seconds: float,
    ) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._bounds = bounds
        self._drain_seconds = drain_seconds
        self._partial = bytearray()
        self._skipping = False
        self._lines: deque[bytes] = deque()
        self._reading = anyio.CancelScope()
        self._writing = anyio.Lock()
        self._unanswered: set[str] = set()
        self._settled = anyio.Event()

    def stop(self) -> None:
        """Stop reading; the server sees the end of its input."""
        self._reading.cancel()

    def __aiter__(self) -> StdioStream:
        return self

    async def __anext__(self) -> str:
        while True:
            while self._lines:
                line = self._lines.popleft()
                problem = self._problem(line)
                if problem is None:
                    return line.decode()
                await self.write(problem)
            if not await self._read():
                await self._settle()
                raise StopAsyncIteration

    async def _read(self) -> bool:
        """Read available bytes; False at the end of the input."""
        if self._reading.cancel_called:
            return False
        with anyio.CancelScope() as self._reading:
            try:
                await anyio.wait_readable(self._read_fd)
            except PermissionError:
                # A regular file is always ready.
                await anyio.lowlevel.checkpoint()
            data = os.read(self._read_fd, _CHUNK)
            self._split(data)
            return bool(data)
        return False

    def _split(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._lines.append(self._end_line(part))
        self._partial += rest
        if len(self._partial) > self._bounds.size:
            # The rest of the line is skipped; only its length over the limit counts.
            self._skipping = True
            self._partial.clear()

    def _end_line(self, part: bytes) -> bytes:
        line = bytes(self._partial) + part
        skipped, self._skipping = self._skipping, False
        self._partial.clear()
        return b" " * (self._bounds.size + 1) if skipped else line

    def _problem(self, line: bytes) -> str | None:
        """Return the error that answers an invalid line; None: it is valid."""
        try:
            message = self._bounds.parse(line)
        except BodyError as error:
            if error.status == 400:
                return _error(types.PARSE_ERROR, "Parse error")
            return _error(types.INVALID_REQUEST, error.message)
        try:
            needs_answer = is_request(message)
            types.jsonrpc_message_adapter.validate_python(message, by_name=False)
        except (BodyError, ValueError):
            return _error(types.INVALID_REQUEST, "Invalid Request")
        if needs_answer:
            self._unanswered.add(json.dumps(message["id"]))
        elif message.get("method") == "notifications/cancelled":
            cancelled = (message.get("params") or {}).get("requestId")
            self._mark_answered(json.dumps(cancelled))
        return None

    async def _settle(self) -> None:
        """Wait until all requests are answered, while the client can read answers."""
        poll = select.poll()
        poll.register(self._write_fd, 0)
        with anyio.move_on_after(self._drain_seconds):
            while self._unanswered and not poll.poll(0):
                self._settled = anyio.Event()
                await self._settled.wait()

    def _mark_answered(self, request_id: str) -> None:
        self._unanswered.discard(request_id)
        self._settled.set()

    async def write(self, text: str) -> None:
        """Write a whole line."""
        async with self._writing:
            try:
                await anyio.to_thread.run_sync(
                    _write_all, self._write_fd, text.encode(), abandon_on_cancel=True
                )
            except OSError:
                # The client is gone.
                self.stop()
                self._unanswered.clear()
        answered = _ANSWERED.match(text)
        if answered is not None:
            self._mark_answered(json.dumps(json.loads(answered[1])))

    async def flush(self) -> None:
        """Do nothing; `write` has no buffer."""


def _error(code: int, message: str) -> str:
    answer = {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": code, "message": message},
    }
    return json.dumps(answer) + "\n"


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def serve_client(host: Host, agent_id: str) -> None:
    """Serve the client at standard input and output until it leaves.

    SIGTERM and SIGINT end it, too, after the calls that run.

    Args:
        host: The host; open.
        agent_id: The agent of the client.
    """
    settings = host.config.server
    caller = Caller(
        agent_id=agent_id,
        run_id=f"stdio-{uuid.uuid4().hex}",
        name=f"user {account_name()}",
        approver=f"user {user_name()}" if settings.elicitation else None,
    )
    server = MCPServer(host, lambda ctx: caller)
    wire = StdioStream(
        _replace_descriptor(0, os.open(os.devnull, os.O_RDONLY)),
        _replace_descriptor(1, os.dup(2)),
        bounds=Bounds(settings.max_body_bytes, settings.max_body_values),
        drain_seconds=settings.drain_seconds,
    )
    stream: Any = wire
    async with (
        anyio.create_task_group() as tasks,
        stdio_server(stdin=stream, stdout=stream) as (read, write),
    ):
        tasks.start_soon(_stop_on_signal, host, wire)
        options = server.lowlevel.create_initialization_options()
        await server.lowlevel.run(read, write, options)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(host: Host, wire: StdioStream) -> None:
    await until_signal(host.active_calls.drain, host.config.server.drain_seconds)
    wire.stop()


def _replace_descriptor(fd: int, other: int) -> int:
    """Return a copy of a standard descriptor, and put another file in its place.

    Tools then print to standard error, and read empty input.
    """
    mine = os.dup(fd)
    os.dup2(other, fd)
    os.close(other)
    return mine
