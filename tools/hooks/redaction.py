"""Hides secrets in what tools return before a model reads it."""

from __future__ import annotations

from pydantic import JsonValue

from toolcell.guard import Redactor

from .hook import Hook, Invocation, Proceed


class RedactionHook(Hook):
    """Passes content through a redactor.

    Args:
        redactor: Give it the secrets that you know; by form it finds only some.
    """

    def __init__(self, redactor: Redactor | None = None) -> None:
        self._redactor = Redactor() if redactor is None else redactor

    async def around(self, invocation: Invocation, proceed: Proceed) -> JsonValue:
        return self._redactor(await proceed())
