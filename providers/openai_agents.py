"""OpenAI Agents: `SandboxRunConfig(client=ToolcellSandboxClient())`."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import Any, Literal

from agents import FunctionTool, Tool, ToolOutputImage, ToolOutputText
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.sandbox_client import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
)
from agents.sandbox.session.sandbox_session import SandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxConfig
from toolcell.tools import Records, RunContext, ToolExecutor, to_openai

from .cells.code_mode import NO_RUN, CodeMode, pictures_of
from .cells.guarded_session import default_config
from .cells.thread_session import ThreadSession
from .openai_agents_session import ToolcellSandboxSession, ToolcellSessionState

__all__ = [
    "ToolcellClientOptions",
    "ToolcellSandboxClient",
    "ToolcellSandboxSession",
    "ToolcellSessionState",
    "code_mode_toolset",
]


class ToolcellClientOptions(BaseSandboxClientOptions):
    """Settings of one sandbox.

    `exposed_ports` are the ports of servers in it that may be resolved.
    """

    type: Literal["toolcell"] = "toolcell"
    exposed_ports: tuple[int, ...] = ()


class ToolcellSandboxClient(BaseSandboxClient[ToolcellClientOptions | None]):
    """Makes sandboxes of OpenAI Agents, each a session of toolcell of its own.

    The `work_dir` of a cell is the root of the manifest.

    Args:
        config, guard, agent_id, records: As in `ThreadSession`.
    """

    backend_id = "toolcell"
    supports_default_options = True

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "openai-agents",
        records: Records | None = None,
    ) -> None:
        self._config = config or default_config()
        self._open = partial(
            ThreadSession, guard=guard, agent_id=agent_id, records=records
        )
        self._instrumentation = Instrumentation()

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ToolcellClientOptions | None = None,
    ) -> SandboxSession:
        """Open a session. Raises SandboxUnavailableError: there is no cell."""
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        number = uuid.uuid4()
        state = ToolcellSessionState(
            session_id=number,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(number)),
            exposed_ports=options.exposed_ports if options else (),
        )
        return await self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Open a new cell for it, which starts from its snapshot or its manifest."""
        assert isinstance(state, ToolcellSessionState)
        state.workspace_root_ready = False
        return await self._session(state)

    async def _session(self, state: ToolcellSessionState) -> SandboxSession:
        config = self._config.model_copy(update={"work_dir": state.manifest.root})
        thread = await asyncio.to_thread(self._open, config)
        inner = ToolcellSandboxSession(state, thread)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End the session with all that runs in it; again: nothing."""
        await session.shutdown()
        return session

    def deserialize_session_state(
        self, payload: dict[str, object]
    ) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, ToolcellSessionState)


def code_mode_toolset(
    executor: ToolExecutor,
    *,
    agent_id: str = "openai-agents",
    run: RunContext = NO_RUN,
) -> list[Tool]:
    """Return the tools of code mode, for agents that run in the executor's event loop.

    A call that is refused or fails is a JSON object with its error, which the model
    reads.

    Args:
        executor, agent_id, run: As in `CodeMode`.

    Raises:
        ConfigError: The executor's registry has not the tools of `code_mode_tools`.
    """
    code_mode = CodeMode(executor, agent_id, run)
    shown = [to_openai(tool)["function"] for tool in code_mode.tools()]
    return [
        FunctionTool(
            name=tool["name"],
            description=tool["description"],
            params_json_schema=tool["parameters"],
            on_invoke_tool=partial(_call, code_mode, tool["name"]),
            strict_json_schema=False,
        )
        for tool in shown
    ]


async def _call(code_mode: CodeMode, name: str, context: object, given: str) -> Any:
    result = await code_mode.call(name, given)
    pictures = [
        ToolOutputImage(image_url=f"data:{picture.mime};base64,{picture.data}")
        for picture in pictures_of(result)
    ]
    text = result.to_text()
    return [ToolOutputText(text=text), *pictures] if pictures else text
