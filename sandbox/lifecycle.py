"""Opening and closing a sandbox, and the parts that it has in between."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TYPE_CHECKING, Self

import anyio

from toolcell.core import InvalidInputError
from toolcell.core.detached import Detachable

from .backends.selection import check_strength, open_backend
from .client.backend import Backend
from .config.argument_checks import check_kinds
from .config.settings import SandboxConfig
from .runs.program_factory import ProgramFactory, not_open
from .runs.single_runs import SingleRuns
from .scheduling.active_cells import ActiveCells
from .scheduling.background_work import BackgroundWork
from .scheduling.cell_news import CellListener, CellNews
from .scheduling.cell_supply import CellSupply
from .scheduling.pool import PoolStats

if TYPE_CHECKING:
    from .network.types import Resolver
    from .packages.distributions import BuildSession
    from .runs.batch import Work


class SandboxLifecycle(Detachable):
    """The part of a manager that opens and closes it.

    Its backend, its cells and what makes programs exist while it is open; asking for
    one of them before or afterwards raises SandboxUnavailableError.
    """

    _work: BackgroundWork

    def __init__(
        self, config: SandboxConfig | None = None, *, resolver: Resolver | None = None
    ) -> None:
        check_kinds(config=(config, SandboxConfig))
        self.config = config or SandboxConfig()
        self._resolver = resolver
        self._stack = AsyncExitStack()
        self._backend: Backend | None = None
        self._supply: CellSupply | None = None
        self._active = ActiveCells()
        self._factory: ProgramFactory | None = None
        self._entered = False
        self.cell_listeners: list[CellListener] = []
        """Told that a cell is `lost` or `discarded`, or that cells are `unavailable` or
        `available` again, with the facts `backend`, `agent` and `reason`."""

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
        news = CellNews(backend.traits.backend, self.cell_listeners)
        self._supply = CellSupply(backend, self.config, tasks, self._active, news)
        self._factory = ProgramFactory(
            self.config,
            backend,
            spawn=tasks.start_soon,
            resolver=self._resolver,
            open_build_session=self._open_build_session,
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

    @abstractmethod
    def _open_build_session(
        self, config: SandboxConfig
    ) -> AbstractAsyncContextManager[BuildSession]:
        """Open a session of a sandbox of its own, to build a package in."""
