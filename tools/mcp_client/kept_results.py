"""Large results of a server over HTTP, kept while the MCP library reads the rest."""

from __future__ import annotations

import secrets
from typing import Any

from pydantic_core import from_json, to_json

from toolcell.core.event_loop import LARGE

MAX_KEPT_BYTES = 33_554_432
"""Bytes of messages whose results the MCP library has not passed on yet. When it is
exceeded the oldest ones are lost, and their requests fail; the newest is kept."""

_KEPT = "toolcell/result"
# The last name counts; without one an event is a message.
_OF_MESSAGES = (b"event", b"event:", b"event: ", b"event:message", b"event: message")


class KeptResults:
    """Large results, while the MCP library reads their messages without them.

    It validates the text of a message, which takes six times as long as to parse it.
    """

    def __init__(self) -> None:
        self._results: dict[str, tuple[dict[str, Any], int]] = {}
        self._bytes = 0

    def keep(self, message: bytes) -> bytes:
        """Return a message in JSON, without its result if that is large."""
        if len(message) < LARGE:
            return message
        try:
            read = from_json(message)
        except ValueError:
            return message
        if not isinstance(read, dict) or not isinstance(read.get("result"), dict):
            return message
        self._bytes += len(message)
        while self._results and self._bytes > MAX_KEPT_BYTES:
            oldest = next(iter(self._results))
            self._bytes -= self._results.pop(oldest)[1]
        # No server can know it.
        key = secrets.token_hex()
        self._results[key] = read["result"], len(message)
        return to_json({**read, "result": {_KEPT: key}})

    def keep_of_event(self, event: bytes) -> bytes:
        """Return an event that carries a message, without a large result of it."""
        if len(event) < LARGE:
            return event
        lines = [line for line in event.splitlines() if line]
        names = [line for line in lines if line.partition(b":")[0] == b"event"]
        # The library drops all others, and nobody takes their results.
        if names and names[-1] not in _OF_MESSAGES:
            return event
        data = [line for line in lines if line.startswith(b"data:")]
        message = b"\n".join(line[5:].removeprefix(b" ") for line in data)
        small = self.keep(message)
        if small is message:
            return event
        others = [line for line in lines if not line.startswith(b"data:")]
        return b"\n".join([*others, b"data: " + small, b"", b""])

    def take(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result that was kept in place of this one, or this one."""
        key = result.get(_KEPT)
        if not isinstance(key, str):
            return result
        kept, size = self._results.pop(key, (result, 0))
        self._bytes -= size
        return kept
