"""A batch of one call runs in the caller's task, and shows it in nothing but speed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import anyio
import pytest

from toolcell.core import ToolResult
from toolcell.tools import ToolExecutor, tool

from ...support.polling import PATIENCE
from ...support.sample_tools import (
    Gates,
    blocked,
    call,
    echo,
    executor,
    statuses,
)

pytestmark = pytest.mark.anyio
user: ContextVar[str] = ContextVar("user", default="nobody")


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@tool
async def cancels_and_waits() -> None:
    cancel_own_task()
    await anyio.sleep_forever()


@tool
async def waits_cancels_and_waits() -> None:
    await anyio.lowlevel.checkpoint()
    cancel_own_task()
    await anyio.sleep_forever()


@tool
async def cancels_and_returns() -> str:
    cancel_own_task()
    return "done"


@tool
async def waits_cancels_and_returns() -> str:
    await anyio.lowlevel.checkpoint()
    cancel_own_task()
    return "done"


@tool
async def raises_a_cancellation() -> None:
    raise asyncio.CancelledError


SELF_CANCELLING = [
    (cancels_and_waits, "error"),
    (waits_cancels_and_waits, "error"),
    (cancels_and_returns, "ok"),
    (waits_cancels_and_returns, "ok"),
    (raises_a_cancellation, "error"),
]


async def by_execute(made: ToolExecutor, name: str) -> list[ToolResult]:
    return await made.execute([call(name)])


async def by_stream(made: ToolExecutor, name: str) -> list[ToolResult]:
    async with made.execute_streaming([call(name)]) as results:
        return [result async for _, result in results]


@pytest.mark.promise("LT-40")
@pytest.mark.parametrize("make", [by_execute, by_stream])
@pytest.mark.parametrize(("odd", "status"), SELF_CANCELLING)
async def test_a_tool_that_cancels_its_task_leaves_the_caller_alone(
    odd: ToolExecutor,
    status: str,
    make: Callable[[ToolExecutor, str], Awaitable[list[ToolResult]]],
) -> None:
    made = executor(odd, echo)
    task = asyncio.current_task()
    assert task is not None
    with anyio.fail_after(PATIENCE):
        results = await make(made, odd.name)  # type: ignore[attr-defined]
        # A cancellation that is still to come would come here.
        await anyio.lowlevel.checkpoint()

    assert statuses(results) == [status]
    assert [record.status for record in made.records.all_records()] == [status]
    assert task.cancelling() == 0


async def test_a_timeout_of_the_caller_ends_the_call() -> None:
    gates = Gates()
    made = executor(gates.tool)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await made.execute([call("wait", number=0)])

    assert gates.cancelled == {0}
    assert [record.status for record in made.records.all_records()] == ["cancelled"]


async def test_a_cancelled_scope_of_the_caller_ends_the_call() -> None:
    gates = Gates()
    made = executor(gates.tool)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.execute, [call("wait", number=0)])
        await blocked()
        tasks.cancel_scope.cancel()

    assert gates.cancelled == {0}
    assert [record.status for record in made.records.all_records()] == ["cancelled"]


async def test_a_cancelled_caller_is_cancelled_though_the_tool_cancelled_itself() -> (
    None
):
    waiting = anyio.Event()

    @tool
    async def cancels_and_goes_on() -> None:
        cancel_own_task()
        try:
            await anyio.lowlevel.checkpoint()
        except asyncio.CancelledError:
            waiting.set()
        waiting.set()
        await anyio.sleep_forever()

    made = executor(cancels_and_goes_on)
    caller = asyncio.ensure_future(made.execute([call("cancels_and_goes_on")]))
    await waiting.wait()
    await blocked()
    caller.cancel()
    with anyio.fail_after(PATIENCE), pytest.raises(asyncio.CancelledError):
        await caller

    assert [record.status for record in made.records.all_records()] == ["cancelled"]


@pytest.mark.promise("LT-12")
@pytest.mark.parametrize("waits", [False, True])
async def test_context_variables_of_the_tool_stay_with_it(waits: bool) -> None:
    @tool
    async def ask() -> str:
        seen = user.get()
        user.set("changed")
        if waits:
            await anyio.lowlevel.checkpoint()
        return f"{seen}, {user.get()}"

    token = user.set("ada")
    [result] = await executor(ask).execute([call("ask")])
    kept = user.get()
    user.reset(token)

    assert (result.content, kept) == ("ada, changed", "ada")


async def test_it_has_no_task_of_its_own() -> None:
    tasks: list[object] = []

    @tool
    async def look() -> None:
        tasks.append(asyncio.current_task())

    await executor(look).execute([call("look")])

    assert tasks == [asyncio.current_task()]


@pytest.mark.parametrize("loop_name", ["asyncio", "trio"])
def test_it_is_the_same_on_both_event_loops(loop_name: str) -> None:
    @tool
    async def waits() -> str:
        await anyio.sleep(0)
        return "done"

    async def main() -> list[str]:
        made = executor(waits, echo)
        asked = [call("waits"), call("echo", number=1)]
        return statuses([(await made.execute([each]))[0] for each in asked])

    # In a thread of its own: the shared fixtures hold this one's event loop.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: anyio.run(main, backend=loop_name)).result(60)

    assert found == ["ok", "ok"]
