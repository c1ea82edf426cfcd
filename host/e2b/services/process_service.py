"""The service `process.Process`: commands of a sandbox, and their streams."""

from __future__ import annotations

import binascii
import signal
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Self

import anyio.abc
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from toolcell.core import ToolcellError
from toolcell.sandbox import ExecutionResult

from ...http.bodies import Bounds
from ..operations.action import Actions
from ..operations.cell_files import resolved
from ..operations.commands import COMMAND, CommandArguments, spelled
from ..protocol.bodies import parsed
from ..protocol.connect_rpc import (
    answer_stream,
    ping_seconds,
    read_envelopes,
    read_one,
    timeout_of,
    whole_stream,
)
from ..protocol.errors import APIError
from ..state.sandbox import Sandbox, StartedCommand

_KEEP_ALIVE: dict[str, Any] = {"event": {"keepalive": {}}}
_SIGNALS = {
    "SIGNAL_SIGTERM": signal.SIGTERM,
    "SIGNAL_SIGKILL": signal.SIGKILL,
    15: signal.SIGTERM,
    9: signal.SIGKILL,
}


class ClientMessage(BaseModel):
    """A message of a client; one that asks for more than is done is refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow"
    )

    @model_validator(mode="after")
    def _asks_for_nothing_else(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            if value:
                raise APIError(501, f"{name[:100]!r} is not supported by toolcell")
        return self


class Size(ClientMessage):
    """The size of a terminal, in characters."""

    cols: int = Field(default=80, ge=1, le=1000)
    rows: int = Field(default=24, ge=1, le=1000)


class Pty(ClientMessage):
    """A terminal."""

    size: Size = Size()


class ProcessConfig(ClientMessage):
    """A program, its arguments, variables and folder."""

    cmd: str
    args: list[str] = Field(default_factory=list)
    envs: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None


class StartRequest(ClientMessage):
    """A request to `Start`."""

    process: ProcessConfig
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool = True


class Selector(ClientMessage):
    """The process that a request is about."""

    pid: int | None = None
    tag: str | None = None


class ProcessInput(ClientMessage):
    """Bytes for a process, in Base64."""

    stdin: str | None = None
    pty: str | None = None


class ProcessRequest(ClientMessage):
    """A request about a process that runs."""

    process: Selector = Selector()
    input: ProcessInput = ProcessInput()
    pty: Pty = Pty()
    signal: str | int = 0


class ProcessService:
    """Starts commands in sandboxes, and leads clients to them.

    Args:
        bounds: The bounds of a message.
        actions: Leads each command through the guard.
    """

    def __init__(self, bounds: Bounds, actions: Actions) -> None:
        self._bounds = bounds
        self._actions = actions
        self.unary = {
            "List": self._list,
            "Update": self._update,
            "SendInput": self._send_input,
            "SendSignal": self._send_signal,
            "CloseStdin": self._close_stdin,
        }
        """The methods with one message on each side."""

    async def start(self, request: Request, sandbox: Sandbox) -> Response:
        """Start a command, and stream what it says."""
        data = await read_one(request, self._bounds)
        asked = parsed(StartRequest, data)
        wanted = _arguments(asked, sandbox, timeout_of(request))
        command: StartedCommand = await sandbox.work.start(self._hold, sandbox, wanted)
        command.tag = asked.tag

        async def release() -> None:
            command.attached.set()

        return _stream(request, command, release)

    async def _hold(
        self,
        sandbox: Sandbox,
        wanted: CommandArguments,
        *,
        task_status: anyio.abc.TaskStatus[StartedCommand],
    ) -> None:
        """Own a command from its admission to its end, whoever reads."""
        began = False
        try:
            async with self._actions.do(COMMAND, sandbox.token, wanted) as command:
                began = True
                task_status.started(command)
                await command.attached.wait()
        except (ToolcellError, APIError):
            if not began:
                raise

    async def connect(self, request: Request, sandbox: Sandbox) -> Response:
        """Stream what a running command says from now on."""
        data = await read_one(request, self._bounds)
        command = _selected(sandbox, parsed(ProcessRequest, data).process)
        return _stream(request, command, None)

    async def stream_input(self, request: Request, sandbox: Sandbox) -> Response:
        """Pass a client's stream to a command's input."""
        command: StartedCommand | None = None
        async for event in read_envelopes(request, self._bounds):
            if "start" in event:
                wanted = ProcessRequest.model_validate(event["start"])
                command = _selected(sandbox, wanted.process)
            elif "data" in event and command is not None:
                given = ProcessRequest.model_validate(event["data"]).input
                await _write(command, given)
        if command is None:
            raise APIError(400, "the stream names no process")
        return whole_stream({})

    async def _list(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        sandbox.session  # noqa: B018 - an ended one has none
        return {
            "processes": [
                {"config": command.config, "pid": pid}
                | ({} if command.tag is None else {"tag": command.tag})
                for pid, command in sandbox.commands.items()
                if command.process.running
            ]
        }

    async def _update(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(ProcessRequest, data)
        size = wanted.pty.size
        await _selected(sandbox, wanted.process).process.resize(size.rows, size.cols)
        return {}

    async def _send_input(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(ProcessRequest, data)
        await _write(_selected(sandbox, wanted.process), wanted.input)
        return {}

    async def _send_signal(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(ProcessRequest, data)
        process = _selected(sandbox, wanted.process).process
        number = _SIGNALS.get(wanted.signal)
        if number is None:
            raise APIError(400, "signals are SIGNAL_SIGTERM and SIGNAL_SIGKILL")
        if number == signal.SIGKILL:
            await process.kill()
            await process.ended()
        else:
            await process.signal(number)
        return {}

    async def _close_stdin(self, sandbox: Sandbox, data: bytes) -> dict[str, Any]:
        wanted = parsed(ProcessRequest, data)
        await _selected(sandbox, wanted.process).process.close_stdin()
        return {}


def _stream(
    request: Request,
    command: StartedCommand,
    release: Callable[[], Awaitable[None]] | None,
) -> Response:
    return answer_stream(
        request,
        _events(command),
        keep_alive=_KEEP_ALIVE,
        keep_alive_seconds=ping_seconds(request),
        release=release,
    )


def _arguments(
    asked: StartRequest, sandbox: Sandbox, seconds: float | None
) -> CommandArguments:
    """Return the arguments of a command, as policies see them."""
    config, size = asked.process, Size() if asked.pty is None else asked.pty.size
    return CommandArguments.model_validate(
        {
            "sandbox_id": sandbox.id,
            **spelled([config.cmd, *config.args]),
            "cwd": resolved(config.cwd or "", sandbox.home),
            "env": config.envs,
            "stdin": asked.stdin and asked.pty is None,
            "terminal": asked.pty is not None,
            "rows": size.rows,
            "cols": size.cols,
            "timeout_seconds": seconds,
        }
    )


def _selected(sandbox: Sandbox, selector: Selector) -> StartedCommand:
    sandbox.session  # noqa: B018 - an ended one has none
    for pid, command in sandbox.commands.items():
        named = selector.tag is not None and command.tag == selector.tag
        if (pid == selector.pid or named) and command.process.running:
            return command
    raise APIError(404, "there is no such process")


async def _write(command: StartedCommand, given: ProcessInput) -> None:
    text = given.stdin if given.stdin is not None else given.pty
    try:
        padded = (text or "").translate({45: 43, 95: 47})
        data = b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise APIError(400, "input must be Base64") from None
    await command.process.write(data)


async def _events(command: StartedCommand) -> AsyncGenerator[dict[str, Any], None]:
    process = command.process
    yield {"event": {"start": {"pid": process.pid}}}
    async with aclosing(process.output()) as output:
        async for stream, data in output:
            name = "pty" if command.has_terminal else stream
            yield {"event": {"data": {name: b64encode(data).decode()}}}
    result = await process.wait()
    if result.status == "timeout":
        raise APIError(504, "the command was killed at its time limit")
    yield {"event": {"end": end_event(result)}}


def end_event(result: ExecutionResult) -> dict[str, Any]:
    """Return the event of a command's end, in the words of Go's `os.ProcessState`."""
    if result.exit_code is not None:
        end = {"exited": True, "status": f"exit status {result.exit_code}"}
        if result.exit_code:
            end |= {"exitCode": result.exit_code, "error": end["status"]}
        return end
    limit = result.limit_reached
    why = f"it used too much {limit}" if limit else _signal_words(result.signal)
    return {"exitCode": -1, "exited": False, "status": why, "error": why}


def _signal_words(name: str | None) -> str:
    number = getattr(signal, name or "SIGKILL", None)
    words = signal.strsignal(number) if number else None
    return f"signal: {(words or str(name)).lower()}"
