"""Inspect AI: `Task(sandbox="toolcell")` runs each sample in its own session.

Inspect finds it by the entry point `inspect_ai` of the package. A configuration is a
`SandboxConfig`, given as `SandboxEnvironmentSpec("toolcell", SandboxConfig(...))`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from toolcell.core import GuardDeniedError, InvalidInputError
from toolcell.core.detached import DetachedContext
from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxConfig, SandboxManager, Session
from toolcell.tools import Records

from .cells.guarded_session import GuardedSession, default_config, exit_code

# Inspect names a task differently when it begins, runs samples and ends.
_managers: dict[str, SandboxManager] = {}
_uses: Counter[str] = Counter()


@sandboxenv(name="toolcell")
class ToolcellSandboxEnvironment(SandboxEnvironment):
    """One session of toolcell as a sandbox of Inspect.

    Commands run as the cell's own user; another user is SandboxUserUnsupportedError.
    What the guard refuses is a PermissionError, which Inspect shows the model.

    Args:
        session: Runs the commands and has the files of one sample.
        closing: Ends the session.
    """

    guard: ClassVar[ActionGuard | None] = None
    """Decides about the commands and files of samples that begin from now on, as
    `GuardedSession` names them. None: everything is allowed."""

    agent_id: ClassVar[str] = "inspect"
    """The agent that the guard knows."""

    records: ClassVar[Records | None] = None
    """Takes a record of each call. None: a store in memory."""

    def __init__(self, session: Session, closing: AsyncExitStack) -> None:
        super().__init__()
        self._session = GuardedSession(
            session,
            guard=self.guard,
            agent_id=self.agent_id,
            records=self.records,
        )
        self._held = DetachedContext(_metered(self._session, closing))

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
        environment = cls(session, closing)
        await environment._held.open()
        return {"default": environment}

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
            await environment.as_type(cls)._held.aclose()

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
            PermissionError: The program may not be executed, or the guard refuses it.
            SandboxUserUnsupportedError: `user` is given.
            TimeoutError: `timeout` seconds were not enough.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(
                f"commands run as the cell's own user, not as {user!r}"
            )
        stdin = input.encode() if isinstance(input, str) else input
        try:
            result = await self._session.exec(
                cmd, stdin=stdin, cwd=cwd or "", env=env, timeout_seconds=timeout
            )
        except GuardDeniedError as error:
            raise PermissionError(str(error)) from error
        except InvalidInputError as error:
            return _not_started(error)
        if result.status == "timeout":
            raise TimeoutError(f"the command took more than {timeout} seconds")
        if result.truncated:
            limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
            raise OutputLimitExceededError(limit, result.stdout)
        code = exit_code(result)
        return ExecResult(code == 0, code, result.stdout, result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        try:
            await self._session.write_file(file, contents)
        except (GuardDeniedError, InvalidInputError) as error:
            raise _file_error(error) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._session.read_file(file, most)
        except (GuardDeniedError, InvalidInputError) as error:
            raise _file_error(error) from error
        return data.decode() if text else data


@asynccontextmanager
async def _metered(
    session: GuardedSession, closing: AsyncExitStack
) -> AsyncIterator[None]:
    """Charge what a session uses while the block runs, and end the session after it.

    It ends before the block, too, when a budget is used up.
    """
    async with closing, session.metered():
        yield


def _checked(config: BaseModel | str | None) -> SandboxConfig:
    if config is None:
        return default_config(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE)
    if not isinstance(config, SandboxConfig):
        raise InvalidInputError(
            "the sandbox's configuration must be a SandboxConfig",
            hint='use SandboxEnvironmentSpec("toolcell", SandboxConfig(...))',
        )
    return config


def _not_started(error: InvalidInputError) -> ExecResult[str]:
    """Return what a shell would: 127 for a program that is missing."""
    if error.details.get("reason") == "denied":
        raise PermissionError(error.message) from error
    return ExecResult(False, 127, "", error.message)


def _file_error(error: GuardDeniedError | InvalidInputError) -> Exception:
    if isinstance(error, GuardDeniedError):
        return PermissionError(str(error))
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
