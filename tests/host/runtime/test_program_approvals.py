"""Calls of a host's running programs that wait for a person."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.guard import Approve, Reject
from toolcell.host import Host
from toolcell.tools import RunContext, Tool, tool

from ...support.mcp.served_hosts import (
    LEGACY,
    MODES,
    WITH_CODE,
    answering,
    client_of,
    said,
    served,
    settings,
)

pytestmark = pytest.mark.anyio

WALL = 8.0
"""Seconds that a program may run: more than a slow machine takes for it."""

BRIEF_RUNS = WITH_CODE.replace(
    'backend = "subprocess"',
    f'backend = "subprocess"\nlimits = {{ wall_seconds = {WALL} }}',
)
ONE_SHOT_TOO = f"{WITH_CODE}[tools.code]\nasks_without_session = true\n"
BRIEF = f"{WITH_CODE}[tools.code]\napproval_seconds = 0.2\n"
PROGRAM = """
try:
    got = "year" if tools.get_today_date()["year"] else None
except ToolError as error:
    got = error.code
got
"""
SESSION = RunContext(run_id="r", session="s")


async def run_program(host: Host, run: RunContext, code: str = PROGRAM) -> Any:
    result = await host.call("run_python", {"code": code}, agent_id="a", run=run)
    assert isinstance(result.content, dict), result.error
    return result.content.get("value", result.content["status"])


async def answer_when_asked(
    host: Host, *, after: float = 0.0, yes: bool = True
) -> None:
    """Be the person, who answers elsewhere."""
    while not (waiting := await host.approvals.pending()):
        await anyio.sleep(0.01)
    await anyio.sleep_until(anyio.current_time() + after)
    reply = Approve(approver="anna") if yes else Reject(approver="anna")
    await host.approvals.answer(waiting[0].id, reply)


async def answered(
    folder: Path, run: RunContext, text: str = WITH_CODE, **answer: Any
) -> Any:
    """Return the value of a program whose call a person answers."""
    async with Host(settings(folder, text)) as host, anyio.create_task_group() as tasks:

        async def person() -> None:
            await answer_when_asked(host, **answer)

        tasks.start_soon(person)
        value = await run_program(host, run)
        tasks.cancel_scope.cancel()
    return value


async def unanswered(folder: Path, run: RunContext, text: str = WITH_CODE) -> Any:
    """Return the value of a program whose call nobody answers, and who was asked."""
    async with Host(settings(folder, text)) as host:
        value = await run_program(host, run)
        return value, len(await host.approvals.pending())


async def test_a_call_of_a_session_waits_longer_than_its_program_may_run(
    tmp_path: Path,
) -> None:
    told = await answered(tmp_path, SESSION, BRIEF_RUNS, after=WALL + 0.2)

    assert told == "year"


async def test_a_person_may_say_no(tmp_path: Path) -> None:
    assert await answered(tmp_path, SESSION, yes=False) == "guard.denied"


async def test_without_a_session_nobody_is_asked(tmp_path: Path) -> None:
    """Unless the configuration says otherwise."""
    alone = RunContext(run_id="r")

    assert await unanswered(tmp_path, alone) == ("guard.denied", 0)
    assert await answered(tmp_path, alone, ONE_SHOT_TOO) == "year"


async def test_a_program_waits_no_longer_than_configured(tmp_path: Path) -> None:
    assert await unanswered(tmp_path, SESSION, BRIEF) == ("guard.denied", 1)


async def test_a_caller_who_asks_nobody_asks_nobody_inside(tmp_path: Path) -> None:
    run = RunContext(run_id="r", session="s", approval_seconds=0)

    assert await unanswered(tmp_path, run) == ("guard.denied", 0)


# Over MCP.

TWICE = f"tools.own_count()\n{PROGRAM}"


@asynccontextmanager
async def counted() -> AsyncIterator[tuple[Tool, list[int]]]:
    begun: list[int] = []

    @tool(name="own_count")
    async def count() -> int:
        """Count how often a program begins."""
        begun.append(1)
        return len(begun)

    yield count, begun


@pytest.mark.parametrize("mode", MODES)
async def test_a_program_of_a_client_waits_and_is_run_once(
    tmp_path: Path, mode: Any
) -> None:
    """Only in the handshake era can a user be asked while a call runs."""
    text = WITH_CODE.replace("approval_seconds = 0.05", "approval_seconds = 30")
    answer = answering("accept", approve=True)
    async with (
        counted() as (count, begun),
        served(tmp_path, count, text=text, approver="anna") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
        anyio.create_task_group() as tasks,
    ):
        if mode != LEGACY:
            tasks.start_soon(answer_when_asked, server.host)
        told = said(await client.call_tool("run_python", {"code": TWICE}))

    assert told["value"] == "year", told
    assert len(begun) == 1
    assert len(answer.asked) == (mode == LEGACY)


@pytest.mark.parametrize("mode", MODES)
async def test_a_request_that_waits_already_does_not_end_the_program(
    tmp_path: Path, mode: Any
) -> None:
    """The same request, of a call that was no program's: its client makes that anew."""
    text = f"{WITH_CODE}[tools.code]\napproval_seconds = 0.2\n"
    answer = answering("cancel")
    async with (
        counted() as (count, begun),
        served(tmp_path, count, text=text, approver="anna") as server,
        client_of(server, mode=mode) as plain,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        waiting = said(await plain.call_tool("get_today_date", {}))
        told = said(await client.call_tool("run_python", {"code": TWICE}))

    assert waiting["approval_id"]
    assert told["value"] == "guard.denied", told
    assert len(begun) == 1
