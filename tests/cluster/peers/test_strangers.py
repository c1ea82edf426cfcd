"""Whoever is not of the cluster, or does not speak its protocol."""

from __future__ import annotations

import datetime
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import SimpleNamespace

import anyio
import pytest
import redis

from toolcell.cluster import (
    ClusterSandbox,
    FixedNodes,
    NodeAgent,
    RedisDirectory,
    new_token,
)
from toolcell.cluster.directory.records import read_signed, sign
from toolcell.cluster.node import agent as agent_module
from toolcell.cluster.node.agent import MAX_STRANGERS
from toolcell.cluster.spi import NodeRecord
from toolcell.cluster.wire import handshake
from toolcell.cluster.wire import link as link_module
from toolcell.cluster.wire.handshake import driver_context, meet_node, new_identity
from toolcell.cluster.wire.link import MAX_UNREAD_BYTES, Kind
from toolcell.cluster.wire.message import encode_message
from toolcell.cluster.wire.sockets import addresses_of, connected
from toolcell.cluster.wire.tls import TLSSocket
from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import SandboxManager

from ...conftest import SUBPROCESS
from ...support.cluster.patience import LONG, refusal
from ...support.cluster.processes import ClusterProcesses, NodeProcess
from ...support.polling import until

pytestmark = pytest.mark.anyio
TOKEN = new_token()
HELLO = encode_message({"op": "hello"})


@pytest.fixture(scope="module")
async def agent() -> AsyncIterator[NodeAgent]:
    config = SUBPROCESS.config(max_concurrency=2, max_queue=1)
    async with (
        SandboxManager(config) as sandbox,
        NodeAgent(sandbox, token=TOKEN, name="one", check_seconds=3600.0) as agent,
    ):
        yield agent


async def why_not(record: NodeRecord, token: str) -> str:
    """Return why a driver gets no link to a node."""
    sandbox = ClusterSandbox(FixedNodes([record]), token=token, wait_seconds=LONG)
    error = await refusal(sandbox)
    assert error.details["reason"] == "no_nodes"
    return error.message


async def works(record: NodeRecord) -> bool:
    async with ClusterSandbox(
        FixedNodes([record]), token=TOKEN, wait_seconds=LONG
    ) as sandbox:
        return (await sandbox.run("6 * 7")).value == 42


@pytest.mark.promise("cluster-33")
async def test_a_wrong_token_is_refused(agent: NodeAgent) -> None:
    assert "refused this token" in await why_not(agent.record, new_token())
    assert await works(agent.record)


@pytest.mark.promise("cluster-33")
async def test_a_node_with_another_certificate_is_refused(agent: NodeAgent) -> None:
    other = agent.record.model_copy(update={"fingerprint": new_identity().fingerprint})
    assert "another certificate" in await why_not(other, TOKEN)


async def test_a_node_without_the_token_is_refused() -> None:
    """It knows the certificate that the driver expects, and not the token."""
    async with (
        SandboxManager(SUBPROCESS.config()) as sandbox,
        NodeAgent(sandbox, token=new_token(), name="false") as false,
    ):
        assert "refused this token" in await why_not(false.record, TOKEN)


