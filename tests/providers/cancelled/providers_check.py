"""Gives up waiting for scripts and programs of the frameworks of `requirements.txt`."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import resolve_snapshot
from swerex.runtime.abstract import Command

from toolcell.providers.cells.thread_session import ThreadSession
from toolcell.providers.deepagents import ToolcellSandbox
from toolcell.providers.inspect_ai import ToolcellSandboxEnvironment
from toolcell.providers.langchain import code_mode_toolset
from toolcell.providers.openai_agents import (
    ToolcellSandboxSession,
    ToolcellSessionState,
)
from toolcell.providers.pydantic_ai import ToolcellToolset
from toolcell.providers.swe_rex import ToolcellRuntime
from toolcell.sandbox import SandboxManager
from toolcell.tools import (
    CodeExecutor,
    ConcurrentExecutor,
    RunContext,
    ToolRegistry,
    tool,
)
from toolcell.tools.builtin import code_mode_tools
from toolcell.tools.spi import CodeSessions

from .giving_up import CONFIG, KEPT, SCRIPT, give_up

PROGRAM = """
open('note', 'w').write('kept\\n')
tools.began()
import time
time.sleep(600)
"""


async def with_deepagents() -> None:
    with ToolcellSandbox(CONFIG) as sandbox:
        await of_thread("deepagents", sandbox._thread, sandbox.aexecute(SCRIPT))


async def with_pydantic_ai() -> None:
    tools = ToolcellToolset(CONFIG)
    await of_thread("pydantic-ai", tools._thread, tools.exec(SCRIPT))
    tools.close()


async def with_swe_rex() -> None:
    thread = await asyncio.to_thread(ThreadSession, CONFIG)
    runtime, command = ToolcellRuntime(thread), Command(command=SCRIPT, shell=True)
    await of_thread("swe-rex", thread, runtime.execute(command))
    thread.close()


async def with_openai_agents() -> None:
    state = ToolcellSessionState(
        session_id=uuid.uuid4(),
        manifest=Manifest(),
        snapshot=resolve_snapshot(None, ""),
    )
    config = CONFIG.model_copy(update={"work_dir": state.manifest.root})
    thread = await asyncio.to_thread(ThreadSession, config)
    session = ToolcellSandboxSession(state, thread)
    await of_thread("openai-agents", thread, session.exec(SCRIPT))
    thread.close()


async def of_thread(
    name: str, thread: ThreadSession, waiting: Awaitable[object]
) -> None:
    await give_up(name, thread.guarded, waiting, thread.acall)


async def with_inspect_ai() -> None:
    kind = ToolcellSandboxEnvironment
    await kind.task_init("task", CONFIG)
    environments = await kind.sample_init("task", CONFIG, {})
    environment = environments["default"].as_type(kind)
    waiting = environment.exec(["bash", "-c", SCRIPT])
    await give_up("inspect-ai", environment._session, waiting, here)
    await kind.sample_cleanup("task", CONFIG, environments, True)
    await kind.task_cleanup("task", CONFIG, True)


async def here(function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    return await function(*args)


async def with_langchain() -> None:
    """Its tools run programs, whose variables stay for an agent's session."""
    running = asyncio.Event()

    @tool
    async def began() -> None:
        """Say that the program runs."""
        running.set()

    async with SandboxManager(CONFIG) as sandbox, CodeSessions(sandbox) as sessions:
        registry = ToolRegistry([began])
        executor = ConcurrentExecutor(registry, guard=None)
        code = CodeExecutor(sandbox, registry, executor=executor)
        registry.register_many(
            code_mode_tools(sandbox, executor=code, sessions=sessions)
        )
        tools = code_mode_toolset(executor, run=RunContext(session="one"))
        [run_code] = [each for each in tools if each.name == "run_code"]

        await run_code.ainvoke({"code": "x = 41"})
        program = run_code.ainvoke({"code": PROGRAM})
        call: asyncio.Future[Any] = asyncio.ensure_future(program)
        await running.wait()
        call.cancel()
        await asyncio.wait([call])
        kept = json.loads(await run_code.ainvoke({"code": KEPT}))
        print("langchain", "CancelledError" if call.cancelled() else "", kept["value"])


async def main() -> None:
    await with_deepagents()
    await with_pydantic_ai()
    await with_swe_rex()
    await with_openai_agents()
    await with_inspect_ai()
    await with_langchain()


asyncio.run(main())
