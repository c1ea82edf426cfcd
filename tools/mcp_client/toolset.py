"""Tools of MCP servers, as tools like any other.

A server is started or reached when the first call needs it, and again after it died.
Models read the definition that was approved (`MCPPins`), and calls are checked against
it. The server's present definition is compared with it each time that the server lists
its tools, and a tool that changed does not run.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus
from pydantic import JsonValue

from toolcell.core import ConfigError, InvalidInputError, ToolExecutionError

from ..definition.context import ToolContext
from ..definition.json_schema import build_validator
from ..definition.json_schema_tool import JSONSchemaTool
from ..definition.tool import Tool
from ..foreign.definition import model_description, model_schema
from ..foreign.offered import OfferedTools, check_prefix, offered_name
from .connection import ServerConnection, connect
from .definition import MCPDefinition, MCPPins
from .http import MCPEndpoint
from .results import MCPProgressRelay, content_of
from .stdio import MCPCommand

CLOSE_SECONDS = 5.0
"""Seconds that a server has to close. When it is reached its connection is cut."""

_log = logging.getLogger(__name__)


class MCPTool(JSONSchemaTool):
    """A tool that an MCP server runs; made by `MCPToolset`."""

    def __init__(
        self, toolset: MCPToolset, definition: MCPDefinition, *, idempotent: bool
    ) -> None:
        self.toolset = toolset
        self.definition = definition
        name = offered_name(toolset.prefix, definition.name)
        super().__init__(
            self._ask,
            name=name,
            description=model_description(f"MCP server {toolset.name}", definition),
            parameters=model_schema(definition.input_schema),
            idempotent=idempotent,
            timeout=toolset.timeout_seconds,
            tags={"mcp", f"mcp:{toolset.name}"},
        )
        schema = definition.output_schema
        self.output = None if schema is None else build_validator(name, schema)

    async def _ask(self, arguments: dict[str, Any], context: ToolContext) -> JsonValue:
        return await self.toolset.call(self, arguments, context)

    @property
    def definition_hash(self) -> str:
        """The hash of the whole definition, as it is pinned."""
        return self.definition.digest

    @property
    def source(self) -> str:
        return f"the MCP server {self.toolset.name}"


class MCPToolset:
    """The tools of one MCP server.

    ```
    async with MCPToolset("files", MCPCommand(command=...), pins=pins) as files:
        registry.register_many(files.tools)
    ```
    The server is untrusted. Its tools are called like all others: validated, guarded
    and recorded. It gets the arguments of a call, and no facts about the agent. It is
    offered no sampling, no elicitation and no roots. Its text reaches models and
    terminals only marked as its own, and no URL that it names is opened. A tool whose
    definition was not approved, or changed since, cannot be called.

    Args:
        name: The server's name, here and in the pins.
        server: The command that starts it, or its address.
        pins: Approved definitions; tools that are not among them are left out. None
            approves the definitions that the server lists when the toolset is opened,
            until it is closed: only for servers that are fully trusted.
        prefix: The beginning of each name, as `prefix__name`; default: the name.
        idempotent: Tools, by the server's names, that may be called again when it is
            not known whether a call was made. The server's own hints do not count.
        timeout_seconds: Seconds of one call, the start of the server included; default
            60. When it is reached the server is asked to stop, and the call ends as
            `timeout`.
        startup_seconds: Seconds for a server to start and list its tools; default 30.
            When it is reached the calls that wait for it fail.
        max_message_bytes: Bytes of one message of the server; default 4 MiB. When it is
            reached the call fails; a program is ended with its connection.

    Raises:
        ConfigError: A name or number cannot be used.
    """

    def __init__(
        self,
        name: str,
        server: MCPCommand | MCPEndpoint,
        *,
        pins: MCPPins | None,
        prefix: str | None = None,
        idempotent: Collection[str] = (),
        timeout_seconds: float = 60.0,
        startup_seconds: float = 30.0,
        max_message_bytes: int = 4_194_304,
    ) -> None:
        self.name = name
        self.prefix = name if prefix is None else prefix
        check_prefix(self.prefix)
        if not min(timeout_seconds, startup_seconds, max_message_bytes) > 0:
            raise ConfigError(
                "the limits of an MCP server are above 0",
                hint="leave them out for the defaults",
            )
        self.timeout_seconds = timeout_seconds
        self._server = server
        self._idempotent = frozenset(idempotent)
        self._startup_seconds = startup_seconds
        self._max_message_bytes = max_message_bytes
        self._lock = anyio.Lock()
        self._connection: ServerConnection | None = None
        self._group: TaskGroup | None = None
        self._offered = OfferedTools(
            f"the MCP server {name}",
            self._tool,
            None if pins is None else pins.of(name),
        )

    @property
    def tools(self) -> list[Tool]:
        """The tools, for a registry."""
        return list(self._offered.tools.values())

    @property
    def definitions(self) -> list[MCPDefinition]:
        """The approved definitions of the tools."""
        return list(self._offered.definitions.values())

    @property
    def unusable(self) -> dict[str, str]:
        """The reason for each tool that cannot be called, by the server's names.

        It follows from the server's latest list.
        """
        return self._offered.unusable

    @property
    def left_out(self) -> int:
        """The number of tools beyond the 1,000 that one server may have.

        It follows from the server's latest list.
        """
        return self._offered.left_out

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise InvalidInputError(
                f"the MCP server {self.name} is open already",
                hint="use it where it is open, or make another MCPToolset",
            )
        self._group = await anyio.create_task_group().__aenter__()
        if self._offered.is_adopting:
            try:
                await self._connected()
            except BaseException:
                await self._aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._aclose()

    async def _aclose(self) -> None:
        group, self._group = self._group, None
        if self._connection is not None:
            self._connection.ended.set()
        if group is not None:
            # The caller's error is not the group's: it goes on as it is.
            await group.__aexit__(None, None, None)

    def _tool(self, definition: MCPDefinition) -> MCPTool:
        idempotent = definition.name in self._idempotent
        return MCPTool(self, definition, idempotent=idempotent)

    # Calls.

    async def call(
        self, tool: MCPTool, arguments: dict[str, Any], context: ToolContext
    ) -> JsonValue:
        """Make one call for a tool of this set.

        Raises:
            ToolExecutionError: It was not made, it failed, or its outcome is unknown.
        """
        connection = await self._connected()
        reason = self._offered.change_of(tool.definition.name)
        if reason is not None:
            raise ToolExecutionError(
                f"{tool.name} cannot be used: {reason}",
                hint=f"`toolcell tools pin {self.name}` shows it and approves it",
            )
        progress = MCPProgressRelay(context)
        result = await connection.call(tool.definition.name, arguments, progress)
        return content_of(tool.name, result, tool.output, context)

    async def _connected(self) -> ServerConnection:
        """Return an open connection whose tools were compared."""
        async with self._lock:
            now = self._connection
            if now is not None and now.is_stale and not now.ended.is_set():
                await self._refresh(now)
            if now is None or now.ended.is_set():
                if self._group is None:
                    raise InvalidInputError(
                        f"the MCP server {self.name} is not open",
                        hint="use it in `async with`",
                    )
                now = self._connection = await self._group.start(self._hold)
            return now

    async def _refresh(self, connection: ServerConnection) -> None:
        connection.is_stale = False
        try:
            with anyio.fail_after(self._startup_seconds):
                self._offered.compare(await connection.listing())
        except Exception as error:  # noqa: BLE001 - a new connection follows
            connection.ended.set()
            _log.info("%s did not list its tools (%s)", self.name, type(error).__name__)
        except BaseException:
            connection.is_stale = True
            raise

    async def _hold(self, *, task_status: TaskStatus[ServerConnection]) -> None:
        """Hold a connection open until it ends."""
        is_open = False
        with anyio.CancelScope() as scope:
            scope.deadline = anyio.current_time() + self._startup_seconds
            try:
                async with connect(self._server, self._max_message_bytes) as connection:
                    self._offered.compare(await connection.listing())
                    scope.deadline = math.inf
                    is_open = True
                    task_status.started(connection)
                    await connection.ended.wait()
                    scope.deadline = anyio.current_time() + CLOSE_SECONDS
            except ToolExecutionError as error:
                if not is_open:
                    raise ToolExecutionError(
                        f"there is no connection to the MCP server {self.name}:"
                        f" {error.message}",
                        hint="look whether the server runs, and whether its address "
                        "or command is right",
                    ) from error
                _log.warning("the MCP server %s is lost: %s", self.name, error.message)
        if not is_open:
            raise ToolExecutionError(
                f"the MCP server {self.name} did not start within"
                f" {self._startup_seconds:g} s",
                hint="look whether it runs, or raise startup_seconds",
            )