@pytest.mark.promise("QL2")
@pytest.mark.parametrize("days", [-400, 2])
async def test_a_node_whose_clock_is_wrong_is_used(
    monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """It signs its certificate with the date that it believes in."""
    wrong = SimpleNamespace(**vars(datetime))
    off = datetime.timedelta(days=days)
    wrong.datetime = SimpleNamespace(now=lambda zone: datetime.datetime.now(zone) + off)
    monkeypatch.setattr(handshake, "datetime", wrong)
    async with (
        SandboxManager(SUBPROCESS.config()) as sandbox,
        NodeAgent(sandbox, token=TOKEN, name="late", check_seconds=3600.0) as late,
    ):
        assert await works(late.record)


@pytest.mark.promise("cluster-33")
async def test_a_proof_is_for_one_certificate_only(agent: NodeAgent) -> None:
    async with connection(agent) as secure:
        with pytest.raises(Exception, match="refused this token"):
            await meet_node(secure, bytes.fromhex(TOKEN), "0" * 64)


@asynccontextmanager
async def connection(agent: NodeAgent) -> AsyncIterator[TLSSocket]:
    [address] = await addresses_of(agent.record.host, agent.record.port)
    plain = await connected(address)
    async with TLSSocket(plain, driver_context(), server_side=False) as secure:
        await secure.shake_hands()
        yield secure


async def is_closed(read: Callable[[], Awaitable[bytes]]) -> bool:
    with anyio.fail_after(60):
        try:
            while await read():
                pass
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            pass
    return True


@pytest.mark.promise("cluster-33")
async def test_a_stranger_is_cut_off(agent: NodeAgent) -> None:
    async with await anyio.connect_tcp(agent.record.host, agent.record.port) as plain:
        await plain.send(os.urandom(200))
        assert await is_closed(plain.receive)
    async with connection(agent) as secure:
        await secure.send(os.urandom(64))
        assert await is_closed(secure.receive)
    async with connection(agent) as silent:
        assert await is_closed(silent.receive)
    assert await works(agent.record)


@pytest.mark.promise("cluster-34")
@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">BII", 1, 1, 2**31),
        struct.pack(">BII", 99, 1, 0),
        struct.pack(">BII", 1, 1, 4) + struct.pack(">I", 2**31),
        struct.pack(">BII", 1, 1, 7) + struct.pack(">I", 3) + b"{}]",
        2 * (struct.pack(">BII", 1, 1, len(HELLO)) + HELLO),
    ],
    ids=["too large", "unknown", "no length", "no JSON", "opened twice"],
)
@pytest.mark.promise("R39")
async def test_nonsense_ends_the_link_and_nothing_else(
    agent: NodeAgent, frame: bytes
) -> None:
    async with ClusterSandbox(FixedNodes([agent.record]), token=TOKEN) as sandbox:
        async with sandbox.session() as session, connection(agent) as secure:
            await session.run("x = 1")
            await meet_node(secure, bytes.fromhex(TOKEN), agent.record.fingerprint)
            await secure.send(frame)
            assert await is_closed(secure.receive)
            assert (await session.run("x")).value == 1


