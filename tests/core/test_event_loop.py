"""Large values are known at once, and read beside the event loop."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import event_loop
from toolcell.core.event_loop import (
    LARGE,
    beside_loop,
    give_way,
    is_large,
    large_values_of,
    rest,
    unwrapped_single_error,
)

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R2")]


def deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "large"),
    [
        ({}, False),
        ({"a": "x" * 60_000, "b": [1, 2.5, None, True]}, False),
        ({"a": "x" * LARGE}, True),
        ({"x" * LARGE: 1}, True),
        ([["x" * 40_000], {"a": "x" * 40_000}], True),
        (list(range(500)), False),
        (list(range(5_000)), True),
        ({str(n): n for n in range(5_000)}, True),
        (deep(100), False),
        (deep(2_000), True),
        (10**100, False),
        ([10**4_000] * 20, True),
    ],
)
def test_a_value_is_large_by_its_texts_and_values(value: Any, large: bool) -> None:
    assert is_large(value) is large


def test_a_value_without_end_is_known_at_once() -> None:
    start = time.thread_time()
    assert is_large([list(range(1_000))] * 1_000_000)
    assert time.thread_time() - start < 1


async def test_the_loop_goes_on_and_one_agent_takes_turns() -> None:
    go, begun = threading.Event(), threading.Event()
    order: list[str] = []

    def work(name: str) -> None:
        order.append(name)
        begun.set()
        assert go.wait(60)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside_loop, "a", lambda: work("first"))
        while not begun.is_set():
            await anyio.sleep(0.001)
        tasks.start_soon(beside_loop, "a", lambda: work("second"))
        # Of another agent: it waits for nobody.
        assert await beside_loop("b", lambda: "b") == "b"
        assert order == ["first"]
        go.set()
    assert order == ["first", "second"]


async def test_work_rests_as_long_as_it_worked_and_beside_the_loop_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worked, rests = 0.0, list[float]()

    def work() -> None:
        nonlocal worked
        for seconds in (0.0005, 0.0005, 0.003):
            worked += seconds
            rest()

    clock = SimpleNamespace(thread_time=lambda: worked, sleep=rests.append)
    monkeypatch.setattr(event_loop, "time", clock)
    work()
    assert rests == []
    await beside_loop("a", work)
    assert rests == pytest.approx([0.001, 0.003])
    work()
    assert len(rests) == 2


async def test_between_two_steps_on_large_values_the_loop_has_turns() -> None:
    turn = 0
    steps: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await give_way()
            steps.append((turn, number))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                tasks.start_soon(work, number)
            while len(steps) < 12:
                turn += 1
                await anyio.lowlevel.checkpoint()
    assert all(later - when > 10 for (when, _), (later, _) in pairwise(steps))
    assert [who for _, who in steps] == [0, 1, 2, 3] * 3


async def test_large_values_of_one_agent_wait_for_one_step_of_each_other() -> None:
    order: list[str] = []

    async def work(agent_id: str) -> None:
        with large_values_of(agent_id):
            for _ in range(2):
                await give_way()
                order.append(agent_id)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for agent_id in ("a",) * 20 + ("b", "c"):
                tasks.start_soon(work, agent_id)
    # Each comes once in a round, after at most one step that was begun before it.
    assert order.index("b") <= 3
    assert order.index("c") <= 3
    assert order.count("a") == 40


async def test_a_task_that_is_cancelled_gives_way_all_the_same() -> None:
    ended = []

    async def work(number: int) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await give_way()
            ended.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(work, number)
    assert ended == [0, 1, 2]


@pytest.mark.parametrize("others", [[], [KeyError()]])
def test_an_unwrapped_error_keeps_what_led_to_it(others: list[Exception]) -> None:
    inner: Exception = ValueError()
    if others:
        inner = ExceptionGroup("several", [inner, *others])
    inner.__context__ = OSError()
    with pytest.raises(type(inner)) as raised, unwrapped_single_error():
        raise ExceptionGroup("one", [ExceptionGroup("one", [inner])])
    assert raised.value is inner
    assert isinstance(inner.__context__, OSError)
    assert not inner.__suppress_context__
