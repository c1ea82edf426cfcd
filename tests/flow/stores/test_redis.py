"""Threads in a real Redis server that is changed, killed, stopped and left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import (
    CheckpointNotFoundError,
    CheckpointSerializationError,
    ConfigError,
    LeaseLostError,
    StoreUnavailableError,
    ThreadBusyError,
)
from toolcell.flow import RedisCheckpointer, interrupt
from toolcell.flow.stores.base import Lease

from ...support.child import Child
from ...support.flow.graphs import Log, flow, said
from ...support.guard.redis_server import RedisServer
from ...support.guard.worker import PATIENCE
from ...support.polling import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    yield made
    made.kill()


def one(state: Log) -> dict[str, Any]:
    return said("one")


def two(state: Log) -> dict[str, Any]:
    return said("two")


def ask(state: Log) -> None:
    interrupt("a?")


def key(kind: str) -> str:
    return f"{{toolcell}}:flow:{kind}:t"


DAMAGE: dict[str, Callable[[Any], object]] = {
    "a checkpoint": lambda db: db.lset(
        key("checkpoints"), 1, db.lindex(key("checkpoints"), 1).replace(b"one", b"ONE")
    ),
    "the journal": lambda db: db.lset(key("journal"), 0, b'{"v":1}'),
    "the head": lambda db: db.hset(
        key("thread"),
        "head",
        db.hget(key("thread"), "head").replace(b"chain", b"chaim"),
    ),
    "the latest": lambda db: db.hset(key("thread"), "checkpoint", "0"),
    "an answer": lambda db: [
        db.hset(key("answers"), name, kept.replace(b"5", b"6"))
        for name, kept in db.hgetall(key("answers")).items()
    ],
    "a lost journal": lambda db: db.delete(key("journal")),
    "a lost checkpoint": lambda db: db.lpop(key("checkpoints")),
    "lost sums": lambda db: db.delete(key("sums")),
    "lost ids": lambda db: db.delete(key("ids")),
    "a moved checkpoint": lambda db: db.rpoplpush(
        key("checkpoints"), key("checkpoints")
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
async def test_what_was_changed_or_lost_is_found(
    what: str, server: RedisServer
) -> None:
    async with opened(server) as store:
        kept = flow(one, ask, checkpointer=store)
        paused = await kept.run({}, "t")
        await kept.answer("t", paused.interrupts[0].interrupt_id, 5, by="anna")
        with server.client() as database:
            DAMAGE[what](database)
        with pytest.raises((CheckpointSerializationError, CheckpointNotFoundError)):
            await kept.resume("t")


async def test_threads_survive_the_kill_of_a_server_that_keeps_them(
    server: RedisServer,
) -> None:
    async with opened(server) as store:
        kept = flow(one, ask, two, checkpointer=store)
        paused = await kept.run({}, "t")
        server.kill()
        with pytest.raises(StoreUnavailableError):
            await kept.resume("t")
        server.start()
        done = await kept.resume("t", {paused.interrupts[0].interrupt_id: "yes"})

        assert done.unwrap().log == ("one", "two")


async def test_a_server_that_hangs_is_one_typed_error_and_no_half_write(
    server: RedisServer,
) -> None:
    async with (
        opened(server) as patient,
        RedisCheckpointer(server.url, deadline=0.2, lease_seconds=0.5) as brief,
    ):
        kept = flow(one, ask, checkpointer=patient)
        answer = {(await kept.run({}, "t")).interrupts[0].interrupt_id: 1}
        while not await connected(brief):
            pass
        server.pause()
        with pytest.raises(StoreUnavailableError):
            await flow(one, ask, checkpointer=brief).resume("t", answer)
        server.resume()
        # What the server was sent meanwhile has happened.
        await patient.release(await claimed(patient))
        result = await kept.resume("t")
        if result.status == "interrupted":
            result = await kept.resume("t", answer)

        assert result.unwrap().log == ("one",)


async def connected(store: RedisCheckpointer) -> bool:
    with suppress(StoreUnavailableError):
        return await store.read("t") is not None
    return False


async def test_a_lease_is_renewed_until_its_owner_is_closed(
    server: RedisServer,
) -> None:
    async with opened(server) as store:
        async with opened(server, lease_seconds=LEASE) as owner:
            kept = flow(one, ask, checkpointer=owner)
            await kept.run({}, "t")
            lease = await owner.claim("t")
            first = _until(server)
            await until(lambda: _until(server) > first)
            with pytest.raises(ThreadBusyError):
                await store.claim("t")
        later = await claimed(store)
        assert later.token > lease.token


LEASE = 3.0
"""Seconds after which an owner that is gone is replaced."""


def opened(server: RedisServer, **options: Any) -> RedisCheckpointer:
    return RedisCheckpointer(server.url, deadline=PATIENCE, **options)


async def claimed(store: RedisCheckpointer) -> Lease:
    """Claim the thread as soon as the lease of its owner has ended."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                return await store.claim("t")
            except ThreadBusyError:
                await anyio.sleep(0.05)


