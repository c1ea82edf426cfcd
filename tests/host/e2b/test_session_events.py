"""Sandboxes are sessions of their host: their events tell how they fare."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.host.operator.event_bus import OPERATORS, Events
from toolcell.host.operator.events import Event

from ...support.polling import until
from .served_sandboxes import Service, served

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def heard(
    folder: Path, settings: str = "", **sandbox: Any
) -> AsyncIterator[tuple[Service, list[Event]]]:
    seen: list[Event] = []

    def take(event: Event) -> None:
        if event.kind.startswith(("session.", "cell.")):
            seen.append(event)

    async with served(folder, settings, **sandbox) as service:
        listening = service.host.event_bus.subscribed(take)
        with listening:
            yield service, seen


def kinds(seen: list[Event], sandbox_id: str) -> list[str]:
    """Return what was told of a sandbox; its end with its reason."""
    return [
        " ".join([each.kind, *([each.reason] if hasattr(each, "reason") else [])])
        for each in seen
        if getattr(each, "session", "") == sandbox_id
    ]


async def test_a_sandbox_that_is_paused_goes_on_and_is_killed(tmp_path: Path) -> None:
    async with heard(tmp_path) as (service, seen):
        sandbox = await service.create("b")
        one, key = f"/sandboxes/{sandbox.id}", service.key("b")
        await service.http.post(f"{one}/pause", headers=key)
        await service.http.post(f"{one}/pause", headers=key)
        await service.http.post(f"/v2{one}/connect", json={}, headers=key)
        await service.http.post(f"/v2{one}/connect", json={}, headers=key)
        await service.http.delete(one, headers=key)

    assert kinds(seen, sandbox.id) == [
        "session.opened",
        "session.paused",
        "session.resumed",
        "session.closed closed",
    ]
    assert {each.agent for each in seen} == {"b"}
    assert {each.model_dump()["number"] for each in seen} == {None}


async def test_a_sandbox_that_sleeps_is_woken_and_ends_at_its_time(
    tmp_path: Path,
) -> None:
    async with heard(tmp_path) as (service, seen):
        wakes: dict[str, Any] = {"autoPause": True, "autoResume": {"enabled": True}}
        sleeper = await service.create(timeout=1, **wakes)
        short = await service.create(timeout=1)
        await until(lambda: "session.paused" in kinds(seen, sleeper.id))
        await sleeper.write("a", b"")
        await until(lambda: len(kinds(seen, sleeper.id)) == 4)
        await until(lambda: len(kinds(seen, short.id)) == 2)

    assert kinds(seen, sleeper.id)[1:4] == [
        "session.paused",
        "session.resumed",
        "session.paused",
    ]
    assert kinds(seen, short.id) == ["session.opened", "session.closed lifetime"]


async def test_a_fork_is_opened_and_the_stop_of_the_server_ends_all(
    tmp_path: Path,
) -> None:
    seen: list[Event] = []
    async with served(tmp_path) as service:
        # Until the server has ended.
        service.host.event_bus._listeners.append(seen.append)
        sandbox = await service.create()
        answer = await service.http.post(
            f"/sandboxes/{sandbox.id}/fork", json={}, headers=service.key()
        )
        [made] = answer.json()
        copy = made["sandbox"]["sandboxID"]
        await sandbox.start("sleep", "600")

    for number in (sandbox.id, copy):
        assert kinds(seen, number) == ["session.opened", "session.closed shutdown"]


async def test_a_lost_cell_ends_its_sandbox_once_that_is_found(tmp_path: Path) -> None:
    async with heard(tmp_path) as (service, seen):
        sandbox, other = await service.create(), await service.create()
        session: Any = service.app._sandboxes.find(sandbox.id).session
        await session._shared.cell.kill()
        answer = await sandbox.write("a", b"")
        await until(lambda: len(kinds(seen, sandbox.id)) == 2)
        left = await service.http.get("/v2/sandboxes", headers=service.key())

    lost = seen[-2]
    assert answer.status_code == 502
    assert (lost.kind, lost.agent) == ("cell.lost", "a")
    assert kinds(seen, sandbox.id) == ["session.opened", "session.closed lost"]
    assert [each["sandboxID"] for each in left.json()] == [other.id]


async def test_what_cannot_be_made_is_no_session(tmp_path: Path) -> None:
    async with heard(tmp_path) as (service, seen):
        answer = await service.http.post(
            "/v2/sandboxes", json={"timeout": 10**6}, headers=service.key()
        )

    assert answer.status_code == 400
    assert seen == []


async def test_they_are_in_the_streams_of_their_agent_and_of_operators(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        events = Events()
        starts = {name: events.latest(name) for name in ("a", "b", OPERATORS)}
        with service.host.event_bus.subscribed(events.put):
            sandbox = await service.create("b")
        told = {name: await read(events, name, last) for name, last in starts.items()}

    assert sandbox.id not in told["a"]
    for name in ("b", OPERATORS):
        assert "event: session.opened" in told[name]
        assert f'"session":"{sandbox.id}"' in told[name]


async def read(events: Events, agent: str, last_id: str) -> str:
    stream = events.read(agent, last_id, seconds=0)
    return b"".join([each async for each in stream]).decode()


async def test_a_sandbox_is_killed_while_it_is_resumed(tmp_path: Path) -> None:
    async with heard(tmp_path) as (service, seen):
        made = await service.create(timeout=60)
        sandboxes = service.app._sandboxes
        sandbox = sandboxes.find(made.id)
        await sandboxes.pause(sandbox)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sandboxes.resume, sandbox, 60)
                while not sandbox.turn.locked():
                    await anyio.lowlevel.checkpoint()
                await sandboxes.kill(sandbox)

    assert kinds(seen, made.id)[-1] == "session.closed closed"
