"""A cell for several runs of one agent, with state, files and forks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import SecretStr

from toolcell.core import CellLostError, InvalidInputError, SandboxUnavailableError

from .backends.selection import check_network
from .client.cell import Cell
from .client.download import MAX_DOWNLOAD_BYTES
from .client.event_stream import Pieces, stream_run
from .client.host_calls import HostCalls
from .client.types import Language, OnOutput, Program
from .client.workdir import MAX_READ_BYTES, FileInfo, WorkDir
from .config.settings import Limits, Network
from .programs.program import refused
from .results.events import Event, Finished
from .results.result import ExecutionResult

if TYPE_CHECKING:
    from .manager import SandboxManager
    from .network.egress import Egress, OnConnection

MAX_BRANCHES = 16
"""Forks and checkpoints of one session that live at once. When it is reached the
next fork is refused."""

_MAIN = "main"
_OPEN_ANOTHER = "open a new session"
# How it ends for a program whose cell is taken away, also one that just starts.
_LOST = (CellLostError, SandboxUnavailableError)


class _Trunk:
    """What the branches of one session share: a cell, and whose turn it is.

    `async with trunk as cell` waits until no branch is at work.
    """

    def __init__(self, cell: Cell, network: Network) -> None:
        self.cell = cell
        self.network = network
        self.egress: Egress | None = None
        self.was_out = False
        # Not a Lock, which belongs to a task: each step of a stream may be another's.
        self.turn = anyio.Semaphore(1, max_value=1, fast_acquire=True)
        self.made = 0
        self.branches = {_MAIN}
        self.used = time.monotonic()
        self.over = ""

    async def __aenter__(self) -> Cell:
        await self.turn.acquire()
        if self.over:
            self.turn.release()
            raise CellLostError(self.over, hint=_OPEN_ANOTHER)
        return self.cell

    async def __aexit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: object
    ) -> None:
        try:
            lost = isinstance(error, _LOST)
            if lost or (error is not None and not self.cell.settled):
                # Half a run is no state to go on from.
                await self.cell.kill()
                if self.over and lost:
                    raise CellLostError(self.over, hint=_OPEN_ANOTHER) from None
        finally:
            self.egress = None
            self.used = time.monotonic()
            self.turn.release()


class Session:
    """One cell that lives until the session is closed; no other session has it.

    Variables, imports, the current folder and files stay from run to run. Get one
    from `SandboxManager.session`.
    """

    def __init__(
        self,
        manager: SandboxManager,
        cell: Cell,
        agent_id: str | None,
        *,
        network: Network = Network.none,
        trunk: _Trunk | None = None,
        branch: str = _MAIN,
        warnings: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
    ) -> None:
        self._manager = manager
        self._trunk = trunk or _Trunk(cell, network)
        self._is_fork = trunk is not None
        self._branch = branch
        self._packages = packages
        self._installing = anyio.Lock()
        self.agent_id = agent_id
        self.warnings = warnings
        """What a fork shares with where it came from, or has lost."""

    @property
    def limits(self) -> Limits:
        """The limits of its runs."""
        return self._manager.config.limits

    @property
    def alive(self) -> bool:
        """Whether the next run finds its cell; looked at while no run is on."""
        return not self._trunk.over and self._trunk.cell.alive()

    async def run(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        calls: HostCalls | None = None,
        on_output: OnOutput | None = None,
        on_connection: OnConnection | None = None,
    ) -> ExecutionResult:
        """Run a program where the last one left off.

        Runs of one session follow each other. A run that passes its deadline is
        interrupted as by Ctrl-C; if it obeys within half a second its variables
        are kept, else they are lost: `result.state` says which. A run may narrow
        the limits on time, output and code; those on memory, processes, CPUs,
        files and disk are the cell's. Processes that were detached from the
        program end with the run; `bash` and `node` keep files only.

        Args:
            code: The program's text.
            fresh: A new interpreter for this run, beside the state.
            language: As in `SandboxManager.run`.
            inputs: As in `SandboxManager.run`.
            limits: Narrower limits for this run; None takes the manager's.
            secrets: Environment variables of this run alone; gone after it.
            calls: As in `SandboxManager.run`.
            on_output: Called with the stream's name and bytes as output arrives.
            on_connection: As in `SandboxManager.run`.

        Raises:
            InvalidInputError: The arguments cannot be used, or it is a closed fork.
            CellLostError: The cell went away; the session cannot be used again.
        """
        program = self._program(code, fresh, language, inputs, limits, secrets, calls)
        refusal = refused(program, self._manager.config.code_policy)
        if refusal is not None:
            return refusal
        program = await self._manager.equip(program, self._packages)
        async with self._trunk as cell:
            program = self._on_its_line(program)
            program = self._reaching_out(program, on_connection)
            report = await cell.run(program, on_output)
            return cell.result(report, program)

    async def stream(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield what happens as it happens.

        Arguments and errors are those of `run`; see `SandboxManager.stream`.
        """
        program = self._program(code, fresh, language, inputs, limits, streamed=True)
        refusal = refused(program, self._manager.config.code_policy)
        if refusal is not None:
            yield Finished(refusal)
            return
        program = await self._manager.equip(program, self._packages)
        pieces = Pieces()
        async with self._trunk as cell:
            program = self._on_its_line(program)
            program = self._reaching_out(program, pieces.add_connection)
            async with aclosing(stream_run(cell, program, pieces)) as events:
                async for event in events:
                    yield event

    def _program(
        self,
        code: str,
        fresh: bool,
        language: Language,
        inputs: Mapping[str, Any] | None,
        limits: Limits | None,
        secrets: Mapping[str, SecretStr] | None = None,
        calls: HostCalls | None = None,
        *,
        streamed: bool = False,
    ) -> Program:
        if not fresh and self._trunk.cell.traits.level == "process":
            raise InvalidInputError(
                "'process' isolation keeps no state", hint="use fresh=True"
            )
        branch = None if fresh or language != "python" else self._branch
        return self._manager.program(
            code,
            language,
            inputs,
            limits,
            final=False,
            secrets=secrets,
            branch=branch,
            streamed=streamed,
            calls=calls,
        )

    @property
    def _line(self) -> str:
        """The branch that is its own, as long as its turn lasts."""
        if self._branch not in self._trunk.branches:
            raise InvalidInputError("this fork was closed", hint="make a new one")
        return self._branch

    def _on_its_line(self, program: Program) -> Program:
        """Return the program for where a rollback may have led while it waited."""
        line = self._line
        if program.branch in (None, line):
            return program
        return replace(program, branch=line)

    async def install(
        self,
        packages: Sequence[str],
        *,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """Let programs import more packages, from the next run on.

        What they have imported already stays as it is.

        Args:
            packages: As in `SandboxManager.run`; they must go with earlier ones.
            on_step: Called with each line that the installer says.

        Raises:
            InvalidInputError: A package is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or there is no cell.
        """
        if isinstance(packages, str):
            raise InvalidInputError(
                "packages must be a list, not one text", hint='write packages=["numpy"]'
            )
        async with self._installing:
            wanted = (*self._packages, *packages)
            await self._manager.install(wanted, on_step=on_step)
            self._packages = wanted

    def _reaching_out(
        self, program: Program, on_connection: OnConnection | None
    ) -> Program:
        """Return the program with its way out, if the session has one now."""
        trunk = self._trunk
        if trunk.network.mode == "none" and not trunk.was_out:
            return program
        # What has learnt of the proxy and is kept hears a refusal from it later.
        trunk.was_out = True
        program = self._manager.reaching_out(
            program, trunk.network, on_connection, self.agent_id
        )
        trunk.egress = program.egress
        return program

    @property
    def network(self) -> Network:
        """Whom its runs may reach now."""
        return self._trunk.network

    async def set_network(self, network: Network) -> None:
        """Change whom this session, and its forks, may reach; also beyond the config.

        It holds at once for new connections of a run that goes on, and when this
        returns, open connections to hosts that are not allowed any more have been
        closed. A run that began without network has none until it ends.

        Args:
            network: `Network.none`, or `Network.allow([...])`, which raises ConfigError
                for what cannot be read; the old rules stand then.

        Raises:
            InvalidInputError: It is no Network.
            SandboxUnavailableError: `process` isolation has none.
        """
        if not isinstance(network, Network):
            raise InvalidInputError(
                "network must be a Network", hint="use Network.allow([...])"
            )
        trunk = self._trunk
        check_network(network, trunk.cell.traits.level)
        trunk.network = network
        if trunk.egress is not None:
            await trunk.egress.set_network(network)

    async def interrupt(self) -> None:
        """Interrupt the run of this session, if there is one, as Ctrl-C does.

        It ends as `cancelled`; `result.state` says whether its variables are kept.
        """
        await self._trunk.cell.stop()

    async def fork(self, *, allow_threads: bool = False) -> Session:
        """Return a second session with the same variables and its own work dir.

        Both have the same memory until one of them writes. Relative paths lead to
        the copy; absolute paths, and files that were open, are shared, and listed
        in the fork's `warnings`. Forks share one cell and its limits; they run one
        at a time and end with the session that they came from.

        Args:
            allow_threads: Fork even though threads of the program live; the fork
                does not have them.

        Raises:
            InvalidInputError: There is no state to fork, threads live, or there
                are 16 forks and checkpoints already.
            CellLostError: The cell went away.
        """
        async with self._trunk as cell:
            name, warnings = await self._grow(cell, self._line, allow_threads)
        return Session(
            self._manager,
            self._trunk.cell,
            self.agent_id,
            trunk=self._trunk,
            branch=name,
            warnings=warnings,
            packages=self._packages,
        )

    async def _grow(
        self, cell: Cell, branch: str, allow_threads: bool
    ) -> tuple[str, tuple[str, ...]]:
        trunk = self._trunk
        if len(trunk.branches) > MAX_BRANCHES:
            raise InvalidInputError(
                f"{MAX_BRANCHES} forks and checkpoints live already", hint="close one"
            )
        trunk.made += 1
        name = f"{_MAIN}-{trunk.made}"
        wish = {"branch": branch, "to": name, "allow_threads": allow_threads}
        answer, _ = await cell.ask({"type": "fork", **wish})
        if "error" in answer:
            raise InvalidInputError(
                f"cannot fork: {str(answer['error'])[:1000]}",
                hint="run a program in it first, and let its threads end",
            )
        trunk.branches.add(name)
        return name, tuple(str(each) for each in answer.get("warnings", ()))

    async def _cut(self, cell: Cell, branch: str) -> None:
        if branch in self._trunk.branches:
            await cell.tell({"type": "drop", "branch": branch})
            self._trunk.branches.remove(branch)

    async def checkpoint(self) -> str:
        """Keep the variables and files of now; return the id for `rollback`.

        Raises:
            InvalidInputError: As `fork`.
            CellLostError: The cell went away.
        """
        async with self._trunk as cell:
            name, _ = await self._grow(cell, self._line, allow_threads=False)
        return name

    async def rollback(self, checkpoint: str) -> None:
        """Go back to a checkpoint, which stays and can be gone back to again.

        Raises:
            InvalidInputError: There is no such checkpoint.
            CellLostError: The cell went away.
        """
        async with self._trunk as cell:
            line = self._line
            if checkpoint not in self._trunk.branches or checkpoint == line:
                raise InvalidInputError(
                    f"there is no checkpoint {checkpoint!r}",
                    hint="use one that `checkpoint()` of this session returned",
                )
            name, _ = await self._grow(cell, checkpoint, allow_threads=False)
            await self._cut(cell, line)
            self._branch = name

    async def drop(self, checkpoint: str) -> None:
        """Forget a checkpoint. Raises CellLostError."""
        async with self._trunk as cell:
            if checkpoint != self._branch:
                await self._cut(cell, checkpoint)

    async def aclose(self) -> None:
        """End a fork; the session that it came from goes on."""
        if self._is_fork and not self._trunk.over:
            async with self._trunk as cell:
                await self._cut(cell, self._branch)

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file of the work dir, with its folders; as `WorkDir.write`."""
        async with self._trunk as cell:
            await WorkDir(cell, self._line).write(path, data)

    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        """Return the bytes of a file of the work dir; as `WorkDir.read`."""
        async with self._trunk as cell:
            return await WorkDir(cell, self._line).read(path, max_bytes)

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder of the work dir; as `WorkDir.list`."""
        async with self._trunk as cell:
            return await WorkDir(cell, self._line).list(path)

    async def remove(self, path: str | PathLike[str]) -> None:
        """Remove a file or a folder of the work dir; as `WorkDir.remove`."""
        async with self._trunk as cell:
            await WorkDir(cell, self._line).remove(path)

    async def upload(self, source: str | Path, path: str = "") -> int:
        """Write a folder's files into the work dir; as `WorkDir.upload`."""
        async with self._trunk as cell:
            return await WorkDir(cell, self._line).upload(source, path)

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> int:
        """Write the work dir's files into a new folder; as `WorkDir.download`."""
        async with self._trunk as cell:
            files = WorkDir(cell, self._line)
            return await files.download(target, path, max_bytes=max_bytes)

    async def end_when_idle(self, idle: float, lifetime: float) -> None:
        """End the session after `idle` seconds without a run, or `lifetime` in all."""
        trunk = self._trunk
        born = trunk.used
        while True:
            until = min(trunk.used + idle, born + lifetime)
            left = until - time.monotonic()
            if left > 0:
                await anyio.sleep(left)
                continue
            if trunk.turn.value == 0 and until < born + lifetime:
                await anyio.sleep(idle)
                continue
            why = "idle" if until < born + lifetime else "open"
            seconds = idle if why == "idle" else lifetime
            trunk.over = f"the session was {why} for {seconds:g} seconds and was ended"
            await trunk.cell.kill()
            return