def _until(server: RedisServer) -> int:
    with server.client() as database:
        return int(database.hget(key("thread"), "until") or 0)


OWNER = """
import sys, anyio
from anyio.to_thread import run_sync
from pydantic import BaseModel
from toolcell.core import LeaseLostError
from toolcell.flow import Flow, Graph, START, RedisCheckpointer
class State(BaseModel):
    by: str = ""
graph = Graph(State, name="chain")
@graph.node
async def one(state: State):
    print("inside", flush=True)
    await run_sync(sys.stdin.readline)
    return {"by": "owner"}
graph.edge(START, "one")
async def main():
    async with RedisCheckpointer(sys.argv[1], lease_seconds=3, deadline=60) as store:
        try:
            await Flow(graph, checkpointer=store).run({}, "t")
        except LeaseLostError:
            print("lost")
anyio.run(main)
"""


@pytest.mark.parametrize("thaws", [False, True])
async def test_an_owner_that_is_stopped_or_killed_loses_its_lease_and_writes_nothing(
    thaws: bool, server: RedisServer
) -> None:
    command = [sys.executable, "-I", "-c", OWNER, server.url]
    pipe = subprocess.PIPE
    with Child(command, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "inside\n"
        async with opened(server) as store:
            with pytest.raises(ThreadBusyError):
                await store.claim("t")
            owner.send_signal(signal.SIGSTOP if thaws else signal.SIGKILL)
            lease = await claimed(store)
            await store.append(lease, [b"{}"])
            before = await store.read("t")
            if thaws:
                owner.send_signal(signal.SIGCONT)
                said, _ = owner.communicate("\n")
                assert said == "lost\n"
            assert await store.read("t") == before
            await store.append(lease, [b"{}"])


async def test_all_keys_of_a_prefix_are_in_one_slot(server: RedisServer) -> None:
    async with opened(server, prefix="mine") as store:
        kept = flow(one, ask, checkpointer=store)
        paused = await kept.run({}, "t")
        await kept.answer("t", paused.interrupts[0].interrupt_id, 5, by="anna")
        with server.client() as database:
            keys = [name.decode() for name in database.keys()]

        assert len(keys) > 8
        assert all(name.startswith("{mine}:flow:") for name in keys)


async def test_nothing_is_left_of_a_deleted_thread(server: RedisServer) -> None:
    async with opened(server) as store:
        kept = flow(one, ask, checkpointer=store)
        await kept.run({}, "t")
        await store.delete("t")
        with server.client() as database:
            assert database.keys() == [b"{toolcell}:flow:changes"]


async def test_a_lost_lease_is_found_before_anything_is_written(
    server: RedisServer,
) -> None:
    async with opened(server) as store:
        kept = flow(one, ask, checkpointer=store)
        await kept.run({}, "t")
        lease = await store.claim("t")
        await store.claim("t", steal=True)
        with server.client() as database:
            before = database.dump(key("journal"))
            with pytest.raises(LeaseLostError):
                await store.append(lease, [b"{}"])
            assert database.dump(key("journal")) == before


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("nowhere", {}),
        ("redis://localhost", {"prefix": "a b"}),
        ("redis://localhost", {"lease_seconds": 0}),
        ("redis://localhost", {"deadline": 0}),
    ],
)
async def test_settings_that_cannot_work_are_refused(
    url: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError):
        RedisCheckpointer(url, **options)


async def test_a_server_that_is_not_there_is_one_typed_error() -> None:
    url = f"unix:///nonexistent/{os.getpid()}"
    async with RedisCheckpointer(url) as store:
        with pytest.raises(StoreUnavailableError):
            await store.read("t")
