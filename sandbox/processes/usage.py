"""The resources that a session's cell uses now."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
from pydantic import BaseModel, ConfigDict

from toolcell.core import CellLostError

from ..cell.wire.frames import Frame
from ..client.header_numbers import milliseconds, whole
from .side_channel import SideChannel

_ANSWER_SECONDS = 30.0


class CellUsage(BaseModel):
    """The resources that a session's cell uses, as its supervisor measures them."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    cpu_ms: float
    """Milliseconds of CPU time of all that ran in the cell so far."""

    memory_bytes: int
    """Bytes of memory of its processes now. Files of its work dir, /tmp and /dev/shm
    are in memory, too, and count for `memory_mib`, but not here."""

    disk_bytes: int
    """Bytes of files in its work dir now."""


@dataclass(slots=True)
class _Question:
    answered: anyio.Event = field(default_factory=anyio.Event)
    usage: CellUsage | None = None


class UsageTable:
    """Asks a cell what it uses, beside its runs.

    Args:
        frames: Leads to the cell.
    """

    def __init__(self, frames: SideChannel) -> None:
        self._frames = frames
        self._made = 0
        self._questions: dict[int, _Question] = {}
        frames.add("usage", self)

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        return bool(self._questions)

    async def ask(self) -> CellUsage:
        """Return what the cell uses now. Raises CellLostError."""
        self._made += 1
        number = self._made
        question = self._questions[number] = _Question()
        self._frames.follow()
        try:
            await self._frames.send({"type": "usage_ask", "id": number})
            with anyio.move_on_after(_ANSWER_SECONDS):
                await question.answered.wait()
        finally:
            self._questions.pop(number, None)
        if question.usage is None:
            raise CellLostError("the cell does not say what it uses")
        return question.usage

    def handle_frame(self, frame: Frame) -> None:
        """Take an answer.

        Raises:
            KeyError, TypeError, ValueError: It makes no sense.
        """
        header = frame.header
        question = self._questions.get(header["id"])
        if question is None:
            return
        question.usage = CellUsage(
            cpu_ms=milliseconds(header["cpu_ms"]),
            memory_bytes=whole(header["memory_bytes"]),
            disk_bytes=whole(header["disk_bytes"]),
        )
        question.answered.set()

    def end_all(self, _: str) -> None:
        """Leave all questions unanswered: the cell is gone."""
        for question in self._questions.values():
            question.answered.set()
