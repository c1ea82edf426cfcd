"""A server that is killed, or told to stop, loses nothing that counts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from ...support.cells.leak_check import owner_of
from ...support.cells.leftovers import groups_of
from ...support.mcp.served_hosts import (
    CONFIG,
    MODERN,
    WITH_CODE,
    http_client,
    http_process,
    make_token,
    said,
    written,
)
from ...support.polling import until
from ...support.process_tree import below, runs
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

LIMIT, CLIENTS = 60, 4
TOOLS = '''
import os

from toolcell.tools import tool


@tool(name="own_spend")
async def spend(place: str) -> str:
    """Spend a unit, for everybody to see."""
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"x")
    os.close(file)
    return "spent"
'''


def configured(folder: Path) -> Path:
    (folder / "own_spending.py").write_text(TOOLS)
    python = 'python = ["own_spending:spend"]\nfolders = ["."]\n'
    text = WITH_CODE.replace("[tools]\n", f"[tools]\n{python}")
    budget = f'budgets = [{{ unit = "calls", limit = {LIMIT}, window = "day" }}]\n'
    return written(folder, text.replace('ask = ["get', f'{budget}ask = ["get', 1))


async def spend(url: str, secret: str, place: Path) -> None:
    """Spend until there is nothing left, or nobody answers."""
    try:
        async with http_client(url, secret, mode=MODERN) as client:
            while True:
                result = await client.call_tool("own_spend", {"place": str(place)})
                if result.is_error:
                    assert said(result)["reason"] == "budget_exceeded"
                    break
    except* Exception as group:
        # The server was killed meanwhile.
        assert not group.split(AssertionError)[0]


@pytest.mark.timeout(600)
async def test_killed_under_load_nothing_is_spent_twice(tmp_path: Path) -> None:
    path = configured(tmp_path)
    secret, place = make_token(tmp_path), tmp_path / "spent"

    def spent() -> int:
        return place.stat().st_size if place.exists() else 0

    with http_process(path) as (url, process):
        async with http_client(url, secret, mode=MODERN) as client:
            waiting = said(await client.call_tool("get_today_date", {}))
        async with anyio.create_task_group() as tasks:
            code: dict[str, Any] = {"code": "while True: pass"}
            for _ in range(CLIENTS):
                tasks.start_soon(spend, url, secret, place)
            tasks.start_soon(_call, url, secret, "run_python", code)
            while spent() < LIMIT // 3:
                await anyio.sleep(0.01)
            dead = owner_of(process.pid)
            cells = below(process.pid)
            process.kill()
            await anyio.to_thread.run_sync(process.wait)
    before, servers = spent(), [process.pid]

    listed = toolcell("approvals", "list", "--json", "--config", str(path))
    with http_process(path) as (url, process):
        servers.append(process.pid)
        await until(lambda: left_by(dead, cells) == [])
        [request] = json.loads(listed.stdout)
        approve(path, request)
        async with http_client(url, secret, mode=MODERN) as client:
            approved, again = [
                said(await client.call_tool("get_today_date", {})) for _ in range(2)
            ]
        await spend(url, secret, place)
        process.terminate()
        assert await anyio.to_thread.run_sync(process.wait) == 0

    assert request["id"] == waiting["approval_id"]
    # What was asked before the kill is answered after it, for one call.
    assert "today" in approved, approved
    assert again["reason"] == "approval_unavailable"
    assert again["approval_id"] != waiting["approval_id"]
    assert cells
    assert LIMIT // 3 <= before < LIMIT
    # The calls of a program and of the date are paid for too, and each that was in
    # flight may be paid for and unmade.
    assert LIMIT - CLIENTS - 2 <= spent() <= LIMIT - 1
    # Others on this machine may leave something meanwhile.
    removed = json.loads(toolcell("clean", "--json").stdout)["removed"]
    assert [one for one in removed for pid in servers if f"-{pid}-" in one] == []


def left_by(owner: str, cells: dict[int, str]) -> list[object]:
    """Return the processes and the cgroups that a dead server has left."""
    return [
        *(pid for pid, start in cells.items() if runs(pid, start)),
        *groups_of(owner),
    ]


def approve(path: Path, request: dict[str, Any]) -> None:
    seen = (request["id"], "--seen", request["digest"])
    config = ("--config", str(path))
    done = toolcell("approvals", "approve", *seen, "--by", "anna", *config)
    assert done.returncode == 0, done.stderr


async def _call(url: str, secret: str, name: str, arguments: dict[str, Any]) -> None:
    try:
        async with http_client(url, secret, mode=MODERN) as client:
            await client.call_tool(name, arguments)
    except* Exception as group:
        assert group.exceptions


async def test_a_process_told_to_stop_ends_its_calls_first(tmp_path: Path) -> None:
    text = CONFIG.replace('"clock"]', '"clock", "code"]')
    path = written(tmp_path, text)
    secret = make_token(tmp_path)
    running = anyio.Event()
    results = []

    async def on_progress(progress: float, total: Any, message: Any) -> None:
        running.set()

    code = (
        "import time\nfor _ in range(15):\n    print(_, flush=True)\n    time.sleep(.1)"
    )
    with http_process(path) as (url, process):
        async with (
            http_client(url, secret) as client,
            anyio.create_task_group() as tasks,
        ):
            await client.list_tools()

            async def call() -> None:
                results.append(
                    await client.call_tool(
                        "run_python", {"code": code}, progress_callback=on_progress
                    )
                )

            tasks.start_soon(call)
            await running.wait()
            process.send_signal(signal.SIGTERM)
        code_of_exit = await anyio.to_thread.run_sync(process.wait)
        output = process.communicate()

    assert said(results[0])["status"] == "ok"
    assert code_of_exit == 0, output
    assert output == (b"", b"")
