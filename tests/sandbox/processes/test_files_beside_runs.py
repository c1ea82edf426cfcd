"""Files of a session while one of its programs runs, and while nobody reads it."""

from __future__ import annotations

import itertools
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import InvalidInputError
from toolcell.sandbox import (
    Finished,
    Limits,
    Sandbox,
    SandboxManager,
    Session,
    Stdout,
)
from toolcell.sandbox.cell.wire.contract import WINDOW_BYTES
from toolcell.sandbox.cell.workdir import files
from toolcell.sandbox.client.types import CellTraits
from toolcell.sandbox.client.workdir import WorkDir

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

FLOOD = "import os\nwhile True: os.write(1, bytes(65536))"
LARGE = bytes(range(256)) * 40_000


LATE_FLOOD = """
import os
print("first", flush=True)
while not os.path.exists("go"): pass
while True: os.write(1, bytes(65536))
"""


async def test_a_large_file_is_written_while_output_waits_to_be_read(
    sandbox: Sandbox,
) -> None:
    async with sandbox.session() as session:
        async with aclosing(session.stream(LATE_FLOOD)) as events:
            await anext(events)
            await session.write_file("go", "")
            with anyio.fail_after(60):
                await session.write_file("large", LARGE)
                assert await session.read_file("large") == LARGE


@pytest.mark.promise("P-22")
async def test_a_stream_that_nobody_reads_holds_up_nothing_else(
    sandbox: Sandbox,
) -> None:
    async with sandbox.session() as session:
        await session.write_file("note", "text")
        async with aclosing(session.stream(FLOOD)) as events:
            await anext(events)
            with anyio.fail_after(60):
                assert await session.read_file("note") == b"text"
                await session.write_file("large", LARGE)
                assert await session.read_file("large") == LARGE
                listed = [file.path for file in await session.list_files()]
                await session.remove("note")
                assert (await session.usage()).disk_bytes >= len(LARGE)
                said = await (await session.exec("ls")).wait()
            await anext(events)

    assert listed == ["large", "note"]
    assert said.stdout == "large\n"


@pytest.mark.promise("P-22")
async def test_a_stream_that_nobody_reads_fills_no_memory(backend: BackendRow) -> None:
    config = backend.config(limits=Limits(output_bytes=1 << 30))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        await session.write_file("note", "text")
        events = session.stream(FLOOD, limits=Limits(wall_seconds=20))
        async with aclosing(events):
            first = await anext(events)
            assert isinstance(first, Stdout)
            # The channel is read all the time, for the sake of the command.
            command = await session.exec(["cat"], stdin="pipe")
            for _ in range(200):
                assert await session.read_file("note") == b"text"
            kept = session._shared.cell._channel._frames
            unread = len(first.data) + sum(len(each.payload) for each in kept)
            await command.kill()

    assert WINDOW_BYTES / 2 <= unread <= 2 * WINDOW_BYTES


async def test_files_of_a_fork_are_its_own_while_it_runs(sandbox: Sandbox) -> None:
    code = (
        "import time\nopen('mine', 'w').write('of the fork')\n"
        "print('there', flush=True)\ntime.sleep(600)"
    )
    async with sandbox.session() as session:
        await session.run("x = 1")
        fork = await session.fork()
        async with aclosing(fork.stream(code)) as events:
            await anext(events)
            with anyio.fail_after(60):
                assert await fork.read_file("mine") == b"of the fork"
                said = await (await fork.exec("cat mine")).wait()
                with pytest.raises(InvalidInputError) as caught:
                    await session.read_file("mine")

    assert said.stdout == "of the fork"
    assert caught.value.details["reason"] == "missing"


async def test_a_program_sees_what_is_written_while_it_runs(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nprint('there', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n'went'"
    )
    async with sandbox.session() as session:
        async with aclosing(session.stream(code)) as events:
            await anext(events)
            await session.write_file("go", "")
            *_, last = [event async for event in events]

    assert isinstance(last, Finished)
    assert last.result.value == "went"


async def test_a_file_call_that_is_cancelled_costs_nothing_else(
    sandbox: Sandbox,
) -> None:
    async with sandbox.session() as session:
        await session.run("x = 41")
        await session.write_file("large", LARGE)
        for _ in range(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.read_file, "large")
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            # An answer that comes late is nobody's.
            assert session.alive
        assert await session.read_file("large") == LARGE
        assert (await session.run("x + 1")).value == 42


async def test_a_fork_ends_after_a_file_of_it_is_written(backend: BackendRow) -> None:
    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as session:
            await session.run("x = 1")
            fork = await session.fork()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fork.write_file, "large", LARGE)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(fork.aclose)
            assert await session.list_files() == ()


async def test_files_are_there_before_the_first_run_has_begun(
    backend: BackendRow,
) -> None:
    ends: list[object] = []

    async def run(session: Session) -> None:
        ends.append((await session.run("6 * 7")).value)

    async def write(session: Session) -> None:
        await session.write_file("note", "text")
        ends.append(await session.read_file("note"))

    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as session:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, session)
                tasks.start_soon(write, session)

    assert sorted(map(str, ends)) == ["42", "b'text'"]


class Steps:
    """A clock that goes on by a tenth of a second each time that it is read."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def monotonic(self) -> float:
        return next(self._ticks) / 10


class Served:
    """Files below a folder of this machine, served as a cell does."""

    traits = CellTraits("subprocess", "namespaces", ())

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.answers: list[dict[str, Any]] = []

    async def ask(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        told, data = files.serve(header, b"", self._folder, None, owns_root=False)
        self.answers.append(told)
        return told, data


async def test_a_large_folder_is_removed_a_second_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "time", Steps())
    for number in range(25):
        (tmp_path / "large" / str(number) / "deep").mkdir(parents=True)
    cell = Served(tmp_path)
    await WorkDir(cell).remove("large")

    assert not (tmp_path / "large").exists()
    assert cell.answers[:2] == [{"more": True}] * 2
    assert cell.answers[-1] == {}
