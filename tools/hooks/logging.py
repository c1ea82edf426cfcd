"""One line of log before a tool runs, and one after it."""

from __future__ import annotations

import json
import logging
import time

from pydantic import JsonValue

from toolcell.core import ToolcellError
from toolcell.guard import Redactor

from .hook import Hook, Invocation, Proceed


class LoggingHook(Hook):
    """Logs runs as JSON, redacted; text of a model cannot break the line.

    Args:
        logger: The logger; default: `toolcell.tools`.
        level: Of both lines, by default INFO; failures are logged one level higher.
        redactor: Hides secrets in arguments.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        level: int = logging.INFO,
        redactor: Redactor | None = None,
    ) -> None:
        self._logger = logger or logging.getLogger("toolcell.tools")
        self._level = level
        self._redactor = Redactor() if redactor is None else redactor

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        call = invocation.call
        fields: dict[str, JsonValue] = {
            "call_id": call.id,
            "tool": invocation.tool.name,
            "agent_id": call.agent_id,
            "attempt": invocation.attempt,
        }
        arguments = self._redactor(invocation.arguments.json)
        self._log(self._level, "started", {**fields, "arguments": arguments})
        began = time.perf_counter()
        try:
            content = await proceed()
        except BaseException as error:
            kind = error.kind if isinstance(error, ToolcellError) else _name(error)
            fields |= {"error": kind, "duration_ms": _since(began)}
            self._log(self._level + 10, "failed", fields)
            raise
        self._log(self._level, "ended", {**fields, "duration_ms": _since(began)})
        return content

    def _log(self, level: int, event: str, fields: dict[str, JsonValue]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "tool %s %s", event, json.dumps(fields))


def _name(error: BaseException) -> str:
    return type(error).__name__


def _since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 3)
