"""A list of sessions waits for what they use until its deadline, and no longer."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from toolcell.host.operator.session_usage import measured
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools.spi import CodeSessions

from ...support.cells.stopped_cell import signal_cell

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sessions() -> AsyncIterator[CodeSessions]:
    config = SandboxConfig(backend="subprocess")
    async with SandboxManager(config) as sandbox, CodeSessions(sandbox) as made:
        yield made


async def until_other_is_measured(sessions: CodeSessions) -> tuple[Any, Any]:
    """Return the usage of a silent session and of another one that answered."""
    with anyio.fail_after(60):
        while True:
            (_, silent), (_, other) = await measured(sessions, seconds=0.2)
            if other is not None:
                return silent, other


async def test_a_cell_that_stopped_is_not_measured_and_holds_up_nobody(
    sessions: CodeSessions,
) -> None:
    async with sessions.use("a", "silent") as held, sessions.use("b", "other"):
        with anyio.fail_after(60):
            (_, before), _ = await measured(sessions, seconds=math.inf)
        signal_cell(held.session, signal.SIGSTOP)
        silent, other = await until_other_is_measured(sessions)

    assert before is not None
    # Amounts of an earlier time would look like those of now.
    assert silent is None
    assert other.memory_bytes > 0


async def test_a_list_is_of_one_agent_or_of_all(sessions: CodeSessions) -> None:
    async with sessions.use("a", "s"), sessions.use("b", "s"):
        mine = await measured(sessions, "a", seconds=0)
        everybody = await measured(sessions, seconds=0)

    assert [each.agent_id for each, _ in mine] == ["a"]
    assert [each.agent_id for each, _ in everybody] == ["a", "b"]
