"""Inspect AI: `Task(sandbox="toolcell")` runs each sample in a session of its own.

Inspect finds it by the entry point `inspect_ai` of the package. A configuration is a
`SandboxConfig`, given as `SandboxEnvironmentSpec("toolcell", SandboxConfig(...))`.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any, Literal, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    Process,
    SandboxConfig,
    SandboxManager,
    Session,
)

_NAME = "toolcell"
_DAY_SECONDS = 86_400.0
_KILL_SECONDS = 5.0

DEFAULT_CONFIG = SandboxConfig(
    limits=Limits(
        memory_mb=2048,
        disk_mb=2048,
        pids=512,
        output_bytes=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
    ),
    session_idle_seconds=_DAY_SECONDS,
    session_lifetime_seconds=_DAY_SECONDS,
)
"""The cells of a task that names no configuration: 2 GiB of memory and of disk, 512
processes, a day, and what Inspect takes of a command's output. They have no network."""

# Inspect names a task differently when it begins, runs samples and ends.
_managers: dict[str, SandboxManager] = {}
_uses: Counter[str] = Counter()


@sandboxenv(name=_NAME)
class ToolcellSandboxEnvironment(SandboxEnvironment):
    """One session of toolcell as a sandbox of Inspect.

    Commands run as the cell's own user; another user is SandboxUserUnsupportedError.

    Args:
        session: Runs the commands and has the files of one sample.
        closing: Ends the session.
    """

    def __init__(self, session: Session, closing: AsyncExitStack) -> None:
        super().__init__()
        self._session = session
        self._closing = closing

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Open a manager, one for all tasks of the same configuration."""
        _uses[repr(config)] += 1
        if repr(config) not in _managers:
            _managers[repr(config)] = await SandboxManager.open(_checked(config))

    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: BaseModel | str | None, cleanup: bool
    ) -> None:
        """Close it with the last task; every cell that is left ends with it."""
        _uses[repr(config)] -= 1
        if _uses[repr(config)] <= 0 and repr(config) in _managers:
            await _managers.pop(repr(config)).aclose()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open a session for a sample."""
        closing = AsyncExitStack()
        manager = _managers[repr(config)]
        session = await closing.enter_async_context(manager.session())
        return {"default": cls(session, closing)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the session of a sample, with all that runs in it."""
        for environment in environments.values():
            await environment.as_type(cls)._closing.aclose()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Return the configuration that a log of Inspect holds, defaults included."""
        usual = SandboxConfig().model_dump(mode="json")
        return SandboxConfig.model_validate(
            {name: value for name, value in config.items() if usual.get(name) != value}
        )

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; one that is killed by a signal has the code 128 + its number.

        Raises:
            PermissionError: The program may not be executed.
            SandboxUserUnsupportedError: `user` is given.
            TimeoutError: `timeout` seconds were not enough.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(
                f"commands run as the cell's own user, not as {user!r}"
            )
        stdin = input.encode() if isinstance(input, str) else input
        try:
            process = await self._session.exec(
                cmd, stdin=stdin, cwd=cwd or "", env=env, timeout_seconds=timeout
            )
        except InvalidInputError as error:
            return _not_started(error)
        result = await _ended(process)
        if result.status == "timeout":
            raise TimeoutError(f"the command took more than {timeout} seconds")
        if result.truncated:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit, result.stdout)
        code = _exit_code(result)
        return ExecResult(code == 0, code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self._session.write_file(file, contents)
        except InvalidInputError as error:
            raise _file_error(error) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._session.read_file(file, most)
        except InvalidInputError as error:
            raise _file_error(error) from error
        return data.decode() if text else data


def _checked(config: BaseModel | str | None) -> SandboxConfig:
    if config is None:
        return DEFAULT_CONFIG
    if not isinstance(config, SandboxConfig):
        raise InvalidInputError(
            "the sandbox's configuration must be a SandboxConfig",
            hint='use SandboxEnvironmentSpec("toolcell", SandboxConfig(...))',
        )
    return config


async def _ended(process: Process) -> ExecutionResult:
    """Return the result of a command; a cancelled wait kills it."""
    try:
        return await process.wait()
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_KILL_SECONDS):
            await process.kill()
        raise


def _exit_code(result: ExecutionResult) -> int:
    if result.exit_code is not None:
        return result.exit_code
    return 128 + signal.Signals[result.signal or "SIGKILL"].value


def _not_started(error: InvalidInputError) -> ExecResult[str]:
    """Return what a shell would: 127 for a program that is missing."""
    if error.details.get("reason") == "denied":
        raise PermissionError(error.message) from error
    return ExecResult(False, 127, "", error.message)


def _file_error(error: InvalidInputError) -> Exception:
    match error.details.get("reason"):
        case "missing" | "not_folder":
            return FileNotFoundError(error.message)
        case "is_folder":
            return IsADirectoryError(f"{error.message}: it is a directory")
        case "denied":
            return PermissionError(error.message)
        case "too_large":
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
            return OutputLimitExceededError(limit, None)
        case _:
            return error
