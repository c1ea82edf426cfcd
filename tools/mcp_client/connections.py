"""The connections to one MCP server: one for all agents, or one for each."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from toolcell.core import InvalidInputError, ToolExecutionError

from ..external.definition import Listing
from .command import MCPCommand
from .connection import ServerConnection, connect, open_place
from .definition import MCPDefinition
from .elicitation import ServerQuestions
from .http import MCPEndpoint
from .last_words import LastWords

CLOSE_SECONDS = 5.0
"""Seconds that a server has to close. When it is reached its connection is cut."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Place:
    """The connection of one agent, or of all."""

    agent_id: str | None
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    connection: ServerConnection | None = None
    calls: int = 0
    last_used: float = field(default_factory=anyio.current_time)


class ServerConnections:
    """Starts or reaches a server when a call needs it, and again after it died.

    Args:
        name: The server's name.
        server: The command that starts it, or its address.
        compare: Takes the tools that it lists, each time that it does, and returns the
            reason for each that is not the approved one.
        startup_seconds: As in `MCPToolset`.
        max_message_bytes: As in `MCPToolset`.
        max_agents: Agents that have their own connection at once; None: one
            connection is for all.
        idle_seconds: Seconds without a call after which that of one agent ends.
        elicitation: As in `MCPToolset`.
        log: As in `MCPToolset`.
    """

    def __init__(
        self,
        name: str,
        server: MCPCommand | MCPEndpoint,
        compare: Callable[[Listing[MCPDefinition]], Awaitable[Mapping[str, str]]],
        *,
        startup_seconds: float,
        max_message_bytes: int,
        max_agents: int | None,
        idle_seconds: float,
        elicitation: bool,
        log: Path | None,
    ) -> None:
        self._name = name
        self._server = server
        self._compare = compare
        self._startup_seconds = startup_seconds
        self._max_message_bytes = max_message_bytes
        self._max_agents = max_agents
        self._idle_seconds = idle_seconds
        self._elicitation = elicitation
        self._log_file = log
        self._places: dict[str | None, _Place] = {}
        self._group: TaskGroup | None = None

    async def open(self) -> None:
        """Be ready for calls.

        Raises:
            InvalidInputError: It is already.
        """
        if self._group is not None:
            raise InvalidInputError(
                f"the MCP server {self._name} is open already",
                hint="use it where it is open, or make another MCPToolset",
            )
        self._group = await anyio.create_task_group().__aenter__()

    async def aclose(self) -> None:
        """End all connections."""
        group, self._group = self._group, None
        for place in self._places.values():
            _end(place)
        self._places.clear()
        if group is not None:
            # The caller's error is not the group's: it goes on as it is.
            await group.__aexit__(None, None, None)

    @asynccontextmanager
    async def use(self, agent_id: str | None) -> AsyncGenerator[ServerConnection, None]:
        """Yield an open connection whose tools were compared.

        Raises:
            InvalidInputError: It is not open.
            ToolExecutionError: There is no connection.
        """
        place = self._place(agent_id if self._max_agents is not None else None)
        place.calls += 1
        try:
            async with place.lock:
                connection = await self._connected(place)
            yield connection
        finally:
            place.calls -= 1
            place.last_used = anyio.current_time()

    def _place(self, agent_id: str | None) -> _Place:
        if agent_id in self._places:
            return self._places[agent_id]
        if len(self._places) >= (self._max_agents or 1):
            idle = [key for key, each in self._places.items() if not each.calls]
            if not idle:
                raise ToolExecutionError(
                    f"the MCP server {self._name} is at work for"
                    f" {len(self._places)} agents, and has no room for another",
                    hint="try again later, or raise max_agents",
                )
            oldest = min(idle, key=lambda key: self._places[key].last_used)
            _end(self._places.pop(oldest))
        place = self._places[agent_id] = _Place(agent_id)
        return place

    async def _connected(self, place: _Place) -> ServerConnection:
        now = place.connection
        if now is not None and now.is_stale and not now.ended.is_set():
            await self._refresh(now)
        if now is None or now.ended.is_set():
            if self._group is None:
                raise InvalidInputError(
                    f"the MCP server {self._name} is not open",
                    hint="use it in `async with`",
                )
            now = place.connection = await self._group.start(self._hold, place)
        return now

    async def _refresh(self, connection: ServerConnection) -> None:
        connection.is_stale = False
        try:
            with anyio.fail_after(self._startup_seconds):
                listing = await connection.listing()
                connection.changed = await self._compare(listing)
        except Exception as error:  # noqa: BLE001 - a new connection follows
            connection.ended.set()
            _log.info(
                "%s did not list its tools (%s)", self._name, type(error).__name__
            )
        except BaseException:
            connection.is_stale = True
            raise

    async def _hold(
        self, place: _Place, *, task_status: TaskStatus[ServerConnection]
    ) -> None:
        """Hold a connection open until it ends."""
        server, is_open, words = self._server, False, self._listener()
        if isinstance(server, MCPEndpoint):
            server = server.for_agent(place.agent_id)
        questions = ServerQuestions(
            self._name, may_ask=self._elicitation, is_shared=self._max_agents is None
        )
        with anyio.CancelScope() as scope:
            try:
                async with open_place(server) as cell:
                    scope.deadline = anyio.current_time() + self._startup_seconds
                    async with connect(
                        server, cell, self._max_message_bytes, words, questions
                    ) as connection:
                        listing = await connection.listing()
                        scope.deadline = math.inf
                        connection.changed = await self._compare(listing)
                        is_open = True
                        task_status.started(connection)
                        await self._until_over(place, connection)
                        scope.deadline = anyio.current_time() + CLOSE_SECONDS
            except ToolExecutionError as error:
                if not is_open:
                    raise ToolExecutionError(
                        f"there is no connection to the MCP server {self._name}:"
                        f" {error.message}",
                        hint=error.hint,
                    ) from error
                _log.warning("the MCP server %s is lost: %s", self._name, error.message)
        if not is_open:
            late = (
                f"the MCP server {self._name} did not start within"
                f" {self._startup_seconds:g} s"
            )
            raise ToolExecutionError(
                words.after(late),
                hint=words.cause or "look whether it runs, or raise startup_seconds",
            )

    def _listener(self) -> LastWords:
        server = self._server
        if not isinstance(server, MCPCommand):
            return LastWords()
        return LastWords(
            server.command,
            server.env.values(),
            in_cell=server.where == "cell",
            file=self._log_file,
        )

    async def _until_over(self, place: _Place, connection: ServerConnection) -> None:
        """Wait for the end of a connection; end that of one agent when it is idle."""
        while not connection.ended.is_set():
            left = math.inf
            if self._max_agents is not None:
                idle = 0 if place.calls else anyio.current_time() - place.last_used
                left = self._idle_seconds - idle
            if left <= 0:
                connection.ended.set()
            with anyio.move_on_after(left):
                await connection.ended.wait()


def _end(place: _Place) -> None:
    if place.connection is not None:
        place.connection.ended.set()
