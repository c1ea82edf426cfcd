"""A guarded session on its own event loop, for callers of any thread and loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from toolcell.core import CellLostError
from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import Records

from .guarded_session import GuardedSession, default_config

Result = TypeVar("Result")


class ThreadSession:
    """A manager with one session in its own thread, until `close`.

    Frameworks call it from many threads, or from one event loop after another; a
    manager belongs to one. It is closed when it is forgotten, when Python ends, and
    when what processes use beside calls has used a budget of the agent up.

    Args:
        config: Its cell. None: `default_config()` of guarded_session.
        guard: Decides about every command, program, file and port, as `GuardedSession`
            names the calls, and about each call of a tool. None: all is allowed.
        agent_id: The agent that the guard knows.
        records: Takes a record of each call, from the session's thread. Default: a
            store in memory.

    Raises:
        SandboxUnavailableError: No cell is available.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "sandbox",
        records: Records | None = None,
    ) -> None:
        ready: Future[tuple[BlockingPortal, GuardedSession]] = Future()
        make = partial(GuardedSession, guard=guard, agent_id=agent_id, records=records)
        serve = partial(_serve, config or default_config(), make, ready)
        thread = threading.Thread(
            target=anyio.run, args=(serve,), name="toolcell", daemon=True
        )
        thread.start()
        self._portal, self.guarded = ready.result()
        self._thread = thread
        self._end = weakref.finalize(self, _end, self._portal, thread)

    @property
    def alive(self) -> bool:
        """False after `close`, and when the cell was lost."""
        return self._end.alive and self.guarded.session.alive

    def call(
        self, function: Callable[..., Awaitable[Result]], *args: Any, **options: Any
    ) -> Result:
        """Call a function on the session's event loop, and wait in this thread.

        Raises:
            CellLostError: The session has ended.
        """
        future = self._begin(partial(function, *args, **options))
        try:
            return future.result()
        except CancelledError:
            raise _lost_error() from None

    async def acall(
        self, function: Callable[..., Awaitable[Result]], *args: Any, **options: Any
    ) -> Result:
        """Call it from asyncio; cancelling the wait cancels the call.

        Raises:
            CellLostError: The session has ended.
        """
        future = self._begin(partial(function, *args, **options))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise _lost_error() from None

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Have a function run on the session's event loop until the session ends."""
        self._portal.start_task_soon(function, *args)

    def close(self) -> None:
        """End the session with all that runs in it; again: nothing."""
        self._end()

    def _begin(self, function: Callable[[], Awaitable[Result]]) -> Future[Result]:
        if not self._thread.is_alive():
            raise _lost_error()
        try:
            return self._portal.start_task_soon(function)
        except RuntimeError:
            if threading.current_thread() is self._thread:
                raise
            # It ends at this moment.
            raise _lost_error() from None


async def _serve(
    config: SandboxConfig,
    make: Callable[..., GuardedSession],
    ready: Future[tuple[BlockingPortal, GuardedSession]],
) -> None:
    try:
        async with AsyncExitStack() as stack:
            manager = await stack.enter_async_context(SandboxManager(config))
            session = await stack.enter_async_context(manager.session())
            portal = await stack.enter_async_context(BlockingPortal())
            guarded = make(session)
            ready.set_result((portal, guarded))
            async with guarded.metered():
                await portal.sleep_until_stopped()
            await portal.stop(cancel_remaining=True)
    except BaseException as error:
        if ready.done():
            raise
        ready.set_exception(error)


def _lost_error() -> CellLostError:
    return CellLostError("the session has ended: it was closed, or a budget is used up")


def _end(portal: BlockingPortal, thread: threading.Thread) -> None:
    # It ends by itself when a budget is used up.
    with suppress(RuntimeError, CancelledError):
        portal.call(partial(portal.stop, cancel_remaining=True))
    thread.join()
