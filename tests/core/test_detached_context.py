"""Contexts that one task opens and another one closes, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import anyio
import pytest

from toolcell.core.detached import DetachedContext

from ..conftest import apart

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def tracked(
    events: list[str], *, entering: Exception | None = None
) -> AsyncIterator[None]:
    """A context with a task group, which only its own task may leave."""
    async with anyio.create_task_group() as tasks:
        if entering is not None:
            raise entering
        events.append("entered")
        tasks.start_soon(anyio.sleep_forever)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
            events.append("left")


async def in_another_task(context: DetachedContext) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.aclose)


async def test_another_task_may_close_it() -> None:
    events: list[str] = []
    context = DetachedContext(tracked(events))

    await context.open()
    assert events == ["entered"]

    await in_another_task(context)
    assert events == ["entered", "left"]


async def test_closing_again_does_nothing() -> None:
    events: list[str] = []
    context = DetachedContext(tracked(events))
    await context.open()

    await context.aclose()
    await context.aclose()

    assert events == ["entered", "left"]


async def test_an_error_of_entering_is_raised_by_open() -> None:
    context = DetachedContext(tracked([], entering=ValueError("no")))

    with pytest.raises(ExceptionGroup) as caught:
        await context.open()

    assert caught.group_contains(ValueError, match="no")


async def test_an_error_of_leaving_is_raised_by_aclose() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise ValueError("torn")

    context = DetachedContext(broken())
    await context.open()

    with pytest.raises(ValueError, match="torn"):
        await context.aclose()


async def test_a_cancelled_open_ends_the_entering() -> None:
    events: list[str] = []
    entering = anyio.Event()

    @asynccontextmanager
    async def endless() -> AsyncIterator[None]:
        entering.set()
        try:
            await anyio.sleep_forever()
            yield
        finally:
            events.append("given up")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(DetachedContext(endless()).open)
        await entering.wait()
        tasks.cancel_scope.cancel()

    assert events == ["given up"]


async def test_a_cancelled_aclose_has_closed_it() -> None:
    events: list[str] = []
    context = DetachedContext(tracked(events))
    await context.open()

    with anyio.CancelScope() as scope:
        scope.cancel()
        await context.aclose()

    assert events == ["entered", "left"]


def test_the_end_of_the_event_loop_leaves_the_context() -> None:
    events: list[str] = []

    async def forget(context: AbstractAsyncContextManager[None]) -> None:
        await DetachedContext(context).open()

    apart(asyncio.run, forget(tracked(events)))
    assert events == ["entered", "left"]

    events.clear()
    apart(partial(anyio.run, backend="trio"), forget, tracked(events))
    assert events == ["entered", "left"]
