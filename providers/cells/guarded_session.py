"""A session whose commands, files and programs are calls through a guard."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread

from toolcell.core import InvalidInputError, SandboxError, ToolCall, ToolcellError
from toolcell.guard import ActionGuard, CallFacts
from toolcell.sandbox import (
    ExecutionResult,
    HostCalls,
    Limits,
    PortStream,
    Process,
    SandboxConfig,
    Session,
)
from toolcell.sandbox.spi import signal_number
from toolcell.tools import (
    Operation,
    Records,
    RunContext,
    SequentialExecutor,
    ToolRegistry,
)
from toolcell.tools.spi import NO_COST

OUTPUT_BYTES = 10 * 1024 * 1024
"""Bytes that a command of `default_config` may say on each stream."""

LOOK_SECONDS = 1.0
"""Seconds between two looks at what a cell has used."""

_DAY_SECONDS = 86_400.0
_KILL_SECONDS = 5.0
_TAGS = ("sandbox",)
_log = logging.getLogger("toolcell.providers")


def default_config(output_bytes: int = OUTPUT_BYTES) -> SandboxConfig:
    """Return the cells that a provider has where no configuration is given.

    They have 2 GiB of memory and of disk, 512 processes, no network, and live for a day
    at most.

    Args:
        output_bytes: Bytes kept of each stream of a command; the rest is left out.
    """
    limits = Limits(memory_mib=2048, disk_mib=2048, pids=512, output_bytes=output_bytes)
    return SandboxConfig(
        limits=limits,
        session_idle_seconds=_DAY_SECONDS,
        session_lifetime_seconds=_DAY_SECONDS,
    )


class Allowed:
    """A call that may run: its arguments, and what it turns out to have cost."""

    def __init__(self, operation: Operation) -> None:
        self.arguments = operation.arguments
        self.gate = operation.gate
        self.result: ExecutionResult | None = None
        self.cost: dict[str, int] = {"cpu_ms": 0, "wall_ms": 0, "bytes": 0}

    def charge(self, result: ExecutionResult) -> None:
        """Take what a command or a program has used."""
        self.result = result
        self.cost["cpu_ms"] = math.ceil(result.usage.cpu_ms)
        self.cost["wall_ms"] = math.ceil(result.usage.wall_ms)
        self.cost["bytes"] += result.usage.network_bytes


class GuardedSession:
    """A session whose acts go through the stages of a call, behind a guard.

    The calls are `exec` with `command`, `cwd`, `env` and `stdin_bytes`; `run_python`
    with `code`; `read_file` with `path`; `write_file` with `path` and `bytes`;
    `connect` with `port`. All have the tag `sandbox`. Where a person changes arguments,
    the changed call runs. Without a guard everything is allowed.

    Args:
        session: Runs the commands and has the files; closed by its owner.
        guard: Decides about every call; it raises GuardDeniedError for one that is
            denied, or that nobody approved. None: every call is allowed.
        agent_id: The agent whose calls they are.
        run_id: The agent's run, for limits per run. Default: none.
        records: Takes a record of each call. Default: a store in memory.
    """

    def __init__(
        self,
        session: Session,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "sandbox",
        run_id: str | None = None,
        records: Records | None = None,
    ) -> None:
        self.session = session
        """The session itself, with no guard before it."""

        executor = SequentialExecutor(ToolRegistry(), guard=guard, records=records)
        self._operation = executor.operation
        self._guard = guard
        self._agent_id = agent_id
        self._run = RunContext(run_id=run_id)
        self._spawned: list[Process] = []
        self._charged_ms: float | None = None
        """CPU time of the cell that was charged so far; None: it is not known yet."""

        self._owed_bytes = 0
        """Bytes of processes that have ended, which the guard's store did not take."""

        self._calls = 0
        """Calls that are open now."""

    @asynccontextmanager
    async def call(self, tool: str, **arguments: Any) -> AsyncIterator[Allowed]:
        """Admit a call, and settle it with what its body has charged.

        Args:
            tool: The name that rules know.
            **arguments: JSON values; what the call does follows from them.

        Raises:
            GuardError: It is refused, or nobody could decide.
        """
        admission = self._operation(
            tool,
            arguments,
            agent_id=self._agent_id,
            cost={},
            run=self._run,
            tags=_TAGS,
            names_only=("env",),
        )
        async with admission as operation:
            allowed = Allowed(operation)
            if self._charged_ms is None:
                self._charged_ms = await self._used_ms()
            self._calls += 1
            try:
                yield allowed
            except BaseException as error:
                operation.fail(error)
                cut_off = not isinstance(error, Exception)
                with anyio.CancelScope(shield=True):
                    await self._settle(operation, allowed, cut_off=cut_off)
                raise
            else:
                await self._settle(operation, allowed)
            finally:
                self._calls -= 1

    @asynccontextmanager
    async def metered(self) -> AsyncIterator[None]:
        """Charge what processes use that no call waits for, each second and at the end.

        While calls run it is theirs. When a budget is used up the block is cancelled:
        its owner has to end the session.
        """
        if self._guard is None:
            yield
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._meter, tasks.cancel_scope)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                await self.charge()

    async def _meter(self, scope: anyio.CancelScope) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            if not await self.charge():
                scope.cancel()

    async def charge(self) -> bool:
        """Charge what was used since the last call; False: a budget is used up."""
        if self._guard is None or self._calls:
            return True
        call = ToolCall(id="usage", name="exec", agent_id=self._agent_id)
        facts = CallFacts(cost=NO_COST, tags=frozenset(_TAGS), run_id=self._run.run_id)
        cost = dict(NO_COST)
        with anyio.CancelScope(shield=True):
            try:
                await self._add_background(cost)
                if any(cost.values()):
                    return await self._guard.charge(call, facts, cost)
            except ToolcellError as error:
                # It is charged at the next look.
                self._owed_bytes += cost["bytes"]
                if self._charged_ms is not None:
                    self._charged_ms -= cost["cpu_ms"]
                _log.warning(
                    "a session of %s is not charged: %s", self._agent_id, error
                )
        return True

    async def _settle(
        self, operation: Operation, allowed: Allowed, *, cut_off: bool = False
    ) -> None:
        is_measured = await self._add_background(allowed.cost)
        if cut_off and not (is_measured or allowed.result):
            allowed.cost.clear()  # What was held for it is charged.
        await operation.settle(allowed.result, usage=allowed.cost)

    async def _add_background(self, cost: dict[str, int]) -> bool:
        """Add to a cost what processes used that earlier calls have left behind.

        Returns:
            True if the CPU time of all that ran in the cell is measured.
        """
        cost["bytes"] += self._owed_bytes
        self._owed_bytes = 0
        ended = [each for each in self._spawned if not each.running]
        self._spawned = [each for each in self._spawned if each not in ended]
        for process in ended:
            cost["bytes"] += (await process.wait()).usage.network_bytes
        used, charged = await self._used_ms(), self._charged_ms
        if used is None or charged is None:
            return False
        # What is less than a millisecond is left for the next time.
        cost["cpu_ms"] = int(max(used - charged, 0.0))
        self._charged_ms = charged + cost["cpu_ms"]
        return True

    async def _used_ms(self) -> float | None:
        """Return the CPU time of all that ran in the cell; None: it is not measured."""
        if self._guard is None:
            return None  # What commands leave behind is not charged.
        with (
            suppress(InvalidInputError, SandboxError),
            anyio.move_on_after(_KILL_SECONDS),
        ):
            return (await self.session.usage()).cpu_ms
        return None

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout_seconds: float | None = None,
    ) -> ExecutionResult:
        """Run a command to its end; a cancelled wait kills it.

        Arguments are those of `Session.exec`.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError: It cannot be started.
            CellLostError: The cell is gone.
        """
        async with self._call_exec(command, stdin, env, cwd) as (allowed, asked):
            process = await self.session.exec(
                **asked,
                stdin=stdin,
                timeout_seconds=timeout_seconds,
                gate=allowed.gate,
            )
            return await _command_result(process, allowed)

    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | Literal["pipe"] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        pty: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command and return it; the guard is asked about its start alone.

        What it uses is charged with the next call, by `metered`, and by `charge`.
        Arguments and errors are those of `exec` and of `Session.exec`.
        """
        size = stdin if isinstance(stdin, bytes) else None
        async with self._call_exec(command, size, env, cwd) as (allowed, asked):
            process = await self.session.exec(
                **asked, stdin=stdin, pty=pty, gate=allowed.gate
            )
            self._spawned.append(process)
            return process

    @asynccontextmanager
    async def _call_exec(
        self,
        command: str | Sequence[str],
        stdin: bytes | None,
        env: Mapping[str, str] | None,
        cwd: str,
    ) -> AsyncIterator[tuple[Allowed, dict[str, Any]]]:
        words = command if isinstance(command, str) else list(command)
        asked = {"command": words, "cwd": cwd, "env": dict(env or {})}
        async with self.call("exec", **asked, stdin_bytes=len(stdin or b"")) as allowed:
            yield allowed, {name: allowed.arguments[name] for name in asked}

    async def run_python(
        self,
        code: str,
        *,
        before: str = "",
        inputs: Mapping[str, Any] | None = None,
        calls: HostCalls | None = None,
    ) -> ExecutionResult:
        """Run a program where the last one left off; as `Session.run`.

        Args:
            code: The program; what the guard is asked about.
            before: A line of the provider itself that runs before it.
            inputs: As in `Session.run`.
            calls: As in `Session.run`.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError, CellLostError: As `Session.run`.
        """
        async with self.call("run_python", code=code) as allowed:
            program = f"{before}\n{allowed.arguments['code']}"
            result = await self.session.run(
                program, inputs=inputs, calls=calls, gate=allowed.gate
            )
            allowed.charge(result)
            return result

    async def read_file(self, path: str, max_bytes: int = 2**30) -> bytes:
        """Return a file's bytes.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError: There is no such file, or it has more bytes.
            CellLostError: The cell is gone.
        """
        async with self.call("read_file", path=path) as allowed:
            return await self.session.read_file(allowed.arguments["path"], max_bytes)

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file, with its folders.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError: It cannot be written.
            CellLostError: The cell is gone.
        """
        data = data.encode() if isinstance(data, str) else data
        async with self.call("write_file", path=path, bytes=len(data)) as allowed:
            await self.session.write_file(allowed.arguments["path"], data)

    async def upload(self, source: Path, path: str) -> None:
        """Write a file or a folder of this machine; a `write_file` of its path.

        Raises as `write_file`.
        """
        if not await anyio.Path(source).is_dir():
            await self.write_file(
                path, await anyio.to_thread.run_sync(source.read_bytes)
            )
            return
        async with self.call("write_file", path=path, bytes=0) as allowed:
            await self.session.upload(source, allowed.arguments["path"])

    async def download(self, path: str, target: Path) -> None:
        """Write a folder's files into a new folder of this machine; a `read_file`.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError, CellLostError: As `Session.download`.
        """
        async with self.call("read_file", path=path) as allowed:
            await self.session.download(target, allowed.arguments["path"])

    async def connect(self, port: int) -> PortStream:
        """Connect to a server inside the cell; the guard is asked about its port alone.

        Raises:
            GuardError: The guard refuses it.
            InvalidInputError, CellLostError: As `Session.connect`.
        """
        async with self.call("connect", port=port) as allowed:
            return await self.session.connect(allowed.arguments["port"])


async def _command_result(process: Process, allowed: Allowed) -> ExecutionResult:
    """Return the result of a command; a cancelled wait kills it."""
    try:
        result = await process.wait()
    except BaseException:
        with anyio.CancelScope(shield=True), anyio.move_on_after(_KILL_SECONDS):
            await process.kill()
            allowed.charge(await process.wait())
        raise
    allowed.charge(result)
    return result


def exit_code(result: ExecutionResult) -> int:
    """Return the code that a shell would report: 128 + the number of a signal."""
    if result.exit_code is not None:
        return result.exit_code
    return 128 + signal_number(result.signal or "SIGKILL")
