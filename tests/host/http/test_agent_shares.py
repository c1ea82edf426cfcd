"""The requests of agents begin in turns, whoever sends more of them."""

from __future__ import annotations

import anyio
import pytest

from toolcell.host.http.agent_shares import AgentShares

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


async def test_a_request_that_is_given_up_takes_no_turn() -> None:
    shares = AgentShares(256, 1_000_000, lambda: 0.0)
    await shares.turn("a")
    for _ in range(100):
        with anyio.move_on_after(0):
            await shares.turn("a")

    assert not shares._lines["a"]
    with anyio.fail_after(60):
        await shares.turn("a")
