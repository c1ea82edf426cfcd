"""Programs that call tools, without async, for scripts, notebooks and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from toolcell.core.event_loop import wait_for
from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import SandboxConfig, SandboxManager

from ..definition.tool import Tool
from ..registry.registry import ToolRegistry
from .executor import CodeExecutor, CodeResult


class SyncCodeExecutor:
    """A `CodeExecutor` of one agent, whose `execute` waits in the thread that calls it.

    Several threads may share it, and their programs run at once.
    """

    def __init__(
        self, portal: BlockingPortal, code: CodeExecutor, agent_id: str | None
    ) -> None:
        self._portal = portal
        self._code = code
        self._agent_id = agent_id

    def execute(self, code: str, **options: Any) -> CodeResult:
        """Run a program in a new cell, as `CodeExecutor.execute` does.

        Args:
            code: The program's text.
            **options: As in `CodeExecutor.execute`: `language`, `extra_namespace`,
                `limits`, `on_output`. The agent is always that of the policy.

        Raises:
            InvalidInputError: The arguments cannot be used, or the block has ended.
            SandboxError: It could not be run.
        """
        execute = partial(self._code.execute, code, **options, agent_id=self._agent_id)
        return wait_for(self._portal, execute)


@contextmanager
def open_code_executor(
    tools: Iterable[Tool | Callable[..., Any]],
    *,
    policy: AgentPolicy | None = None,
    config: SandboxConfig | None = None,
) -> Iterator[SyncCodeExecutor]:
    """Open an executor of programs that call tools, without async.

    An event loop in its own thread serves it until the block ends, so it works in
    scripts and notebooks, and where an event loop runs in this thread already.

    Args:
        tools: Tools, or functions to make tools of; programs call `tools.<name>(...)`.
        policy: Which calls the guard allows, and the agent that makes them. None: the
            guard refuses each call.
        config: How and where to run; the defaults are closed.

    Raises:
        ConfigError: A tool is not well defined.
        DuplicateToolError: Two tools have the same name.
        PackageError: A package is refused, missing or unfit.
        SandboxUnavailableError: No cell is available.
    """
    registry = ToolRegistry(tools)
    guard = ActionGuard([] if policy is None else [policy])
    agent_id = None if policy is None else policy.agent_id
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(SandboxManager(config)) as sandbox,
    ):
        code = CodeExecutor(sandbox, registry, guard=guard)
        yield SyncCodeExecutor(portal, code, agent_id)
