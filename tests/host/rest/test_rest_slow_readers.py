"""Readers of events that never read: they cost little, for a while, and nobody else."""

from __future__ import annotations

import gc
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.host.operator import event_bus as module
from toolcell.host.operator.events import SessionOpened

from .served_rest import Service, served, take

pytestmark = pytest.mark.anyio
EVENT = 1_000
"""Bytes of an event, about."""


def silent_reader(service: Service, name: str = "operator") -> socket.socket:
    """Ask for all events, with small buffers; the answer is for nobody."""
    host, port = service.url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.connect((host, int(port)))
    made.sendall(
        b"GET /v1/events?agent=* HTTP/1.1\r\nHost: x\r\n"
        + f"Authorization: Bearer {service.keys[name]}\r\n\r\n".encode()
    )
    return made


async def begun(service: Service, count: int) -> None:
    """Wait until so many clients are answered."""
    connections: Any = service.web.server_state.connections
    with anyio.fail_after(60):
        while (
            len([connection for connection in connections if connection.cycle]) < count
        ):
            await anyio.sleep(0.01)


async def tell(service: Service, count: int, at_once: int = 10) -> None:
    """Tell of many events, and let readers have their turns."""
    for number in range(count):
        name = "s" * EVENT
        event = SessionOpened(agent="a", number=number, session=name)
        service.host.event_bus.publish(event)
        if number % at_once == 0:
            await anyio.sleep(0)


def whole(reader: socket.socket) -> bytes:
    """Read what is left of a connection until its end."""
    reader.settimeout(60)
    found = b""
    try:
        while piece := reader.recv(1 << 20):
            found += piece
    except ConnectionResetError:
        pass
    return found


async def test_memory_is_flat_and_others_miss_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as service, service.events("operator", agent="*") as ok:
        await take(ok, 1)
        readers = [silent_reader(service) for _ in range(5)]
        await begun(service, 6)
        await tell(service, 2 * module.MAX_EVENTS)
        await take(ok, 1)
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await tell(service, 20 * module.MAX_EVENTS)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        call = await service.get("/v1/live", "operator", agent="*")
        for reader in readers:
            reader.close()

    # 20 MB were told to each of five readers, and 1 MB of it is kept for all.
    assert after - before < 3_000_000
    assert call.status_code == 200


async def test_a_silent_reader_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "toolcell.host.http.streams.TAKE_SECONDS"
    monkeypatch.setattr(name, 0.2)
    async with served(tmp_path, "max_connections = 64") as service:
        reader = silent_reader(service)
        await begun(service, 1)
        with anyio.fail_after(60):
            while service.web.server_state.connections:
                # One that is read lags behind no event, whatever else the machine does.
                await tell(service, 1_000, at_once=1)
                await anyio.sleep(0.1)
        got = await anyio.to_thread.run_sync(whole, reader)
        reader.close()

    assert b"stream.opened" in got
    assert b"\r\n0\r\n" not in got[-10:]


async def test_a_server_with_a_silent_reader_stops(tmp_path: Path) -> None:
    with anyio.fail_after(60):
        async with served(tmp_path) as service:
            reader = silent_reader(service)
            await begun(service, 1)
            await tell(service, 20_000)
    reader.close()
