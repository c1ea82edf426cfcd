"""Resources and prompts of MCP servers, as acts that the guard judges."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from anyio.lowlevel import checkpoint
from pydantic import JsonValue

from toolcell.core import InvalidInputError, ToolCall
from toolcell.core.event_loop import read_large
from toolcell.core.text.printable import escaped
from toolcell.guard import CallFacts
from toolcell.guard.spi import Via

from ..external.definition import MAX_DESCRIPTION_CHARACTERS, marked
from ..mcp_client.offers import Kind, MCPOffer
from ..mcp_client.results import UNNAMED_MEDIA, bare_media_type
from ..mcp_client.toolset import MCPToolset
from .components import RunContext
from .executor import ToolExecutor
from .user_questions import USER_ASK

_READ, _GET = "resource.read", "prompt.get"
MCP_ACTS = (_READ, _GET, USER_ASK)
"""The names that rules know."""

UNTRUSTED_META = "toolcell/untrusted"
"""The key in `_meta` for whose words a content is."""

_TAGS = frozenset({"mcp"})
_NOTES = frozenset({"name", "title", "description"})
_NO_RUN = RunContext()
_ADDRESSES = {_READ: "uri", _GET: "name"}


class MCPActs:
    """Reads resources and gets prompts of MCP servers, for agents.

    Each is an act with the stages of a call: `resource.read` with `server` and `uri`,
    `prompt.get` with `server`, `name` and `arguments`. The guard is asked first, and
    nothing reaches the server of one that is denied. Where a person edits an act, what
    was edited is done, at the server that it names then.

    Args:
        executor: Its guard judges the acts; its records have them.
        toolsets: The servers; open while they are asked.
    """

    def __init__(self, executor: ToolExecutor, toolsets: Iterable[MCPToolset]) -> None:
        self._executor = executor
        self._toolsets = {toolset.name: toolset for toolset in toolsets}

    @property
    def offers_any(self) -> bool:
        """True if there is something that some agent might read or get."""
        return any(toolset.offers for toolset in self._toolsets.values())

    async def listed(self, agent_id: str, kind: Kind) -> list[tuple[str, MCPOffer]]:
        """Return what an agent may ask for, each with its server.

        A template is there if the rules could allow some URI at its server, and a
        prompt if they could allow some arguments. Of what two servers that it may ask
        offer by one address it is not known which is meant, and it is left out.
        """
        found: dict[str, list[tuple[str, MCPOffer]]] = {}
        for server, toolset in self._toolsets.items():
            for offer in toolset.offers:
                await checkpoint()
                if offer.kind == kind and await self._may_ask(agent_id, server, offer):
                    found.setdefault(offer.address, []).append((server, offer))
        return [each[0] for each in found.values() if len(each) == 1]

    async def read(
        self,
        uri: str,
        *,
        agent_id: str,
        server: str | None = None,
        run: RunContext = _NO_RUN,
    ) -> list[dict[str, JsonValue]]:
        """Read a resource.

        Args:
            uri: The URI, as the server lists it or a template makes it.
            agent_id: The agent that reads.
            server: The server. None: the one that offers it.
            run: The agent's run.

        Returns:
            Contents, as MCP writes them. Their `_meta` says whose words they are.

        Raises:
            InvalidInputError: No server that the agent may ask offers it, two do, or
                its URI can be written in another way.
            GuardDeniedError: It is refused.
            ToolError: The server did not give it.
        """
        asked = await self._with_server(_READ, {"uri": uri}, agent_id, server, run.via)
        async with self._executor.operation(
            _READ, asked, agent_id=agent_id, run=run, tags=_TAGS
        ) as act:
            there: Any = act.arguments
            toolset, offer = self._find(_READ, there.get("server"), there.get("uri"))
            async with toolset.use(offer, agent_id) as connection:
                answer = await connection.read(there["uri"])
        return [_as_json(content) | _mark(toolset) for content in answer.contents]

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str],
        *,
        agent_id: str,
        server: str | None = None,
        run: RunContext = _NO_RUN,
    ) -> dict[str, JsonValue]:
        """Get a prompt.

        Args:
            name: The name that its server gives it.
            arguments: Its arguments.
            agent_id: The agent that asks for it.
            server: The server. None: the one that offers it.
            run: The agent's run.

        Returns:
            `messages` and a `description`, as MCP writes them. Each text begins with
            whose words it is.

        Raises:
            InvalidInputError: No server that the agent may ask offers it, two do, or
                the arguments do not fit.
            GuardDeniedError: It is refused.
            ToolError: The server did not give it.
        """
        given = {"name": name, "arguments": dict(arguments)}
        asked = await self._with_server(_GET, given, agent_id, server, run.via)
        async with self._executor.operation(
            _GET, asked, agent_id=agent_id, run=run, tags=_TAGS
        ) as act:
            there: Any = act.arguments
            toolset, offer = self._find(_GET, there.get("server"), there.get("name"))
            offer.check_arguments(there.get("arguments"))
            async with toolset.use(offer, agent_id) as connection:
                answer = await connection.get_prompt(there["name"], there["arguments"])
        return _marked_prompt(toolset, _as_json(answer))

    async def _with_server(
        self,
        act: str,
        given: dict[str, Any],
        agent_id: str,
        server: str | None,
        via: Via,
    ) -> dict[str, Any]:
        """Return the arguments of an act, with the server that is asked.

        What the rules deny at every server goes to the guard, which refuses it: so an
        agent does not find out whether such a thing is offered.
        """
        servers = [*self._toolsets] if server is None else [server]
        may = [
            each
            for each in servers
            if await self._may(
                agent_id, act, {"server": each, **given}, via, complete=True
            )
        ]
        if servers and not may:
            return {"server": servers[0], **given}
        try:
            alone, offer = self._only_offer(act, given[_ADDRESSES[act]], may)
            if act == _GET:
                offer.check_arguments(given["arguments"])
        except InvalidInputError as error:
            await self._record(act, given, agent_id, error)
            raise
        return {"server": alone, **given}

    async def _record(
        self, act: str, given: dict[str, Any], agent_id: str, error: InvalidInputError
    ) -> None:
        """Record what the guard was not asked for, as calls of tools are."""
        call = ToolCall(
            id=uuid.uuid4().hex, name=act, agent_id=agent_id, arguments=given
        )
        self._executor.refuse(call, error)
        guard = self._executor.guard
        if guard is not None and error.details["reason"] != "arguments":
            await guard.record_unknown(call, error.message)

    def _only_offer(
        self, act: str, address: str, servers: list[str]
    ) -> tuple[str, MCPOffer]:
        """Return the one server that offers a resource or prompt, and that."""
        found = [
            (name, offer)
            for name, toolset in self._toolsets.items()
            if name in servers and (offer := _offer_of(act, toolset, address))
        ]
        if len(found) > 1:
            raise InvalidInputError(
                f"{' and '.join(name for name, _ in found)} both offer it, and which"
                " is meant is not known",
                hint="the one who configures them can leave it out at one of them",
                details={"reason": "ambiguous"},
            )
        if not found:
            raise _not_offered(act)
        return found[0]

    def _find(
        self, act: str, server: object, address: object
    ) -> tuple[MCPToolset, MCPOffer]:
        """Return a server and what it offers; people may have edited both names."""
        for name, toolset in self._toolsets.items():
            if name == server and isinstance(address, str):
                offer = _offer_of(act, toolset, address)
                if offer is not None:
                    return toolset, offer
        raise _not_offered(act)

    async def _may_ask(self, agent_id: str, server: str, offer: MCPOffer) -> bool:
        """Return whether the rules could allow an agent to ask for it."""
        act = _GET if offer.kind == "prompt" else _READ
        known: dict[str, JsonValue] = {"server": server}
        if offer.kind != "template":
            known[_ADDRESSES[act]] = offer.address
        is_whole = offer.kind == "resource"
        return await self._may(agent_id, act, known, complete=is_whole)

    async def _may(
        self,
        agent_id: str,
        act: str,
        known: Mapping[str, JsonValue],
        via: Via = "model",
        *,
        complete: bool,
    ) -> bool:
        guard, facts = self._executor.guard, CallFacts(tags=_TAGS, via=via)
        if guard is None:
            return True
        ask = partial(guard.may_allow, agent_id, act, facts, known, complete=complete)
        return await read_large(agent_id, known, ask)


def _offer_of(act: str, toolset: MCPToolset, address: str) -> MCPOffer | None:
    """Return the resource before the template that has its URI, or the prompt."""
    if act == _GET:
        fit = [o for o in toolset.offers if (o.kind, o.address) == ("prompt", address)]
    else:
        fit = [offer for offer in toolset.offers if offer.covers(address)]
    return min(fit, key=lambda offer: offer.kind == "template", default=None)


def _not_offered(act: str) -> InvalidInputError:
    return InvalidInputError(
        "no server offers that, as it is written",
        hint="take one of the list; of a URI there is one writing"
        if act == _READ
        else "take one of the list",
        details={"reason": "not_offered"},
    )


def _as_json(answer: Any) -> dict[str, Any]:
    shown: dict[str, Any] = answer.model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    return shown


def _author(toolset: MCPToolset) -> str:
    return f"MCP server {toolset.name}"


def _mark(toolset: MCPToolset) -> dict[str, JsonValue]:
    return {"_meta": {UNTRUSTED_META: marked(_author(toolset), "")}}


def _marked_prompt(toolset: MCPToolset, prompt: dict[str, Any]) -> dict[str, JsonValue]:
    """Return a prompt whose texts say whose words they are."""
    author = _author(toolset)
    messages: list[JsonValue] = []
    for message in prompt["messages"]:
        content = message["content"] | _mark(toolset)
        # An embedded resource has its text one level deeper.
        for level in (content, content.get("resource", {})):
            _mark_texts(author, level)
        messages.append({"role": message["role"], "content": content})
    about = _marked_note(author, prompt.get("description", ""))
    return {"description": about, "messages": messages}


def _mark_texts(author: str, content: dict[str, Any]) -> None:
    """Mark the texts of a content, and cut what is said about it as in lists."""
    if "text" in content:
        content["text"] = marked(author, content["text"])
    for name in _NOTES & content.keys():
        content[name] = _marked_note(author, content[name])
    if "mimeType" in content:
        content["mimeType"] = bare_media_type(content["mimeType"]) or UNNAMED_MEDIA


def _marked_note(author: str, text: str) -> str:
    return marked(author, escaped(text, MAX_DESCRIPTION_CHARACTERS))
