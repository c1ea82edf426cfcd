"""Handlers, which answer questions in the process that runs the thread."""

from __future__ import annotations

import logging
from typing import Any

from .interrupt import InterruptValue

_log = logging.getLogger("toolcell.flow")


class InterruptHandler:
    """Answers questions while their thread runs, before it pauses.

    Subclass it: a prompt on a terminal, a web page, a queue. Several questions are
    handed to it at once. An exception that it raises is logged, and the question
    remains open.
    """

    async def can_handle(self, interrupt: InterruptValue) -> bool:
        """Return whether it answers this one; by default all."""
        return True

    async def handle(self, interrupt: InterruptValue) -> Any:
        """Return the answer, a JSON value that fits `answer_schema`."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the handler in the history of the threads that it answered."""
        return f"handler:{type(self).__name__}"


class AutoApproveHandler(InterruptHandler):
    """Answers every question with the same value; for tests and pipelines.

    A Flow of the profile `production` refuses it. Each use is logged. It does not
    answer doubts: nobody has looked whether the call took effect.

    Args:
        response: The answer.
        by: The name of who is responsible for the answers.
    """

    def __init__(self, response: Any = "approved", *, by: str) -> None:
        self.response = response
        self.by = by

    async def can_handle(self, interrupt: InterruptValue) -> bool:
        return interrupt.kind == "question"

    async def handle(self, interrupt: InterruptValue) -> Any:
        _log.warning(
            "a question was answered without a person: %s of node %s, for %s",
            *(interrupt.interrupt_id, interrupt.node_id, self.by),
        )
        return self.response

    @property
    def name(self) -> str:
        """The name of the handler in the history of the threads that it answered."""
        return f"auto:{self.by}"
