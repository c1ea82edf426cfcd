"""Runs programs that a model wrote, in cells."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from pydantic import JsonValue

from toolcell.core import ImagePart, ToolcellError
from toolcell.core.text.printable import without_overwritten
from toolcell.sandbox import Artifact, ExecutionResult, Output, Sandbox, SandboxSession
from toolcell.sandbox.spi import OpaqueValue

from ..code.executor import CodeExecutor, CodeResult
from ..code.program_calls import is_nested_call
from ..code.sessions import CodeSession, CodeSessions
from ..definition.context import ToolContext
from ..definition.tool import Tool, tool
from ..execution.attempt import record_usage
from ..execution.components import RunContext
from ..execution.runner import max_cpu_ms, max_run_bytes

_EXTRA_SECONDS = 10.0
_PROGRESS_SECONDS = 0.25
_CALLS = (
    " In it `tools.<name>(...)` calls your other tools, with `-` and `.` of names"
    " written as `_`; a call that fails raises ToolError."
)
STAYS = " Variables and files stay for the next program of the session."
MAX_CHARACTERS = 65_536
"""Characters of the texts of all outputs of one call. When it would be exceeded the
size of a text stands for it."""


def code_tools(
    place: Sandbox | SandboxSession,
    *,
    executor: CodeExecutor | None = None,
    sessions: CodeSessions | None = None,
    approval_seconds: float = 30.0,
    asks_without_session: bool = False,
) -> list[Tool]:
    """Return `run_python` and `run_shell`.

    A program that fails is not a failed call: the model reads how it ended and what it
    printed. The limits are those of the sandbox. Files that a program leaves in
    `./artifacts` go to the artifact sink of the call, if it has one.

    Args:
        place: A manager runs each program in its own cell. In a session programs
            see the files of earlier ones.
        executor: Lets programs of `run_python` call tools, as the agent that runs
            them. None: programs call no tools.
        sessions: The sessions for calls that name one (`RunContext.session`): their
            programs run there, and variables and files stay.
        approval_seconds: Seconds that the calls of one program of a session may wait
            for a person, in all; default 30. The program's clock stands still
            meanwhile. When it is reached a waiting call is denied, and the program goes
            on. 0 asks no person.
        asks_without_session: Whether calls of programs without a session wait as well.
            Otherwise they are denied at once.
    """
    max_cost, seconds = limits_of(place)
    programs = ProgramRunner(
        place, executor, sessions, approval_seconds, asks_without_session
    )
    about = "Run a Python program in a sandbox."
    about += _CALLS if executor else ""
    about += STAYS if sessions else ""

    @tool(tags={"code"}, cost=max_cost, timeout=seconds, description=about)
    async def run_python(code: str, context: ToolContext) -> dict[str, JsonValue]:
        """Run a Python program in a sandbox.

        Args:
            code: The whole program. Print what you want to see; the value of its last
                expression is returned too, `display` and figures are shown, and files
                in ./artifacts are handed on.
        """
        return await programs.run(code, "python", context)

    @tool(tags={"code"}, cost=max_cost, timeout=seconds)
    async def run_shell(command: str, context: ToolContext) -> dict[str, JsonValue]:
        """Run a bash script in a sandbox.

        Args:
            command: The whole script.
        """
        return await programs.run(command, "bash", context)

    return [run_python, run_shell]


def limits_of(place: Sandbox | SandboxSession) -> tuple[dict[str, int | str], float]:
    """Return the maximal cost of a call, and its deadline in seconds."""
    settings = place if isinstance(place, SandboxSession) else place.config
    limits = settings.limits
    max_cost: dict[str, int | str] = {
        "cpu_ms": max_cpu_ms(limits, limits.wall_seconds),
        "bytes": max_run_bytes(limits, settings.network),
    }
    # The cell's deadline is the one that kills; the wait for a cell comes on top.
    return max_cost, limits.wall_seconds + _EXTRA_SECONDS


class ProgramRunner:
    """Runs programs in the right cell, and describes their results to a model."""

    _session_of_all: SandboxSession | None = None
    _sandbox: Sandbox

    def __init__(
        self,
        place: Sandbox | SandboxSession,
        executor: CodeExecutor | None,
        sessions: CodeSessions | None,
        approval_seconds: float,
        asks_without_session: bool,
    ) -> None:
        # Asked once: a check against a protocol looks at each of its members.
        if isinstance(place, SandboxSession):
            self._session_of_all = place
        else:
            self._sandbox = place
        self._executor = executor
        self._sessions = sessions
        self._approval_seconds = approval_seconds
        self._asks_without_session = asks_without_session

    async def run(
        self, code: str, language: Literal["python", "bash"], context: ToolContext
    ) -> dict[str, JsonValue]:
        async with self._session(context) as held:
            session = None if held is None else held.session
            new = held is not None and held.programs == 0
            if held is not None and language == "python":
                held.programs += 1
            if language == "python" and self._executor is not None:
                result: ExecutionResult = await self._executor.execute(
                    code,
                    agent_id=context.agent_id,
                    session=session,
                    call_id=context.call_id,
                    run=self._run_of(context, session),
                    on_output=_progress(context),
                    gate=context.gate,
                )
            else:
                result = await self._plain(code, language, session, context)
            if held is not None:
                await held.costs.after(held, result)
            facts = _for_model(result)
            if shown := shown_outputs(result.outputs, context):
                facts["outputs"] = shown
            if held is not None and language == "python":
                facts["variables"] = "new" if new else result.state or "kept"
            if held is not None and held.lost_before:
                facts["lost"], held.lost_before = held.lost_before, ""
                if language == "python":
                    facts["variables"] = "lost"
            _save_artifacts(result, context, held, facts)
            return facts

    def _run_of(
        self, context: ToolContext, session: SandboxSession | None
    ) -> RunContext:
        """Return the agent's run for the calls of its program."""
        asks = session is not None or self._asks_without_session
        seconds = self._approval_seconds if asks else 0.0
        if context.approval_seconds is not None:
            seconds = min(seconds, context.approval_seconds)
        return RunContext(
            run_id=context.run_id,
            turn=context.turn,
            session=context.session,
            approval_seconds=seconds,
            messages=context.messages,
            confidence=context.confidence,
            metadata=context.metadata,
            artifacts=context.artifacts,
        )

    @asynccontextmanager
    async def _session(self, context: ToolContext) -> AsyncIterator[CodeSession | None]:
        # The session is at work while one of its programs calls this.
        if self._sessions is None or context.session is None or is_nested_call():
            yield None
            return
        async with self._sessions.use(context.agent_id, context.session) as held:
            yield held

    async def _plain(
        self,
        code: str,
        language: Literal["python", "bash"],
        session: SandboxSession | None,
        context: ToolContext,
    ) -> ExecutionResult:
        progress = _progress(context)
        shared = self._session_of_all if session is None else session
        if shared is not None:
            fresh = session is None
            result = await shared.run(
                code,
                language=language,
                fresh=fresh,
                on_output=progress,
                gate=context.gate,
            )
        else:
            result = await self._sandbox.run(
                code,
                language=language,
                agent_id=context.agent_id,
                on_output=progress,
                gate=context.gate,
            )
        record_usage(result)
        return result


