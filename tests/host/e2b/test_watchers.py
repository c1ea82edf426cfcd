"""Watched folders: a stream of events, and events that are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from .served_sandboxes import Sandbox, envelope, envelopes, served

pytestmark = pytest.mark.anyio

SERVICE = "filesystem.Filesystem"


async def asked(sandbox: Sandbox, watcher: str) -> set[tuple[str, str]]:
    answer = await sandbox.unary(f"{SERVICE}/GetWatcherEvents", watcherId=watcher)
    assert answer.status_code == 200, answer.text
    return {(event["name"], event["type"][11:]) for event in answer.json()["events"]}


async def test_events_are_there_when_they_are_asked_for(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("d/old", b"1")
        made = await sandbox.unary(f"{SERVICE}/CreateWatcher", path="d")
        watcher = made.json()["watcherId"]
        nothing = await asked(sandbox, watcher)
        await sandbox.write("d/new", b"1")
        await sandbox.write("d/below/x", b"1")
        await sandbox.unary(f"{SERVICE}/Move", source="d/old", destination="d/renamed")
        events = await asked(sandbox, watcher)
        await sandbox.unary(f"{SERVICE}/Remove", path="d/new")
        later = await asked(sandbox, watcher)
        removed = await sandbox.unary(f"{SERVICE}/RemoveWatcher", watcherId=watcher)
        gone = await sandbox.unary(f"{SERVICE}/GetWatcherEvents", watcherId=watcher)

    assert nothing == set()
    assert events == {
        *(("new", "CREATE"), ("new", "WRITE"), ("below", "CREATE")),
        *(("old", "RENAME"), ("renamed", "CREATE")),
    }
    assert later == {("new", "REMOVE")}
    assert removed.status_code == 200
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_events_are_streamed_to_the_end_of_the_sandbox(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        heard = b""
        async with service.http.stream(
            "POST",
            f"/{SERVICE}/WatchDir",
            content=envelope({"path": ".", "recursive": True}),
            headers=sandbox.headers,
        ) as answer:
            pieces = answer.aiter_bytes()
            with anyio.fail_after(60):
                heard += await anext(pieces)
                await sandbox.write("a/b", b"1")
                while b'"a/b"' not in heard:
                    heard += await anext(pieces)
                await service.http.delete(
                    f"/sandboxes/{sandbox.id}", headers=service.key()
                )
                with pytest.raises(httpx2.ReadError):
                    async for piece in pieces:
                        heard += piece
    messages = envelopes(heard)

    assert messages[0] == {"start": {}}
    events = [message["filesystem"] for message in messages if "filesystem" in message]
    assert {"name": "a/b", "type": "EVENT_TYPE_CREATE"} in events


async def test_events_describe_what_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("d/old", b"1")
        made = await sandbox.unary(
            f"{SERVICE}/CreateWatcher",
            path="d",
            includeEntry=True,
            allowNetworkMounts=True,
        )
        await sandbox.write("d/new", b"123")
        await sandbox.unary(f"{SERVICE}/Remove", path="d/old")
        watcher = made.json()["watcherId"]
        answer = await sandbox.unary(f"{SERVICE}/GetWatcherEvents", watcherId=watcher)
        stat = await sandbox.unary(f"{SERVICE}/Stat", path="d/new")

    entries = {
        (event["name"], event["type"][11:]): event.get("entry")
        for event in answer.json()["events"]
    }
    new = stat.json()["entry"]
    assert (new["path"], new["size"]) == ("/home/user/d/new", "3")
    assert entries == {
        ("new", "CREATE"): new,
        ("new", "WRITE"): new,
        ("old", "REMOVE"): None,
    }


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ({"path": "missing"}, 404),
        ({"path": "file"}, 400),
        ({"path": "../../.."}, 400),
    ],
)
async def test_what_cannot_be_watched_is_refused(
    tmp_path: Path, message: dict[str, Any], status: int
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("file", b"")
        made = await sandbox.unary(f"{SERVICE}/CreateWatcher", **message)
        stream = await sandbox.events(f"{SERVICE}/WatchDir", **message)

    assert made.status_code == status, made.text
    assert stream[-1]["error"]["code"] == made.json()["code"]


async def test_watches_are_limited_and_end(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        made = [
            await sandbox.unary(f"{SERVICE}/CreateWatcher", path=".") for _ in range(17)
        ]
        watcher = made[0].json()["watcherId"]
        await sandbox.unary(f"{SERVICE}/RemoveWatcher", watcherId=watcher)
        again = await sandbox.unary(f"{SERVICE}/CreateWatcher", path=".")
        other = await service.create("b")
        watcher = made[1].json()["watcherId"]
        foreign = await other.unary(f"{SERVICE}/GetWatcherEvents", watcherId=watcher)

    assert [each.status_code for each in made] == [200] * 16 + [429]
    assert again.status_code == 200
    assert foreign.status_code == 404
