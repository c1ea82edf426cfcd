"""Tools of MCP servers, as tools like any other.

A server is started or reached when the first call needs it, and again after it died.
Models read the definition that was approved (`MCPPins`), and calls are checked against
it. The server's present definition is compared with it each time that the server lists
its tools, and a tool that changed does not run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
from anyio import from_thread
from pydantic import JsonValue

from toolcell.core import ConfigError, ToolExecutionError, ToolTimeoutError
from toolcell.core.event_loop import beside_loop

from ..definition.context import ToolContext
from ..definition.json_schema import build_validator
from ..definition.json_schema_tool import JSONSchemaTool
from ..definition.tool import Tool
from ..external.definition import Listing, model_description, model_schema
from ..external.selection import ToolSelection, check_prefix, offered_name
from .command import MCPCommand
from .connection import ServerConnection
from .connections import ServerConnections
from .definition import MCPDefinition, MCPPins
from .http import MCPEndpoint
from .offers import KINDS, Kind, MCPOffer
from .results import MCPProgressRelay, check_output, content_of

_TEXT_OR_BLOCKS = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]
}
"""The usual answers of a tool that declares no schema of them."""


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
            tags={"mcp", f"mcp:{toolset.name}"}
            | ({"unconfined"} if toolset.unconfined else set()),
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

    @property
    def usual_result(self) -> Mapping[str, Any]:
        return self.definition.output_schema or _TEXT_OR_BLOCKS


class MCPToolset:
    """The tools of one MCP server.

    ```
    async with MCPToolset("files", MCPCommand(command=...), pins=pins) as files:
        registry.register_many(files.tools)
    ```
    The server is untrusted. Its tools are called like all others: validated, guarded
    and recorded. It gets the arguments of a call, and no facts about the agent. It is
    offered no sampling and no roots, and elicitation only where it is named. Its text
    reaches models and terminals only marked as its own, and no URL that it names is
    opened. A tool whose definition was not approved, or changed since, cannot be
    called.

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
            When it is reached the calls that wait for it fail. Time in which the
            packages of its cell are installed does not count.
        max_message_bytes: Bytes of one message of the server; default 4 MiB. When it is
            reached the call fails; a program is ended with its connection.
        per_agent: True starts the server once for each agent, so that none meets what
            another one left there; False has one for all. Where people log in, each
            agent has its own connection.
        max_agents: Agents that have a server at once, with `per_agent`; default 16.
            When it is reached the server that is idle longest ends; if all are at work
            the call fails.
        idle_seconds: Seconds without a call after which a server of one agent ends;
            default 600.
        elicitation: True lets the server ask the user for plain values while its call
            runs, as the act `user.ask` of the agent. False refuses that.
        log: A file for the last that a program writes on standard error, at most 4,096
            characters without values of its environment. None: there is none.

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
        per_agent: bool = False,
        max_agents: int = 16,
        idle_seconds: float = 600.0,
        elicitation: bool = False,
        log: Path | None = None,
    ) -> None:
        self.name = name
        self.prefix = name if prefix is None else prefix
        check_prefix(self.prefix)
        numbers = (timeout_seconds, startup_seconds, max_message_bytes, max_agents)
        if not min(*numbers, idle_seconds) > 0:
            raise ConfigError(
                "the limits of an MCP server are above 0",
                hint="leave them out for the defaults",
            )
        self.timeout_seconds = timeout_seconds
        self._startup_seconds = startup_seconds
        self.unconfined = isinstance(server, MCPCommand) and server.where == "host"
        """True if the server is a program that runs as the user of this process."""

        self._idempotent = frozenset(idempotent)
        self._selection = ToolSelection(
            f"the MCP server {name}",
            self._tool,
            None if pins is None else pins.tools_of(name),
        )
        self._offers = {} if pins is None else pins.offers_of(name)
        self._refused_offers: dict[str, str] = {}
        self._omitted_offers = 0
        self.unlisted: set[Kind] = set()
        """The kinds whose list could not be read when the toolset was opened."""

        by_person = isinstance(server, MCPEndpoint) and server.by_person
        self._connections = ServerConnections(
            name,
            server,
            self._compare,
            startup_seconds=startup_seconds,
            max_message_bytes=max_message_bytes,
            max_agents=max_agents if per_agent or by_person else None,
            idle_seconds=idle_seconds,
            elicitation=elicitation,
            log=log,
        )

    @property
    def tools(self) -> list[Tool]:
        """The tools, for a registry."""
        return list(self._selection.tools.values())

    @property
    def offers(self) -> list[MCPOffer]:
        """The approved resources, templates of resources and prompts."""
        return list(self._offers.values())

    @property
    def definitions(self) -> list[MCPDefinition | MCPOffer]:
        """The approved definitions of tools, resources, templates and prompts."""
        return [*self._selection.definitions.values(), *self._offers.values()]

    @property
    def unusable(self) -> dict[str, str]:
        """The reason for each tool that cannot be called, by the server's names.

        It follows from the server's latest list.
        """
        return self._selection.unusable | self._refused_offers

    @property
    def omitted(self) -> int:
        """The number beyond the 1,000 of each kind that one server may have.

        That of tools follows from the server's latest list.
        """
        return self._selection.omitted + self._omitted_offers

    async def __aenter__(self) -> Self:
        await self._connections.open()
        if self._selection.is_adopting:
            try:
                async with self._connections.use(None) as connection:
                    await self._adopt_offers(connection)
            except BaseException:
                await self._connections.aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connections.aclose()

    def _tool(self, definition: MCPDefinition) -> MCPTool:
        idempotent = definition.name in self._idempotent
        return MCPTool(self, definition, idempotent=idempotent)

    async def _compare(self, listing: Listing[MCPDefinition]) -> Mapping[str, str]:
        """Compare a list; to make tools of the first one takes milliseconds each."""
        if not self._selection.is_adopting:
            return self._selection.compare(listing)
        compare = partial(self._selection.compare, listing, from_thread.check_cancelled)
        return await beside_loop(f"mcp:{self.name}", compare)

    async def _adopt_offers(self, connection: ServerConnection) -> None:
        for kind in KINDS:
            try:
                with anyio.fail_after(self._startup_seconds):
                    listing = await connection.offers(kind)
            except (ToolExecutionError, TimeoutError):
                # It costs the server none of its tools.
                self.unlisted.add(kind)
                reason = "the server does not list them now; approved ones stay so"
                self._refused_offers[f"each {kind}"] = reason
            else:
                self._offers |= listing.definitions
                self._refused_offers |= listing.refused
                self._omitted_offers += listing.omitted

    # Calls.

    @asynccontextmanager
    async def use(
        self, offer: MCPOffer, agent_id: str | None
    ) -> AsyncGenerator[ServerConnection, None]:
        """Yield a connection to read a resource or get a prompt, with a deadline.

        Args:
            offer: The approved definition; the server has to list the very same now.
            agent_id: The agent that asks.

        Raises:
            ToolExecutionError: There is no connection, or the server lists another.
            ToolTimeoutError: The deadline is over.
        """
        try:
            with anyio.fail_after(self.timeout_seconds):
                async with self._connections.use(agent_id) as connection:
                    now = (await connection.offers(offer.kind)).definitions.values()
                    if offer.digest not in {each.digest for each in now}:
                        raise ToolExecutionError(
                            f"the MCP server {self.name} does not offer the"
                            f" {offer.kind} as it was approved",
                            hint=f"`toolcell tools pin {self.name}` shows what changed",
                        )
                    yield connection
        except TimeoutError:
            raise ToolTimeoutError(
                f"the MCP server {self.name} did not answer within"
                f" {self.timeout_seconds:g} s",
                hint="try again, or raise timeout_seconds",
            ) from None

    async def call(
        self, tool: MCPTool, arguments: dict[str, Any], context: ToolContext
    ) -> JsonValue:
        """Make one call for a tool of this set.

        Raises:
            ToolExecutionError: It was not made, it failed, or its outcome is unknown.
        """
        async with self._connections.use(context.agent_id) as connection:
            reason = connection.changed.get(tool.definition.name)
            if reason is not None:
                raise ToolExecutionError(
                    f"{tool.name} cannot be used: {reason}",
                    hint=f"`toolcell tools pin {self.name}` shows it and approves it",
                )
            progress = MCPProgressRelay(context)
            result = await connection.call(
                tool.definition.name, arguments, progress, context.ask_user
            )
        if tool.output is not None:
            await check_output(tool.name, result, tool.output, context)
        return content_of(tool.name, result, context)
