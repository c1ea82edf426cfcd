"""The entrance to the sandbox: runs programs and opens sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import anyio
import anyio.abc

from toolcell.core import InvalidInputError
from toolcell.core.detached import Detachable
from toolcell.core.secrets import read_secret

from .backends.selection import check_strength, open_backend, require_engine_here
from .client.backend import Backend
from .client.types import CellTraits
from .config.argument_checks import check_kinds
from .config.network import Network
from .config.settings import SandboxConfig
from .interface import Sandbox
from .programs.program import RunRequest
from .runs.program_factory import ProgramFactory, not_open
from .runs.single_runs import SingleRuns
from .scheduling.cell_events import CellEvents, CellListener
from .scheduling.cell_supply import ActiveCells, CellSupply
from .scheduling.pool import PoolStats

if TYPE_CHECKING:
    from pydantic import SecretStr

    from .credentials.agents import Credentials
    from .network.inspector import Inspector
    from .network.types import Resolver
    from .packages.distributions import OnStep
    from .results.events import Event
    from .results.result import ExecutionResult
    from .runs.batch import Work
    from .sessions.session import Session


class SandboxManager(Sandbox, Detachable):
    """Runs untrusted programs in cells of this machine; a `Sandbox`.

    Use it as an async context manager; leaving it ends every run as `cancelled`
    and leaves nothing behind. Where one task must open it and another one close it,
    as in fixtures and start-up events, use `open` and `aclose`.

    Before it is open, and once it is closed, every call that needs a cell raises
    SandboxUnavailableError.

    Any number of tasks of its event loop may use it at once. At most
    `config.max_concurrency` runs and sessions have a cell at a time; others wait, and
    agents take turns. A cell is never used by two agents.

    Args:
        config: The backend, limits and rules of its runs; the defaults are closed.
        resolver: Looks up the names that programs may reach, as
            `async def resolver(host, port)`, and returns addresses or raises OSError;
            None asks this machine's.

    Raises:
        InvalidInputError: `config` is no SandboxConfig.
    """

    _work: BackgroundWork

    def __init__(
        self, config: SandboxConfig | None = None, *, resolver: Resolver | None = None
    ) -> None:
        check_kinds(config=(config, SandboxConfig))
        self._config = config or SandboxConfig()
        self._resolver = resolver
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._supply: CellSupply | None = None
        self._active = ActiveCells()
        self._factory: ProgramFactory | None = None
        self._index_password: SecretStr | None = None
        self._entered = False
        self.cell_listeners: list[CellListener] = []
        """Told that a cell is `lost` or `discarded`, or that cells are `unavailable` or
        `available` again, with the facts `backend`, `agent` and `reason`."""

        self._notices: tuple[str, ...] = ()

    @property
    def config(self) -> SandboxConfig:
        return self._config

    @property
    def notices(self) -> tuple[str, ...]:
        """Remarks on the choice of the backend, one line each."""
        return self._notices

    @property
    def traits(self) -> CellTraits:
        """The backend that makes cells, and the isolation that it gives.

        Raises:
            InvalidInputError: The manager is not open.
        """
        return self._open_backend.traits

    @classmethod
    async def open(
        cls, config: SandboxConfig | None = None, *, resolver: Resolver | None = None
    ) -> Self:
        """Return an open manager, which any task of this event loop may close.

        Arguments and errors are those of `SandboxManager` and of entering it.
        """
        return await cls(config, resolver=resolver)._open_detached()

    async def __aenter__(self) -> Self:
        """Choose a backend, and begin to prepare cells.

        Raises:
            InvalidInputError: The manager is open already.
            ConfigError: The configuration fits no backend, or names what is not there.
            SandboxUnavailableError: No backend works that is as strong as configured.
            PackageError: A package of the configuration is refused, missing or unfit.
        """
        if self._entered:
            raise InvalidInputError(
                "the manager is open already",
                hint="use the open one, or make another SandboxManager",
            )
        self._entered = True
        try:
            await self._open()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
            self._entered = False
            raise
        return self

    async def _open(self) -> None:
        inspector = _inspector(self.config)
        credentials = _credentials(self.config)
        self._index_password = self._index_password or _index_password(self.config)
        shown = self.config
        if shown.npm:
            from .packages.npm_installer import require_maker, with_npm

            require_engine_here(shown)
            installed = with_npm(shown, self._open_builder)
            shown = await self._stack.enter_async_context(installed)
        backend, self._notices = await open_backend(shown)
        try:
            check_strength(self.config, backend.traits)
            if self.config.npm:
                require_maker(shown, backend.traits)
            tasks = await self._stack.enter_async_context(anyio.create_task_group())
        except BaseException:
            await backend.aclose()
            raise
        self._backend = backend
        self._work = BackgroundWork(tasks)
        events = CellEvents(backend.traits.backend, self.cell_listeners)
        self._supply = CellSupply(backend, self.config, tasks, self._active, events)
        self._factory = ProgramFactory(
            self.config,
            backend,
            spawn=tasks.start_soon,
            resolver=self._resolver,
            open_builder=self._open_builder,
            inspector=inspector,
            credentials=credentials,
            index_password=self._index_password,
        )
        if self.config.packages:
            try:
                await self._programs.install()
            except BaseException:
                await self.__aexit__()
                raise

    async def __aexit__(self, *_: object) -> None:
        """End every run and session; return when nothing of their cells is left."""
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

    def _start(self, work: Work) -> anyio.CancelScope:
        _ = self._open_backend
        return self._work.start(work)

    async def _run(self, request: RunRequest) -> ExecutionResult:
        return await self._runs.run(request)

    def _stream(self, request: RunRequest) -> AsyncGenerator[Event, None]:
        return self._runs.stream(request)

    async def install(
        self,
        packages: Sequence[str] = (),
        *,
        on_step: OnStep | None = None,
    ) -> str:
        return await self._programs.install(packages, on_step=on_step)

    @asynccontextmanager
    async def session(
        self,
        *,
        packages: Sequence[str] = (),
        agent_id: str | None = None,
        network: Network | None = None,
    ) -> AsyncIterator[Session]:
        from .sessions.session import Session
        from .sessions.shared_cell import SharedCell

        programs = self._programs
        rules = programs.narrowed_network(network)
        await programs.install(packages)
        async with self._cells.cell(self.config.limits, agent_id) as cell:
            await cell.keep()
            on_lost = partial(self._cells.events.lost, "session", agent_id)
            shared = SharedCell(cell, rules, on_lost)
            idle = self.config.session_idle_seconds
            lifetime = self.config.session_lifetime_seconds
            watch = self._start(partial(shared.end_when_idle, idle, lifetime))
            try:
                yield Session(programs, shared, agent_id, packages=tuple(packages))
            finally:
                watch.cancel()
                shared.close()

    def pool_stats(self) -> PoolStats:
        return self._cells.stats

    async def check(self) -> None:
        await self._open_backend.check()

    @property
    def active_cells(self) -> int:
        return len(self._active)

    @property
    def _runs(self) -> SingleRuns:
        return SingleRuns(self._programs, self._cells)

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
    async def _open_builder(
        self, config: SandboxConfig
    ) -> AsyncIterator[SandboxManager]:
        builder = SandboxManager(config, resolver=self._resolver)
        # It may be gone from where it was read.
        builder._index_password = self._index_password
        async with builder:
            # Before anything is fetched for cells that will not be made.
            check_strength(self.config, builder.traits)
            yield builder


def _inspector(config: SandboxConfig) -> Inspector | None:
    """Return what inspects HTTPS, if something is to. Raises ConfigError."""
    if not config.network.inspect:
        return None
    from .network.inspector import Inspector

    return Inspector(config.network)


def _credentials(config: SandboxConfig) -> Credentials | None:
    """Return the credentials of programs, if there are any. Raises ConfigError."""
    if not config.credentials:
        return None
    from .credentials.agents import Credentials

    return Credentials(config.credentials)


def _index_password(config: SandboxConfig) -> SecretStr | None:
    """Return that of the index of packages, if it has one. Raises ConfigError."""
    reference = config.package_rules.index_password
    return None if reference is None else read_secret(reference)


class BackgroundWork:
    """Work of one manager that nobody waits for.

    Args:
        tasks: Owns the work; it outlives this.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()

    def start(self, work: Callable[[], Awaitable[object]]) -> anyio.CancelScope:
        """Start work; return a scope that cancels it."""
        scope = anyio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    await work()
            finally:
                self._scopes.discard(scope)

        self._scopes.add(scope)
        self._tasks.start_soon(run)
        return scope

    def cancel(self) -> None:
        """Cancel all work that has not ended."""
        for scope in self._scopes:
            scope.cancel()
