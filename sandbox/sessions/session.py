"""Sessions on this machine: several runs in one cell, with state, files and forks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio

from toolcell.core import InvalidInputError

from ..backends.selection import check_network
from ..client.download import MAX_DOWNLOAD_BYTES
from ..client.event_stream import PendingEvents, stream_run
from ..client.types import Listener, Program
from ..client.workdir import MAX_READ_BYTES, FileInfo, WorkDir, checked_path
from ..config.network import Network, require_no_inspection
from ..config.settings import Limits
from ..processes.ports import PortStream
from ..processes.process import Process
from ..processes.table import CommandRequest, argv_of
from ..processes.usage import CellUsage
from ..processes.watches import FileWatch
from ..programs.program import RunRequest, refused
from ..results.events import Event, Finished
from ..results.result import ExecutionResult
from ..runs.program_factory import ProgramFactory
from .archives import MAX_SAVED_BYTES, load, save
from .interface import SandboxSession
from .shared_cell import MAIN_BRANCH, SharedCell, node_branch

if TYPE_CHECKING:
    from ..client.host_calls import HostCalls
    from ..network.gate import RequestGate
    from ..network.types import OnConnection
    from ..packages.distributions import OnStep


class Session(SandboxSession):
    """A session on this machine.

    `SandboxManager.session` opens one, and `fork` makes another in the same cell.
    """

    def __init__(
        self,
        programs: ProgramFactory,
        shared: SharedCell,
        agent_id: str | None,
        *,
        branch: str = MAIN_BRANCH,
        warnings: tuple[str, ...] = (),
        packages: tuple[str, ...] = (),
    ) -> None:
        self._programs = programs
        self._shared = shared
        self._is_fork = branch != MAIN_BRANCH
        self._branch = branch
        self._packages = packages
        self._installing = anyio.Lock()
        self.agent_id = agent_id
        self.warnings = warnings

    @property
    def limits(self) -> Limits:
        return self._programs.config.limits

    @property
    def alive(self) -> bool:
        return self._shared.alive

    async def _run(self, request: RunRequest) -> ExecutionResult:
        program = await self._prepared(request)
        if (refusal := refused(program)) is not None:
            return refusal
        async with self._shared as cell:
            self._shared.runs = self
            program = _on_branch(program, self._own_branch)
            program = self._with_egress(program, request, request.on_connection)
            program = await WorkDir(cell, program.branch or "").with_inputs(program)
            listener = Listener(request.on_output, request.on_display)
            report = await cell.run(program, listener)
            return cell.result(report, program)

    async def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        program = await self._prepared(request)
        if (refusal := refused(program)) is not None:
            yield Finished(refusal)
            return
        pending = PendingEvents()
        async with self._shared as cell:
            self._shared.runs = self
            program = _on_branch(program, self._own_branch)
            program = self._with_egress(program, request, pending.add_connection)
            program = await WorkDir(cell, program.branch or "").with_inputs(program)
            async with aclosing(stream_run(cell, program, pending)) as events:
                async for event in events:
                    yield event

    async def _prepared(self, request: RunRequest) -> Program:
        """Return a program with its packages, or one with reasons to refuse it."""
        if not request.fresh and self._shared.cell.traits.level == "process":
            raise InvalidInputError(
                "'process' isolation keeps no state", hint="use fresh=True"
            )
        keeps = not request.fresh and request.language != "bash"
        branch = self._branch if keeps else None
        program = self._programs.make(request, final=False, branch=branch)
        if request.limits is not None:
            _require_same_cell(program.limits, self.limits)
        program = await self._programs.judged(program)
        if program.refused:
            return program
        program = await self._programs.with_own_packages(program, self.install)
        return await self._programs.with_packages(program, self._packages)

    @property
    def _own_branch(self) -> str:
        """The branch of this session; valid while it has its turn."""
        if self._branch not in self._shared.branches:
            raise InvalidInputError("this fork was closed", hint="make a new one")
        return self._branch

    async def install(
        self,
        packages: Sequence[str],
        *,
        on_step: OnStep | None = None,
    ) -> None:
        if isinstance(packages, str):
            raise InvalidInputError(
                "packages must be a list, not one text", hint='write packages=["numpy"]'
            )
        async with self._installing:
            wanted = tuple(dict.fromkeys((*self._packages, *packages)))
            await self._programs.install(wanted, on_step=on_step)
            self._packages = wanted

    def _with_egress(
        self,
        program: Program,
        request: RunRequest,
        on_connection: OnConnection | None,
    ) -> Program:
        """Return the program with a proxy to the network, if the session has one."""
        shared = self._shared
        if shared.network.mode == "none" and not shared.was_out:
            return program
        # A kept interpreter may remember the proxy, so it stays and refuses.
        shared.was_out = True
        program = self._programs.with_egress(
            program, shared.network, on_connection, self.agent_id, request.gate
        )
        shared.egress = program.egress
        return program

    @property
    def network(self) -> Network:
        return self._shared.network

    async def set_network(self, network: Network) -> None:
        if not isinstance(network, Network):
            raise InvalidInputError(
                "network must be a Network", hint="use Network.allow([...])"
            )
        require_no_inspection(network)
        shared = self._shared
        check_network(network, shared.cell.traits)
        shared.network = network
        for egress in shared.proxies:
            await egress.set_network(network)

    async def interrupt(self) -> None:
        if self._shared.runs is self:
            await self._shared.cell.stop()

    async def fork(self, *, allow_threads: bool = False) -> Session:
        async with self._shared.whole():
            name, warnings = await self._shared.fork_branch(
                self._own_branch, allow_threads=allow_threads
            )
        return Session(
            self._programs,
            self._shared,
            self.agent_id,
            branch=name,
            warnings=warnings,
            packages=self._packages,
        )

    async def context(self) -> Session:
        async with self._shared:
            name = self._shared.add_branch()
        return Session(
            self._programs,
            self._shared,
            self.agent_id,
            branch=name,
            packages=self._packages,
        )

    async def checkpoint(self) -> str:
        async with self._shared.whole():
            name, _ = await self._shared.fork_branch(self._own_branch)
        return name

    async def rollback(self, checkpoint: str) -> None:
        async with self._shared.whole():
            line = self._own_branch
            if checkpoint not in self._shared.branches or checkpoint == line:
                raise InvalidInputError(
                    f"there is no checkpoint {checkpoint!r}",
                    hint="use one that `checkpoint()` of this session returned",
                )
            name, _ = await self._shared.fork_branch(checkpoint)
            self._branch = name
            await self._shared.drop_branch(line)

    async def drop(self, checkpoint: str) -> None:
        async with self._shared.whole():
            if checkpoint != self._branch:
                await self._shared.drop_branch(checkpoint)

    async def aclose(self) -> None:
        if self._is_fork and not self._shared.over:
            async with self._shared.whole():
                await self._shared.drop_branch(self._branch)

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes | Literal["pipe"] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout_seconds: float | None = None,
        pty: tuple[int, int] | None = None,
        background: bool = False,
        calls: HostCalls | None = None,
        gate: RequestGate | None = None,
    ) -> Process:
        wanted = CommandRequest(
            argv=argv_of(command),
            env=dict(env or {}),
            cwd=cwd,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            pty=pty,
            background=background,
        )
        _require_cell(self._shared, "runs no commands")
        wanted = replace(wanted, packages=await self._programs.layer(self._packages))
        async with self._shared.tables(self._programs.spawn) as tables:
            limits, egress = self._programs.config.limits, None
            if self._shared.network.mode != "none":
                egress = self._programs.egress(
                    self._shared.network, limits, None, self.agent_id, gate
                )
            start, branch = tables.commands.start, self._own_branch
            return await start(wanted, limits, branch, egress, calls)

    async def connect(self, port: int) -> PortStream:
        _require_cell(self._shared, "has no ports of its own")
        async with self._shared.tables(self._programs.spawn) as tables:
            return await tables.ports.connect(port)

    async def watch(
        self, path: str | PathLike[str] = "", *, recursive: bool = False
    ) -> FileWatch:
        _require_cell(self._shared, "has no watches")
        name = checked_path(path, absolute=True) if path else ""
        async with self._shared.tables(self._programs.spawn) as tables:
            branch = self._own_branch
            return await tables.watches.open(name, branch, recursive=recursive)

    async def usage(self) -> CellUsage:
        _require_cell(self._shared, "measures no sessions", paused=True)
        async with self._shared.tables(self._programs.spawn) as tables:
            return await tables.usage.ask()

    def processes(self) -> tuple[Process, ...]:
        return self._shared.processes

    async def pause(self) -> None:
        _require_cell(self._shared, "has nothing to pause", paused=True)
        await self._shared.pause()

    async def resume(self) -> None:
        await self._shared.resume()

    @property
    def paused(self) -> bool:
        return self._shared.paused

    async def save(
        self, target: str | Path, *, max_bytes: int = MAX_SAVED_BYTES
    ) -> tuple[str, ...]:
        async with self._shared.stopped() as cell:
            return await save(WorkDir(cell, self._own_branch), Path(target), max_bytes)

    async def load(
        self, source: str | Path, *, max_bytes: int = MAX_SAVED_BYTES
    ) -> int:
        async with self._shared.whole() as cell:
            return await load(WorkDir(cell, self._own_branch), Path(source), max_bytes)

    async def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).write(path, data)

    async def read_file(
        self, path: str | PathLike[str], max_bytes: int = MAX_READ_BYTES
    ) -> bytes:
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).read(path, max_bytes)

    async def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).list(path)

    async def remove(self, path: str | PathLike[str]) -> None:
        async with self._shared.files(self._programs.spawn) as files:
            await WorkDir(files, self._own_branch).remove(path)

    async def upload(self, source: str | Path, path: str = "") -> int:
        async with self._shared.files(self._programs.spawn) as files:
            return await WorkDir(files, self._own_branch).upload(source, path)

    async def download(
        self,
        target: str | Path,
        path: str = "",
        *,
        max_bytes: int = MAX_DOWNLOAD_BYTES,
    ) -> int:
        async with self._shared.files(self._programs.spawn) as files:
            work = WorkDir(files, self._own_branch)
            return await work.download(target, path, max_bytes=max_bytes)


def _require_same_cell(wanted: Limits, limits: Limits) -> None:
    """Refuse limits that would need another cell than one with `limits`."""
    mine = limits.of_cell
    other = [name for name, value in wanted.of_cell.items() if value != mine[name]]
    if other:
        raise InvalidInputError(
            f"a run of a session cannot narrow {', '.join(other)}, which its cell has",
            hint="narrow them in SandboxConfig(limits=...), or run it by itself",
        )


def _on_branch(program: Program, branch: str) -> Program:
    """Return a program for a branch, which a rollback may have changed meanwhile."""
    if program.branch is None:
        return program
    is_node = program.language == "node"
    return program._replace(branch=node_branch(branch) if is_node else branch)


def _require_cell(shared: SharedCell, lack: str, *, paused: bool = False) -> None:
    """Raise what keeps a session from work beside its runs.

    Args:
        shared: Its cell.
        lack: The words for what `process` isolation lacks.
        paused: True if a pause is in the way of nothing.
    """
    shared.require_open(paused=paused)
    if shared.cell.traits.level == "process":
        raise InvalidInputError(
            f"'process' isolation {lack}", hint="use a stronger backend"
        )
