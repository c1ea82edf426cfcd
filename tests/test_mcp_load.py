"""Many clients at once over HTTP: no error, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from .mcp_servers import (
    LEGACY,
    MODERN,
    SUM,
    WITH_CODE,
    http_client,
    http_process,
    said,
    token,
    written,
)

pytestmark = pytest.mark.anyio

CODE_EACH = 10
"""One call in so many runs a program."""


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    """Return the memory of a process in pages."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


async def client_of_load(url: str, secret: str, number: int, calls: int) -> None:
    """Make calls one after the other, some of them programs."""
    mode = LEGACY if number % 2 else MODERN
    async with http_client(url, secret, mode=mode) as client:
        for turn in range(calls):
            if turn % CODE_EACH == number % CODE_EACH:
                code = {"code": f"print({number} * 1000 + {turn})"}
                told = said(await client.call_tool("run_python", code))
                assert told["stdout"] == f"{number * 1000 + turn}\n", told
            else:
                told = said(await client.call_tool("calculate", SUM))
                assert told == {"result": 42}


async def load(url: str, secret: str, clients: int, calls: int) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(clients):
            tasks.start_soon(client_of_load, url, secret, number, calls)


def busy_config(folder: Path) -> Path:
    sessions = "max_sessions = 31\nmax_concurrency = 8\n"
    text = WITH_CODE.replace("[tools]\n", f"[tools]\n{sessions}")
    return written(folder, text)


async def test_clients_at_once_leave_nothing_behind(tmp_path: Path) -> None:
    path = busy_config(tmp_path)
    secret = token(path)
    with http_process(path) as (url, process):
        await load(url, secret, 4, CODE_EACH)
        before = descriptors(process.pid)
        await load(url, secret, 4, CODE_EACH)
        with anyio.fail_after(30):
            while descriptors(process.pid) > before:
                await anyio.sleep(0.05)
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0
        output: Any = process.communicate()

    assert output == (b"", b"")


@pytest.mark.full
@pytest.mark.timeout(1_800)
async def test_64_clients_make_50_calls_each(tmp_path: Path) -> None:
    path = busy_config(tmp_path)
    secret = token(path)
    with http_process(path) as (url, process):
        await load(url, secret, 64, 50)
        before = descriptors(process.pid), resident(process.pid)
        for _ in range(2):
            await load(url, secret, 64, 50)
        after = descriptors(process.pid), resident(process.pid)
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0

    # Connections of the last clients may still be closing.
    assert after[0] <= before[0] + 64
    assert after[1] <= before[1] * 1.1
