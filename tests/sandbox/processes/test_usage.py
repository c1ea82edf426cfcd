"""The resources that a session's cell uses, measured beside its runs."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from toolcell.core import CellLostError
from toolcell.sandbox import Sandbox, SandboxManager, Session

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

WORK = """
import time
until = time.process_time() + 0.3
while time.process_time() < until:
    pass
block = b"x" * 50_000_000
open("file", "wb").write(bytes(5_000_000))
"""


async def test_it_is_what_programs_use_and_leave(sandbox: Sandbox) -> None:
    async with sandbox.session() as own:
        before = await own.usage()
        await own.run(WORK)
        after = await own.usage()
        await own.run("del block")
        await own.remove("file")
        later = await own.usage()

    assert 300 <= after.cpu_ms - before.cpu_ms < 10_000
    assert after.memory_bytes - before.memory_bytes > 40_000_000
    assert 5_000_000 <= after.disk_bytes - before.disk_bytes < 6_000_000
    assert later.cpu_ms >= after.cpu_ms
    assert later.disk_bytes == before.disk_bytes
    assert later.memory_bytes < after.memory_bytes - 40_000_000


async def test_it_is_told_while_a_program_runs(sandbox: Sandbox) -> None:
    async with sandbox.session() as own:
        start = await own.usage()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(own.run, "while True: pass")
            async with anyio.create_task_group() as askers:
                for _ in range(4):
                    askers.start_soon(own.usage)

            with anyio.fail_after(60):
                while (await own.usage()).cpu_ms < start.cpu_ms + 100:
                    pass
            await own.interrupt()
        assert (await own.run("6 * 7")).value == 42


async def test_a_paused_cell_tells_it(sandbox: Sandbox) -> None:
    async with sandbox.session() as own:
        await own.usage()
        await own.pause()
        first, second = await own.usage(), await own.usage()

    assert first.memory_bytes > 0
    assert second.cpu_ms - first.cpu_ms < 100


async def test_a_lost_cell_tells_nothing(backend: BackendRow) -> None:
    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as own:
            await own.usage()
            await own._shared.cell.kill()
            with pytest.raises(CellLostError):
                await own.usage()


async def test_a_question_to_a_cell_that_dies_is_ended(backend: BackendRow) -> None:
    ends: list[str] = []

    async def ask(own: Session) -> None:
        try:
            await own.usage()
        except CellLostError:
            ends.append("lost")
        else:
            ends.append("told")

    async with SandboxManager(backend.config()) as sandbox:
        async with sandbox.session() as own:
            await own.usage()
            # Far less than a question waits for its answer.
            with anyio.fail_after(25):
                async with anyio.create_task_group() as tasks:
                    for _ in range(20):
                        tasks.start_soon(ask, own)
                    await anyio.lowlevel.checkpoint()
                    await own._shared.cell.kill()

    assert len(ends) == 20
    assert "lost" in ends
