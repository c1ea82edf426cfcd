"""Many tasks send on one channel; what one leaves half sent, the next one ends."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox.cell.wire.contract import CREDIT_BYTES, WINDOW_BYTES
from toolcell.sandbox.cell.wire.frames import FrameDecoder, FrameError, encode
from toolcell.sandbox.client.channel import Channel
from toolcell.sandbox.client.handshake import send_first
from toolcell.sandbox.network.stream import CellStream

pytestmark = pytest.mark.anyio
LARGE = 4_000_000


async def read_frames(sock: socket.socket, count: int) -> list[int]:
    """Return the sizes of so many frames."""
    decoder = FrameDecoder()
    sizes: list[int] = []
    while len(sizes) < count:
        await anyio.wait_readable(sock)
        sizes += [len(frame.payload) for frame in decoder.feed(sock.recv(65_536))]
    return sizes


async def test_a_cancelled_sender_leaves_no_half_frame() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = Channel(ours)
    with theirs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.send, encode({"type": "a"}, b"x" * LARGE))
            await anyio.wait_readable(theirs)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.send, encode({"type": "b"}, b"y"))
            assert await read_frames(theirs, 2) == [LARGE, 1]
        channel.close()


async def test_frames_of_many_senders_do_not_mix() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = Channel(ours)
    sizes = [LARGE, 10, 300_000, 1, 500_000]
    with theirs:
        async with anyio.create_task_group() as tasks:
            for size in sizes:
                tasks.start_soon(channel.send, encode({"type": "a"}, bytes(size)))
            assert sorted(await read_frames(theirs, len(sizes))) == sorted(sizes)
        channel.close()


async def test_a_stream_sends_no_more_than_is_asked_for() -> None:
    sent: list[int] = []
    asked: list[dict[str, Any]] = []

    async def send_frame(
        header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        if header["type"] == "net_data":
            sent.append(len(payload))
        else:
            asked.append(header)

    stream = CellStream(1, send_frame)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, bytes(2 * WINDOW_BYTES))
        for _ in range(9):
            await anyio.lowlevel.checkpoint()
        assert sum(sent) == WINDOW_BYTES
        stream.take("net_credit", {"bytes": 1000}, b"")
        for _ in range(9):
            await anyio.lowlevel.checkpoint()
        assert sum(sent) == WINDOW_BYTES + 1000
        tasks.cancel_scope.cancel()
    with pytest.raises(FrameError):
        stream.take("net_credit", {"bytes": WINDOW_BYTES + 1}, b"")
    for bad in (0, -1, True, "1"):
        with pytest.raises(FrameError):
            stream.take("net_credit", {"bytes": bad}, b"")


async def test_a_stream_takes_no_more_than_it_asked_for() -> None:
    asked: list[int] = []

    async def send_frame(
        header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> None:
        asked.append(header["bytes"])

    stream = CellStream(1, send_frame)
    for _ in range(4):
        stream.take("net_data", {}, bytes(WINDOW_BYTES // 4))
    with pytest.raises(FrameError):
        stream.take("net_data", {}, b"x")
    stream = CellStream(1, send_frame)
    for _ in range(8):
        stream.take("net_data", {}, bytes(WINDOW_BYTES // 4))
        assert len(await stream.receive()) == WINDOW_BYTES // 4
    assert asked == [CREDIT_BYTES] * 3
    stream.take("net_end", {}, b"")
    assert await stream.receive() == b""
    with pytest.raises(FrameError):
        stream.take("net_data", {}, b"x")


async def test_who_sends_to_nobody_hears_it() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    async with anyio.create_task_group() as tasks:

        async def send() -> None:
            with pytest.raises(CellLostError):
                await channel.send(bytes(LARGE))

        for _ in range(3):
            tasks.start_soon(send)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        theirs.close()
    channel.close()


@pytest.mark.promise("F7")
async def test_who_takes_nothing_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.sandbox.client.channel._UNREAD_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        with (
            pytest.raises(CellLostError, match="has read nothing"),
            anyio.fail_after(30),
        ):
            await channel.send(encode({"type": "a"}, bytes(LARGE)))
        with pytest.raises(CellLostError):
            await channel.send(b"more")


async def test_who_ended_and_takes_nothing_is_not_waited_for() -> None:
    """As the Docker engine does it for a container that has ended."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        theirs.sendall(b"unread")
        theirs.shutdown(socket.SHUT_WR)
        with (
            pytest.raises(CellLostError, match="the cell ended"),
            anyio.fail_after(30),
        ):
            await channel.send(encode({"type": "a"}, bytes(LARGE)))
    channel.close()


async def test_a_cell_that_did_not_start_says_why() -> None:
    said = b"a warning\nno module named zlib\n"
    ours, theirs = socket.socketpair()
    channel = Channel(ours, multiplexed=True)
    with theirs:
        theirs.sendall(b"\2\0\0\0" + len(said).to_bytes(4, "big") + said)
        theirs.shutdown(socket.SHUT_WR)
        with (
            pytest.raises(SandboxUnavailableError, match="start: no module named zlib"),
            anyio.fail_after(30),
        ):
            await send_first(channel, bytes(LARGE))
    channel.close()


async def test_who_takes_a_little_at_a_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcell.sandbox.client.channel._UNREAD_SECONDS", 5.0)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = Channel(ours)
    with theirs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.send, encode({"type": "a"}, bytes(LARGE)))
            assert await read_frames(theirs, 1) == [LARGE]
        channel.close()


async def test_the_next_channel_hears_though_one_was_closed_while_it_was_read() -> None:
    """The kernel gives the number of a closed descriptor to the next socket."""
    closed, gone = socket.socketpair()
    first = Channel(closed)

    async def read_first() -> None:
        with pytest.raises(CellLostError, match="was ended"):
            await first.receive()

    with gone:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read_first)
            await anyio.wait_all_tasks_blocked()
            first.close()
            ours, theirs = socket.socketpair()
            second = Channel(ours)
            with theirs:
                tasks.start_soon(send_soon, theirs)
                with anyio.fail_after(60):
                    frame = await second.receive()
                second.close()
        assert gone.recv(1) == b""

    assert frame.header["type"] == "a"
    # Nobody waits for it any more.
    assert closed.fileno() == -1


async def send_soon(sock: socket.socket) -> None:
    await anyio.wait_all_tasks_blocked()
    sock.sendall(encode({"type": "a"}))


async def test_a_cell_that_this_host_has_ended_is_lost() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    with theirs:
        channel.close()
        with pytest.raises(CellLostError):
            await send_first(channel, b"hello")


async def test_a_cell_that_speaks_before_it_reads_holds_up_no_sender() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = Channel(ours)
    said = memoryview(encode({"type": "output"}, bytes(LARGE)))

    async def speak_then_read() -> None:
        nonlocal said
        while said:
            await anyio.wait_writable(theirs)
            said = said[theirs.send(said) :]
        assert await read_frames(theirs, 1) == [LARGE]

    with theirs, anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(speak_then_read)
            await channel.send(encode({"type": "a"}, bytes(LARGE)))
        assert len((await channel.receive()).payload) == LARGE
    channel.close()
