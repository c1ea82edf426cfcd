"""Pages of a server's lists, given to the MCP library in parts.

The library checks and copies a page in one step, which takes it some tenths of a second
for the largest one. Each part has its own cursor, and what asks for it is answered
here.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolcell.core.event_loop import LARGE, room_beside

from .odd_parts import PAGE, set_odd_parts_aside

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Self

    from mcp.client._transport import WriteStream
    from mcp.shared.message import SessionMessage

MAX_RESTS = 16
"""Pages whose parts are asked for at once. When it is reached the listing of the oldest
one fails."""

_LISTS = ("tools", "resources", "resourceTemplates", "prompts")
_EACH = 64
"""The room that each member of a list takes, beside its texts and values."""


@dataclass(slots=True)
class _Rest:
    """The members of a page that were not given yet."""

    name: str
    members: list[Any]
    start: int
    ends: dict[str, Any]
    """The cursor of the next page, if there is one."""


class ListParts:
    """The pages of one connection whose parts are not all asked for yet."""

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}

    def is_own(self, cursor: str) -> bool:
        """Return whether a cursor leads to the next part of a page."""
        return cursor in self._rests

    def cut(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return an answer of a server; if it is a large page, the first part of it."""
        name = next((each for each in _LISTS if isinstance(result.get(each), list)), "")
        if not name:
            return result
        ends = {"nextCursor": result["nextCursor"]} if "nextCursor" in result else {}
        return result | self._part(_Rest(name, result[name], 0, ends))

    def following(self, cursor: object) -> tuple[dict[str, Any], int] | None:
        """Return the part that a cursor leads to, and the number of members before it.

        None: the server has to be asked.
        """
        rest = self._rests.pop(cursor, None) if isinstance(cursor, str) else None
        if rest is None:
            return None
        before = rest.start
        return PAGE | self._part(rest), before

    def _part(self, rest: _Rest) -> dict[str, Any]:
        room, start, end = LARGE, rest.start, rest.start
        while end < len(rest.members) and (room > 0 or end == start):
            room = room_beside(rest.members[end], room) - _EACH
            if room > 0 or end == start:
                end += 1
        part = {rest.name: rest.members[start:end]}
        if end == len(rest.members):
            return part | rest.ends
        if len(self._rests) >= MAX_RESTS:
            del self._rests[next(iter(self._rests))]
        rest.start = end
        # No server can know it.
        cursor = secrets.token_hex()
        self._rests[cursor] = rest
        return part | {"nextCursor": cursor}


@dataclass(slots=True)
class PartsOrServer:
    """The writing end of a session: what asks for a part of a page is answered here.

    Args:
        parts: The parts.
        answer: Passes a message on to the session.
        server: Sends a message to the server.
        version: Returns the version of the protocol; None: it is not agreed on yet.
    """

    parts: ListParts
    answer: Callable[[SessionMessage], Awaitable[None]]
    server: WriteStream[SessionMessage]
    version: Callable[[], str | None]

    async def send(self, item: SessionMessage, /) -> None:
        from mcp.shared.message import SessionMessage
        from mcp.types import JSONRPCRequest, JSONRPCResponse

        message = item.message
        if isinstance(message, JSONRPCRequest) and message.params:
            part = self.parts.following(message.params.get("cursor"))
            if part is not None:
                page, before = part
                await set_odd_parts_aside(page, self.version(), before)
                answer = JSONRPCResponse(jsonrpc="2.0", id=message.id, result=page)
                await self.answer(SessionMessage(answer))
                return
        await self.server.send(item)

    async def aclose(self) -> None:
        await self.server.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
