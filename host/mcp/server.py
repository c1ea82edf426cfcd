"""The MCP server of a host: lists its tools and calls them, over any transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

import anyio
import mcp_types as types
from mcp.server.auth.middleware.auth_context import auth_context_var, get_access_token
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

from toolcell.core import ErrorInfo, ToolcellError, ToolExecutionError
from toolcell.core.event_loop import give_way, is_large
from toolcell.guard import called_by
from toolcell.guard.spi import PRESETS
from toolcell.tools import Tool

from ..runtime.host import Host
from .caller import CallerLookup, Context
from .offers import OfferHandlers
from .results import ToolDefinitions, error_envelope, failure
from .tool_call import MCPCall

NAME = "toolcell"
INSTRUCTIONS = (
    "Each call is checked against your policy and its limits. A call that is refused "
    "or fails is an error whose text is JSON: `code` and `message` say why, `field` "
    "which argument does not fit, `retryable` and `retry_after_ms` whether and when "
    "the same call may succeed. With an `approval_id` it waits for a person: make the "
    "same call again later."
)
"""Instructions for the client's model."""


class _LowLevelServer(Server[Any]):
    """Declares in every handshake that the list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True),
            experimental_capabilities,
            extensions,
        )


async def _read_in_steps(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Let the event loop run between what the library does with a large message."""
    if is_large(ctx.params):
        await give_way()
    result = await call_next(ctx)
    if is_large(result):
        await give_way()
    return result


class MCPServer:
    """Answers MCP requests with the tools of a host, and what its MCP servers offer.

    `tools/list` shows each caller the tools of its agent, and `tools/call` makes the
    call through the host, so that every rule, limit and record of the host applies.
    Connected clients are notified when the list changes. At most `server.max_requests`
    calls run at once; `calls.drain` ends them before the server stops.

    A transport (`stdio`, `http_server`) connects `lowlevel` to its clients, and
    authenticates them: `caller_of` names the agent of a request.

    Args:
        host: The host; open while the server runs.
        caller_of: Returns the caller of a request.
    """

    def __init__(self, host: Host, caller_of: CallerLookup) -> None:
        self.host = host
        """The host."""

        self._caller_of = caller_of
        self._definitions = ToolDefinitions()
        self._clients: set[ServerSession] = set()
        self._changes = InMemorySubscriptionBus()
        self.calls = host.active_calls
        """The calls that run."""

        self._questions = RequestStateBoundary(
            RequestStateSecurity.ephemeral(), default_audience=NAME
        )
        self.lowlevel = self._lowlevel(lifespan=self._lifespan)
        """The server of the mcp library, for all requests."""

        self.plain = self._lowlevel()
        """A second server of the library, which announces no changes of tools."""

    def _lowlevel(self, **options: Any) -> _LowLevelServer:
        server = _LowLevelServer(
            NAME,
            version=version("toolcell"),
            instructions=INSTRUCTIONS,
            get_tool_input_schema=self._header_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._changes),
            **OfferHandlers(self.host, self._caller_of).by_option(),
            **options,
        )
        server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self._on_initialized
        )
        server.middleware += [_read_in_steps, self._questions]
        return server

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncIterator[None]:
        changed = anyio.Event()
        loop = asyncio.get_running_loop()

        async def announce_changes() -> None:
            nonlocal changed
            while True:
                await changed.wait()
                changed = anyio.Event()
                await self._announce_change()

        unwatch = self.host.registry.watch(
            # The event is looked up when this runs: each change has a new one.
            lambda: loop.call_soon_threadsafe(lambda: changed.set())
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(announce_changes)
                yield
                tasks.cancel_scope.cancel()
        finally:
            unwatch()

    async def _announce_change(self) -> None:
        await self._changes.publish(ToolsListChanged())
        for client in list(self._clients):
            with anyio.move_on_after(1):
                await client.send_tool_list_changed()

    async def _on_initialized(
        self, ctx: Context, params: types.NotificationParams
    ) -> None:
        client, caller = ctx.session, self._caller_of(ctx)
        self._clients.add(client)
        # The library has no public hook for the end of a connection.
        stack = client._connection.exit_stack
        stack.callback(self._clients.discard, client)
        if self.host.sessions is not None:
            close = self.host.sessions.aclose
            stack.push_async_callback(close, caller.agent_id, caller.run_id)

    async def _list_tools(
        self, ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "there are no further pages")
        caller = self._caller_of(ctx)
        tools = self.host.tools(caller.agent_id)
        return types.ListToolsResult(
            tools=[self._definitions.of(tool) for tool in tools if self._lists(tool)]
        )

    def _lists(self, tool: Tool) -> bool:
        """Return whether clients are shown a tool that they may call."""
        settings = self.host.config.server
        if not settings.code_mode or tool.name in PRESETS["code_mode"]:
            return True
        return any(fnmatchcase(tool.name, pattern) for pattern in settings.direct_tools)

    def _header_schema(self, name: str) -> dict[str, Any] | None:
        """Return the schema to check headers by, of a tool that the caller sees."""
        tools = self.host.registry.snapshot()
        tool = tools.get(name)
        if tool is None or not self._definitions.names_headers(tool):
            return None
        token = get_access_token()
        agent_id = token.subject if token else self.host.config.server.agent_id
        seen = tools.for_agent(agent_id).get(name)
        return None if seen is None else seen.parameters

    async def _call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        caller = self._caller_of(ctx)
        # A token is for this server alone, so tools must not find it.
        token = auth_context_var.set(None)
        try:
            with called_by(caller.name), self.calls.enter() as place:
                call = MCPCall(
                    self.host, self._definitions, ctx, params, caller, place.cancel
                )
                return await call.make()
        except ToolcellError as error:
            return failure(error_envelope(ErrorInfo.of(error)))
        finally:
            auth_context_var.reset(token)
        assert place.cancelled_caught
        if call.parked:
            return call.question()
        stopped = ToolExecutionError(
            "the server stopped the call; whether it took effect is not known",
            hint="look whether it did before you call again",
            details={"outcome": "unknown"},
        )
        return failure(error_envelope(ErrorInfo.of(stopped)))
