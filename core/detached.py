"""Async contexts that one task opens and another one closes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import anyio

from .errors import InvalidInputError


class Detachable(AbstractAsyncContextManager[Any]):
    """An async context manager that can also be opened and closed by calls.

    A subclass has a class method `open` that makes one and awaits `_open_detached`.
    """

    _detached: DetachedContext | None = None

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    async def _open_detached(self) -> Self:
        """Enter it in its own task; raises whatever entering raises."""
        self._detached = DetachedContext(self)
        await self._detached.open()
        return self

    async def aclose(self) -> None:
        """Close what `open` opened, as leaving `async with` does; again: nothing.

        Any task of the event loop may call it.

        Raises:
            InvalidInputError: It was opened by `async with`, which closes it.
        """
        if self._detached is None:
            raise InvalidInputError(
                f"this {type(self).__name__} was not opened by open()",
                hint=f"leave its `async with`, or use {type(self).__name__}.open(...)",
            )
        await self._detached.aclose()


class DetachedContext:
    """Keeps an async context manager open in its own task.

    A task group must be left by the task that entered it, but frameworks open a
    resource in one task and close it in another (fixtures of pytest-asyncio, start and
    stop events of web servers). The context is entered and left by one background task,
    so `open` and `aclose` may be called from any two tasks of the same event loop.

    If the event loop ends first, it cancels the background task, which leaves the
    context as any cancelled `async with` does.

    Args:
        context: What to enter. It is entered once and left once.
    """

    def __init__(self, context: AbstractAsyncContextManager[object]) -> None:
        self._context = context
        self._opened = anyio.Event()
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self._scope = anyio.CancelScope()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Enter the context; return when it is open.

        A cancelled `open` leaves the context again before it returns.

        Raises:
            Exception: Whatever entering raises.
        """
        self._start()
        try:
            await self._opened.wait()
        except BaseException:
            with anyio.CancelScope(shield=True):
                self._scope.cancel()
                await self._closed.wait()
            raise
        self._raise_error()

    async def aclose(self) -> None:
        """Leave the context; return when it is closed. A second call does nothing.

        A cancelled `aclose` still waits: closing has its own bounds of time.

        Raises:
            Exception: Whatever leaving raises.
        """
        self._closing.set()
        with anyio.CancelScope(shield=True):
            await self._closed.wait()
        self._raise_error()

    def _start(self) -> None:
        if in_asyncio():
            # The loop itself keeps only weak references to tasks.
            self._task = asyncio.create_task(self._hold(), name="toolcell")
        else:
            import trio

            trio.lowlevel.spawn_system_task(self._hold, name="toolcell")

    async def _hold(self) -> None:
        try:
            with self._scope:
                async with self._context:
                    self._opened.set()
                    await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - raised again by open or aclose
            self._error = error
        finally:
            self._closed.set()
            self._opened.set()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


def in_asyncio() -> bool:
    """Return whether the caller is a task of asyncio, and not one of trio."""
    try:
        # None: trio runs as a guest of this loop.
        return asyncio.current_task() is not None
    except RuntimeError:
        return False
