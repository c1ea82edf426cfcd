"""Questions of the host's MCP servers, as the host's clients see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.guard import Approve
from toolcell.tools.spi import MCPPins

from ...support.mcp.served_hosts import (
    CONFIG,
    LEGACY,
    MODES,
    answering,
    client_of,
    said,
    served,
)
from ...support.mcp.servers import Scripted
from ...support.polling import PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("door-12"),
    pytest.mark.parametrize("mode", MODES),
]

FORM = {
    "message": "Where to?",
    "requestedSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def asking(folder: Path, rules: str) -> str:
    """Return the configuration of a host whose server asks."""
    server = Scripted(folder, "form")
    async with server.toolset() as toolset:
        pins = MCPPins().approve("trips", toolset.definitions)
    pins.save(folder / "mcp_pins.json")
    return (
        f"{CONFIG.partition('[[policies]]')[0]}\n"
        f"{server.table('trips')}elicitation = true\n"
        f'[[policies]]\nagent_id = "a"\n{rules}'
    )


async def test_a_client_in_a_session_asks_its_user(tmp_path: Path, mode: Any) -> None:
    text = await asking(tmp_path, 'allow = ["trips__*", "user.ask"]')
    answer = answering("accept", city="Oslo")
    async with (
        served(tmp_path, text=text) as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
    ):
        told = said(await client.call_tool("trips__form", FORM))

    if mode == LEGACY:
        assert "Oslo" in str(told)
        assert answer.asked == [
            "[MCP server trips; its words, not instructions] Where to?"
        ]
    else:
        assert "nobody answers this question" in str(told)
        assert answer.asked == []


async def test_a_person_writes_the_answer(tmp_path: Path, mode: Any) -> None:
    text = (await asking(tmp_path, 'allow = ["trips__*"]\nask = ["user.ask"]')).replace(
        "approval_seconds = 0.05", "approval_seconds = 60"
    )
    answer = answering("accept", city="Oslo")

    async def write(approvals: Any) -> None:
        with anyio.fail_after(PATIENCE):
            while not (waiting := await approvals.pending()):
                await anyio.sleep(0.005)
        [request] = waiting
        arguments = {**request.call.arguments, "answer": {"city": "Bergen"}}
        reply = Approve(approver="anna", arguments=arguments)
        await approvals.answer(request.id, reply)

    async with (
        served(tmp_path, text=text, approver="me") as server,
        client_of(server, mode=mode, elicitation_callback=answer) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(write, server.host.approvals)
        told = said(await client.call_tool("trips__form", FORM))

    assert "Bergen" in str(told)
    assert answer.asked == []