def _progress(context: ToolContext) -> Callable[[str, bytes], None]:
    """Return a function that hands output on, and now and then tells its size."""
    seen, reported = 0, time.monotonic()

    def report(stream: str, data: bytes) -> None:
        nonlocal seen, reported
        context.report_output(stream, data)
        seen += len(data)
        now = time.monotonic()
        if data and now - reported >= _PROGRESS_SECONDS:
            reported = now
            context.report_progress(seen, message=f"{seen} bytes of output")

    return report


def _for_model(result: ExecutionResult) -> dict[str, JsonValue]:
    """Return the facts of a run that a model needs."""
    facts: dict[str, JsonValue] = {
        "status": result.status,
        "stdout": without_overwritten(result.stdout),
        "stderr": without_overwritten(result.stderr),
        "exit_code": result.exit_code,
    }
    if isinstance(result.value, OpaqueValue):
        facts["value"] = result.value.repr
    elif result.value is not None:
        facts["value"] = result.value
    if result.truncated:
        facts["truncated"] = result.truncated.model_dump()
    if result.warnings:
        facts["warnings"] = list(result.warnings)
    if result.exception is not None:
        facts["traceback"] = result.exception.traceback
    if result.reasons:
        facts["reasons"] = list(result.reasons)
    if isinstance(result, CodeResult) and result.calls:
        facts["calls"] = [
            {"id": made.call.id, "name": made.call.name, "status": made.result.status}
            for made in result.calls
        ]
    return facts


def _save_artifacts(
    result: ExecutionResult,
    context: ToolContext,
    held: CodeSession | None,
    facts: dict[str, JsonValue],
) -> None:
    """Give new artifacts to the sink of the call, and name them in the facts."""
    before: frozenset[tuple[str, str]] = frozenset()
    if held is not None:
        # Files stay in a session, and each run hands all of them out.
        before = held.artifacts
        held.artifacts = frozenset(map(_key, result.artifacts))
    known = _files_of_value(result)
    new = [
        artifact
        for artifact in result.artifacts
        if _key(artifact) not in before and artifact.name not in known
    ]
    shown: list[JsonValue] = []
    for artifact in new:
        about: dict[str, JsonValue] = {
            "name": artifact.name,
            "mime": artifact.mime,
            "bytes": artifact.size,
            "sha256": artifact.sha256,
        }
        if context.artifacts is not None:
            try:
                about["reference"] = context.save_artifact(
                    artifact.name, artifact.data, artifact.mime
                )
            except ToolcellError as error:
                about["problem"] = error.message
        shown.append(about)
    if shown:
        facts["artifacts"] = shown


def _files_of_value(result: ExecutionResult) -> tuple[str, ...]:
    """Return the names of files that repeat what an output tells."""
    repeated = any(
        output.is_value and output.text("text/html") for output in result.outputs
    )
    return ("value.html", "value.txt") if repeated else ()


def _key(artifact: Artifact) -> tuple[str, str]:
    return artifact.name, artifact.sha256


def shown_outputs(outputs: Sequence[Output], context: ToolContext) -> list[JsonValue]:
    """Return outputs in order, for the facts of a call; show their pictures beside it.

    Each has its media types and origin, and either its `text` or the number of its
    `picture` among those of the call, from 1. The size and SHA-256 of a picture stay in
    the record of the call, which has no picture.
    """
    shown: list[JsonValue] = []
    pictures, room = 0, MAX_CHARACTERS
    for output in outputs:
        about: dict[str, JsonValue] = {
            "mimes": list(output.mimes),
            "origin": output.origin,
        }
        if output.is_value:
            about["is_value"] = True
        if output.left_out:
            about["left_out"] = list(output.left_out)
        for part in output.to_content():
            if isinstance(part, ImagePart):
                data = base64.b64decode(part.data)
                if context.show(part):
                    pictures += 1
                    about["picture"] = pictures
                else:
                    about["text"] = f"[{part.mime}, {len(data)} bytes: not sent]"
                about["bytes"] = len(data)
                about["sha256"] = hashlib.sha256(data).hexdigest()
            elif len(part.text) <= room:
                room -= len(part.text)
                about["text"] = part.text
            else:
                about["text"] = f"[{len(part.text)} characters: not sent]"
        shown.append(about)
    return shown
