"""`/execute` and `/contexts`: code that keeps its variables."""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolcell.core import ToolcellError
from toolcell.sandbox import (
    Displayed,
    ExecutionResult,
    Finished,
    Output,
    Stderr,
    Stdout,
)
from toolcell.sandbox.spi import OpaqueValue

from ...http.bodies import Bounds
from ...http.streams import Streamed
from ..operations.action import Actions
from ..operations.cell_files import resolved
from ..operations.code import (
    CODE,
    Code,
    CodeArguments,
    default_context,
    known_context,
    new_context,
)
from ..protocol.bodies import parsed
from ..protocol.errors import APIError, as_api_error
from ..state.sandbox import CodeContext, Sandbox
from .process_service import ClientMessage

_MEDIA = "application/x-ndjson"
_KINDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/chart": "chart",
    "e2b/data": "data",
}


class ExecuteRequest(ClientMessage):
    """Code to run."""

    code: str
    context_id: str | None = Field(default=None, alias="context_id")
    language: str | None = None
    env_vars: dict[str, str] | None = Field(default=None, alias="env_vars")


class ContextRequest(ClientMessage):
    """A context to make."""

    language: str | None = None
    cwd: str | None = None


class Interpreter:
    """Runs code in contexts: of Python each has its own variables.

    Args:
        bounds: The bounds of a message.
        actions: Leads each program through the guard.
    """

    def __init__(self, bounds: Bounds, actions: Actions) -> None:
        self._bounds = bounds
        self._actions = actions

    async def execute(self, request: Request, sandbox: Sandbox) -> Response:
        """Run code, and stream what it says and shows as lines of JSON.

        Raises:
            APIError: There is no such context or language.
            GuardDeniedError: The guard refuses it.
        """
        data = await self._bounds.read(request)
        asked = parsed(ExecuteRequest, data)
        if asked.context_id and asked.language:
            raise APIError(400, "name a context or a language, not both")
        language = asked.language or "python"
        if asked.context_id:
            language = known_context(sandbox, asked.context_id).language
        wanted = CodeArguments(
            sandbox_id=sandbox.id,
            code=asked.code,
            language=language,
            context_id=asked.context_id or None,
            env=asked.env_vars or {},
        )
        async with AsyncExitStack() as opening:
            action = self._actions.do(CODE, sandbox.token, wanted)
            code = await opening.enter_async_context(action)
            release = opening.pop_all().aclose
        lines = _lines(_run(code), request.scope["state"]["abort"])
        return Streamed(lines, _MEDIA, release=release)

    async def create(self, request: Request, sandbox: Sandbox) -> Response:
        """Make a context."""
        data = await self._bounds.read(request)
        wanted = parsed(ContextRequest, data)
        cwd = resolved(wanted.cwd or "", sandbox.home)
        context = await new_context(sandbox, wanted.language or "python", cwd)
        return JSONResponse(_context_json(context))

    async def list(self, request: Request, sandbox: Sandbox) -> Response:
        """Show all contexts, of which each sandbox has two to begin with."""
        for language in ("python", "javascript"):
            await default_context(sandbox, language)
        found = sorted(sandbox.contexts.values(), key=lambda each: not each.is_default)
        return JSONResponse([_context_json(each) for each in found])

    async def remove(self, sandbox: Sandbox, context_id: str) -> Response:
        """End a context."""
        context = known_context(sandbox, context_id)
        del sandbox.contexts[context.id]
        async with context.turn:
            await context.session.aclose()
        return Response(status_code=204)

    async def restart(self, sandbox: Sandbox, context_id: str) -> Response:
        """End the interpreter of a context, and give it a new one."""
        context = known_context(sandbox, context_id)
        async with context.turn:
            await context.session.aclose()
            context.session = await sandbox.session.context()
            context.runs, context.is_in_place = 0, False
        return JSONResponse(_context_json(context))


async def _run(code: Code) -> AsyncGenerator[dict[str, Any], None]:
    """Yield what a program says and shows, then its end."""
    said = _Output()
    async with aclosing(code.events()) as events:
        async for event in events:
            match event:
                case Stdout(data=data) | Stderr(data=data):
                    name = "stdout" if isinstance(event, Stdout) else "stderr"
                    yield said.line(name, data)
                case Displayed(output=output):
                    yield _result_of(output)
                case Finished(result=result):
                    for last in _last(result, code.context.runs):
                        yield last


class _Output:
    """Makes lines of output; characters may be cut by its pieces."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": make("replace"), "stderr": make("replace")}

    def line(self, name: str, data: bytes) -> dict[str, Any]:
        text = self._decoders[name].decode(data)
        return {"type": name, "text": text, "timestamp": time.time_ns()}


def _result_of(output: Output) -> dict[str, Any]:
    """Return an output under the names that clients have for its types."""
    named = {_KINDS[mime]: v for mime, v in output.data.items() if mime in _KINDS}
    extra = {mime: v for mime, v in output.data.items() if mime not in _KINDS}
    more = {"extra": extra} if extra else {}
    return {"type": "result", **named, **more, "is_main_result": output.is_value}


def _last(result: ExecutionResult, runs: int) -> Iterator[dict[str, Any]]:
    """Yield the value, the error and the count of runs."""
    has_value = result.value is not None
    if has_value and not any(output.is_value for output in result.outputs):
        text = _text(result.value)
        yield {"type": "result", "text": text, "is_main_result": True}
    if (error := _error(result)) is not None:
        yield error
    yield {"type": "number_of_executions", "execution_count": runs}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return value.repr if isinstance(value, OpaqueValue) else repr(value)


def _error(result: ExecutionResult) -> dict[str, Any] | None:
    if result.status == "ok":
        return None
    found = result.exception
    if found is not None:
        name = found.type.rpartition(".")[2]
        words = (name, found.message, found.traceback)
    elif result.status == "exit":
        words = ("SystemExit", str(result.exit_code), "")
    else:
        words = (result.status, "; ".join(result.reasons) or result.status, "")
    return dict(
        zip(("type", "name", "value", "traceback"), ("error", *words), strict=True)
    )


async def _lines(
    parts: AsyncGenerator[dict[str, Any], None], abort: Callable[[], object]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        try:
            async for part in parts:
                yield json.dumps(part).encode() + b"\n"
        except (ToolcellError, APIError) as error:
            problem = as_api_error(error)
            if problem.status == 502:
                # Clients then look whether the sandbox has ended, and say so.
                abort()
                return
            words = {"name": problem.code, "value": problem.message, "traceback": ""}
            yield json.dumps({"type": "error", **words}).encode() + b"\n"
    yield b'{"type": "end_of_execution"}\n'


def _context_json(context: CodeContext) -> dict[str, str]:
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
