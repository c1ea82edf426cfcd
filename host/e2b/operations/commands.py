"""`sandbox.command`: a command, from its start to its end."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Annotated

import anyio
from pydantic import Field, model_validator

from toolcell.core import ToolcellError
from toolcell.sandbox import Limits
from toolcell.tools import Operation
from toolcell.tools.spi import max_cpu_ms

from ..protocol.errors import APIError
from ..state.sandbox import Sandbox, StartedCommand
from .action import Action, SandboxArguments, Scene
from .cell_files import resolved

NOTHING: Mapping[str, int] = {"cpu_ms": 0, "wall_ms": 0, "bytes": 0}
"""The amounts of what runs no program."""

MAX_WORD_BYTES = 131_071
"""Bytes of one argument of a command, or of its script: Linux takes no longer one. When
it is reached the command is answered 400."""

MAX_WORDS_BYTES = 524_288
"""Bytes of all arguments of a command. When it is reached the command is answered
400."""

_LAST_SECONDS = 5.0
_SHELL = ["/bin/bash", "-l", "-c"]


class CommandArguments(SandboxArguments):
    """A command to run."""

    command: str
    """The text of `argv`, quoted for a shell; without `argv` the script that
    `/bin/bash -l -c` runs."""

    argv: Annotated[list[str], Field(min_length=1)] | None = None
    """A program and its arguments, run without a shell."""

    cwd: str
    env: dict[str, str] = Field(default_factory=dict)
    stdin: bool = False
    terminal: bool = False
    rows: Annotated[int, Field(ge=1, le=1000)] = 24
    cols: Annotated[int, Field(ge=1, le=1000)] = 80
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """None: until the end of the sandbox."""

    @model_validator(mode="after")
    def _is_one_command(self) -> CommandArguments:
        if self.argv is not None and shlex.join(self.argv) != self.command:
            raise ValueError("command and argv differ; a shell runs one without argv")
        return self

    @property
    def words(self) -> list[str]:
        """The program to start, and its arguments."""
        return [*_SHELL, self.command] if self.argv is None else self.argv


def spelled(argv: Sequence[str]) -> dict[str, object]:
    """Return the arguments `command` and `argv` of a program to start.

    Raises:
        APIError: The arguments are too long.
    """
    sizes = [len(word.encode()) for word in argv]
    if max(sizes) > MAX_WORD_BYTES or sum(sizes) > MAX_WORDS_BYTES:
        raise APIError(
            400,
            f"one argument has at most {MAX_WORD_BYTES} bytes, all of them "
            f"{MAX_WORDS_BYTES}: write what is longer to a file first",
        )
    if list(argv[:3]) == _SHELL and len(argv) == 4:
        return {"command": argv[3]}
    return {"command": shlex.join(argv), "argv": list(argv)}


@asynccontextmanager
async def _command(
    scene: Scene, arguments: CommandArguments
) -> AsyncIterator[StartedCommand]:
    """Yield the command that runs; then wait for its end."""
    sandbox = scene.sandbox(arguments)
    if len(sandbox.commands) >= scene.settings.max_processes:
        raise APIError(
            429,
            f"{scene.settings.max_processes} commands run already",
            reason="too_many_commands",
        )
    words, cwd = arguments.words, resolved(arguments.cwd, sandbox.home)
    process = await sandbox.session.exec(
        words,
        stdin="pipe" if arguments.stdin and not arguments.terminal else None,
        env={**sandbox.base_env, **arguments.env},
        cwd=cwd,
        timeout_seconds=arguments.timeout_seconds,
        pty=(arguments.rows, arguments.cols) if arguments.terminal else None,
        gate=scene.operation.gate,
    )
    command = StartedCommand(
        process,
        {"cmd": words[0], "args": words[1:], "envs": arguments.env, "cwd": cwd},
        has_terminal=arguments.terminal,
        has_limit=arguments.timeout_seconds is not None,
    )
    try:
        sandbox.commands[process.pid] = command
        scene.operation.stop_with(partial(sandbox.work.start_soon, process.kill))
        async with charged(scene, sandbox):
            yield command
            result = await process.wait()
            sandbox.accounted_ms += result.usage.cpu_ms
            await scene.operation.settle(result)
    finally:
        command.ended.set()
        if sandbox.commands.get(process.pid) is command:
            del sandbox.commands[process.pid]


@asynccontextmanager
async def charged(scene: Scene, sandbox: Sandbox) -> AsyncIterator[None]:
    """Count a program while it runs.

    One that ends without a result is charged what its sandbox has used meanwhile, and
    nobody charges that again.
    """
    sandbox.programs.add(scene.operation)
    try:
        yield
    finally:
        if not scene.operation.is_settled:
            with anyio.CancelScope(shield=True):
                await _charge_without_result(scene.operation, sandbox)
        sandbox.programs.discard(scene.operation)


async def _charge_without_result(operation: Operation, sandbox: Sandbox) -> None:
    usage = operation.usage_by_time()
    # A cell that is gone tells nothing: the time counts.
    with anyio.move_on_after(_LAST_SECONDS), suppress(ToolcellError):
        if sandbox.opened is not None:
            used = (await sandbox.opened.usage()).cpu_ms - sandbox.accounted_ms
            usage["cpu_ms"] = min(usage["cpu_ms"], math.ceil(max(used, 0.0)))
    sandbox.accounted_ms += usage["cpu_ms"]
    await operation.settle(usage=usage)


def _cost(sandbox: Sandbox, arguments: CommandArguments) -> Mapping[str, int]:
    seconds = arguments.timeout_seconds or max(sandbox.end_at - time.time(), 1.0)
    return command_cost(sandbox, seconds)


def command_cost(sandbox: Sandbox, seconds: float) -> Mapping[str, int]:
    """Return the most that a command may use in so many seconds."""
    if not seconds:
        return NOTHING
    # `cpu_seconds` ends programs of code, and no command.
    limits = sandbox.session.limits.model_copy(update={"cpu_seconds": None})
    return program_cost(sandbox, limits, seconds)


def program_cost(sandbox: Sandbox, limits: Limits, seconds: float) -> Mapping[str, int]:
    """Return the most that a program within limits may use in so many seconds."""
    reach = limits.network_bytes if sandbox.session.network.mode != "none" else 0
    wall, cpu = math.ceil(seconds * 1000), max_cpu_ms(limits, seconds)
    return {"wall_ms": wall, "cpu_ms": cpu, "bytes": reach}


COMMAND = Action("sandbox.command", CommandArguments, _command, _cost)
