"""The requests of agents begin in turns, whoever sends more of them."""

from __future__ import annotations

from contextlib import ExitStack

import anyio
import pytest

from toolcell.host.http.agent_shares import AgentShares, TooManyError

pytestmark = [pytest.mark.anyio, pytest.mark.promise("R64")]


async def test_one_request_does_not_wait_for_a_hundred_of_another_agent() -> None:
    shares = AgentShares(256, 1_000_000, lambda: 0.0)
    begun: list[str] = []

    async def ask(agent_id: str) -> None:
        await shares.turn(agent_id)
        begun.append(agent_id)

    async with anyio.create_task_group() as tasks:
        for agent_id in ["many"] * 100 + ["one"]:
            tasks.start_soon(ask, agent_id)

    assert begun[:2] == ["many", "one"]
    assert begun.count("many") == 100


async def test_what_ends_things_passes_by_what_begins_them() -> None:
    shares = AgentShares(8, 1_000_000, lambda: 0.0)
    begun: list[bool] = []

    async def ask(ends: bool) -> None:
        await shares.turn("a", ends=ends)
        begun.append(ends)

    async with anyio.create_task_group() as tasks:
        for ends in [False] * 100 + [True]:
            tasks.start_soon(ask, ends)

    assert begun[:2] == [False, True]
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(shares.request("a"))
        with pytest.raises(TooManyError):
            stack.enter_context(shares.request("a"))
        stack.enter_context(shares.request("a", ends=True))


async def test_a_request_knows_that_it_waited() -> None:
    shares = AgentShares(8, 1_000_000, lambda: 0.0)

    assert not await shares.turn("a")
    assert await shares.turn("a")


async def test_a_request_that_is_given_up_takes_no_turn() -> None:
    shares = AgentShares(256, 1_000_000, lambda: 0.0)
    await shares.turn("a")
    for _ in range(100):
        with anyio.move_on_after(0):
            await shares.turn("a")

    assert not shares._lines["a", False]
    with anyio.fail_after(60):
        await shares.turn("a")
