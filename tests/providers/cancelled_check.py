"""Gives up waiting for scripts of frameworks, and prints what their sessions keep."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable

from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import resolve_snapshot
from swerex.runtime.abstract import Command

from toolcell.providers.cells.thread_session import ThreadSession
from toolcell.providers.deepagents import ToolcellSandbox
from toolcell.providers.openai_agents import (
    ToolcellSandboxSession,
    ToolcellSessionState,
)
from toolcell.providers.pydantic_ai import ToolcellToolset
from toolcell.providers.swe_rex import ToolcellRuntime
from toolcell.sandbox import SandboxConfig

CONFIG = SandboxConfig(backend="subprocess")
SCRIPT = "echo kept > note; touch up; exec sleep 600"


async def give_up(name: str, thread: ThreadSession, waiting: Awaitable[object]) -> None:
    guarded = thread.guarded
    await thread.acall(guarded.run_python, "x = 41")
    call = asyncio.ensure_future(waiting)
    while "up" not in await paths(thread):
        await asyncio.sleep(0.01)
    call.cancel()
    [ended] = await asyncio.gather(call, return_exceptions=True)
    while guarded.session.processes():
        await asyncio.sleep(0.01)
    code = "[x + 1, open('note').read()]"
    kept = await thread.acall(guarded.run_python, code)
    print(name, type(ended).__name__, kept.value)


async def paths(thread: ThreadSession) -> set[str]:
    found = await thread.acall(thread.guarded.session.list_files)
    return {each.path for each in found}


async def main() -> None:
    with ToolcellSandbox(CONFIG) as sandbox:
        await give_up("deepagents", sandbox._thread, sandbox.aexecute(SCRIPT))

    tools = ToolcellToolset(CONFIG)
    await give_up("pydantic-ai", tools._thread, tools.exec(SCRIPT))
    tools.close()

    thread = await asyncio.to_thread(ThreadSession, CONFIG)
    runtime, command = ToolcellRuntime(thread), Command(command=SCRIPT, shell=True)
    await give_up("swe-rex", thread, runtime.execute(command))
    thread.close()

    state = ToolcellSessionState(
        session_id=uuid.uuid4(),
        manifest=Manifest(),
        snapshot=resolve_snapshot(None, ""),
    )
    config = CONFIG.model_copy(update={"work_dir": state.manifest.root})
    thread = await asyncio.to_thread(ThreadSession, config)
    session = ToolcellSandboxSession(state, thread)
    await give_up("openai-agents", thread, session.exec(SCRIPT))
    thread.close()


asyncio.run(main())
