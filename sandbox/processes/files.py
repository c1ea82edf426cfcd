"""The files of a session's cell, which are moved beside its runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anyio

from toolcell.core import CellLostError

from ..cell.wire.frames import Frame
from ..client.types import CellTraits
from .beside import FramesBesideRuns

_ANSWER_SECONDS = 60.0


@dataclass(slots=True)
class _Question:
    answered: anyio.Event = field(default_factory=anyio.Event)
    frame: Frame | None = None


class FileTable:
    """Has a cell read and change files while a program may run in it.

    A question that is cancelled costs nothing but its answer.

    Args:
        frames: Leads to the cell.
        traits: What the cell's backend promises.
    """

    def __init__(self, frames: FramesBesideRuns, traits: CellTraits) -> None:
        self._frames = frames
        self._made = 0
        self._questions: dict[int, _Question] = {}
        self.traits = traits
        frames.add("file", self)

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        return bool(self._questions)

    async def ask(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a question. Raises CellLostError."""
        self._made += 1
        number = self._made
        question = self._questions[number] = _Question()
        self._frames.follow()
        try:
            asked = {**header, "type": "file_ask", "id": number}
            await self._frames.send(asked, payload)
            with anyio.move_on_after(_ANSWER_SECONDS):
                await question.answered.wait()
        finally:
            del self._questions[number]
        if question.frame is None:
            raise CellLostError("the cell does not answer")
        return question.frame.header, question.frame.payload

    def handle_frame(self, frame: Frame) -> None:
        """Take an answer. Raises KeyError if it is none."""
        question = self._questions.get(frame.header["id"])
        if question is not None:
            question.frame = frame
            question.answered.set()

    def end_all(self) -> None:
        """Leave all questions unanswered: the cell is gone."""
        for question in self._questions.values():
            question.answered.set()
