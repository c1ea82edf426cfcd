"""Sessions: several runs in one cell, with state, files and forks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import SecretStr

from toolcell.core import InvalidInputError

from ..backends.selection import check_network
from ..client.event_stream import PendingEvents, stream_run
from ..client.host_calls import HostCalls
from ..client.types import Language, Listener, OnDisplay, OnOutput, Program
from ..client.workdir import WorkDir
from ..config.settings import Limits, Network
from ..programs.program import RunRequest, refused
from ..results.events import Event, Finished
from ..results.result import ExecutionResult
from ..runs.program_factory import ProgramFactory
from .files import SessionFiles
from .pauses import SessionPauses
from .shared_cell import MAIN_BRANCH, SharedCell, node_branch

if TYPE_CHECKING:
    from ..network.types import OnConnection
    from ..packages.distributions import OnStep


class Session(SessionPauses, SessionFiles):
    """A cell that several runs of one agent share.

    Variables, imports, the current folder and files stay from run to run, until the
    session is closed. No other session sees them. Any number of tasks may use it; its
    runs, and those of its forks, follow each other. A cell that is lost is not
    replaced: every later call raises CellLostError.

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
        """Files and threads that a fork shares with its origin, or has lost."""

    @property
    def limits(self) -> Limits:
        """The limits of its runs."""
        return self._programs.config.limits

    @property
    def alive(self) -> bool:
        """True if the next run finds its cell, as far as is known while it is busy."""
        return self._shared.alive

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
        on_display: OnDisplay | None = None,
        on_connection: OnConnection | None = None,
    ) -> ExecutionResult:
        """Run a program where the last one left off.

        Runs of one session follow each other. A run that passes its deadline is
        interrupted as by Ctrl-C; if it obeys within half a second its variables
        are kept, else they are lost: `result.state` says which. A run may narrow
        the limits on time, output and code; those on memory, processes, CPUs,
        files and disk are the cell's. Processes that were detached from the
        program end with the run; `node` has variables of its own, `bash` files only.

        Args:
            code: The program's text.
            fresh: True takes a new interpreter, and leaves the variables alone.
            language: As in `SandboxManager.run`.
            inputs: As in `SandboxManager.run`.
            limits: Narrower limits for this run; None takes the manager's.
            secrets: Environment variables of this run alone; gone after it.
            calls: As in `SandboxManager.run`.
            on_output: Called with the stream's name and bytes as output arrives.
            on_display: As in `SandboxManager.run`.
            on_connection: As in `SandboxManager.run`.

        Raises:
            InvalidInputError: The arguments cannot be used, or it is a closed fork.
            CellLostError: The cell went away; the session cannot be used again.
            SandboxUnavailableError: The cell did not start, or a layer of its isolation
                does not hold.
        """
        request = RunRequest(
            code=code,
            language=language,
            inputs=inputs,
            limits=limits,
            secrets=secrets,
            calls=calls,
        )
        program = self._program(request, fresh=fresh)
        program = await self._programs.judged(program)
        refusal = refused(program)
        if refusal is not None:
            return refusal
        program = await self._programs.with_own_packages(program, self.install)
        program = await self._programs.with_packages(program, self._packages)
        async with self._shared as cell:
            program = self._with_current_branch(program)
            program = self._with_egress(program, on_connection)
            program = await WorkDir(cell, program.branch or "").with_inputs(program)
            report = await cell.run(program, Listener(on_output, on_display))
            return cell.result(report, program)

    async def stream(
        self,
        code: str,
        *,
        fresh: bool = False,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen.

        Arguments and errors are those of `run`; see `SandboxManager.stream`.
        """
        request = RunRequest(
            code=code,
            language=language,
            inputs=inputs,
            limits=limits,
            secrets=secrets,
            streamed=True,
        )
        program = self._program(request, fresh=fresh)
        program = await self._programs.judged(program)
        refusal = refused(program)
        if refusal is not None:
            yield Finished(refusal)
            return
        program = await self._programs.with_own_packages(program, self.install)
        program = await self._programs.with_packages(program, self._packages)
        pending = PendingEvents()
        async with self._shared as cell:
            program = self._with_current_branch(program)
            program = self._with_egress(program, pending.add_connection)
            program = await WorkDir(cell, program.branch or "").with_inputs(program)
            async with aclosing(stream_run(cell, program, pending)) as events:
                async for event in events:
                    yield event

    def _program(self, request: RunRequest, *, fresh: bool) -> Program:
        if not fresh and self._shared.cell.traits.level == "process":
            raise InvalidInputError(
                "'process' isolation keeps no state", hint="use fresh=True"
            )
        branch = None if fresh or request.language == "bash" else self._branch
        return self._programs.make(request, final=False, branch=branch)

    @property
    def _own_branch(self) -> str:
        """The branch of this session; valid while it has its turn."""
        if self._branch not in self._shared.branches:
            raise InvalidInputError("this fork was closed", hint="make a new one")
        return self._branch

    def _with_current_branch(self, program: Program) -> Program:
        """Return the program for the current branch: a rollback may have changed it."""
        line = self._own_branch
        if program.branch is None:
            return program
        if program.language == "node":
            line = node_branch(line)
        return program._replace(branch=line)

    async def install(
        self,
        packages: Sequence[str],
        *,
        on_step: OnStep | None = None,
    ) -> None:
        """Let programs import more packages, from the next run on.

        Modules that they have imported already stay as they are.

        Args:
            packages: As in `SandboxManager.run`; they must go with earlier ones.
            on_step: Called with each line that the installer prints.

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
            wanted = tuple(dict.fromkeys((*self._packages, *packages)))
            await self._programs.install(wanted, on_step=on_step)
            self._packages = wanted

    def _with_egress(
        self, program: Program, on_connection: OnConnection | None
    ) -> Program:
        """Return the program with a proxy to the network, if the session has one."""
        shared = self._shared
        if shared.network.mode == "none" and not shared.was_out:
            return program
        # A kept interpreter may remember the proxy, so it stays and refuses.
        shared.was_out = True
        program = self._programs.with_egress(
            program, shared.network, on_connection, self.agent_id
        )
        shared.egress = program.egress
        return program

    @property
    def network(self) -> Network:
        """The hosts that its runs may reach now."""
        return self._shared.network

    async def set_network(self, network: Network) -> None:
        """Change the hosts that this session and its forks may reach.

        They may exceed those of the configuration.

        The change holds at once for new connections of a run that goes on, and when
        this returns, open connections to hosts that are no longer allowed are closed.
        A run or a command that began without network has none until it ends.

        Args:
            network: `Network.none`, or `Network.allow([...])`.

        Raises:
            InvalidInputError: It is no Network.
            SandboxUnavailableError: `process` isolation has no network.
        """
        if not isinstance(network, Network):
            raise InvalidInputError(
                "network must be a Network", hint="use Network.allow([...])"
            )
        shared = self._shared
        check_network(network, shared.cell.traits.level)
        shared.network = network
        for egress in shared.proxies:
            await egress.set_network(network)

    async def interrupt(self) -> None:
        """Interrupt the run of this session, if there is one, as Ctrl-C does.

        The run ends as `cancelled`; its `result.state` is `kept` or `lost`.
        """
        await self._shared.cell.stop()

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
        """Return a second session without variables, in the same work dir.

        It has an interpreter of its own, counts as a fork, and ends with this session,
        or by `aclose`.

        Raises:
            InvalidInputError: There are 16 forks and checkpoints already.
            CellLostError: The cell went away.
        """
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
        """Save the current variables and files; return the id for `rollback`.

        Raises:
            InvalidInputError: As `fork`.
            CellLostError: The cell went away.
        """
        async with self._shared.whole():
            name, _ = await self._shared.fork_branch(self._own_branch)
        return name

    async def rollback(self, checkpoint: str) -> None:
        """Return to a checkpoint; it stays, and can be used again.

        Raises:
            InvalidInputError: There is no such checkpoint.
            CellLostError: The cell went away.
        """
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
        """Forget a checkpoint. Raises CellLostError."""
        async with self._shared.whole():
            if checkpoint != self._branch:
                await self._shared.drop_branch(checkpoint)

    async def aclose(self) -> None:
        """End a fork; the session that it came from goes on."""
        if self._is_fork and not self._shared.over:
            async with self._shared.whole():
                await self._shared.drop_branch(self._branch)
