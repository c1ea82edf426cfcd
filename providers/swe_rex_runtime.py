"""The runtime of SWE-ReX: its shells, commands and files are those of one session."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from swerex.runtime import abstract as rex
from swerex.utils.log import get_logger

from toolcell.core import GuardError, InvalidInputError

from .cells.bash_shell import Answer, BashShell
from .cells.guarded_session import GuardedSession, exit_code
from .cells.thread_session import ThreadSession


class CallRefusedError(SwerexException, PermissionError):
    """The guard refuses a command or a file."""


class ToolcellRuntime(rex.AbstractRuntime):
    """Shells, commands and files of one session.

    Any event loop may use it, also one after another.

    Args:
        thread: The session; `close` ends it.
    """

    def __init__(self, thread: ThreadSession) -> None:
        self.logger = get_logger("rex-runtime")
        self._thread = thread
        self._shells: dict[str, BashShell] = {}

    async def is_alive(self, *, timeout: float | None = None) -> rex.IsAliveResponse:
        return rex.IsAliveResponse(is_alive=self._thread.alive)

    async def create_session(
        self, request: rex.CreateBashSessionRequest
    ) -> rex.CreateBashSessionResponse:
        if request.session in self._shells:
            raise SessionExistsError(f"session {request.session} already exists")
        shell = await self._call(
            BashShell.start, self._thread.guarded, request.startup_source
        )
        self._shells[request.session] = shell
        return rex.CreateBashSessionResponse()

    async def run_in_session(
        self, action: rex.BashAction | rex.BashInterruptAction
    ) -> rex.BashObservation:
        act = partial(_act, self._thread.guarded, self._shell(action.session), action)
        try:
            answer = await self._call(act)
        except TimeoutError as error:
            raise CommandTimeoutError(
                f"no answer to {action!r} after {action.timeout} seconds"
            ) from error
        output, code, matched = answer
        if isinstance(action, rex.BashAction) and action.check == "raise":
            _check(action, answer)
        return rex.BashObservation(output=output, exit_code=code, expect_string=matched)

    async def close_session(
        self, request: rex.CloseBashSessionRequest
    ) -> rex.CloseBashSessionResponse:
        shell = self._shell(request.session)
        del self._shells[request.session]
        await self._call(shell.close)
        return rex.CloseBashSessionResponse()

    async def execute(self, command: rex.Command) -> rex.CommandResponse:
        words: str | list[str] = command.command
        if isinstance(words, str):
            words = ["bash", "-c", words] if command.shell else [words]
        if command.merge_output_streams:
            words = ["bash", "-c", 'exec "$@" 2>&1', "bash", *words]
        result = await self._call(
            self._thread.guarded.exec,
            words,
            env=command.env,
            cwd=command.cwd or "",
            timeout_seconds=command.timeout,
        )
        if result.status == "timeout":
            raise CommandTimeoutError(f"{words!r} took more than {command.timeout} s")
        code = exit_code(result)
        if command.check and code:
            said = f"{command.error_msg}: {result.stdout!r} {result.stderr!r}"
            raise NonZeroExitCodeError(f"{words!r} failed with exit code {code}{said}")
        return rex.CommandResponse(
            stdout=result.stdout, stderr=result.stderr, exit_code=code
        )

    async def read_file(self, request: rex.ReadFileRequest) -> rex.ReadFileResponse:
        data = await self._call(self._thread.guarded.read_file, request.path)
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return rex.ReadFileResponse(content=text)

    async def write_file(self, request: rex.WriteFileRequest) -> rex.WriteFileResponse:
        write = self._thread.guarded.write_file
        await self._call(write, request.path, request.content)
        return rex.WriteFileResponse()

    async def upload(self, request: rex.UploadRequest) -> rex.UploadResponse:
        upload = self._thread.guarded.upload
        await self._call(upload, Path(request.source_path), request.target_path)
        return rex.UploadResponse()

    async def close(self) -> rex.CloseResponse:
        await asyncio.to_thread(self._thread.close)
        return rex.CloseResponse()

    def _shell(self, name: str) -> BashShell:
        if name not in self._shells:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._shells[name]

    async def _call(self, function: Any, *args: Any, **options: Any) -> Any:
        try:
            return await self._thread.acall(function, *args, **options)
        except GuardError as error:
            raise CallRefusedError(str(error)) from error
        except InvalidInputError as error:
            if error.details.get("reason") in ("missing", "not_folder"):
                raise FileNotFoundError(str(error)) from error
            raise


async def _act(
    guarded: GuardedSession,
    shell: BashShell,
    action: rex.BashAction | rex.BashInterruptAction,
) -> Answer:
    if isinstance(action, rex.BashInterruptAction):
        return await shell.interrupt(action.expect, action.n_retry, action.timeout)
    async with guarded.call("exec", command=action.command, cwd="", env={}) as allowed:
        command = str(allowed.arguments["command"])
        if not (action.is_interactive_command or action.is_interactive_quit):
            await _check_syntax(guarded, command)
            return await shell.run(command, action.expect, action.timeout)
        answer = await shell.answer_of(command, action.expect, action.timeout)
        if action.is_interactive_quit:
            await shell.quiet()
        said = answer.output.lstrip().removeprefix(command).strip()
        return answer._replace(output=said, exit_code=0)


async def _check_syntax(guarded: GuardedSession, command: str) -> None:
    """Let bash read a command, in the cell and without running it."""
    process = await guarded.session.exec(["bash", "-n"], stdin=command.encode())
    result = await process.wait()
    if result.exit_code:
        raise BashIncorrectSyntaxError(
            f"bash cannot read {command!r}: {result.stderr}",
            extra_info={"bash_stdout": result.stdout, "bash_stderr": result.stderr},
        )


def _check(action: rex.BashAction, answer: Answer) -> None:
    if answer.exit_code is None:
        raise NoExitCodeError(f"{action.command!r} goes on")
    if answer.exit_code:
        raise NonZeroExitCodeError(
            f"{action.error_msg}{action.command!r} failed with exit code "
            f"{answer.exit_code}. Its output: {answer.output!r}"
        )
