"""A host: sandbox, tools, guard and records, assembled from a configuration."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolcell.core import InvalidInputError, ToolCall, ToolResult
from toolcell.core.detached import Detachable
from toolcell.core.event_loop import give_way, is_large, large_values_of
from toolcell.guard import ActionGuard, Approvals, AuditLog, Redactor
from toolcell.sandbox import Sandbox
from toolcell.tools import ConcurrentExecutor, RunContext, Tool, ToolRegistry
from toolcell.tools.spi import CodeSessions, MCPActs

from ..config.host_config import HostConfig
from ..operator.event_bus import EventBus
from ..operator.live_calls import LiveCalls
from .active_calls import ActiveCalls
from .assembly import HostComponents, open_components
from .telemetry import open_telemetry

if TYPE_CHECKING:
    from toolcell.flow import Flow


class Host(Detachable):
    """The tools of a configuration, behind one guard, open inside `async with`.

        async with Host.from_config("toolcell.toml") as host:
            result = await host.call("calculate", {"expression": "6 * 7"}, agent_id="a")

    Entering opens what the configuration names: the guard with its store, approvals
    and audit log, the MCP servers, and a `Sandbox` if any tool needs cells.
    Every call, also those of programs in cells and of MCP clients, is looked up,
    validated, admitted by the guard, run, settled and recorded. An agent sees the
    tools of which its policy allows some call.

    Where one task must open it and another one close it, as in fixtures and start-up
    events, use `open` and `aclose` in place of `async with`.

    Args:
        config: The configuration.
        environ: The environment, from which `env:` secrets are read; default that of
            this process.

    Raises:
        ToolcellError: On entering, if a component cannot be opened; the others are
            closed again.
    """

    def __init__(
        self, config: HostConfig, *, environ: Mapping[str, str] | None = None
    ) -> None:
        self.config = config
        self.environ = os.environ if environ is None else environ
        """The environment, from which `env:` secrets are read."""

        self._stack: AsyncExitStack | None = None
        self._open: HostComponents | None = None

    @classmethod
    async def open(
        cls, config: HostConfig, *, environ: Mapping[str, str] | None = None
    ) -> Self:
        """Return an open host, which any task of this event loop may close.

        Arguments and errors are those of `Host` and of entering it.
        """
        return await cls(config, environ=environ)._open_detached()

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None
    ) -> Host:
        """Return the host of a configuration file; see `HostConfig.from_file`.

        Args:
            path: The file, usually `toolcell.toml`.
            environ: The environment; default that of this process.

        Raises:
            ConfigError: The file cannot be read or used.
        """
        return cls(HostConfig.from_file(path, environ=environ), environ=environ)

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise InvalidInputError(
                "this host is open already", hint="open another Host, or share this one"
            )
        async with AsyncExitStack() as stack:
            components = await open_components(self.config, self.environ, stack)
            await open_telemetry(self.config, components, stack)
            self._open = components
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack, self._open = self._stack, None, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        agent_id: str,
        call_id: str | None = None,
        run: RunContext | None = None,
    ) -> ToolResult:
        """Make one call. A failed or refused call is a result, not an error.

        Args:
            name: The tool.
            arguments: The arguments, as a model would send them; default none.
            agent_id: The agent that calls. The guard decides by it, so take it from
                your own code, never from a model.
            call_id: An id of the call; default a new one. A second call with the
                same id in the same run returns the first one's result.
            run: The agent's run: its id and turn, the session whose variables and
                files it continues, the seconds to wait for a person, and the sink of
                artifacts. Default: its own run.

        Raises:
            InvalidInputError: The host is not open, or an argument is not JSON.
        """
        with large_values_of(agent_id):
            if is_large(arguments):
                await give_way()
            call = ToolCall(
                id=call_id or uuid.uuid4().hex,
                name=name,
                arguments={} if arguments is None else arguments,  # type: ignore[arg-type]
                agent_id=agent_id,
            )
            if is_large(call.arguments):
                await give_way()
            return await self.executor.call(
                call, run=run or RunContext(), raise_on_error=False
            )

    def tools(self, agent_id: str) -> list[Tool]:
        """Return the tools that the model of an agent may call."""
        return self.executor.tools(agent_id)

    @property
    def _components(self) -> HostComponents:
        if self._open is None:
            raise InvalidInputError(
                "this host is not open",
                hint='async with Host.from_config("toolcell.toml") as host: ...',
            )
        return self._open

    @property
    def registry(self) -> ToolRegistry:
        """The registry of tools."""
        return self._components.registry

    @property
    def guard(self) -> ActionGuard:
        """The guard."""
        return self._components.guard

    @property
    def executor(self) -> ConcurrentExecutor:
        """The executor, for batches and streams; its `records` are the host's."""
        return self._components.executor

    @property
    def mcp_acts(self) -> MCPActs:
        """Reads resources and gets prompts of MCP servers, for agents."""
        return self._components.mcp_acts

    @property
    def approvals(self) -> Approvals:
        """The approvals that people answer."""
        return self._components.approvals

    @property
    def audit(self) -> AuditLog | None:
        """The audit log; None: none is configured."""
        return self._components.audit

    @property
    def redactor(self) -> Redactor:
        """Hides the secrets of the configuration in what is written down."""
        return self._components.redactor

    @property
    def sandbox(self) -> Sandbox | None:
        """The sandbox; None: no tool needs cells."""
        return self._components.sandbox

    @property
    def flows(self) -> Mapping[str, Flow[Any]]:
        """The flows of the configuration, by the names of their graphs."""
        return self._components.flows

    @property
    def sessions(self) -> CodeSessions | None:
        """The sessions of code; None: no tool has them."""
        return self._components.sessions

    @property
    def live_calls(self) -> LiveCalls:
        """The calls that wait or run now."""
        return self._components.live_calls

    @property
    def active_calls(self) -> ActiveCalls:
        """The places of the calls that servers make at once."""
        return self._components.active_calls

    @property
    def event_bus(self) -> EventBus:
        """Publishes the host's events."""
        return self._components.event_bus
