"""The files of a session's cell, which are moved beside its runs."""

from __future__ import annotations

from typing import Any

import anyio

from toolcell.core import CellLostError

from ..cell.wire.frames import Frame
from ..client.types import CellTraits
from .side_channel import SideChannel

_ANSWER_SECONDS = 60.0


class FileTable:
    """Has a cell read and change files while a program may run in it.

    Whoever asks reads the channel: a task for each answer would take longer than it. A
    question that is cancelled costs nothing but its answer.

    Args:
        frames: Leads to the cell.
        traits: What the cell's backend promises.
    """

    def __init__(self, frames: SideChannel, traits: CellTraits) -> None:
        self._frames = frames
        self._made = 0
        self._answers: dict[int, Frame | None] = {}
        self._given_up: set[int] = set()
        self.traits = traits
        frames.add("file", self)

    @property
    def is_busy(self) -> bool:
        """True while the cell owes an answer."""
        return bool(self._answers)

    async def ask(
        self, header: dict[str, Any], payload: bytes | memoryview = b""
    ) -> tuple[dict[str, Any], bytes]:
        """Return the answer to a question. Raises CellLostError."""
        self._made += 1
        number = self._made
        self._answers[number] = None
        try:
            with anyio.move_on_after(_ANSWER_SECONDS):
                asked = {**header, "type": "file_ask", "id": number}
                await self._frames.send(asked, payload)
                while (answer := self._answers.get(number)) is None:
                    await self._frames.read_more()
                del self._answers[number]
                return answer.header, answer.payload
        except BaseException:
            self._give_up(number)
            raise
        raise CellLostError("the cell does not answer")

    def _give_up(self, number: int) -> None:
        """Drop an answer, now or when it comes."""
        if self._answers.get(number) is not None:
            del self._answers[number]
        else:
            self._given_up.add(number)
            self._frames.follow()

    def handle_frame(self, frame: Frame) -> None:
        """Take an answer. Raises KeyError if it has no request."""
        number = frame.header["id"]
        if number in self._given_up:
            self._given_up.remove(number)
            del self._answers[number]
        elif number in self._answers:
            self._answers[number] = frame

    def end_all(self, _: str) -> None:
        """Fail all pending requests: the cell is gone."""
        self._answers.clear()
        self._given_up.clear()
