"""The entrance to the sandbox: runs programs and opens sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio
from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.core.detached import Detachable

from .backends.selection import check_strength, open_backend
from .client.argument_checks import check_freshness
from .client.backend import Backend
from .client.event_stream import PendingEvents, stream_run
from .client.host_calls import HostCalls
from .client.types import Freshness, Language, OnOutput, Program
from .client.workdir import WorkDir
from .config.settings import Limits, Network, SandboxConfig
from .program_factory import ProgramFactory, not_open
from .programs.function_program import call_program, returned
from .programs.program import RunRequest
from .results.events import Event, Finished
from .results.result import ExecutionResult
from .scheduling.active_cells import ActiveCells
from .scheduling.background_work import BackgroundWork
from .scheduling.cell_supply import CellSupply
from .scheduling.pool import PoolStats
from .session import Session

if TYPE_CHECKING:
    from .batch import BatchResults, OnProgress, Programs, Work
    from .network.types import OnConnection, Resolver
    from .packages.distributions import OnStep


class SandboxManager(Detachable):
    """Runs untrusted programs in cells.

    Use it as an async context manager; leaving it ends every run as `cancelled`
    and leaves nothing behind. Where one task must open it and another one close it,
    as in fixtures and start-up events, use `open` and `aclose`.

    Any number of tasks of its event loop may use it at once. At most
    `config.max_concurrency` runs and sessions have a cell at a time; others wait, and
    agents take turns. A cell is never used by two agents.

    Args:
        config: The backend, limits and rules of its runs; the defaults are closed.
        resolver: Looks up the names that programs may reach, as
            `async def resolver(host, port)`, and returns addresses or raises OSError;
            None asks this machine's.
    """

    _work: BackgroundWork

    def __init__(
        self, config: SandboxConfig | None = None, *, resolver: Resolver | None = None
    ) -> None:
        self.config = config or SandboxConfig()
        self._resolver = resolver
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._supply: CellSupply | None = None
        self._active = ActiveCells()
        self._factory: ProgramFactory | None = None
        self._entered = False
        self.notices: tuple[str, ...] = ()
        """Remarks on the choice of the backend, one line each."""

    @classmethod
    async def open(
        cls, config: SandboxConfig | None = None, *, resolver: Resolver | None = None
    ) -> Self:
        """Return an open manager, which any task of this event loop may close.

        Arguments and errors are those of `SandboxManager` and of entering it.
        """
        return await cls(config, resolver=resolver)._open_detached()

    async def __aenter__(self) -> SandboxManager:
        if self._entered:
            raise InvalidInputError(
                "the manager is open already",
                hint="use the open one, or make another SandboxManager",
            )
        self._entered = True
        try:
            await self._open()
        except BaseException:
            self._entered = False
            raise
        return self

    async def _open(self) -> None:
        backend, self.notices = await open_backend(self.config)
        try:
            check_strength(self.config, backend.traits)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            await backend.aclose()
            raise
        self._backend = backend
        self._work = BackgroundWork(tasks)
        self._supply = CellSupply(backend, self.config, tasks, self._active)
        self._factory = ProgramFactory(
            self.config,
            backend,
            spawn=tasks.start_soon,
            resolver=self._resolver,
            open_build_session=open_build_session,
        )
        if self.config.packages:
            try:
                await self.install()
            except BaseException:
                await self.__aexit__()
                raise

    async def __aexit__(self, *_: object) -> None:
        backend, supply, factory = self._backend, self._supply, self._factory
        self._backend = self._supply = self._factory = None
        with anyio.CancelScope(shield=True):
            if supply is not None:
                self._work.cancel()
                await supply.aclose()
            if factory is not None:
                factory.close()
        # The task group waits for every cell that is still being destroyed.
        await self._stack.aclose()
        with anyio.CancelScope(shield=True):
            if backend is not None:
                await backend.aclose()
        self._entered = False

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        argv: Sequence[str] = (),
        stdin: bytes | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        calls: HostCalls | None = None,
        network: Network | None = None,
        on_output: OnOutput | None = None,
        on_connection: OnConnection | None = None,
        minimum_freshness: Freshness = "program",
    ) -> ExecutionResult:
        """Run a program in a cell of its own, or in one that was made new for it.

        The cell was never used and is destroyed afterwards, unless
        `SandboxConfig.programs_per_cell` is more than 1 and the run has neither
        `secrets` nor a network.

        Args:
            code: The program's text.
            language: "python", "bash" or "node".
            inputs: JSON values that become variables: globals of Python and node, or
                environment variables of bash (strings as they are, others as
                JSON text).
            limits: Narrower limits for this run; what is not set in them, and
                None, takes the manager's.
            files: Files of the work dir, by path.
            argv: The program's name and its arguments, text without NUL, at most
                `code_bytes` together; `sys.argv`. If the name is one of `files`, it
                is Python's `__file__`, too. Bash and node take the arguments alone.
            stdin: Bytes on its standard input, at most `code_bytes`; None is empty.
            calls: Functions that the program may call here, as `tools.<name>(...)`.
            secrets: Environment variables of this run alone, at most 65,536 bytes
                together. No record, log or repr of toolcell shows them; the program
                may print or return them.
            packages: Packages that it can import, such as "numpy==2.1.*", beside
                those of the configuration; see `PackageRules`. They are installed
                before the first run that needs them, outside of its limits.
            agent_id: The agent that asks. Agents that wait take turns; None is an agent
                of its own.
            network: The hosts that this run may reach, within the manager's network;
                None takes that.
            on_output: Called with the stream's name and bytes as output arrives.
            on_connection: Called with each connection that the program asked for,
                when it has ended or was refused; they are in the result, too.
            minimum_freshness: What must be new at least: "program" is an interpreter
                in which nothing ran, with all else that programs can change new, too;
                "cell" is a cell that nothing ran in.

        Raises:
            InvalidInputError: The arguments cannot be used.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: There is no cell to be had.
            CellLostError: The cell went away during the run.
        """
        request = RunRequest(
            code=code,
            language=language,
            inputs=inputs,
            limits=limits,
            argv=argv,
            stdin=stdin,
            secrets=secrets,
            calls=calls,
        )
        programs = self._programs
        program = programs.make(request, final=True)
        program = programs.with_network(program, network, on_connection, agent_id)
        refusal = programs.refusal(program)
        if refusal is not None:
            return refusal
        program = await programs.with_packages(program, packages)
        again = self._may_use_again(program, secrets, minimum_freshness)
        async with self._cells.cell(program.limits, agent_id, again=again) as cell:
            await WorkDir(cell).write_all(files)
            report = await cell.run(program, on_output)
            return cell.result(report, program)

    async def install(
        self,
        packages: Sequence[str] = (),
        *,
        on_step: OnStep | None = None,
    ) -> str:
        """Install packages before a run asks for them.

        Args:
            packages: As in `run`; those of the configuration come with them.
            on_step: Called with each line that the installer prints.

        Returns:
            The path of the packages in cells; empty if there are none.

        Raises:
            InvalidInputError: A package is not written as one.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: uv is not installed, or there is no cell.
        """
        return await self._programs.install(packages, on_step=on_step)

    async def stream(
        self,
        code: str,
        *,
        language: Language = "python",
        inputs: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        files: Mapping[str, bytes | str] | None = None,
        secrets: Mapping[str, SecretStr] | None = None,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
        minimum_freshness: Freshness = "program",
    ) -> AsyncGenerator[Event, None]:
        """Run a program as `run` does, and yield its events as they happen.

        Output stays in the cell until it is asked for, so any amount passes in little
        memory here. The program waits for the reader, while its deadline does not.
        `limits.output_bytes` bytes of each stream pass. Close the iterator, or
        use `contextlib.aclosing`, to end the run early.

        Arguments and errors are those of `run`.
        """
        request = RunRequest(
            code=code,
            language=language,
            inputs=inputs,
            limits=limits,
            secrets=secrets,
            streamed=True,
        )
        pending = PendingEvents()
        programs = self._programs
        program = programs.make(request, final=True)
        program = programs.with_network(
            program, network, pending.add_connection, agent_id
        )
        refusal = programs.refusal(program)
        if refusal is not None:
            yield Finished(refusal)
            return
        program = await programs.with_packages(program, packages)
        again = self._may_use_again(program, secrets, minimum_freshness)
        async with self._cells.cell(program.limits, agent_id, again=again) as cell:
            await WorkDir(cell).write_all(files)
            async with aclosing(stream_run(cell, program, pending)) as events:
                async for event in events:
                    yield event

    def _may_use_again(
        self, program: Program, secrets: object, minimum_freshness: Freshness
    ) -> bool:
        """Return True if a program's cell may have run, or may run, others."""
        check_freshness(minimum_freshness)
        return (
            self.config.programs_per_cell > 1
            and minimum_freshness == "program"
            and program.egress is None
            and not secrets
        )

    async def call(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Call a Python function in a cell and return its value.

        The modules, functions, data and context variables that it refers to travel
        with it; see `call_program`. Arguments and the value are JSON.

        Raises:
            InvalidInputError: The function or an argument cannot travel.
            CallFailedError: It raised, was stopped, or returned a value that is not
                JSON; its `result` is the result of the run.
            SandboxUnavailableError: There is no cell to be had.
            CellLostError: The cell went away during the call.
        """
        program = call_program(function, args, kwargs)
        result = await self.run(program.code, inputs=program.inputs)
        return returned(function, result)

    @asynccontextmanager
    async def session(
        self,
        *,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
    ) -> AsyncIterator[Session]:
        """Open a cell for several runs of one agent; closing destroys it.

        Args:
            packages: Packages that its programs can import, as in `run`.
            agent_id: The agent whose session it is, as in `run`.
            network: The hosts that its runs may reach, as in `run`;
                `Session.set_network` changes them.

        Raises:
            InvalidInputError: A package is not written as one, or `network` reaches
                further than the manager's.
            PackageError: A package is refused, missing or unfit.
            SandboxUnavailableError: There is no cell to be had.
        """
        programs = self._programs
        rules = programs.narrowed_network(network)
        await programs.install(packages)
        async with self._cells.cell(self.config.limits, agent_id) as cell:
            session = Session(
                programs, cell, agent_id, packages=tuple(packages), network=rules
            )
            idle = self.config.session_idle_seconds
            lifetime = self.config.session_lifetime_seconds
            watch = self._start(partial(session.end_when_idle, idle, lifetime))
            try:
                yield session
            finally:
                watch.cancel()

    def map(
        self,
        programs: Programs,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        ordered: bool = True,
        on_progress: OnProgress | None = None,
        agent_id: str | None = None,
    ) -> BatchResults:
        """Run many programs, each as `run` does; iterate over one result for each.

        Args:
            programs: An iterable or async iterable of texts, `(text, inputs)` or `Job`;
                it is read at the pace at which results are taken.
            concurrency: Programs at once, at most `max_concurrency`; None: one a CPU.
            limits: As in `run`, for each program; a `Job` may narrow them.
            ordered: True keeps results in the order of the programs.
            on_progress: Called with how many programs have ended and how many run.
            agent_id: As in `run`.

        Raises:
            InvalidInputError: An argument cannot be used.
        """
        from .batch import Batch, BatchResults

        batch = Batch(
            programs,
            run=partial(self.run, agent_id=agent_id),
            start=self._start,
            max_concurrency=self.config.max_concurrency,
            concurrency=concurrency,
            limits=limits,
            ordered=ordered,
            on_progress=on_progress,
        )
        return BatchResults(batch)

    def _start(self, work: Work) -> anyio.CancelScope:
        """Start work that ends with the manager; return a scope that cancels it."""
        _ = self._open_backend
        return self._work.start(work)

    def pool_stats(self) -> PoolStats:
        """Return the state of the pool of prepared cells.

        Raises:
            SandboxUnavailableError: The manager is not open.
        """
        return self._cells.stats

    async def check(self) -> None:
        """Ask whether cells can be made, without making one.

        Raises:
            SandboxUnavailableError: The engine, its image or the launcher is gone, or
                the manager is not open.
        """
        await self._open_backend.check()

    @property
    def active_cells(self) -> int:
        """The number of cells that runs and sessions use now."""
        return len(self._active)

    @property
    def _open_backend(self) -> Backend:
        if self._backend is None:
            raise not_open()
        return self._backend

    @property
    def _cells(self) -> CellSupply:
        if self._supply is None:
            raise not_open()
        return self._supply

    @property
    def _programs(self) -> ProgramFactory:
        if self._factory is None:
            raise not_open()
        return self._factory


@asynccontextmanager
async def open_build_session(config: SandboxConfig) -> AsyncIterator[Session]:
    """Open a session of a sandbox of its own, to build a package in."""
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        yield session
