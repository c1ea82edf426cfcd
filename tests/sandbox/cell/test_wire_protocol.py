"""Hostile bytes on a channel cost one run at most, never the host."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import ExecutionResult, Limits, SandboxManager
from toolcell.sandbox.cell.supervisor.output_buffer import OutputBuffer
from toolcell.sandbox.cell.wire.frames import (
    MAX_HEADER_BYTES,
    FrameDecoder,
    FrameError,
    encode,
    strict_json,
)
from toolcell.sandbox.client import handshake
from toolcell.sandbox.client.channel import StreamSplitter
from toolcell.sandbox.client.run_report import RunReport
from toolcell.sandbox.client.types import Program

from ...conftest import SUBPROCESS
from ...support.cells.speaking_cell import cell_that_says

pytestmark = pytest.mark.anyio

READY = encode({"type": "ready", "protocol": 1})
FINISHED: dict[str, Any] = {
    "type": "finished",
    "reason": None,
    "wait_status": 0,
    "wall_ms": 1.0,
    "cpu_ms": 1.0,
    "peak_memory_bytes": 1,
    "oom_kills": 0,
    "state": None,
    "lost": None,
    "layers": [],
    "setup_error": None,
    "artifacts": False,
}
LEFT_SOME = {**FINISHED, "artifacts": True}
PROGRAM = Program(
    code=b"", language="python", inputs=b"", limits=Limits(output_bytes=100)
)
WORD = b'{"outcome":"ok","value":{"json":1}}\n'


async def outcome(*pieces: bytes) -> ExecutionResult:
    cell, theirs = cell_that_says(*pieces)
    async with cell:
        try:
            report = await cell.run(PROGRAM)
            return cell.result(report, PROGRAM)
        finally:
            theirs.close()


async def test_a_well_spoken_cell_is_understood() -> None:
    output = encode({"type": "output", "stream": "stdout"}, b"text")
    result = await outcome(READY, output, encode(FINISHED, WORD))

    assert (result.status, result.stdout, result.value) == ("ok", "text", 1)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="nothing"),
        pytest.param([READY], id="no verdict"),
        pytest.param([READY[:5]], id="half a frame"),
        pytest.param([b"\xff" * 64], id="huge lengths"),
        pytest.param([b"\0\0\0\0\0\0\0\0"], id="empty header"),
        pytest.param([b"\0\0\0\2\0\0\0\0[]"], id="header is no object"),
        pytest.param([b'\0\0\0\x0a\0\0\0\0{"type":1}'], id="type is no text"),
        pytest.param([READY, encode({"type": "surprise"})], id="unknown frame"),
        pytest.param([encode(FINISHED)], id="verdict before ready"),
        pytest.param(
            [READY, encode({"type": "output", "stream": "stdout"}, b"x" * 101)],
            id="more output than the cap",
        ),
        pytest.param(
            [READY, encode({"type": "output", "stream": "stdin"}, b"x")],
            id="unknown stream",
        ),
        pytest.param([READY, encode({"type": "output"}, b"x")], id="no stream"),
    ],
)
async def test_nonsense_is_a_lost_cell(pieces: list[bytes]) -> None:
    with pytest.raises((CellLostError, SandboxUnavailableError)):
        await outcome(*pieces)


@pytest.mark.parametrize("field", [name for name in FINISHED if name != "type"])
@pytest.mark.parametrize("value", ["x", -1, 1.5e400, [], {}, True, "missing"])
async def test_a_malformed_verdict_never_gets_through_as_another_error(
    field: str, value: Any
) -> None:
    header = {**FINISHED, field: value}
    if value == "missing":
        del header[field]
    text = json.dumps(header).encode()
    frame = len(text).to_bytes(4, "big") + len(WORD).to_bytes(4, "big") + text + WORD
    try:
        result = await outcome(READY, frame)
    except (CellLostError, SandboxUnavailableError):
        return

    assert isinstance(result, ExecutionResult)


def piece(name: str, size: int, data: bytes) -> bytes:
    return encode({"type": "artifact", "name": name, "size": size}, data)


async def test_artifacts_follow_the_verdict_in_pieces() -> None:
    result = await outcome(
        READY,
        encode(LEFT_SOME, WORD),
        piece("a", 5, b"one"),
        piece("a", 5, b"22"),
        piece("shrunk", 5, b"one"),
        piece("empty", 0, b""),
        encode({"type": "collected", "left": ["shrunk"], "more": 0}),
    )

    assert [(artifact.name, artifact.data) for artifact in result.artifacts] == [
        ("a", b"one22"),
        ("empty", b""),
    ]
    assert result.warnings == ("artifacts left out: shrunk",)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="nothing"),
        pytest.param([piece("a", 3, b"on")], id="half a file"),
        pytest.param([piece("a", 0, b"")] * 65, id="too many"),
        pytest.param([encode({"type": "artifact"}, b"x")], id="no name"),
        pytest.param([encode({"type": "collected"})], id="nothing told"),
        pytest.param([encode(FINISHED)], id="another verdict"),
    ],
)
async def test_a_cell_that_fails_after_its_verdict_costs_no_result(
    pieces: list[bytes],
) -> None:
    kept = {**LEFT_SOME, "state": "kept", "wait_status": None}
    word = b'{"outcome":"ok","value":{"json":1},"exit_code":0}\n'
    cell, theirs = cell_that_says(READY, encode(kept, word), *pieces)
    async with cell:
        with theirs:
            result = cell.result(await cell.run(PROGRAM), PROGRAM)
        killed = not cell.alive()

    assert killed
    assert (result.status, result.value, result.state) == ("ok", 1, "lost")
    [warning] = result.warnings
    assert "what was not collected" in warning


def test_more_artifacts_than_the_bytes_are_refused() -> None:
    report = RunReport(cap=1)
    [frame] = FrameDecoder().feed(piece("a", 1 << 30, bytes(1 << 20)))
    for _ in range(16):
        report.collect(frame)
    with pytest.raises(FrameError):
        report.collect(frame)


async def test_random_bytes_are_a_lost_cell() -> None:
    source = random.Random(7)
    for _ in range(200):
        noise = source.randbytes(source.randrange(1, 200))
        with pytest.raises((CellLostError, SandboxUnavailableError)):
            await outcome(READY, noise)


async def test_modules_are_taken_only_when_they_were_asked_for() -> None:
    """And before any program ran: a second greeting is nonsense."""
    theirs_say = encode({"type": "ready", "protocol": 1}, b"modules")
    for asked in (True, False):
        taken: list[bytes] = []
        cell, theirs = cell_that_says(
            theirs_say, theirs_say, on_code=taken.append if asked else None
        )
        async with cell:
            with theirs:
                await cell.wait_ready()
                with pytest.raises(CellLostError):
                    await cell.run(PROGRAM)
        assert taken == [b"modules"] * asked


async def test_a_foreign_protocol_version_is_refused() -> None:
    with pytest.raises(SandboxUnavailableError, match="speaks protocol 99"):
        await outcome(encode({"type": "ready", "protocol": 99}))


@pytest.mark.parametrize(
    ("says", "hangs", "why"),
    [
        ([encode({"type": "failed", "why": "no room"})], False, "start: no room "),
        ([], False, r"ended .* had not answered its greeting after \d+\.\d seconds"),
        ([], True, r"in time: .* has not answered its greeting after \d+\.\d seconds"),
    ],
)
async def test_a_cell_that_does_not_start_says_how_far_it_came(
    says: list[bytes], hangs: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_START_SECONDS", 0.1 if hangs else 60.0)
    cell, theirs = cell_that_says(*says, hang=hangs)
    async with cell:
        with theirs, pytest.raises(SandboxUnavailableError, match=why):
            await cell.wait_ready()


async def test_a_cell_that_hangs_is_ended_at_the_deadline() -> None:
    cell, theirs = cell_that_says(READY, hang=True)
    limits = Limits(wall_seconds=0.1)
    program = Program(
        code=b"", language="python", inputs=b"", limits=limits, final=True
    )
    async with cell:
        result = cell.result(await cell.run(program), program)
    theirs.close()

    assert (result.status, result.exit_code) == ("timeout", None)
    assert result.usage.wall_ms >= 100


def test_frames_survive_any_cut() -> None:
    frames = [encode({"type": "a", "n": n}, bytes([n]) * n) for n in range(20)]
    stream = b"".join(frames)
    for size in (1, 3, 7, 64, len(stream)):
        decoder = FrameDecoder()
        seen = [
            frame
            for start in range(0, len(stream), size)
            for frame in decoder.feed(stream[start : start + size])
        ]
        assert [frame.header["n"] for frame in seen] == list(range(20))
        assert [len(frame.payload) for frame in seen] == list(range(20))


@pytest.mark.parametrize("cut", [1, 7, 1_000, 131_072, 400_000])
def test_large_payloads_survive_any_cut_and_both_ways_in(cut: int) -> None:
    payloads = [b"a" * 200_000, b"", b"b" * 131_072, os.urandom(300_001), b"c", b"d"]
    wire = b"".join(encode({"type": "x"}, payload) for payload in payloads)
    for by_room in (False, True):
        decoder = FrameDecoder()
        frames = []
        rest = memoryview(wire)
        while rest:
            room = decoder.room() if by_room else None
            if room is None:
                frames += decoder.feed(bytes(rest[:cut]))
                rest = rest[cut:]
                continue
            size = min(cut, len(room), len(rest))
            room[:size] = rest[:size]
            frames += decoder.filled(size)
            rest = rest[size:]

        assert [frame.payload for frame in frames] == payloads
        assert all(type(frame.payload) is bytes for frame in frames)


def test_lengths_are_checked_before_the_bytes_come() -> None:
    decoder = FrameDecoder(max_payload_bytes=10)
    with pytest.raises(FrameError):
        decoder.feed((MAX_HEADER_BYTES + 1).to_bytes(4, "big") + bytes(4))
    with pytest.raises(FrameError):
        FrameDecoder(max_payload_bytes=10).feed(bytes(4) + (11).to_bytes(4, "big"))
    with pytest.raises(FrameError):
        encode({"type": "x" * (MAX_HEADER_BYTES + 1)})


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":2}',
        b"NaN",
        b"-Infinity",
        b"\xff",
        b'"\\ud800"',
        b"[" * 100_000,
        b"1" * 5000,
        b"",
        b"{",
        b"{}{}",
        b"{} x",
    ],
)
def test_json_with_two_meanings_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError):
        strict_json(text)


def test_frames_that_begin_alike_are_told_apart() -> None:
    sent = [({"type": "a"}, b"1"), ({"type": "a"}, b"2"), ({"type": "b"}, b"2")]
    sent += [({"type": "b"}, b"3" * 200_000), ({"type": "a"}, b"4")]

    stream = b"".join(encode(header, payload) for header, payload in sent)
    for step in (len(stream), 1000):
        decoder = FrameDecoder()
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        frames = [frame for piece in pieces for frame in decoder.feed(piece)]
        assert [(frame.header, frame.payload) for frame in frames] == sent
        assert [json.loads(frame.text) for frame in frames] == [
            each for each, _ in sent
        ]


def test_the_attach_stream_is_taken_apart() -> None:
    pieces = b"\1\0\0\0\0\0\0\2ab" + b"\2\0\0\0\0\0\0\3err" + b"\1\0\0\0\0\0\0\1c"
    splitter = StreamSplitter()

    assert b"".join(splitter.feed(bytes([byte])) for byte in pieces) == b"abc"
    assert splitter.stderr == b"err"
    for noise in (b"\3\0\0\0\0\0\0\1x", b"\1\1\0\0\0\0\0\1x", b"\1\0\0\0\xff\0\0\0"):
        with pytest.raises(FrameError):
            StreamSplitter().feed(noise)


@pytest.mark.parametrize("cap", [2, 3, 10, 999, 1000])
@pytest.mark.parametrize("step", [1, 7, 1000, 2500])
def test_a_sink_keeps_head_and_tail_exactly(cap: int, step: int) -> None:
    data = bytes(n % 251 for n in range(2500))
    buffer = OutputBuffer("stdout", cap)
    for start in range(0, len(data), step):
        buffer.add(data[start : start + step])
    decoder = FrameDecoder()
    frames = [frame for raw in buffer.last_frames() for frame in decoder.feed(raw)]

    head, tail = frames[0].payload, frames[1].payload
    assert data.startswith(head)
    assert data.endswith(tail)
    assert len(head) + len(tail) == cap
    assert frames[1].header["dropped"] == buffer.dropped == len(data) - cap


@pytest.fixture
def eight() -> Iterator[range]:
    yield range(8)


def keep_in(seen: list[bytes]) -> Callable[[str, bytes], None]:
    return lambda _, data: seen.append(data)


async def test_no_output_ever_reaches_another_run(eight: range) -> None:
    """Runs that end, are killed, cancelled and lost, all at once, many times."""
    source = random.Random(11)
    config = SUBPROCESS.config(pool=4, limits=Limits(wall_seconds=10))
    checked = 0

    async def stream(manager: SandboxManager, lane: int) -> None:
        nonlocal checked
        for turn in range(12):
            mark = f"{lane}-{turn}-{source.random()}"
            seen: list[bytes] = []
            kind = source.choice(["end", "kill", "cancel", "crash"])
            code = f"import os, time\nfor _ in range(50): print({mark!r} * 40)\n"
            code += {
                "end": "",
                "kill": "time.sleep(60)",
                "cancel": "time.sleep(60)",
                "crash": "os.kill(os.getpid(), 11)",
            }[kind]
            limits = Limits(wall_seconds=0.2) if kind == "kill" else None
            with anyio.move_on_after(0.1 if kind == "cancel" else 60):
                await manager.run(code, limits=limits, on_output=keep_in(seen))
            text = b"".join(seen).decode()
            line = mark * 40 + "\n"
            # Whole lines of this run, then at most a piece of one more.
            rest = text.replace(line, "")
            assert line.startswith(rest), (kind, rest[:200])
            checked += bool(text)

    async with SandboxManager(config) as manager, anyio.create_task_group() as tasks:
        for lane in eight:
            tasks.start_soon(stream, manager, lane)

    assert checked > 20


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def loop_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_both_event_loops_run_cells(loop_name: str) -> None:
    async def main() -> list[Any]:
        async with SandboxManager(SUBPROCESS.config(pool=1)) as manager:
            first = await manager.run("print('one'); 1")
            with anyio.move_on_after(0.1):
                await manager.run("while True: pass")
            async with manager.session() as session:
                second = await session.run("2", fresh=True)
        return [first.value, first.stdout, second.value]

    # In a thread of its own: the shared fixtures hold this one's event loop.
    with ThreadPoolExecutor(1) as thread:
        values = thread.submit(lambda: anyio.run(main, backend=loop_name)).result(100)

    assert values == [1, "one\n", 2]


@pytest.fixture
async def gone() -> AsyncIterator[SandboxManager]:
    async with SandboxManager(SUBPROCESS.config()) as manager:
        yield manager


async def test_a_bad_cell_costs_one_run_only(gone: SandboxManager) -> None:
    """A supervisor that is killed from outside loses its own run and no other."""
    code = "print('up', flush=True)\nimport time; time.sleep(60)"
    ready = anyio.Event()
    async with gone.session() as session:
        cell: Any = session._shared.cell
        async with anyio.create_task_group() as tasks:

            async def end_the_cell() -> None:
                await ready.wait()
                signal.pidfd_send_signal(cell._process._handle, signal.SIGKILL)

            tasks.start_soon(end_the_cell)
            with pytest.raises(CellLostError):
                await session.run(code, fresh=True, on_output=lambda *_: ready.set())

    assert (await gone.run("'next'")).value == "next"
