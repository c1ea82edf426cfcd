"""Whatever number a cell sends, a typed error follows, or a result that is sane."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell.core import ToolcellError
from toolcell.core.event_loop import unwrapped_single_error
from toolcell.sandbox import Limits, Network, SandboxManager
from toolcell.sandbox.cell.wire.frames import Frame, FrameDecoder
from toolcell.sandbox.client.cell import Cell
from toolcell.sandbox.client.types import Program
from toolcell.sandbox.client.workdir import WorkDir
from toolcell.sandbox.network.egress import Egress
from toolcell.sandbox.processes.files import FileTable
from toolcell.sandbox.processes.ports import PortTable
from toolcell.sandbox.processes.side_channel import SideChannel
from toolcell.sandbox.processes.table import CommandRequest, ProcessTable
from toolcell.sandbox.processes.usage import UsageTable
from toolcell.sandbox.processes.watches import WatchTable

from ...conftest import SUBPROCESS
from ...support.cells.speaking_cell import cell_that_says

pytestmark = pytest.mark.anyio

HOSTILE = (
    "1" + "0" * 400,
    "-1" + "0" * 400,
    "-1",
    str(2**63),
    "1.5",
    "1e308",
    "true",
    '"1"',
    '"inf"',
    '"nan"',
    "null",
    "[]",
)
NUMBER = re.compile(r"(?<=[\[,:])-?\d[\d.]*(?=[,\]}])")
SERVES = """
import os, socket, threading
print("x" * 1000)
os.makedirs("artifacts")
open("artifacts/a", "w").write("one")
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].send(b"x"), daemon=True).start()
server.getsockname()[1]
"""
PROGRAM = Program(code=b"", language="python", inputs=b"", limits=Limits())
ASKED = ""
"""The cell waits for the next question of its host."""

READY = '{"type":"ready","protocol":1}'
FINISHED = (
    '{"type":"finished","wait_status":0,"wall_ms":1.0,"cpu_ms":1.0,'
    '"peak_memory_bytes":1,"oom_kills":0,"oom_total":0,"outputs_left":0}'
)
KEPT = FINISHED.replace('_status":0', '_status":null,"state":"kept"')
LEFT_FILES = FINISHED.replace("}", ',"artifacts":true}')
ENDED = (
    '{"type":"exec_ended","id":1,"reason":null,"wait_status":0,"wall_ms":1.0,'
    '"cpu_ms":1.0,"peak_memory_bytes":1,"oom_kills":0,"oom_total":0}'
)
USAGE = '{"type":"usage_told","id":1,"cpu_ms":1.0,"memory_bytes":1,"disk_bytes":1}'
REPORT = '{"outcome":"ok","value":{"type":"thing"},"exit_code":0}\n'


async def run(cell: Cell, program: Program = PROGRAM) -> object:
    return cell.result(await cell.run(program), program)


async def run_with_network(cell: Cell) -> object:
    async def refuse(*_: object) -> Any:
        raise OSError("there are no names here")

    found: object = None
    with unwrapped_single_error():
        async with anyio.create_task_group() as tasks:
            egress = Egress(
                Network.allow(["db.test:1"]),
                Limits(),
                resolve=refuse,
                spawn=tasks.start_soon,
                addresses={"db.test": "127.5.0.1"},
            )
            found = await run(cell, PROGRAM._replace(egress=egress))
    return found


@asynccontextmanager
async def beside(cell: Cell) -> AsyncIterator[SideChannel]:
    with unwrapped_single_error():
        async with anyio.create_task_group() as tasks:
            channel = await cell.open_channel()
            yield SideChannel(channel, tasks.start_soon, lambda: None)
            tasks.cancel_scope.cancel()


async def ask_usage(cell: Cell) -> object:
    async with beside(cell) as frames:
        return await UsageTable(frames).ask()


async def read(cell: Cell) -> object:
    async with beside(cell) as frames:
        return await WorkDir(FileTable(frames, cell.traits)).read("a")


async def list_files(cell: Cell) -> object:
    async with beside(cell) as frames:
        return await WorkDir(FileTable(frames, cell.traits)).list()


async def execute(cell: Cell) -> object:
    async with beside(cell) as frames:
        table = ProcessTable(frames, cell.traits, cell.memory_kills.note)
        process = await table.start(CommandRequest(argv=("true",)), Limits(), "")
        return process.pid, await process.wait()


async def connect(cell: Cell) -> object:
    async with beside(cell) as frames:
        stream = await PortTable(frames).connect(80)
        await stream.send(b"x")
        return await stream.receive()


async def watch(cell: Cell) -> object:
    async with beside(cell) as frames:
        watched = await WatchTable(frames).open("", "", recursive=True)
        return await watched.changes()


Act = Callable[[Cell], Awaitable[object]]
# What the caller does, and the frames of the cell: a header, and perhaps a payload.
TALKS: list[tuple[Act, list[str]]] = [
    (
        run,
        [
            READY,
            '{"type":"tail","stream":"stdout","dropped":5} end',
            f"{FINISHED} {REPORT}",
        ],
    ),
    (run, [READY, f"{KEPT} {REPORT}"]),
    (
        run,
        [
            READY,
            f"{LEFT_FILES} {REPORT}",
            '{"type":"artifact","name":"a","size":3} one',
            '{"type":"collected","left":["b"],"more":2}',
        ],
    ),
    (
        run_with_network,
        [
            READY,
            '{"type":"net_open","id":1,"listener":0}',
            '{"type":"net_data","id":1} x',
            '{"type":"net_end","id":1}',
            f"{FINISHED} {REPORT}",
        ],
    ),
    (ask_usage, [READY, ASKED, USAGE]),
    (
        read,
        [
            READY,
            ASKED,
            '{"type":"file_told","id":1,"total":3,"executable":false,"inode":""} one',
        ],
    ),
    (
        list_files,
        [
            READY,
            ASKED,
            '{"type":"file_told","id":1} [[0,"a","folder",1],[1,"b","file",2]]',
        ],
    ),
    (
        execute,
        [
            READY,
            ASKED,
            '{"type":"exec_started","id":1,"pid":7}',
            '{"type":"exec_room","id":1,"bytes":1}',
            '{"type":"exec_output","id":1,"stream":"stdout"} out',
            ENDED,
        ],
    ),
    (
        connect,
        [
            READY,
            ASKED,
            '{"type":"port_opened","id":1}',
            ASKED,
            '{"type":"port_credit","id":1,"bytes":1}',
            '{"type":"port_data","id":1} x',
            '{"type":"port_end","id":1}',
        ],
    ),
    (
        watch,
        [
            READY,
            ASKED,
            '{"type":"watch_opened","id":1}',
            ASKED,
            '{"type":"watch_changes","id":1,"question":1,"more":false} '
            '[["created","a","","file"]]',
            '{"type":"watch_closed","id":1}',
        ],
    ),
]


async def say(theirs: socket.socket, frames: list[str]) -> None:
    for frame in frames:
        if frame == ASKED:
            await anyio.wait_readable(theirs)
            theirs.recv(65_536)
            continue
        header, _, payload = frame.partition(" ")
        lengths = len(header).to_bytes(4, "big") + len(payload).to_bytes(4, "big")
        theirs.sendall(lengths + f"{header}{payload}".encode())
    theirs.shutdown(socket.SHUT_WR)


async def outcome(act: Act, frames: list[str]) -> object:
    """Return what a caller gets, which may be an error of ours."""
    found: object = None
    cell, theirs = cell_that_says(hang=True)
    with theirs, anyio.fail_after(60):
        async with cell, anyio.create_task_group() as tasks:
            tasks.start_soon(say, theirs, frames)
            try:
                found = await act(cell)
            except (ToolcellError, anyio.BrokenResourceError) as error:
                found = error
            tasks.cancel_scope.cancel()
    return found


def with_hostile_numbers(frames: list[str]) -> Iterator[list[str]]:
    """Yield the frames with another value in place of one number, for each of them."""
    for at, frame in enumerate(frames):
        for number in NUMBER.finditer(frame):
            for value in HOSTILE:
                said = frame[: number.start()] + value + frame[number.end() :]
                # Nobody may ask for what follows.
                yield [*frames[:at], said, *filter(None, frames[at + 1 :])]


def numbers_in(value: Any) -> Iterator[int | float]:
    if isinstance(value, BaseModel):
        value = value.model_dump()
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


@pytest.mark.parametrize(("act", "frames"), TALKS)
async def test_an_odd_number_is_a_typed_error_or_does_no_harm(
    act: Act, frames: list[str]
) -> None:
    assert not isinstance(await outcome(act, frames), Exception)

    for said in with_hostile_numbers(frames):
        found = await outcome(act, said)
        odd = [n for n in numbers_in(found) if not (0 <= n < 2**63)]
        assert not odd, said


def numeric(header: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (header["type"], name)
        for name, value in header.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


async def test_each_field_with_a_number_is_among_those(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that is new needs a row of `TALKS`."""
    sent: set[tuple[str, str]] = set()
    feed = FrameDecoder.feed

    def note(decoder: FrameDecoder, data: bytes) -> list[Frame]:
        frames: list[Frame] = feed(decoder, data)
        for frame in frames:
            sent.update(numeric(frame.header))
        return frames

    monkeypatch.setattr(FrameDecoder, "feed", note)
    config = SUBPROCESS.config(limits=Limits(output_bytes=100))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        port: Any = (await session.run(SERVES)).value
        await session.write_file("a", "one")
        await session.read_file("a")
        await session.usage()
        await (await session.exec("cat", stdin=b"x")).wait()
        async with await session.watch() as watched:
            await watched.changes()
        async with await session.connect(port) as stream:
            await stream.receive()

    tried = set[tuple[str, str]]()
    for _, frames in TALKS:
        for frame in filter(None, frames):
            tried |= numeric(json.loads(frame.partition(" ")[0]))
    assert len(sent) > 12
    assert sent <= tried
