"""A run and a session without async, for scripts, notebooks and threads."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

from toolcell.core.event_loop import wait_for

from .config.settings import SandboxConfig
from .manager import SandboxManager
from .results.result import ExecutionResult

if typing.TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from .client.workdir import FileInfo
    from .sessions.session import Session

T = TypeVar("T")


def run(
    code: str, *, config: SandboxConfig | None = None, **options: Any
) -> ExecutionResult:
    """Run one program and return its result.

    Where an event loop runs in this thread already, as in a notebook, it stands still
    meanwhile: the program is waited for in a loop of another thread.

    Args:
        code: The program's text.
        config: How and where to run; the defaults are closed.
        **options: As in `SandboxManager.run`.

    Raises:
        InvalidInputError: The arguments cannot be used.
        SandboxUnavailableError: No cell is available.
        CellLostError: The cell went away during the run.
    """

    async def once() -> ExecutionResult:
        async with SandboxManager(config) as sandbox:
            return await sandbox.run(code, **options)

    if not _loop_runs():
        return anyio.run(once)
    with anyio.from_thread.start_blocking_portal() as portal:
        return portal.call(once)


def _loop_runs() -> bool:
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return False
    return True


class SyncSession:
    """A `Session` whose methods wait in the thread that calls them.

    Several threads may share it: what they ask for at once follows each other, as in
    `Session`. Ctrl-C ends the run that is waited for, and leaves the session.
    """

    def __init__(self, portal: BlockingPortal, session: Session) -> None:
        self._portal = portal
        self._session = session

    def run(self, code: str, **options: Any) -> ExecutionResult:
        """Run a program where the last one left off, as `Session.run` does."""
        return self._wait(partial(self._session.run, code, **options))

    def install(self, packages: Sequence[str]) -> None:
        """Let programs import more packages, as `Session.install` does."""
        self._wait(partial(self._session.install, packages))

    def write_file(self, path: str | PathLike[str], data: bytes | str) -> None:
        """Write a file of the work dir, as `Session.write_file` does."""
        self._wait(partial(self._session.write_file, path, data))

    def read_file(self, path: str | PathLike[str]) -> bytes:
        """Return a file's bytes, as `Session.read_file` does."""
        return self._wait(partial(self._session.read_file, path))

    def list_files(self, path: str = "") -> tuple[FileInfo, ...]:
        """Return what is below a folder, as `Session.list_files` does."""
        return self._wait(partial(self._session.list_files, path))

    def upload(self, source: str | Path, path: str = "") -> int:
        """Write the files of a folder of this machine, as `Session.upload` does."""
        return self._wait(partial(self._session.upload, source, path))

    def download(self, target: str | Path, path: str = "") -> int:
        """Write files of the cell into a new folder, as `Session.download` does."""
        return self._wait(partial(self._session.download, target, path))

    def _wait(self, call: Callable[[], Awaitable[T]]) -> T:
        return wait_for(self._portal, call)


@contextmanager
def open_session(
    *, config: SandboxConfig | None = None, **options: Any
) -> Iterator[SyncSession]:
    """Open a session whose variables and files stay from run to run, without async.

    An event loop in its own thread serves it until the block ends, so it works in
    scripts and notebooks, and where an event loop runs in this thread already.

    Args:
        config: How and where to run; the defaults are closed.
        **options: As in `SandboxManager.session`: `packages`, `agent_id`, `network`.

    Raises:
        InvalidInputError: The arguments cannot be used.
        PackageError: A package is refused, missing or unfit.
        SandboxUnavailableError: No cell is available.
    """
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(SandboxManager(config)) as sandbox,
        portal.wrap_async_context_manager(sandbox.session(**options)) as session,
    ):
        yield SyncSession(portal, session)
