"""What the guard asks of whoever asks people."""

from __future__ import annotations

from typing import Protocol

from toolcell.core import ToolCall

from .audit import AuditLog
from .decision import Decision
from .facts import CallFacts


class Answer(Protocol):
    """What a person said about a call."""

    @property
    def approved(self) -> bool: ...

    @property
    def status(self) -> str:
        """`approved`, `rejected` or `unanswered`."""

    @property
    def reason(self) -> str: ...

    @property
    def approver(self) -> str | None: ...

    @property
    def call(self) -> ToolCall:
        """The call to run: as asked, or as the person changed it."""


class Approver(Protocol):
    """Asks people, and remembers what they said."""

    audit: AuditLog | None

    async def ask(
        self,
        call: ToolCall,
        facts: CallFacts,
        decision: Decision,
        *,
        wait_seconds: float | None = None,
    ) -> Answer: ...

    async def peek(self, call: ToolCall, facts: CallFacts) -> Answer: ...

    async def use(self, answer: Answer) -> bool: ...
