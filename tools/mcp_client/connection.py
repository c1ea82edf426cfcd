"""One connection to an MCP server: opened, listed, called, ended."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from pydantic import TypeAdapter, ValidationError

from toolcell.core import ConfigError, SandboxError, ToolExecutionError
from toolcell.core.text.install_hint import install_hint
from toolcell.core.text.printable import escaped

from ..definition.questions import AskUser
from ..external.definition import D, Listing, unknown_outcome
from ..external.login_auth import failed_login
from .command import MCPCommand
from .definition import MCPDefinition, mcp_definition
from .elicitation import CallQuestions, ServerQuestions, asks_in_vain
from .http import LastErrorStatus, MCPEndpoint, open_endpoint
from .kept_results import KeptResults
from .last_words import LastWords
from .list_parts import ListParts
from .message_limits import ConnectionLost, MessageBudget, limit_messages
from .odd_parts import SET_ASIDE
from .offers import Kind, MCPOffer, mcp_offer, offer_name
from .results import MAX_ERROR_CHARACTERS, MCPProgressRelay
from .stdio import open_on_host

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.types import (
        CallToolResult,
        GetPromptResult,
        InputRequiredResult,
        ReadResourceResult,
        Tool,
    )

    from toolcell.sandbox import SandboxSession

MAX_PAGES = 100
"""Pages of one listing. When it is reached the rest is not asked for."""

_NOT_FOUND = 404
_METHOD_NOT_FOUND = -32601
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class ServerConnection:
    """An open connection; calls share it."""

    client: Client
    budget: MessageBudget
    parts: ListParts
    last_error: LastErrorStatus
    questions: ServerQuestions
    """The questions of the server to users."""

    is_stale: bool = False
    """True if its tools have to be listed again before the next call."""

    changed: Mapping[str, str] = field(default_factory=dict)
    """The reason for each tool that is not the approved one in its latest list."""

    version: str | None = None
    """The version of the protocol; None: it is not agreed on yet."""

    ended: anyio.Event = field(default_factory=anyio.Event)

    async def listing(self) -> Listing[MCPDefinition]:
        """Return the tools as the server lists them now.

        Raises:
            Exception: The server does not list them.
        """
        listing: Listing[MCPDefinition] = Listing()
        async for page in self._pages(self.client.list_tools):
            tools = [_listed_fields(tool) for tool in page.tools]
            for fields in [*tools, *(page.meta or {}).get(SET_ASIDE, [])]:
                given = fields if isinstance(fields, dict) else {}
                name = str(given.get("name", ""))
                await _add(listing, name, functools.partial(mcp_definition, given))
        return listing

    async def _pages(
        self, ask: Callable[..., Awaitable[Any]]
    ) -> AsyncGenerator[Any, None]:
        """Yield the pages of a list, large ones in parts."""
        cursor, left = None, MAX_PAGES
        while left:
            page = await ask(cursor=cursor)
            yield page
            cursor = page.next_cursor
            if not cursor:
                break
            left -= not self.parts.is_own(cursor)

    async def offers(self, kind: Kind) -> Listing[MCPOffer]:
        """Return resources, templates or prompts as the server lists them now.

        Raises:
            ToolExecutionError: It does not list them.
        """
        able, method, members = self._lists(kind)
        listing: Listing[MCPOffer] = Listing()
        if not able:
            return listing

        def ask(cursor: str | None) -> Awaitable[Any]:
            return self._ask(f"the list of {members}", method(cursor=cursor))

        try:
            async for page in self._pages(ask):
                for member in page.model_dump()[members]:
                    make = functools.partial(mcp_offer, kind, member)
                    await _add(listing, offer_name(kind, member), make)
        except ToolExecutionError as error:
            # Many servers have resources, and no list of templates.
            if error.details.get("code") != _METHOD_NOT_FOUND:
                raise
        return listing

    def _lists(self, kind: Kind) -> tuple[object, Callable[..., Awaitable[Any]], str]:
        """Return whether it has such a list, its method, and the member of a page."""
        client, able = self.client, self.client.server_capabilities
        if kind == "resource":
            return able.resources, client.list_resources, "resources"
        if kind == "template":
            return able.resources, client.list_resource_templates, "resource_templates"
        return able.prompts, client.list_prompts, "prompts"

    async def read(self, uri: str) -> ReadResourceResult:
        """Read a resource.

        Raises:
            ToolExecutionError: The server refused it, or gave no answer.
        """
        from mcp import types as mcp

        params = mcp.ReadResourceRequestParams(uri=uri)
        request = mcp.ReadResourceRequest(params=params)
        answer: ReadResourceResult = await self._send(
            uri, request, mcp.ReadResourceResult
        )
        return answer

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> GetPromptResult:
        """Get a prompt.

        Raises:
            ToolExecutionError: The server refused it, or gave no answer.
        """
        from mcp import types as mcp

        params = mcp.GetPromptRequestParams(name=name, arguments=arguments)
        request = mcp.GetPromptRequest(params=params)
        answer: GetPromptResult = await self._send(name, request, mcp.GetPromptResult)
        return answer

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        progress: MCPProgressRelay,
        ask: AskUser | None,
    ) -> CallToolResult:
        """Make one call; a cancelled one is cancelled at the server too.

        Args:
            tool: The server's name of the tool.
            arguments: Its arguments.
            progress: Passes on its progress.
            ask: Asks the user what the server wants to know, where it may ask.

        Raises:
            ToolExecutionError: The server refused it, or it is not known whether it
                was made.
        """
        try:
            async with self.questions.during(ask) as questions:
                answer = await self._call(tool, arguments, progress, questions)
        finally:
            progress.end()
        return answer

    async def _call(
        self,
        tool: str,
        arguments: dict[str, Any],
        progress: MCPProgressRelay,
        questions: CallQuestions,
    ) -> CallToolResult:
        """Send a call, and again with the answers while its result is a question."""
        from mcp import types as mcp

        given: dict[str, Any] = {}
        while True:
            params = mcp.CallToolRequestParams(name=tool, arguments=arguments, **given)
            answer: CallToolResult | InputRequiredResult = await self._answer(
                tool,
                mcp.CallToolRequest(params=params),
                mcp.CallToolResult,
                progress_callback=progress.callback,
            )
            if not isinstance(answer, mcp.InputRequiredResult):
                return answer
            given = {
                "input_responses": await questions.answers(answer) or None,
                "request_state": answer.request_state,
            }

    async def _send(self, name: str, request: Any, kind: Any) -> Any:
        """Send a request and return its answer, which is of a kind."""
        from mcp import types as mcp

        result = await self._answer(name, request, kind)
        if isinstance(result, mcp.InputRequiredResult):
            raise asks_in_vain(name)
        return result

    def _answer(
        self, name: str, request: Any, kind: Any, **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """Send a request; its answer is of a kind, or is a question."""
        adapter = _adapter(kind)
        sending = self.client.session.send_request(request, adapter, **options)
        return self._ask(name, sending)

    async def _ask(self, name: str, answer: Awaitable[Any]) -> Any:
        from mcp import MCPError

        self.budget.grant()
        try:
            return await answer
        except MCPError as error:
            # The session may be forgotten; the next call finds out.
            self.is_stale |= failed_login(error.error.message, error.error.data) is None
            raise _refused(name, error, self.last_error) from error
        except ValidationError as error:
            raise unknown_outcome(f"{name} answered what MCP does not know") from error


async def _add(listing: Listing[D], name: str, make: Callable[[], D]) -> None:
    """Add one definition to a list, in two steps of the loop."""
    made = listing.add(name, make)
    await anyio.lowlevel.checkpoint()
    if made is not None:
        # It is kept, for lists are compared in one go.
        _ = made.digest
        await anyio.lowlevel.checkpoint()


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from mcp import types as mcp

    return TypeAdapter(kind | mcp.InputRequiredResult)


def _listed_fields(tool: Tool) -> dict[str, Any]:
    hints = tool.annotations
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
        "annotations": hints and hints.model_dump(by_alias=True, exclude_none=True),
    }


def _refused(tool: str, error: Any, last_error: LastErrorStatus) -> ToolExecutionError:
    from mcp import types as mcp

    # With these codes it is not known whether the tool ran.
    in_doubt = (
        mcp.CONNECTION_CLOSED,
        mcp.INTERNAL_ERROR,
        mcp.PARSE_ERROR,
        mcp.REQUEST_TIMEOUT,
    )
    text = escaped(error.error.message, MAX_ERROR_CHARACTERS)
    if (login := failed_login(text, error.error.data)) is not None:
        return ToolExecutionError(
            f"{tool} was not called: {text}",
            hint=login.hint
            or "look whether the issuer runs, and whether the login is right",
        )
    # Servers say by the code of a time-out, too, that they have forgotten the session.
    is_forgotten = (
        last_error.status == _NOT_FOUND and error.error.code == mcp.REQUEST_TIMEOUT
    )
    if error.error.code in in_doubt and not is_forgotten:
        return unknown_outcome(f"{tool} gave no answer ({text})")
    return ToolExecutionError(
        f"the server of {tool} refused the call: {text}",
        hint="change the arguments as it says, or use another tool",
        details={"code": error.error.code},
    )


@asynccontextmanager
async def open_place(
    server: MCPCommand | MCPEndpoint,
) -> AsyncGenerator[SandboxSession | None, None]:
    """Open the cell of a server; None: it has none.

    Raises:
        ToolExecutionError: There is no such cell.
    """
    if not isinstance(server, MCPCommand) or server.where == "host":
        yield None
        return
    from .confined import open_cell

    async with AsyncExitStack() as stack:
        try:
            session = await stack.enter_async_context(open_cell(server))
        except (ConfigError, SandboxError) as error:
            raise ToolExecutionError(
                f"there is no cell for it: {error.message}", hint=error.hint
            ) from error
        yield session


@asynccontextmanager
async def connect(
    server: MCPCommand | MCPEndpoint,
    place: SandboxSession | None,
    max_bytes: int,
    words: LastWords,
    questions: ServerQuestions,
) -> AsyncGenerator[ServerConnection, None]:
    """Open a connection; leaving it ends it, and a program with all it started.

    Args:
        server: The server.
        place: The cell that it runs in; None: it has none.
        max_bytes: Bytes of one message.
        words: Told what a program says on standard error, and how it ends.
        questions: Its questions to users.

    Raises:
        ConfigError: The MCP library is not installed.
        ToolExecutionError: There is no connection, or it ended.
    """
    try:
        # Two seconds of CPU the first time, which are not the event loop's.
        await anyio.to_thread.run_sync(import_module, "mcp")
        from mcp import Client
        from mcp.types import Implementation, ToolListChangedNotification
    except ImportError:
        raise ConfigError(
            "the library of MCP is not installed", hint=install_hint("mcp")
        ) from None

    async def receive(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            connection.is_stale = True

    last_error, budget = LastErrorStatus(), MessageBudget()
    parts, kept = ListParts(), KeptResults()
    client = Client(
        limit_messages(
            _transport(server, place, max_bytes, words, last_error, kept),
            budget,
            kept,
            parts,
            lambda: connection.version,
        ),
        client_info=Implementation(name="toolcell", version="1"),
        message_handler=receive,
        elicitation_callback=questions.receive if questions.may_ask else None,
        cache=None,
    )
    connection = ServerConnection(client, budget, parts, last_error, questions)
    try:
        async with client, anyio.create_task_group() as tasks:
            connection.version = client.protocol_version
            tasks.start_soon(_listen, connection)
            tasks.start_soon(words.keep)
            yield connection
            tasks.cancel_scope.cancel()
    except Exception as error:
        raise ToolExecutionError(
            _reason(error, last_error, words),
            hint=words.cause
            or (last_error.login and last_error.login.hint)
            or "look whether the server runs, and whether its address, login "
            "or command is right",
        ) from error
    finally:
        connection.ended.set()
        words.log()


def _transport(
    server: MCPCommand | MCPEndpoint,
    place: SandboxSession | None,
    max_bytes: int,
    words: LastWords,
    last_error: LastErrorStatus,
    kept: KeptResults,
) -> AbstractAsyncContextManager[TransportStreams]:
    if not isinstance(server, MCPCommand):
        return open_endpoint(server, max_bytes, last_error, kept)
    if place is None:
        return open_on_host(server, max_bytes, words)
    from .confined import open_in_cell

    return open_in_cell(server, place, max_bytes, words)


async def _listen(connection: ServerConnection) -> None:
    """Subscribe to changes of the tools, if the server has subscriptions."""
    from mcp import MCPError
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

    tools = connection.client.server_capabilities.tools
    if tools is None or not tools.list_changed:
        return
    try:
        async with connection.client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                connection.is_stale = True
    except ListenNotSupportedError:
        return
    except (MCPError, SubscriptionLost, TimeoutError) as error:
        connection.is_stale = True
        _log.info("changes of tools are not reported: %s", type(error).__name__)


def _reason(error: BaseException, last_error: LastErrorStatus, words: LastWords) -> str:
    """Return the reason why there is no connection; it repeats no secret."""
    while isinstance(error, BaseExceptionGroup):
        lost = error.subgroup(ConnectionLost)
        error = (lost or error).exceptions[0]
    if isinstance(error, ConnectionLost):
        ended = f" ({words.end})" if words.end else ""
        return words.after(f"it {error.reason}{ended}")
    if last_error.login is not None:
        return f"its login failed: {last_error.login}"
    if isinstance(error, OSError):
        return f"it cannot be started or reached: {error.strerror or 'no connection'}"
    if last_error.status is not None:
        return f"it answered with HTTP status {last_error.status}"
    what = f"it cannot be reached, or does not speak MCP ({type(error).__name__})"
    return words.after(what)