@pytest.mark.promise("R39")
async def test_strangers_that_wait_keep_nobody_out(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are slow, and more than a node has room for; a driver has the token."""
    monkeypatch.setattr(agent_module, "HANDSHAKE_SECONDS", 3600)
    async with AsyncExitStack() as stack:
        for _ in range(MAX_STRANGERS + 2):
            host, port = agent.record.host, agent.record.port
            await stack.enter_async_context(await anyio.connect_tcp(host, port))
        assert await works(agent.record)


@asynccontextmanager
async def admitted(agent: NodeAgent) -> AsyncIterator[TLSSocket]:
    async with connection(agent) as secure:
        await meet_node(secure, bytes.fromhex(TOKEN), agent.record.fingerprint)
        yield secure


async def flood(secure: TLSSocket, frames: Iterable[bytes]) -> bool:
    """Send frames, and return True if the node ends the link."""
    with suppress(OSError):
        for frame in frames:
            await secure.send(frame)
    return await is_closed(secure.receive)


async def test_messages_that_nobody_reads_end_the_link(agent: NodeAgent) -> None:
    piece = encode_message({"more": True}, [bytes(60_000)])
    hello = struct.pack(">BII", Kind.OPEN, 1, len(HELLO)) + HELLO
    more = struct.pack(">BII", Kind.DATA, 1, len(piece)) + piece
    async with admitted(agent) as secure:
        pieces = 2 * MAX_UNREAD_BYTES // len(piece)
        assert await flood(secure, [hello, *[more] * pieces])
    assert await works(agent.record)


async def test_requests_without_end_end_the_link(
    agent: NodeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_EXCHANGES", 50)
    async with admitted(agent) as secure:
        opened = (
            struct.pack(">BII", Kind.OPEN, number, len(HELLO)) + HELLO
            for number in range(1, 60)
        )
        assert await flood(secure, opened)
    assert await works(agent.record)


@pytest.mark.parametrize("op", ["no-such-thing", "session.run", "run", None, 5])
async def test_an_odd_request_is_answered_by_an_error(
    agent: NodeAgent, op: object
) -> None:
    from toolcell.cluster.driver.runs import ask
    from toolcell.core import ToolcellError

    async with ClusterSandbox(FixedNodes([agent.record]), token=TOKEN) as sandbox:
        [node] = sandbox._nodes.open
        with pytest.raises(ToolcellError):
            await ask(node.link, {"op": op})
        assert (await sandbox.run("6 * 7")).value == 42


@pytest.mark.promise("cluster-24", "cluster-25", "cluster-46")
async def test_two_drivers_share_the_slots(agent: NodeAgent) -> None:
    nodes = FixedNodes([agent.record])
    async with ClusterSandbox(nodes, token=TOKEN) as first:
        async with first.session(), first.session():
            pass
        async with ClusterSandbox(nodes, token=TOKEN) as second:
            for each in (first, second):
                await until(lambda: [one.credit for one in each._nodes.open] == [1])  # noqa: B023
                async with (
                    each.session() as session,
                    anyio.create_task_group() as group,
                ):
                    group.start_soon(each.run, "1")
                    await until(lambda: each.pool_stats().waiting == 1)  # noqa: B023
                    # One place for each of them, and a queue of one.
                    with pytest.raises(SandboxUnavailableError) as caught:
                        await each.run("1")
                    assert caught.value.details["reason"] == "queue_full"
                    assert (await session.run("1")).value == 1
                    group.cancel_scope.cancel()


@pytest.mark.promise("cluster-28")
async def test_a_drained_node_takes_nothing_new(agent: NodeAgent) -> None:
    async with (
        SandboxManager(SUBPROCESS.config()) as sandbox,
        NodeAgent(sandbox, token=TOKEN, name="two") as other,
        ClusterSandbox(FixedNodes([other.record]), token=TOKEN) as cluster,
        cluster.session() as session,
    ):
        await other.drain()
        assert (await session.run("6 * 7")).value == 42
        with anyio.move_on_after(0.2) as scope:
            await cluster.run("1")
        assert scope.cancelled_caught
        assert other.busy == 1


@pytest.mark.promise("R39")
async def test_the_directory_takes_signed_records_only(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> None:
    other = RedisDirectory(processes.url, token=new_token())
    ours = processes.directory()

    assert {record.name for record in await ours.nodes()} == {"one", "two"}
    assert await other.nodes() == []
    record = nodes["one"].record
    key = bytes.fromhex(processes.token)
    text = sign(record, key)
    assert read_signed(text, key) == record
    assert read_signed(text.replace(record.host, "127.0.0.2"), key) is None
    other.close()
    ours.close()


@pytest.mark.promise("R37", "R38")
async def test_names_of_strangers_hide_no_node(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> None:
    """They may write to Redis, and have no token."""
    ours = processes.directory()
    index, prefix, queue = ours._index, ours._prefix, ours._queue
    with redis.Redis.from_url(processes.url) as stranger:
        names = [b"\xff\xfe", *(f"0{number}" for number in range(20_000))]
        stranger.sadd(index, *names)
        stranger.mset({prefix + str(name): b"garbage" for name in names[1:]})
        stranger.set(prefix.encode() + b"\xff\xfe", b"\xff")
        stranger.sadd(ours._drivers, "d1", "d2")
        stranger.mset({queue + "d1": "9" * 5_000, queue + "d2": "3"})
        try:
            assert {record.name for record in await ours.nodes()} == {"one", "two"}
            assert await ours.waiting() == 3
            stranger.rename(index, index + "-kept")
            stranger.set(index, "no set")
            with pytest.raises(SandboxUnavailableError):
                await ours.nodes()
            stranger.rename(index + "-kept", index)
        finally:
            stranger.srem(index, *names)
            stranger.delete(*(prefix + str(name) for name in names[1:]))
    ours.close()


@pytest.mark.promise("QL1")
async def test_two_nodes_of_one_name_are_refused(
    processes: ClusterProcesses, nodes: dict[str, NodeProcess]
) -> None:
    directory = processes.directory()
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        with pytest.raises(SandboxUnavailableError, match="has a node 'one'") as error:
            async with NodeAgent(
                sandbox, token=processes.token, name="one", directory=directory
            ):
                pass
        assert error.value.details["reason"] == "node_name_taken"
        gone = nodes["one"].record.model_copy(update={"name": "gone", "port": 1})
        await directory.announce(gone)
        async with NodeAgent(
            sandbox, token=processes.token, name="gone", directory=directory
        ) as agent:
            assert await directory.named("gone") == agent.record
    directory.close()


async def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError):
        ClusterSandbox(FixedNodes([]), token="secret")
