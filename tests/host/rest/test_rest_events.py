"""Events over REST: in order, resumed by their ids, and each agent's own."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest

from toolcell.host.http.agent_shares import AgentShares
from toolcell.host.http.streams import KEEP_ALIVE_SECONDS
from toolcell.host.operator import event_bus as module
from toolcell.host.operator.event_bus import Events
from toolcell.host.operator.events import SessionOpened

from .served_rest import SUM, served, take

pytestmark = pytest.mark.anyio

READERS = 50


async def test_calls_are_told_and_a_stream_is_resumed(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        async with service.events() as stream:
            [opened] = await take(stream, 1)
            call = (await service.post("/v1/calls", SUM)).json()["id"]
            started, ended = await take(stream, 2)
        await service.post("/v1/calls", SUM, "b")
        await service.post("/v1/calls", SUM)
        async with service.events(last_id=started["event_id"]) as stream:
            resumed = await take(stream, 4)
        async with service.events(last_id=started["event_id"], seconds=0) as stream:
            whole = [each async for each in stream]

    assert (opened["event_event"], opened["complete"]) == ("stream.opened", True)
    kinds = [each["event_event"] for each in (started, ended)]
    assert kinds == ["call.started", "call.ended"]
    assert (started["id"], ended["id"], ended["status"]) == (call, call, "ok")
    assert resumed[0]["complete"] is True
    assert resumed[1] == ended
    assert [each["event_event"] for each in resumed[2:]] == kinds
    assert whole == resumed


async def test_requests_for_approval_and_their_ends_are_told(tmp_path: Path) -> None:
    async with served(tmp_path) as service, service.events() as stream:
        await take(stream, 1)
        asked = await service.asked()
        told = await take(stream, 3)
        await service.post(f"/v1/approvals/{asked['id']}/deny", {}, "person")
        told += await take(stream, 3)

    facts = {each["event_event"]: each for each in told}
    assert facts["call.parked"]["id"] == asked["call"]
    assert facts["approval.asked"]["id"] == asked["id"]
    assert facts["approval.ended"]["status"] == "rejected"
    assert facts["call.ended"]["status"] == "denied"


async def test_an_agent_reads_its_own_events_and_operators_all(tmp_path: Path) -> None:
    async with (
        served(tmp_path) as service,
        service.events("a") as own,
        service.events("operator", agent="*") as all_events,
    ):
        await take(own, 1)
        await take(all_events, 1)
        guard = service.host.guard
        await anyio.to_thread.run_sync(guard.replace_policies, guard.policies)
        await service.post("/v1/calls", SUM, "b")
        await service.post("/v1/calls", SUM, "a")
        mine, seen = await take(own, 2), await take(all_events, 5)

    assert {each["agent"] for each in mine} == {"a"}
    kinds = [(each["event_event"], each["agent"]) for each in seen]
    assert kinds == [
        ("policy.changed", None),
        ("call.started", "b"),
        ("call.ended", "b"),
        ("call.started", "a"),
        ("call.ended", "a"),
    ]


async def test_another_servers_id_is_told_as_a_gap(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        await service.post("/v1/calls", SUM)
        async with service.events(last_id="0" * 16 + "-1") as stream:
            told = await take(stream, 3)

    assert told[0]["complete"] is False
    assert [each["event_event"] for each in told[1:]] == ["call.started", "call.ended"]


@pytest.mark.promise("R67")
async def test_a_stream_ends_with_its_token(tmp_path: Path) -> None:
    async with served(tmp_path) as service, service.events() as stream:
        await take(stream, 1)
        service.tokens.revoke(service.keys["a"].split("_")[1])
        with anyio.fail_after(KEEP_ALIVE_SECONDS - 3):
            with pytest.raises(httpx2.TransportError):
                [each async for each in stream]


@pytest.mark.promise("JR1")
async def test_a_reader_that_leaves_during_the_replay_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as service:
        for number in range(module.MAX_EVENTS):
            event = SessionOpened(agent="a", number=number, session="s" * 900)
            service.host.event_bus.publish(event)
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as reader:
            # It leaves by a reset, with the answer unread.
            reader.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0" + bytes(4)
            )
            reader.sendall(
                b"GET /v1/events HTTP/1.1\r\nHost: x\r\nLast-Event-ID: x\r\n"
                + f"Authorization: Bearer {service.keys['a']}\r\n\r\n".encode()
            )
        with anyio.fail_after(60):
            while service.web.server_state.connections:
                await anyio.sleep(0.01)
        assert (await service.get("/v1/approvals")).status_code == 200

    assert [record for record in caplog.records if record.name == "asyncio"] == []


async def collected(events: Events, last_id: str | None) -> list[bytes]:
    stream = events.read("a", last_id, seconds=0)
    return [each async for each in stream]


async def test_a_reader_that_lags_is_told_and_costs_no_queue() -> None:
    events = Events()
    stream = events.read("a", None, seconds=60)
    opened = await anext(stream)
    for number in range(module.MAX_EVENTS + 1):
        events.put(SessionOpened(agent="a", number=number, session="s"))
    lagging = [each async for each in stream]
    last_id = opened.decode().split("\n")[0].removeprefix("id: ")
    [first, *kept] = await collected(events, last_id)

    assert lagging == []
    assert b'"complete": false' in first
    assert len(kept) == module.MAX_EVENTS


async def test_readers_end_when_the_server_stops() -> None:
    events = Events()
    stream = events.read("a", None, seconds=60)
    await anext(stream)
    events.close()

    assert [each async for each in stream] == []


@pytest.mark.promise("R64")
async def test_readers_of_one_agent_go_on_in_turns() -> None:
    shares, events = AgentShares(256, 1_000_000, lambda: 0.0), Events()
    told = list[bytes]()

    async def read() -> None:
        turn = partial(shares.turn, "a")
        async for text in events.read("a", None, seconds=60, turn=turn):
            told.append(text)

    async with anyio.create_task_group() as tasks:
        for _ in range(READERS):
            tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        opened = len(told)
        events.put(SessionOpened(agent="a", number=1, session="s"))
        for _ in range(16):
            await anyio.lowlevel.checkpoint()
        soon = len(told) - opened
        while len(told) < 2 * READERS:
            await anyio.lowlevel.checkpoint()
        events.close()

    assert opened == READERS
    assert soon <= 2


@pytest.mark.promise("R64")
async def test_the_end_of_a_stream_takes_a_turn_of_its_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, turn = list[str](), AgentShares.turn

    async def counted(shares: AgentShares, agent_id: str, **kind: bool) -> bool:
        taken.append(agent_id)
        return await turn(shares, agent_id, **kind)

    monkeypatch.setattr(AgentShares, "turn", counted)
    async with served(tmp_path) as service:
        async with service.events(seconds=1) as stream:
            [_ async for _ in stream]

    assert taken == ["a", "a"]
